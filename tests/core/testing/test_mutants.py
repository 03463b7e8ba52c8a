"""Every law has mutants that break exactly it, and what is sound passes."""

from typing import Any

import pytest
from mutants import combiners, data, encoders, engines, general, heads, losses, metrics, plugins, samplers, trackers

from taskloom.core.testing import broken_laws, check
from taskloom.core.testing import engines as kit_of_engines
from taskloom.core.testing.law import LAWS

#: Kind → law → what breaks exactly it: a class or module, or a class with options.
MUTANTS: dict[str, dict[str, list[Any]]] = {
    "combiner": combiners.MUTANTS,
    "component": general.MUTANTS,
    "data": data.MUTANTS,
    "encoder": encoders.MUTANTS,
    "engine": engines.MUTANTS,
    "grid": plugins.GRIDS,
    "head": heads.MUTANTS,
    "loss": losses.MUTANTS,
    "metric": metrics.MUTANTS,
    "plugin": plugins.MUTANTS,
    "sampler": samplers.MUTANTS,
    "tracker": trackers.MUTANTS,
}
SOUND = [
    pytest.param(one, options, id=f"{getattr(one, '__name__', '')}{options or ''}")
    for module in (combiners, data, encoders, general, heads, losses, metrics, plugins, samplers, trackers)
    for one, options in module.SOUND
]
CASES = [
    pytest.param(mutant, law, id=f"{kind}: {law}-{place}")
    for kind, table in MUTANTS.items()
    for law, mutants in table.items()
    for place, mutant in enumerate(mutants)
]


@pytest.mark.parametrize(("mutant", "law"), CASES)
def test_a_mutant_breaks_exactly_one_law(mutant: Any, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_of_engines, "OUTLIVED", 2 * kit_of_engines.QUIET)
    target, options = mutant if isinstance(mutant, tuple) else (mutant, {})
    assert broken_laws(target, **options) == [law]


@pytest.mark.parametrize("kind", LAWS)
def test_every_law_has_a_mutant(kind: str) -> None:
    assert MUTANTS[kind].keys() == {law.name for law in LAWS[kind]}


@pytest.mark.parametrize(("sound", "options"), SOUND)
def test_what_is_sound_passes(sound: Any, options: dict[str, Any]) -> None:
    check(sound, **options)
