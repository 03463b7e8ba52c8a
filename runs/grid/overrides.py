"""What the command line lays over a whole grid: where data are, other weights, any setting; a smoke run; some rows.

Everything here works on variants, the rows of a grid before they are resolved, so a cell's recorded specification and
identity say what was really run.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from taskloom.core import DataError, DataSet, Problem, RequestError, unknown
from taskloom.core.specs import RunSpec, plain
from taskloom.registry.results.records import ADDED_SEEDS, OVERRIDES
from taskloom.runs.grid.expansion import Expansion, Variant, copied
from taskloom.runs.grid.grid import Grid
from taskloom.runs.grid.paths import PathError, assign

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

#: Where the first is asked for and only the second is there, the second has data of the same form.
STAND_INS = {"snli": "sick"}
#: A smoke run is recorded under a name of its own.
SUFFIX = "-smoke"
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 512, "max_length": 64}
#: Options of the grid's own encoder that a smoke run keeps, where they are what ``minbert`` takes.
KEPT = {"pooling": ("pooler", "cls", "mean", "max"), "trainable": (True, False)}
SIZES = {"size": 32, "dev_size": 16, "test_size": 4}
ITERATIONS = 4


@dataclass(frozen=True)
class Overrides:
    """What to lay over a grid; nothing by default.

    ``data`` is a folder that holds the data sets, ``weights`` replaces the encoder's, ``epochs`` is the most that a
    stage may have, ``settings`` are paths with their new values, ``only`` are patterns of the rows to run, ``seeds``
    are further ones or a number of new ones, ``smoke`` makes every run tiny.
    """

    data: Path | None = None
    weights: str | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] | int = ()
    smoke: bool = False


def override(rows: Expansion, overrides: Overrides, catalogue: "Catalogue") -> Expansion:
    """Lay overrides over every row; a request that cannot be meant is a ``RequestError``."""
    grid, variants = rows.grid, rows.variants
    if overrides == Overrides(only=overrides.only, seeds=overrides.seeds):
        return replace(rows, variants=_choose(variants, overrides.only))
    settings: list[str] = []
    notes: list[str] = []
    complete = [_complete(variant.spec) for variant in variants]
    specs = [spec for spec in complete if spec is not None]  # what is not valid stays, for the plan to report
    if overrides.smoke:
        given = [f"--{name}" for name in ("data", "weights") if getattr(overrides, name) is not None]
        if given:
            text = "a smoke run has its own text and encoder; leave out one of the two"
            raise RequestError("--smoke", [Problem("", f"{text}. Found --smoke with {' and '.join(given)}.")])
        first_seed = grid.spec.model_copy(update={"seeds": grid.spec.seeds[:1]})
        grid = replace(grid, name=f"{grid.name[: 100 - len(SUFFIX)]}{SUFFIX}", spec=first_seed)
        for spec in specs:
            _make_tiny(spec, catalogue)
        settings.append("smoke: a few steps on generated text with a tiny untrained encoder; the figures mean nothing")
    if overrides.data is not None:
        notes += _use_folder(overrides.data, specs, catalogue)
    if overrides.epochs is not None:
        for stage in (stage for spec in specs for stage in spec["stages"]):
            stage["epochs"] = min(stage["epochs"], overrides.epochs)
        settings.append(f"at most {overrides.epochs} epoch{'' if overrides.epochs == 1 else 's'} per stage")
    weights = {} if overrides.weights is None else {"encoder.weights": overrides.weights}
    for path, value in (weights | dict(overrides.settings)).items():
        _assign_everywhere(specs, path, value)
        settings.append(f"{path} = {json.dumps(value)}")
    if settings or notes:
        grid = replace(grid, raw={**grid.raw, OVERRIDES: [*settings, *notes]})
    changed = [replace(one, spec=spec or one.spec) for one, spec in zip(variants, complete, strict=True)]
    return replace(rows, grid=grid, variants=_choose(changed, overrides.only), notes=notes)


def add_seeds(grid: Grid, seeds: Iterable[int]) -> Grid:
    """The grid with further seeds than its file's, which its record states."""
    added = sorted(set(seeds) - set(grid.spec.seeds))
    if not added:
        return grid
    spec = grid.spec.model_copy(update={"seeds": (*grid.spec.seeds, *added)})
    line = f"{'seed' if len(added) == 1 else 'seeds'} {', '.join(map(str, added))} beside the grid's own"
    raw = {**grid.raw, OVERRIDES: [*grid.raw.get(OVERRIDES, ()), line], ADDED_SEEDS: added}
    return replace(grid, spec=spec, raw=raw)


def new_seeds(known: Collection[int], number: int) -> list[int]:
    """The smallest seeds that are not known yet, so many of them.

    >>> new_seeds([0, 2], 3)
    [1, 3, 4]
    """
    return list(itertools.islice((seed for seed in itertools.count() if seed not in known), number))


def _assign_everywhere(specs: list[dict[str, Any]], path: str, value: Any) -> None:
    """Set a value in every run that has the place; it is an error if none has."""
    failed: list[str] = []
    for spec in specs:
        try:
            assign(spec, path, copied(value))
        except PathError as error:
            failed.append(str(error))
    if specs and len(failed) == len(specs):
        raise RequestError("--set", [Problem(path, failed[0])])


def _complete(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The run with the specs' defaults written out, so that paths lead somewhere; None if it is not valid."""
    try:
        return plain(RunSpec.model_validate(spec))
    except ValidationError:
        return None


def _choose(variants: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    """Mark the rows that any pattern fits; without patterns all."""
    if not patterns:
        return variants
    labels = [variant.label for variant in variants]
    found = {pattern: {one for one in labels if one == pattern or fnmatchcase(one, pattern)} for pattern in patterns}
    nothing = [Problem("", unknown("row", pattern, labels, where="rows")) for pattern in patterns if not found[pattern]]
    if nothing:
        raise RequestError("--only", nothing)
    chosen = set().union(*found.values())
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
        candidates = [{**data, "name": name} for name in (data["name"], STAND_INS.get(data["name"])) if name]
        found = next(filter(None, (_found_in(home, one, catalogue) for one in candidates)), None)
        # Where nothing is found the plan says what it looked for, and where.
        task["data"] = found or {**data, "dir": str(home)}
        if task["data"]["name"] != data["name"]:
            notes.append(f"{task['data']['name']} in place of {data['name']}, which is not in the data folder")
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


def _make_tiny(run: dict[str, Any], catalogue: "Catalogue") -> None:
    """Change a run, in place, to a few steps: a tiny encoder, a few generated rows, at most one epoch per stage.

    Every head, loss, sampler, combiner and stage stays as it is, so that a smoke run shows in seconds that every cell
    can be trained and scored. Its figures mean nothing.
    """
    encoder = run["encoder"]
    run["encoder"] = ENCODER | {key: encoder[key] for key, values in KEPT.items() if encoder.get(key) in values}
    for task in run["tasks"].values():
        task["data"] = _generated(task["data"], catalogue)
    for stage in run["stages"]:
        stage["epochs"] = min(stage["epochs"], 1)
        iterations = stage["sampler"].get("iterations")  # with so little text even "3x" is few
        if isinstance(iterations, int):
            stage["sampler"]["iterations"] = min(iterations, ITERATIONS)


def _generated(given: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """Generated text in the place of a data set: with as many texts, and labels that the same losses can take."""
    data, _ = catalogue.try_out(DataSet, given)
    if data is None:  # the plan reports what is wrong with it
        return given
    if data.labels is None or data.columns > 2:
        task = "entailment"
    elif data.labels.classes == 2:
        task = "paraphrase"  # a head that reads one text takes the first of the two
    elif data.labels.classes:
        task = "sentiment" if data.columns == 1 else "paraphrase"
    else:
        task = "similarity"
    return {"name": "generated", "task": task, **SIZES}
