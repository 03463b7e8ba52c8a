"""What the command line lays over a whole grid: where data are, other weights, any setting; a smoke run; some rows.

Everything here works on variants, the rows of a grid before they are resolved, so a cell's recorded specification and
identity say what was really run.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core import DataSet, Problem, RequestError
from taskloom.core.specs import GridSpec
from taskloom.registry.installed.problems import read_spec
from taskloom.registry.results.records import ADDED_SEEDS, LAID, OVERRIDES, Change
from taskloom.runs.grid.changes import choose, complete, lay, with_changed
from taskloom.runs.grid.expansion import Expansion
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.places import Places

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.records import GridRecord

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
    are further ones or a number of new ones, ``smoke`` makes every run tiny, ``name`` is that of a table of its own.
    """

    data: Path | None = None
    weights: str | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] | int = ()
    smoke: bool = False
    name: str | None = None

    @property
    def change(self) -> Change:
        """What --weights, --set and --epochs lay over a row."""
        weights = {} if self.weights is None else {"encoder.weights": self.weights}
        return Change(weights | dict(self.settings), self.epochs)


def named(grid: GridFile, overrides: Overrides) -> GridFile:
    """The grid under the name that the command line gives it; a smoke run has the first seed and a name of its own."""
    name = overrides.name or grid.name
    if overrides.name is not None:
        problems = read_spec(GridSpec, {**grid.raw, "name": name})[1]
        if name == grid.name:
            problems = [Problem("name", f"{name!r} is the grid's own name; leave it out, or choose another")]
        if wrong := [problem for problem in problems if problem.path == "name"]:
            raise RequestError("--name", [replace(problem, path="") for problem in wrong])
    if not overrides.smoke:
        return replace(grid, name=name)
    first_seed = grid.spec.model_copy(update={"seeds": grid.spec.seeds[:1]})
    return replace(grid, name=f"{name[: 100 - len(SUFFIX)]}{SUFFIX}", spec=first_seed)


def override(rows: Expansion, overrides: Overrides, places: Places, before: "GridRecord | None" = None) -> Expansion:
    """Lay overrides over the rows; a request that cannot be meant is a ``RequestError``.

    What --weights, --epochs and --set change stands beside the grid's rows, and so do the rows that they changed in
    the run ``before``; in a table with a name of its own they change all rows.
    """
    change, known = overrides.change, before.changes if before else []
    if not (overrides.smoke or overrides.data or overrides.name or change or known or (before and before.laid)):
        return replace(rows, variants=choose(rows.variants, overrides.only))
    completed = [complete(variant.spec) for variant in rows.variants]
    specs = [spec for spec in completed if spec is not None]  # what is not valid stays, for the plan to report
    lines: list[str] = []
    if overrides.smoke:
        given = [f"--{name}" for name in ("data", "weights") if getattr(overrides, name) is not None]
        if given:
            text = "a smoke run has its own text and encoder; leave out one of the two"
            raise RequestError("--smoke", [Problem("", f"{text}. Found --smoke with {' and '.join(given)}.")])
        for spec in specs:
            _make_tiny(spec, places.catalogue)
        lines.append("smoke: a few steps on generated text with a tiny untrained encoder; the figures mean nothing")
    notes = [] if overrides.data is None else _use_folder(overrides.data, specs, places)
    variants = [replace(one, spec=spec or one.spec) for one, spec in zip(rows.variants, completed, strict=True)]
    rows = replace(rows, variants=variants, notes=notes)
    if overrides.name is not None or (before and before.laid):
        rows, change = _laid_over_all(rows, change, before)
        lines += [change.in_words] if change else []
        rows = replace(rows, variants=choose(rows.variants, overrides.only))
    else:
        rows = with_changed(rows, change, known, overrides.only, places.catalogue)
    if lines or notes:
        rows = replace(rows, grid=replace(rows.grid, raw={**rows.grid.raw, OVERRIDES: [*lines, *notes]}))
    return rows


def _laid_over_all(rows: Expansion, change: Change, before: "GridRecord | None") -> tuple[Expansion, Change]:
    """The rows of a table with a name of its own, all of them changed alike, today and whenever it is run again."""
    if before is not None:
        if change and not change.lays_the_same(before.laid):
            was = before.laid.in_words or "nothing laid over the grid"
            text = f"{before.name!r} was run with {was}. Give the same or none of it, or choose another name"
            raise RequestError("--name", [Problem("", f"{text}. Found {change.in_words}.")])
        change = before.laid
    valid = [variant for variant in rows.variants if complete(variant.spec) is not None]
    laid = dict(zip((one.label for one in valid), lay(change, [one.spec for one in valid]), strict=True))
    variants = [replace(one, spec=laid.get(one.label, one.spec)) for one in rows.variants]
    raw = {**rows.grid.raw, LAID: {"settings": dict(change.settings), "epochs": change.epochs}}
    return replace(rows, variants=variants, grid=replace(rows.grid, raw=raw)), change


def add_seeds(grid: GridFile, seeds: Iterable[int]) -> GridFile:
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


def _use_folder(folder: Path, specs: list[dict[str, Any]], places: Places) -> list[str]:
    """Point data sets at their files in the folder, or in one of their name in it, in place.

    A data set that has an option ``dir`` has to be there, one that names single files only may be.

    Returns what a reader of the results should know.
    """
    home = folder.expanduser().absolute()
    if not home.is_dir():
        raise RequestError("--data", [Problem("", f"{folder} is not a folder")])
    catalogue = places.catalogue
    names = [name for name in catalogue.names("data") if "dir" in catalogue.get("data", name).options]
    notes: list[str] = []
    for task in (task for spec in specs for task in spec["tasks"].values()):
        data = task["data"]
        named = [{**data, "name": name} for name in (data["name"], STAND_INS.get(data["name"])) if name]
        found = next(filter(None, (places.found_in(home, one) for one in named)), None)
        # Where nothing is found the plan says what it looked for, and where.
        task["data"] = found or ({**data, "dir": str(home)} if data["name"] in names else data)
        if task["data"]["name"] != data["name"]:
            notes.append(f"{task['data']['name']} in place of {data['name']}, which is not in the data folder")
    return list(dict.fromkeys(notes))


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
