"""Writes what a finished cell predicts for a split of its tasks. Only reads the registry."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core import DataError, DataSet, Encoder, Examples, Split, TaskloomError, WeightsError, unknown
from taskloom.core.errors import RegistryError
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import is_name, write_text
from taskloom.runs.grid.contents import check_examples
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import Model, device_for_this_process
from taskloom.runs.training.submission import Form, file_name, file_text

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.records import CellRecord

#: The parts of a model that predict. A loss may hold tensors too, which only training reads.
PARTS = ("encoder.", "shared.", "heads.")


@dataclass(frozen=True)
class File:
    """The predictions of one task; ``skipped`` are rows that could not be read and so have none."""

    task: str
    path: Path
    rows: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Predictions:
    """The files that were written, why other tasks have none, and what a reader of the files should know."""

    files: list[File] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def predict_cell(
    cell: "CellRecord",
    catalogue: "Catalogue",
    registry: Path,
    out: Path,
    *,
    split: Split = "test",
    only: Sequence[str] = (),
    data: Path | None = None,
    form: Form = "submission",
) -> Predictions:
    """Write what a finished cell predicts for a split of its tasks into the folder ``out``.

    ``only`` names some of its tasks; ``data`` is a folder to look for the data in, instead of where the run had them.
    A task whose data cannot be read is left out and named in the outcome. What else is wrong is a ``TaskloomError``,
    and so is a request by which nothing could be written.
    """
    spec: dict[str, Any] = cell.spec
    _check_names(cell, registry)
    _check_folders(out, registry, data)
    tasks = {name: catalogue.make_task(name, task) for name, task in spec["tasks"].items()}
    chosen = _choose(tasks, only)
    paths = {name: out / file_name(name, spec["tasks"][name]["data"], split, form) for name in chosen}
    _check_apart(paths)

    outcome = Predictions(notes=_changed_versions(cell, catalogue))
    found: dict[str, Examples] = {}
    for name in chosen:
        try:
            found[name] = read_split(catalogue, spec["tasks"][name]["data"], split, data)
        except DataError as error:
            outcome.missing[name] = str(error)
    if not found:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in outcome.missing.items())
        raise DataError(f"no {split} data for any task, so nothing was written:{reasons}")

    model = restore(cell, catalogue, registry, tasks)
    device = device_for_this_process()
    model.to(device)
    with tempfile.TemporaryDirectory(prefix="taskloom-", ignore_cleanup_errors=True) as cache:
        for name, examples in found.items():
            feed = Feed.open(tasks[name], examples, model.encoder, Path(cache), device)
            values = predictions(model, name, feed)
            classes = tasks[name].labels.classes
            _write(paths[name], file_text(spec["tasks"][name]["data"], examples, values, classes, form))
            outcome.files.append(File(name, paths[name], len(examples), examples.skipped))
    return outcome


def _check_names(cell: "CellRecord", registry: Path) -> None:
    """What becomes part of a path: a registry may come from a stranger."""
    for name in (cell.id, *cell.spec["tasks"]):
        if not is_name(name):
            raise RegistryError(f"cell {cell.id!r}: {name!r} cannot name a file; taskloom did not write that")
    folder = registry / "cells" / cell.id / "best"
    if not folder.resolve().is_relative_to(registry.resolve()):
        raise RegistryError(f"{folder} is a link that leads out of the registry, to {folder.resolve()}; it is not read")


def restore(cell: "CellRecord", catalogue: "Catalogue", registry: Path, tasks: dict[str, Task]) -> Model:
    """The model of a cell with the weights of its best epoch; builds the tasks' heads."""
    folder = registry / "cells" / cell.id / "best"
    try:
        tensors, _ = saved.load_folder(folder)
    except ValueError as error:
        raise WeightsError(
            f"the weights of cell {cell.id} cannot be used: {error}. Put back a copy of {folder}, or run the grid "
            "again in another --registry."
        ) from None
    encoder = catalogue.make(Encoder, cell.spec["encoder"])
    model = Model(encoder, tasks, seed=cell.spec["seed"], precision=cell.spec.get("precision", "float32"))
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(PARTS)}
    needed = {name: tensor for name, tensor in saved.module_state(model, "").items() if name.startswith(PARTS)}
    for name in sorted(kept.keys() | needed.keys()):
        there, wanted = (tuple(each[name].shape) if name in each else None for each in (kept, needed))
        if there != wanted:
            raise WeightsError(
                f"the weights of cell {cell.id} do not fit the model that its specification gives now: {name} is "
                f"{there or 'not'} in the weights and {wanted or 'not'} in the model. {_trained_with(cell)}"
            )
    saved.load_module_state(model, kept, "")
    return model


def read_split(catalogue: "Catalogue", spec: Mapping[str, Any], split: Split, folder: Path | None) -> Examples:
    """A split of a data set: where the run had it, or in ``folder`` or a folder of the data set's name in it."""
    problem: DataError | None = None
    for each in _candidates(catalogue, spec, folder):
        try:
            data = catalogue.make(DataSet, each)
            examples = data.load(split)
            check_examples(data, split, examples)
        except DataError as error:
            problem = problem or error
        else:
            return examples
    assert problem is not None  # there is at least one candidate
    raise problem


def _candidates(catalogue: "Catalogue", spec: Mapping[str, Any], folder: Path | None) -> Iterator[dict[str, Any]]:
    if folder is None or "dir" not in catalogue.get("data", spec["name"]).options:
        yield dict(spec)
        return
    inner = sorted(path for path in folder.glob(f"{spec['name']}*") if path.is_dir())
    # The folder of its name first: if no file is found, the message should be about the place that was meant.
    for place in (*inner, folder):
        yield {**spec, "dir": str(place)}


def _choose(tasks: Mapping[str, Task], only: Sequence[str]) -> list[str]:
    """The tasks to predict, in the order of the run: those named, or all that can be."""
    able = [name for name, task in tasks.items() if task.data.labels is not None and task.head.gives != "vectors"]
    for name in only:
        if name not in tasks:
            raise TaskloomError(unknown("task", name, tasks, where="tasks of the cell"))
        if name not in able:
            why = "its head gives only vectors" if tasks[name].head.gives == "vectors" else "its data have no labels"
            raise TaskloomError(f"task {name!r} predicts nothing: {why} (tasks that do: {', '.join(able) or 'none'})")
    if not able:
        raise TaskloomError("no task of the cell predicts anything: they have no labels, or heads that give vectors")
    return [name for name in able if not only or name in only]


def _check_folders(out: Path, registry: Path, data: Path | None) -> None:
    """Before any work: predictions go into a folder, and not among the files of a registry."""
    try:
        if data is not None and not data.is_dir():
            raise TaskloomError(f"--data {data} is not a folder")
        if out.resolve().is_relative_to(registry.resolve()):
            raise TaskloomError(f"--out {out} is inside the registry {registry}; choose a folder outside")
        nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    except OSError as error:
        raise TaskloomError(f"{error.filename} cannot be used: {error.strerror}; choose another folder") from error
    if not nearest.is_dir():
        raise TaskloomError(f"--out {out} cannot be made: {nearest} is a file; choose another folder")


def _check_apart(paths: Mapping[str, Path]) -> None:
    for name, path in paths.items():
        same = [other for other in paths if paths[other] == path]
        if len(same) > 1:
            raise TaskloomError(
                f"tasks {', '.join(same)} would all be written to {path.name}; choose one with --task {name}, or "
                "--format jsonl, which names files after tasks"
            )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise TaskloomError(f"{path} cannot be written: {error.strerror}; choose another folder with --out") from error


def _changed_versions(cell: "CellRecord", catalogue: "Catalogue") -> list[str]:
    """Other code may predict other things from the same weights; training's parts play no part."""
    used = catalogue.versions({"encoder": cell.spec["encoder"], "tasks": cell.spec["tasks"]})
    return [
        f"cell {cell.id[:12]} was trained with {name} {cell.versions[name]}; {version} is installed"
        for name, version in used.items()
        if cell.versions.get(name, version) != version
    ]


def _trained_with(cell: "CellRecord") -> str:
    return f"It was trained with {', '.join(f'{name} {version}' for name, version in sorted(cell.versions.items()))}."
