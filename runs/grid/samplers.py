"""What draws the settings of a search: one design for all rows, or Optuna for each row apart."""

import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from taskloom.core.errors import unknown
from taskloom.core.specs import ComponentSpec, RangeSpec

#: Path → list of values or range of numbers.
Over = Mapping[str, list[Any] | RangeSpec]
#: The scores of the first trials, in their order; None for one that failed.
Scores = Sequence[float | None]
#: Returns the settings to try: those of fewer trials are the first of those of more.
Sampler = Callable[..., list[dict[str, Any]]]
#: Digits of a number that is drawn from a range, so that another machine's logarithm gives the same cell.
DIGITS = 6
#: Draws per combination of listed values before those that are still missing are added in order.
PATIENCE = 50
#: Trials that Optuna draws at random before it goes by scores; its own default is more than most rows have.
STARTUP = 4


def design(over: Over, trials: int, seed: int, scores: Scores = ()) -> list[dict[str, Any]]:
    """Settings from a low-discrepancy sequence: scrambled Halton, a dimension per path.

    Paths that come first have the same values whatever comes after them: no combination of the first lists is drawn
    again before all of them were drawn. Of lists alone there are no more trials than combinations.
    """
    import numpy as np
    from scipy.stats import qmc  # slow to import

    lists = [*itertools.takewhile(lambda path: isinstance(over[path], list), over)]
    firsts = [lists[:number] for number in range(1, len(lists) + 1)]
    sizes = [math.prod(len({*map(json.dumps, over[path])}) for path in first) for first in firsts]
    combinations = sizes[-1] if len(lists) == len(over) else None
    wanted = trials if combinations is None else min(trials, combinations)
    sequence = qmc.Halton(len(over), scramble=True, seed=np.random.default_rng(seed))
    settings: dict[str, dict[str, Any]] = {}
    before: list[set[str]] = [set() for _ in firsts]  # the combinations of each of the first lists
    for _ in range(PATIENCE * (combinations or trials)):
        if len(settings) == wanted:
            break
        drawn = {path: _value(over[path], share) for path, share in zip(over, sequence.random(1)[0], strict=True)}
        keys = [_key(drawn, first) for first in firsts]
        if not any(key in known and len(known) < size for key, known, size in zip(keys, before, sizes, strict=True)):
            settings.setdefault(_key(drawn, over), drawn)
            for key, known in zip(keys, before, strict=True):
                known.add(key)
    if combinations is not None:
        for values in itertools.product(*over.values()) if len(settings) < wanted else ():
            drawn = dict(zip(over, values, strict=True))
            settings.setdefault(_key(drawn, over), drawn)
    return list(settings.values())[:wanted]


def _key(settings: Mapping[str, Any], paths: Iterable[str]) -> str:
    return json.dumps([settings[path] for path in paths])


def ask_optuna(over: Over, trials: int, seed: int, scores: Scores = (), **options: Any) -> list[dict[str, Any]]:
    """Settings that Optuna's TPE sampler asks for, as far as it is told the scores of the trials before.

    ``options`` are those of ``optuna.samplers.TPESampler``.
    """
    import optuna  # slow to import

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(**{"n_startup_trials": STARTUP, **options, "seed": seed % 2**32})
    study = optuna.create_study(sampler=sampler, direction="maximize")
    settings = []
    for number in range(min(trials, len(scores) + 1)):
        trial = study.ask()
        settings.append({path: _asked(trial, path, values) for path, values in over.items()})
        if number < len(scores):
            failed = optuna.trial.TrialState.FAIL if scores[number] is None else None
            study.tell(trial, scores[number], state=failed)
    return settings


def _asked(trial: Any, path: str, values: list[Any] | RangeSpec) -> Any:
    """The value that a trial of Optuna suggests for a path."""
    if isinstance(values, list):
        return values[trial.suggest_categorical(path, range(len(values)))]
    low, high = values.bounds
    return _rounded(trial.suggest_float(path, low, high, log=values.log is not None), values)


#: What may draw settings, by name.
SAMPLERS: dict[str, Sampler] = {"design": design, "optuna": ask_optuna}


def sampler_problem(sampler: ComponentSpec) -> str:
    """What is wrong with the sampler of a search; "" if nothing is."""
    if sampler.name not in SAMPLERS:
        return unknown("sampler", sampler.name, SAMPLERS, where="samplers")
    options: Mapping[str, Any] = sampler.model_extra or {}
    try:
        allowed = _options_of_optuna() if sampler.name == "optuna" else []
    except ImportError:
        return f"the sampler {sampler.name!r} needs a package: pip install 'taskloom[{sampler.name}]'"
    for option in options:
        if option not in allowed:
            return f"{sampler.name!r} has {unknown('option', option, allowed, where='options')}"
    for startup in ({}, {"n_startup_trials": 1}) if options else ():  # drawn at random, and by scores
        try:
            SAMPLERS[sampler.name]({"value": [0, 1]}, 3, 0, (0.0, 1.0), **{**options, **startup})
        except (TypeError, ValueError) as error:
            return f"{sampler.name!r} cannot draw settings with {json.dumps(options)}: {error}"
    return ""


def _options_of_optuna() -> list[str]:
    """The options of Optuna's TPE sampler that JSON can state; a search has a seed of its own."""
    import optuna  # slow to import

    parameters = inspect.signature(optuna.samplers.TPESampler).parameters.values()
    return [option.name for option in parameters if option.name != "seed" and "Callable" not in str(option.annotation)]


def _value(values: list[Any] | RangeSpec, share: float) -> Any:
    """The value at a share, 0 to 1, of a list or of a range."""
    if isinstance(values, list):
        return values[min(int(share * len(values)), len(values) - 1)]
    low, high = values.bounds
    value = low + share * (high - low) if values.log is None else low * (high / low) ** share
    return _rounded(value, values)


def _rounded(value: float, values: RangeSpec) -> float:
    """A number of a range with few digits."""
    low, high = values.bounds
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)
