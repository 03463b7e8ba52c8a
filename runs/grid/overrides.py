"""What the command line lays over a whole grid: where data are, other weights, any setting; a smoke run; some rows.

Everything here works on variants, the rows of a grid before they are resolved, so a cell's recorded specification and
identity say what was really run.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from taskloom.core import DataError, DataSet, Problem, RequestError, unknown
from taskloom.core.specs import RunSpec, plain
from taskloom.registry.results.records import OVERRIDES
from taskloom.runs.grid.expansion import Expansion, Variant, copied
from taskloom.runs.grid.paths import PathError, assign, values_at
from taskloom.runs.grid.smoke import make_tiny, smoke_grid

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

#: Where the first is asked for and only the second is there, the second has data of the same form.
STAND_INS = {"snli": "sick"}


@dataclass(frozen=True)
class Overrides:
    """What to lay over a grid; nothing by default.

    ``data`` is a folder that holds the data sets, ``weights`` replaces the encoder's, ``epochs`` is the most that a
    stage may have, ``settings`` are paths with their new values, ``only`` are patterns of the rows to run, ``smoke``
    makes every run tiny.
    """

    data: Path | None = None
    weights: str | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    smoke: bool = False


def override(rows: Expansion, overrides: Overrides, catalogue: "Catalogue") -> Expansion:
    """Lay overrides over every row; a request that cannot be meant is a ``RequestError``."""
    grid, variants = rows.grid, rows.variants
    if overrides == Overrides(only=overrides.only):
        return replace(rows, variants=_choose(variants, overrides.only))
    settings: list[str] = []
    notes: list[str] = []
    complete = [_complete(variant.spec) for variant in variants]
    specs = [spec for spec in complete if spec is not None]  # what is not valid stays, for the plan to report
    if overrides.smoke:
        _refuse_with_smoke(overrides)
        grid = smoke_grid(grid)
        for spec in specs:
            make_tiny(spec, catalogue)
        settings.append("smoke: a few steps on generated text with a tiny untrained encoder; the figures mean nothing")
    if overrides.data is not None:
        notes += _use_folder(overrides.data, specs, catalogue)
    before = copied(complete)
    if overrides.epochs is not None:
        for stage in (stage for spec in specs for stage in spec["stages"]):
            stage["epochs"] = min(stage["epochs"], overrides.epochs)
        settings.append(f"at most {overrides.epochs} epoch{'' if overrides.epochs == 1 else 's'} per stage")
    weights = {} if overrides.weights is None else {"encoder.weights": overrides.weights}
    for path, value in (weights | dict(overrides.settings)).items():
        _assign_everywhere(specs, path, value)
        settings.append(f"{path} = {json.dumps(value)}")
    lost = [one.label for one, old, new in zip(variants, before, complete, strict=True) if _loses(one, old, new)]
    if lost:
        notes.append(f"other values than the grid's own in {quoted(lost)}: labels may no longer fit")
    if settings or notes:
        grid = replace(grid, raw={**grid.raw, OVERRIDES: [*settings, *notes]})
    changed = [replace(one, spec=spec or one.spec) for one, spec in zip(variants, complete, strict=True)]
    return replace(rows, grid=grid, variants=_choose(changed, overrides.only), notes=notes)


def quoted(labels: list[str]) -> str:
    """Labels of rows, the first few, as they read in a sentence.

    >>> quoted(["sum, lr=1", "pcgrad, lr=1"])
    "'sum, lr=1', 'pcgrad, lr=1'"
    """
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(map(repr, labels[:3])) + more


def _refuse_with_smoke(overrides: Overrides) -> None:
    given = [name for name in ("data", "weights") if getattr(overrides, name) is not None]
    if given:
        text = "a smoke run has its own text and encoder; leave out one of the two"
        raise RequestError("--smoke", [Problem("", f"{text}. Found --smoke with --{' and --'.join(given)}.")])


def _assign_everywhere(specs: list[dict[str, Any]], path: str, value: Any) -> None:
    """Set a value in every run that has the place; it is an error if none has."""
    if path.split(".")[0] == "seed":
        raise RequestError("--set", [Problem(path, 'seeds should be listed under "seeds" in the grid')])
    failed: list[str] = []
    for spec in specs:
        try:
            trial = copied(spec)
            assign(trial, path, copied(value))
        except PathError as error:
            failed.append(str(error))
        else:
            spec.update(trial)
    if specs and len(failed) == len(specs):
        raise RequestError("--set", [Problem(path, failed[0])])


def _complete(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The run with the specs' defaults written out, so that paths lead somewhere; None if it is not valid."""
    try:
        return plain(RunSpec.model_validate(spec))
    except ValidationError:
        return None


def _loses(variant: Variant, old: dict[str, Any] | None, new: dict[str, Any] | None) -> bool:
    """Whether a row no longer has what the grid sets for it."""
    new = _complete(new or {})
    if old is None or new is None:
        return False
    try:
        return any(values_at(old, path) != values_at(new, path) for path in variant.settings)
    except PathError:
        return False


def _choose(variants: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    """Mark the rows that any pattern fits; without patterns all."""
    if not patterns:
        return variants
    labels = [variant.label for variant in variants]
    chosen: set[str] = set()
    problems: list[Problem] = []
    for pattern in patterns:
        found = {label for label in labels if label == pattern or fnmatchcase(label, pattern)}
        if not found:
            problems.append(Problem("", unknown("row", pattern, labels, where="rows")))
        chosen |= found
    if problems:
        raise RequestError("--only", problems)
    return [replace(one, chosen=one.label in chosen) for one in variants]


def _use_folder(folder: Path, specs: list[dict[str, Any]], catalogue: "Catalogue") -> list[str]:
    """Point every data set that has an option ``dir`` at its files, in place: in the folder, or in one of its name.

    Returns what a reader of the results should know.
    """
    home = folder.expanduser().absolute()
    if not home.is_dir():
        raise RequestError("--data", [Problem("", f"{folder} is not a folder")])
    names = [name for name in catalogue.names("data") if "dir" in catalogue.get("data", name).options]
    notes: list[str] = []
    for task in (task for spec in specs for task in spec["tasks"].values()):
        data = task["data"]
        if data["name"] not in names:
            continue
        found = _found_in(home, data, catalogue)
        other = STAND_INS.get(data["name"])
        if found is None and other is not None:
            found = _found_in(home, {**data, "name": other}, catalogue)
            if found is not None:
                notes.append(f"{other} in place of {data['name']}, which is not in the data folder")
        # Where nothing is found the plan says what it looked for, and where.
        task["data"] = found or {**data, "dir": str(home)}
    return list(dict.fromkeys(notes))


def _found_in(home: Path, data: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any] | None:
    """The data set with the folder in which it finds its files, or None."""
    for folder in (home, *sorted(home.glob(f"{data['name']}*/"))):
        candidate = {**data, "dir": str(folder)}
        made, _ = catalogue.try_out(DataSet, candidate)
        with suppress(DataError):
            if made is not None:  # else its options are wrong, which the plan reports
                made.fingerprint()
                return candidate
    return None
