"""For every law of engines, trackers, grids and whole plugins, one that breaks it and is caught."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import taskloom.plugins.losses
import taskloom.plugins.metrics
from taskloom.core import ENDS, Component, Event, Job, hookimpl
from taskloom.core.testing import broken_laws, check, engines, general, laws
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.losses import MSE, CrossEntropy
from taskloom.runs import grids

LAWS = {(kind, law.name): law for kind in ("engine", "tracker", "grid", "plugin") for law in laws(kind)}
MUTANTS: list[tuple[Any, str, str]] = []  # what is wrong, kind, law


def breaks(kind: str, *names: str) -> Callable[[Any], Any]:
    def mark(mutant: Any) -> Any:
        MUTANTS.extend((mutant, kind, name) for name in names)
        return mutant

    return mark


# Engines


@breaks("engine", "every job ends with exactly one event")
class EndsTwice(Inline):
    """Says every end twice."""

    def poll(self, seconds: float) -> list[Event]:
        found = super().poll(seconds)
        return [*found, *(event for event in found if event.what in ENDS)]


@breaks("engine", "events of a job come in order and whole")
class DropsLogs(Inline):
    """Passes on every second log line."""

    def poll(self, seconds: float) -> list[Event]:
        found = super().poll(seconds)
        return [event for event in found if event.what != "log" or event.facts["step"] % 2]


@breaks("engine", "a job that raises fails alone")
class Wordless(Inline):
    """Does not say why a job failed."""

    def poll(self, seconds: float) -> list[Event]:
        found = super().poll(seconds)
        return [Event(e.what, e.cell, {} if e.what == "failed" else e.facts, e.fence) for e in found]


@breaks("engine", "events carry the fence of their job")
class Unfenced(Inline):
    """Loses the fence."""

    def poll(self, seconds: float) -> list[Event]:
        return [Event(event.what, event.cell, event.facts) for event in super().poll(seconds)]


@breaks("engine", "it says how many jobs it takes")
class AlwaysFree(Inline):
    """Takes any number of jobs, it says."""

    @property
    def free(self) -> int:
        return 1


@breaks("engine", "an idle engine reports nothing")
class Chatters(Inline):
    """Reports of a job that nobody submitted."""

    def poll(self, seconds: float) -> list[Event]:
        return super().poll(seconds) or [Event("log", "nobody")]


@breaks("engine", "it says in a line where it runs")
class Verbose(Inline):
    """Has too much to say."""

    def describe(self) -> str:
        return "here\nand there"


@breaks("engine", "a job that is asked to stop is interrupted")
class StopsHard(Inline):
    """Ends a job at once where it should ask."""

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        super().stop(cell, at_once=True)


@breaks("engine", "a job that is stopped at once is lost")
class StopsSoftly(Inline):
    """Asks a job where it should end it."""

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        super().stop(cell)


@breaks("engine", "closing twice does no harm")
class ClosesOnce(Inline):
    """Cannot be closed twice."""

    def close(self) -> None:
        super().close()
        del self._aside


@breaks("engine", "closing ends what still runs")
class LeavesThem(Inline):
    """Closes when there is nothing to end."""

    def close(self) -> None:
        if self.free:
            super().close()


# Trackers


def tracker(**hooks: Callable[..., None]) -> SimpleNamespace:
    return SimpleNamespace(**{f"taskloom_{name}": hookimpl(function) for name, function in hooks.items()})


def _missing_fact(facts: dict[str, Any]) -> None:
    facts["loss"]


def _smallest_loss(facts: dict[str, Any]) -> None:
    min(facts["losses"].values())


def _unmade(reason: str) -> None:
    raise SystemExit(reason)


def _restarted() -> Callable[[str], None]:
    seen: set[str] = set()

    def started(cell: str) -> None:
        if cell in seen:
            raise RuntimeError("this cell runs already")
        seen.add(cell)

    return started


def _by_label() -> SimpleNamespace:
    runs: dict[str, str] = {}

    def started(cell: str, label: str) -> None:
        runs[label] = cell

    def finished(label: str) -> None:
        del runs[label]

    return tracker(run_started=started, run_finished=finished)


def _rounded(facts: dict[str, Any]) -> None:
    facts["seconds"] = 0


def _draws(cell: str) -> None:
    random.random()


def _prints(cell: str) -> None:
    print(cell)


breaks("tracker", "it takes every event of a run")(tracker(epoch_ended=_missing_fact))
breaks("tracker", "it takes every event of a run that fails")(tracker(run_failed=_unmade))
breaks("tracker", "it takes a run without epochs or scores")(tracker(epoch_ended=_smallest_loss))
breaks("tracker", "it takes a run that goes on from a checkpoint")(tracker(run_started=_restarted()))
breaks("tracker", "it keeps two cells apart")(_by_label())
breaks("tracker", "it leaves what it is told as it is")(tracker(epoch_ended=_rounded))
breaks("tracker", "it touches no global random state")(tracker(run_started=_draws))
breaks("tracker", "it prints nothing")(tracker(run_started=_prints))


# Grids and plugins


def grid(name: str, text: str) -> Callable[[Path], SimpleNamespace]:
    def plugin(folder: Path) -> SimpleNamespace:
        (folder / name).write_text(text, encoding="utf-8")
        return SimpleNamespace(taskloom_grids=hookimpl(lambda: [folder / name]))

    return plugin


BASE = {"tasks": {"sst": {"data": "generated"}}}
breaks("grid", "its files are json")(grid("broken.json", "{"))
breaks("grid", "its files have names that users can type")(grid("My Grid.json", json.dumps({"base": BASE})))
breaks("grid", "its grids have the form of grids")(grid("a.json", json.dumps({"base": BASE, "axis": {}})))
breaks("grid", "its grids have the form of grids")(grid("b.json", json.dumps({"base": {**BASE, "epochs": 3}})))
breaks("grid", "its grids say what they are")(grid("c.json", json.dumps({"base": BASE})))


class AlsoMSE(CrossEntropy):
    """Has the name of another."""

    name = "mse"


def plugin(**hooks: Callable[[], Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


breaks("plugin", "its hooks are those of taskloom")(plugin(taskloom_lossess=lambda: [MSE]))
breaks("plugin", "its hooks are those of taskloom")(SimpleNamespace(taskloom_components=lambda: [MSE]))
breaks("plugin", "its components are whole classes of a kind")(plugin(taskloom_components=lambda: [Component]))
breaks("plugin", "no two components of a kind have one name")(plugin(taskloom_components=lambda: [MSE, AlsoMSE]))


@pytest.mark.parametrize(("mutant", "kind", "law"), MUTANTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_mutant_is_caught(mutant: Any, kind: str, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LIMIT", 2.0)
    monkeypatch.setattr(engines, "OUTLIVED", 2 * engines.QUIET)
    target = mutant(tmp_path) if kind == "grid" else mutant
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[kind, law](target)


def test_every_law_has_a_mutant() -> None:
    own = {key for key, law in LAWS.items() if law.holds not in general.LAWS}
    assert own == {(kind, law) for _, kind, law in MUTANTS}


def test_a_job_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(Inline):
        """Does not hear its jobs."""

        name = "deaf"

        def poll(self, seconds: float) -> list[Event]:
            return []

        def submit(self, job: Job) -> None:
            pass

    monkeypatch.setattr(engines, "LIMIT", 0.01)
    with pytest.raises(AssertionError, match=r"after 0\.01 s without an event, \('a',\) have no 'end'"):
        check(Deaf)


@pytest.mark.parametrize("module", [taskloom.plugins.metrics, grids], ids=lambda module: module.__name__)
def test_a_whole_module_passes(module: ModuleType) -> None:
    check(module)


def test_a_module_is_held_to_all_that_it_brings() -> None:
    class Unreduced(MSE):
        """Forgets to take the mean."""

        name = "unreduced"

        def forward(self, prediction: Any, target: Any) -> Any:
            return (prediction.score - target).square()

    bad = plugin(taskloom_components=lambda: [MSE, Unreduced])
    bad.taskloom_epoch_ended = hookimpl(_missing_fact)
    with pytest.raises(AssertionError) as caught:
        check(bad, mse=[{}, {"target": "scaled"}])
    assert "loss 'unreduced' breaks the law 'it is one finite number'" in str(caught.value)
    assert "plugin 'SimpleNamespace'" in str(caught.value)
    assert "taskloom_epoch_ended" in str(caught.value)
    assert "it takes every event of a run" in broken_laws(bad)
    with pytest.raises(TypeError, match=r"no component 'msa'; did you mean 'mse'\? \(in the plugin: mse, unreduced\)"):
        check(bad, msa={})


def test_components_that_are_required_are_given_by_the_kit() -> None:
    wrapping: list[type[Component]] = [
        one for one in taskloom.plugins.losses.taskloom_components() if one.name in ("total", "smart")
    ]
    assert len(wrapping) == 2
    check(plugin(taskloom_components=lambda: wrapping))


def test_what_is_neither_class_nor_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"check takes a component class or a plugin's module\. Found 'mse'"):
        check("mse")
