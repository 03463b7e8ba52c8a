"""The model of a finished cell as a folder for other programs: encoder, heads and card. Only reads the registry."""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from taskloom.core import DataError, Examples, Split, TaskloomError
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.results.artifacts import check_outside, partial_prefix
from taskloom.registry.results.records import CellRecord
from taskloom.runs.export.card import Data, Form, Source, write_card
from taskloom.runs.export.graph import write_graph
from taskloom.runs.export.heads import HEADS, TENSORS, foreign_files, write_heads
from taskloom.runs.export.modules import write_modules
from taskloom.runs.export.vectors import ways
from taskloom.runs.grid.contents import read_split
from taskloom.runs.predict.trained import load_trained
from taskloom.runs.training.checkpoint import put_folder

#: What has to be installed beside taskloom, and the extra that brings it; only ONNX needs more than the first.
_PACKAGES = {"huggingface_hub": "hf", "transformers": "hf", "onnx": "onnx", "onnxscript": "onnx"}


@dataclass(frozen=True)
class Exported:
    """What was written, and what a user of it should know."""

    files: list[Path]
    notes: list[str]


def export_cell(
    cell: CellRecord,
    catalogue: Catalogue,
    registry: Path,
    folder: Path,
    form: Form,
    *,
    replace: bool = False,
    data: Path | None = None,
) -> Exported:
    """Write the model of a finished cell into ``folder``, which is there whole or not at all.

    ``replace`` puts it in the place of an earlier export. ``data`` is a folder to look for the data in, instead of
    where the run had them: the card tells their sizes, and an encoder that hashes words needs the words.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    _check(folder, registry, form, replace=replace)
    model = load_trained(cell, catalogue, registry).cpu()
    ways(model)  # or a word that it has none
    examples: Data = {name: _read(task["data"], data) for name, task in cell.spec["tasks"].items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=partial_prefix(), dir=folder.parent) as room:
            made = Path(room) / "made"  # the temporary folder itself is its user's alone
            made.mkdir()
            notes = model.encoder.export(made, _texts(examples))
            if model.precision != torch.float32:
                notes.append(f"It was trained in {cell.spec['precision']}; here it computes in float32.")
            if form == "sentence-transformers":
                write_modules(made, model)
            elif form == "onnx":
                write_graph(made, model)
            write_heads(made, model, cell.spec["tasks"])
            write_card(made, Source(folder.name, model, cell, catalogue, registry, form, examples, notes))
            for tensors in made.rglob("*.safetensors"):  # which are written for their user alone
                shutil.copymode(made / HEADS, tensors)
            put_folder(made, folder)
    except OSError as error:
        raise TaskloomError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
    unread = {str(one): None for splits in examples.values() for one in splits.values() if isinstance(one, DataError)}
    notes += [*model.notes, *(f"The card lacks the sizes of data that cannot be read: {why}" for why in unread)]
    return Exported(sorted(path for path in folder.rglob("*") if path.is_file()), notes)


def _check(folder: Path, registry: Path, form: Form, *, replace: bool) -> None:
    """Before any work: whether there is room for the folder, and everything that writes it is installed."""
    if form not in get_args(Form):
        raise TaskloomError(f"the format should be one of {', '.join(get_args(Form))}. Found {form!r}.")
    check_outside(folder, registry)
    if folder.exists() and not folder.is_dir():
        raise TaskloomError(f"{folder} should be a new folder. Found a file; choose another.")
    if folder.is_dir() and any(folder.iterdir()):
        if not replace:
            how = "(--replace, in Python replace=True)"
            raise TaskloomError(f"{folder} is not empty; choose another, or replace what was exported there {how}")
        if lacking := [name for name in (HEADS, TENSORS) if not (folder / name).is_file()]:
            raise TaskloomError(f"{folder} holds no export (there is no {lacking[0]}), so it is not replaced")
        if others := foreign_files(folder):
            raise TaskloomError(
                f"{folder} also holds {', '.join(others)}, which the export did not write; move it away"
            )
    needed = tuple(_PACKAGES) if form == "onnx" else ("huggingface_hub",)
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        extras = ",".join(sorted({_PACKAGES[name] for name in missing}))
        raise TaskloomError(f"--format {form} needs {', '.join(missing)}: pip install 'taskloom[{extras}]'")


def _read(spec: Mapping[str, Any], folder: Path | None) -> dict[Split, Examples | DataError]:
    found: dict[Split, Examples | DataError] = {}
    splits: tuple[Split, ...] = ("train", "dev")
    for split in splits:
        try:
            found[split] = read_split(spec, split, folder)
        except DataError as error:
            found[split] = error
    return found


def _texts(examples: Data) -> Iterator[str]:
    """Every text of the data, for an encoder that asks."""
    for task, splits in examples.items():
        for found in splits.values():
            if isinstance(found, DataError):
                raise DataError(
                    f"task {task!r}: {found}. The encoder has no list of words, so its vocabulary is made of those in "
                    "the data; --data FOLDER says where they are"
                ) from None
            for column in found.columns:
                yield from column
