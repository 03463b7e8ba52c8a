"""Command-line overrides of a grid: the data folder, weights, any setting, a smoke run, a choice of rows.

Everything here works on variants, the rows of a grid before they are resolved, so that a cell's recorded specification
and identity are those of the actual run.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from taskloom.core import DataSet, Problem, RequestError, unknown
from taskloom.core.errors import count
from taskloom.core.specs import RunSpec, plain
from taskloom.registry.installed.manager import guard
from taskloom.registry.results.records import ADDED_SEEDS, LAID, OVERRIDES
from taskloom.runs.grid.expansion import Expansion, Variant, copied
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.paths import PathError, assign
from taskloom.runs.grid.run_files import FileLocator, located

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.records import GridRecord

#: Options of the grid's own encoder that a smoke run keeps.
KEPT = ("pooling", "trainable")
WEIGHTS = "encoder.weights"
ITERATIONS = 4
#: How the line of a smoke run begins in the record of its grid.
SMOKE = "smoke"


@dataclass(frozen=True)
class Overrides:
    """Overrides of a grid; none by default.

    ``data`` is a folder with the data sets, ``weights`` replaces the encoder's, ``epochs`` limits those of each stage,
    ``settings`` maps paths to new values, ``only`` has patterns of the rows to run, ``seeds`` has additional seeds or
    the number of new ones, ``smoke`` makes every run tiny, ``name`` is that of a separate table. Without ``tuned``
    rows are run as they are written, whatever the grid searches.
    """

    data: Path | None = None
    weights: str | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] | int = ()
    smoke: bool = False
    name: str | None = None
    tuned: bool = True

    @property
    def run_settings(self) -> dict[str, Any]:
        """The new values of --weights and --set, by path."""
        settings = {path: value for path, value in self.settings.items() if path != WEIGHTS or self.weights is None}
        return settings if self.weights is None else settings | {WEIGHTS: self.weights}

    @property
    def changes_runs(self) -> bool:
        """Whether --weights, --set, --epochs or --untuned is among them: the table is then another than the grid's."""
        return bool(self.run_settings) or self.epochs is not None or not self.tuned

    @property
    def in_words(self) -> str:
        """What changes in runs, in words: ``at most 1 epoch per stage, stages.0.clip = 1``."""
        most = [] if self.epochs is None else [f"at most {count(self.epochs, 'epoch')} per stage"]
        settings = [f"{path} = {json.dumps(value)}" for path, value in self.run_settings.items()]
        return ", ".join(
            [*([] if self.tuned else ["the settings as they are written, without the search"]), *most, *settings]
        )

    @property
    def ordered_settings(self) -> list[tuple[str, Any]]:
        """The paths with new values: by path, or in the order of the request if one path lies within another."""
        pairs = list(itertools.combinations((path.split(".") for path in self.run_settings), 2))
        overlap = any(all(a == b or "*" in (a, b) for a, b in zip(*pair, strict=False)) for pair in pairs)
        return list(self.run_settings.items()) if overlap else sorted(self.run_settings.items())

    def located(self, catalogue: "Catalogue") -> "Overrides":
        """The same with the files and folders that the settings name made absolute."""
        settings = {
            path: located(value, catalogue, path.rpartition(".")[2]) for path, value in self.run_settings.items()
        }
        return replace(self, settings=settings, weights=settings.get(WEIGHTS) if self.weights is not None else None)

    def has_same_runs(self, other: "Overrides") -> bool:
        return (self.ordered_settings, self.epochs, self.tuned) == (other.ordered_settings, other.epochs, other.tuned)

    def on_top_of(self, recorded: "Overrides") -> "Overrides":
        """These overrides together with those of a recorded table; the former take precedence."""
        kept = {path: value for path, value in recorded.settings.items() if path not in self.run_settings}
        epochs = recorded.epochs if self.epochs is None else self.epochs
        kept |= self.settings
        tuned = self.tuned and recorded.tuned
        return replace(self, settings=kept, epochs=epochs, smoke=self.smoke or recorded.smoke, tuned=tuned)


def recorded_overrides(record: "GridRecord | None") -> Overrides:
    """The overrides with which every row of a recorded table is run; none for the table of a grid as it is written."""
    recorded = record.spec.get(LAID, {}) if record is not None else {}
    lines = record.spec.get(OVERRIDES, ()) if record is not None else ()
    smoke = any(line.startswith(SMOKE) for line in lines)
    changes = {"settings": recorded.get("settings", {}), "epochs": recorded.get("epochs")}
    return Overrides(**changes, smoke=smoke, tuned=recorded.get("tuned", True))


def override(rows: Expansion, overrides: Overrides, resolver: FileLocator) -> Expansion:
    """Apply overrides to the rows; contradictory ones are a ``RequestError``."""
    if not (overrides.smoke or overrides.data or overrides.name or overrides.changes_runs):
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
        lines.append(f"{SMOKE}: a few steps on generated text with a tiny untrained encoder; the figures mean nothing")
    notes = [] if overrides.data is None else _use_folder(overrides.data, specs, resolver)
    change_runs(specs, overrides)
    lines += [overrides.in_words] if overrides.changes_runs else []
    variants = [
        replace(variant, spec=spec or variant.spec) for variant, spec in zip(rows.variants, completed, strict=True)
    ]
    raw = dict(rows.grid.raw)
    if lines or notes:
        raw[OVERRIDES] = [*lines, *notes]
    if overrides.name or overrides.changes_runs:
        raw[LAID] = {"settings": overrides.run_settings, "epochs": overrides.epochs}
        raw[LAID] |= {} if overrides.tuned else {"tuned": False}
    return replace(rows, variants=choose(variants, overrides.only), notes=notes, grid=replace(rows.grid, raw=raw))


def choose(variants: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    """Mark the rows that match any pattern as chosen; without patterns, all."""
    if not patterns:
        return variants
    labels = [variant.label for variant in variants]
    matching = {
        pattern: {label for label in labels if label == pattern or fnmatchcase(label, pattern)} for pattern in patterns
    }
    nothing = [
        Problem("", unknown("row", pattern, labels, where="rows")) for pattern in patterns if not matching[pattern]
    ]
    if nothing:
        raise RequestError("--only", nothing)
    chosen = set().union(*matching.values())
    return [replace(variant, chosen=variant.label in chosen) for variant in variants]


def complete(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The run with all defaults of the specs filled in, so that paths resolve; None if it is invalid."""
    try:
        return plain(RunSpec.model_validate(spec))
    except ValidationError:
        return None


def change_runs(specs: Sequence[dict[str, Any]], overrides: Overrides, *, strict: bool = True) -> None:
    """Apply --weights, --set and --epochs to complete runs, in place, where their paths exist.

    ``strict`` makes it an error if a path exists in no run.
    """
    if overrides.epochs is not None:
        for stage in (stage for spec in specs for stage in spec["stages"]):
            stage["epochs"] = min(stage["epochs"], overrides.epochs)
    for path, value in overrides.run_settings.items():
        failed: list[str] = []
        for spec in specs:
            try:
                assign(spec, path, copied(value))
            except PathError as error:
                failed.append(str(error))
        if strict and specs and len(failed) == len(specs):
            raise RequestError("--set", [Problem(path, failed[0])])


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


def _use_folder(folder: Path, specs: list[dict[str, Any]], resolver: FileLocator) -> list[str]:
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
        located = next(filter(None, (resolver.in_folder(home, candidate) for candidate in named)), None)
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
    run["encoder"] = _smoke_encoder(run["encoder"], catalogue)
    for task in run["tasks"].values():
        task["data"] = _smoke_data(task["data"], catalogue)
    for stage in run["stages"]:
        stage["epochs"] = min(stage["epochs"], 1)
        iterations = stage["sampler"].get("iterations")  # with so little text even "3x" is few
        if isinstance(iterations, int):
            stage["sampler"]["iterations"] = min(iterations, ITERATIONS)


def _smoke_encoder(encoder: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The encoder of a smoke run: the grid's own with tiny sizes, or the default one, with the options ``KEPT``."""
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


def _smoke_data(component: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The data of a smoke run: a few examples of the same data set, or of the first one that offers suitable ones."""
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
