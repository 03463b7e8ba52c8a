"""Writes what a finished cell predicts for a split of its tasks. Only reads the registry."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskloom.core import DataError, Encoder, Examples, Split, TaskloomError, WeightsError, unknown
from taskloom.core.errors import RegistryError
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import is_name, write_text
from taskloom.registry.results.records import CellRecord
from taskloom.runs.grid.contents import read_split
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import Model, device_for_this_process
from taskloom.runs.training.submission import Form, file_name, file_text

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
    cell: CellRecord,
    catalogue: Catalogue,
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
    _check_request(cell, registry, out, data)
    tasks = {name: catalogue.make_task(name, task) for name, task in spec["tasks"].items()}
    chosen = _choose(tasks, only)
    paths = {name: out / file_name(name, spec["tasks"][name]["data"], split, form) for name in chosen}
    if len(set(paths.values())) < len(paths):
        raise TaskloomError(
            f"tasks {', '.join(paths)} would not all be written to files of their own; choose one with --task, or "
            "--format jsonl, which names files after tasks"
        )

    outcome = Predictions(notes=_changed_versions(cell, catalogue))
    found: dict[str, Examples] = {}
    for name in chosen:
        try:
            found[name] = read_split(spec["tasks"][name]["data"], split, data)
        except DataError as error:
            outcome.missing[name] = str(error)
    if not found:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in outcome.missing.items())
        raise DataError(f"no {split} data for any task, so nothing was written:{reasons}")

    model = restore(cell, catalogue, registry, tasks)
    device = device_for_this_process()
    model.to(device)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, examples in found.items():
            values = predictions(model, name, Feed.open(tasks[name], examples, model.encoder, None, device)).decided
            data_spec, classes = spec["tasks"][name]["data"], tasks[name].labels.classes
            write_text(paths[name], file_text(data_spec, examples, values, classes, form))
            outcome.files.append(File(name, paths[name], len(examples), examples.skipped))
    except OSError as error:
        raise TaskloomError(f"nothing can be written to {out}: {error.strerror}; choose another --out") from error
    return outcome


def _check_request(cell: CellRecord, registry: Path, out: Path, data: Path | None) -> None:
    """Before any work: names that become part of a path (a registry may come from a stranger), and folders."""
    for name in (cell.id, *cell.spec["tasks"]):
        if not is_name(name):
            raise RegistryError(f"cell {cell.id!r}: {name!r} cannot name a file; taskloom did not write that")
    folder = registry / "cells" / cell.id / "best"
    if not folder.resolve().is_relative_to(registry.resolve()):
        raise RegistryError(f"{folder} is a link that leads out of the registry, to {folder.resolve()}; it is not read")
    if data is not None and not os.path.isdir(data):  # noqa: PTH112 - a name too long is not a folder
        raise TaskloomError(f"--data {data} is not a folder")
    if out.resolve().is_relative_to(registry.resolve()):
        raise TaskloomError(f"--out {out} is inside the registry {registry}; choose a folder outside")


def restore(cell: CellRecord, catalogue: Catalogue, registry: Path, tasks: dict[str, Task]) -> Model:
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
    there, wanted = ({(name, *tensor.shape) for name, tensor in each.items()} for each in (kept, needed))
    if there != wanted:
        differing = ", ".join(sorted({name for name, *_ in there ^ wanted})[:3])
        versions = ", ".join(f"{name} {version}" for name, version in sorted(cell.versions.items()))
        raise WeightsError(
            f"the weights of cell {cell.id} do not fit the model that its specification gives now: {differing} differ "
            f"in shape or are in only one of the two. It was trained with {versions}."
        )
    saved.load_module_state(model, kept, "")
    return model


def _choose(tasks: Mapping[str, Task], only: Sequence[str]) -> list[str]:
    """The tasks to predict, in the order of the run: those named, or all that can be."""
    able = [name for name, task in tasks.items() if task.predicts]
    for name in only:
        if name not in tasks:
            raise TaskloomError(unknown("task", name, tasks, where="tasks of the cell"))
        if name not in able:
            why = "its head gives only vectors" if tasks[name].head.gives == "vectors" else "its data have no labels"
            raise TaskloomError(f"task {name!r} predicts nothing: {why} (tasks that do: {', '.join(able) or 'none'})")
    if not able:
        raise TaskloomError("no task of the cell predicts anything: they have no labels, or heads that give vectors")
    return [name for name in able if not only or name in only]


def _changed_versions(cell: CellRecord, catalogue: Catalogue) -> list[str]:
    """Other code may predict other things from the same weights; training's parts play no part."""
    used = catalogue.versions({"encoder": cell.spec["encoder"], "tasks": cell.spec["tasks"]})
    return [
        f"cell {cell.id[:12]} was trained with {name} {cell.versions[name]}; {version} is installed"
        for name, version in used.items()
        if cell.versions.get(name, version) != version
    ]
