"""Command-line overrides of a grid: the data folder, weights, any setting, a smoke run, a choice of rows.

Everything here works on variants, the rows of a grid before they are resolved, so that a cell's recorded specification
and identity are those of the actual run.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core import DataSet, Problem, RequestError
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.registry.installed.manager import guard
from taskloom.registry.installed.problems import read_spec
from taskloom.registry.results.records import ADDED_SEEDS, LAID, OVERRIDES, Change
from taskloom.runs.grid.changes import choose, complete, lay, with_changed
from taskloom.runs.grid.expansion import Expansion
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.places import PathResolver

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.records import GridRecord

#: A smoke run is recorded under a name of its own.
SUFFIX = "-smoke"
#: Options of the grid's own encoder that a smoke run keeps.
KEPT = ("pooling", "trainable")
ITERATIONS = 4


@dataclass(frozen=True)
class Overrides:
    """Overrides of a grid; none by default.

    ``data`` is a folder with the data sets, ``weights`` replaces the encoder's, ``epochs`` limits those of each stage,
    ``settings`` maps paths to new values, ``only`` has patterns of the rows to run, ``seeds`` has additional seeds or
    the number of new ones, ``smoke`` makes every run tiny, ``name`` is that of a separate table.
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
        """The change of a row by --weights, --set and --epochs."""
        weights = {} if self.weights is None else {"encoder.weights": self.weights}
        return Change(weights | dict(self.settings), self.epochs)


def named(grid: GridFile, overrides: Overrides) -> GridFile:
    """Rename the grid as the command line says; a smoke run gets a separate name and only the first seed."""
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


def override(
    rows: Expansion, overrides: Overrides, resolver: PathResolver, before: "GridRecord | None" = None
) -> Expansion:
    """Apply overrides to the rows; contradictory ones are a ``RequestError``.

    Rows changed by --weights, --epochs and --set, now or in the run ``before``, are added beside the grid's rows; in a
    table with a separate name all rows are changed.
    """
    change, known = overrides.change, before.changes if before else []
    if not (overrides.smoke or overrides.data or overrides.name or change or known or (before and before.laid)):
        return replace(rows, variants=choose(rows.variants, overrides.only))
    completed = [complete(variant.spec) for variant in rows.variants]
    specs = [spec for spec in completed if spec is not None]  # invalid ones stay, for the plan to report
    lines: list[str] = []
    if overrides.smoke:
        conflicting = [f"--{name}" for name in ("data", "weights") if getattr(overrides, name) is not None]
        if conflicting:
            text = "a smoke run has its own text and encoder; leave out one of the two"
            raise RequestError("--smoke", [Problem("", f"{text}. Found --smoke with {' and '.join(conflicting)}.")])
        for spec in specs:
            _make_tiny(spec, resolver.catalogue)
        lines.append("smoke: a few steps on generated text with a tiny untrained encoder; the figures mean nothing")
    notes = [] if overrides.data is None else _use_folder(overrides.data, specs, resolver)
    variants = [
        replace(variant, spec=spec or variant.spec) for variant, spec in zip(rows.variants, completed, strict=True)
    ]
    rows = replace(rows, variants=variants, notes=notes)
    if overrides.name is not None or (before and before.laid):
        rows, change = _change_all(rows, change, before)
        lines += [change.in_words] if change else []
        rows = replace(rows, variants=choose(rows.variants, overrides.only))
    else:
        rows = with_changed(rows, change, known, overrides.only, resolver.catalogue)
    if lines or notes:
        rows = replace(rows, grid=replace(rows.grid, raw={**rows.grid.raw, OVERRIDES: [*lines, *notes]}))
    return rows


def _change_all(rows: Expansion, change: Change, before: "GridRecord | None") -> tuple[Expansion, Change]:
    """Apply one change to all rows of a table with a separate name, now and whenever it is run again."""
    if before is not None:
        if change and not change.lays_the_same(before.laid):
            was = before.laid.in_words or "nothing laid over the grid"
            text = f"{before.name!r} was run with {was}. Give the same or none of it, or choose another name"
            raise RequestError("--name", [Problem("", f"{text}. Found {change.in_words}.")])
        change = before.laid
    valid = [variant for variant in rows.variants if complete(variant.spec) is not None]
    changed_specs = dict(
        zip((variant.label for variant in valid), lay(change, [variant.spec for variant in valid]), strict=True)
    )
    variants = [replace(variant, spec=changed_specs.get(variant.label, variant.spec)) for variant in rows.variants]
    raw = {**rows.grid.raw, LAID: {"settings": dict(change.settings), "epochs": change.epochs}}
    return replace(rows, variants=variants, grid=replace(rows.grid, raw=raw)), change


def add_seeds(grid: GridFile, seeds: Iterable[int]) -> GridFile:
    """Add seeds to those of the grid's file, and to the grid's record."""
    added = sorted(set(seeds) - set(grid.spec.seeds))
    if not added:
        return grid
    spec = grid.spec.model_copy(update={"seeds": (*grid.spec.seeds, *added)})
    line = f"{'seed' if len(added) == 1 else 'seeds'} {', '.join(map(str, added))} beside the grid's own"
    raw = {**grid.raw, OVERRIDES: [*grid.raw.get(OVERRIDES, ()), line], ADDED_SEEDS: added}
    return replace(grid, spec=spec, raw=raw)


def new_seeds(known: Collection[int], number: int) -> list[int]:
    """The ``number`` smallest seeds that are not known yet.

    >>> new_seeds([0, 2], 3)
    [1, 3, 4]
    """
    return list(itertools.islice((seed for seed in itertools.count() if seed not in known), number))


def _use_folder(folder: Path, specs: list[dict[str, Any]], resolver: PathResolver) -> list[str]:
    """Point data sets at their files in the folder, or in a subfolder with their name, in place.

    A data set with an option ``dir`` has to be there; one that names single files may be elsewhere.

    Returns notes for readers of the results.
    """
    home = folder.expanduser().absolute()
    if not home.is_dir():
        raise RequestError("--data", [Problem("", f"{folder} is not a folder")])
    data_sets = {
        entry.name: (entry.cls, "dir" in entry.options)
        for entry in resolver.catalogue.entries
        if issubclass(entry.cls, DataSet)
    }
    notes: list[str] = []
    for task in (task for spec in specs for task in spec["tasks"].values()):
        component = task["data"]
        data_set, has_folder = data_sets.get(component["name"], (DataSet, False))  # the plan reports unknown ones
        named = [component, *({**component, "name": name} for name in data_set.stand_ins)]
        located = next(filter(None, (resolver.found_in(home, candidate) for candidate in named)), None)
        # If nothing is found, the plan reports what it looked for, and where.
        task["data"] = located or ({**component, "dir": str(home)} if has_folder else component)
        if task["data"]["name"] != component["name"]:
            notes.append(f"{task['data']['name']} in place of {component['name']}, which is not in the data folder")
    return list(dict.fromkeys(notes))


def _make_tiny(run: dict[str, Any], catalogue: "Catalogue") -> None:
    """Shrink a run, in place, to a few steps: a tiny encoder, a few generated rows, at most one epoch per stage.

    Every head, loss, sampler, combiner and stage stays as it is, so that a smoke run shows in seconds that every cell
    can be trained and scored. Its figures mean nothing.
    """
    run["encoder"] = _tiny(run["encoder"], catalogue)
    for task in run["tasks"].values():
        task["data"] = _generated(task["data"], catalogue)
    for stage in run["stages"]:
        stage["epochs"] = min(stage["epochs"], 1)
        iterations = stage["sampler"].get("iterations")  # with so little text even "3x" is few
        if isinstance(iterations, int):
            stage["sampler"]["iterations"] = min(iterations, ITERATIONS)


def _tiny(encoder: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The encoder that replaces one: the same made tiny, or else the default one, with the grid's options ``KEPT``."""
    from taskloom.core import Encoder

    encoders = {entry.name: entry.cls for entry in catalogue.entries if issubclass(entry.cls, Encoder)}
    names = [name for name in (encoder["name"], RunSpec.model_fields["encoder"].default.name) if name in encoders]
    with guard(f"encoder {encoder['name']!r}"):
        options = {name: encoders[name].smoke_options() for name in names}
    tiny = next(({"name": name, **tiny} for name, tiny in options.items() if tiny is not None), encoder)
    for option in KEPT:
        kept = {**tiny, option: encoder.get(option)}
        if option in encoder and not catalogue.resolve("encoder", kept)[1]:
            tiny = kept
    return tiny


def _generated(component: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """A few examples that replace a data set: the same data set's, or those of the first that has some for it."""
    data_set, _ = catalogue.try_out(DataSet, component)
    if data_set is None:  # the plan reports what is wrong with it
        return component
    entries = sorted(catalogue.entries, key=lambda entry: (entry.name != data_set.name, not entry.plugin.builtin))
    for entry in entries:
        if issubclass(entry.cls, DataSet):
            with guard(f"data set {entry.name!r}"):
                options = entry.cls.smoke_options(data_set.columns, data_set.labels)
            if options is not None:
                return {"name": entry.name, **options}
    return component
