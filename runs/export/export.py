"""The model of a finished cell as a folder for other programs: encoder, heads and card. Only reads the registry."""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError

from taskloom.core import DataError, Examples, Split, TaskloomError
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.results.artifacts import partial_prefix
from taskloom.registry.results.outputs import check_location
from taskloom.registry.results.records import CellRecord
from taskloom.registry.results.tensors import put_folder
from taskloom.runs.export.card import Data, ExportFormat, Source, write_card
from taskloom.runs.export.graph import write_graph
from taskloom.runs.export.heads import HEADS, TENSORS, foreign_files, write_heads
from taskloom.runs.export.modules import write_modules
from taskloom.runs.export.vectors import all_poolings
from taskloom.runs.grid.contents import read_split
from taskloom.runs.predict.trained import load_trained

#: Packages that an export needs, and the extra that installs each; only ONNX needs more than the first.
_PACKAGES = {"huggingface_hub": "hf", "transformers": "hf", "onnx": "onnx", "onnxscript": "onnx"}


@dataclass(frozen=True)
class Exported:
    """The files that were written, and notes for their user."""

    files: list[Path]
    notes: list[str]


def export_cell(
    cell: CellRecord,
    catalogue: Catalogue,
    registry: Path,
    folder: Path,
    form: ExportFormat,
    *,
    replace: bool = False,
    data: Path | None = None,
) -> Exported:
    """Write the model of a finished cell into ``folder``, which is there whole or not at all.

    ``replace`` replaces an earlier export. ``data`` is a folder to look for the data in, instead of where the run had
    them: the card states their sizes, and an encoder that hashes words needs the words.
    """
    with _writing(folder):
        folder = folder.resolve() if folder.is_symlink() else folder
        _check(folder, form, replace=replace)
    model = load_trained(cell, catalogue, registry).cpu()
    all_poolings(model)  # an error if a format cannot express one of them
    examples: Data = {name: _read(task["data"], data) for name, task in cell.spec["tasks"].items()}
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=partial_prefix(), dir=folder.parent) as room:
            export = Path(room) / "export"  # the temporary folder itself is readable by its user alone
            export.mkdir()
            notes = model.encoder.export(export, _texts(examples))
            if model.precision != torch.float32:
                notes.append(f"It was trained in {cell.spec['precision']}; here it computes in float32.")
            if form == "sentence-transformers":
                write_modules(export, model)
            elif form == "onnx":
                write_graph(export, model)
            write_heads(export, model, cell.spec["tasks"])
            write_card(export, Source(folder.name, model, cell, catalogue, registry, form, examples, notes))
            for tensors in export.rglob("*.safetensors"):  # which are written readable by their user alone
                shutil.copymode(export / HEADS, tensors)
            put_folder(export, folder)
    contents = [content for splits in examples.values() for content in splits.values()]
    unread = dict.fromkeys(str(content) for content in contents if isinstance(content, DataError))
    notes += [*model.notes, *(f"The card lacks the sizes of data that cannot be read: {why}" for why in unread)]
    return Exported(sorted(path for path in folder.rglob("*") if path.is_file()), notes)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:  # the latter if the disk is full
        why = getattr(error, "strerror", None) or error
        raise TaskloomError(f"{folder} cannot be written: {why}; choose another folder") from error


def _check(folder: Path, form: ExportFormat, *, replace: bool) -> None:
    """Check, before any work, that the folder may be written and that all packages that write it are installed."""
    if form not in get_args(ExportFormat):
        raise TaskloomError(f"the format should be one of {', '.join(get_args(ExportFormat))}. Found {form!r}.")
    check_location(folder)
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
    """Read the train and dev examples of a data set, or the error of a split that cannot be read."""
    examples: dict[Split, Examples | DataError] = {}
    splits: tuple[Split, ...] = ("train", "dev")
    for split in splits:
        try:
            examples[split] = read_split(spec, split, folder)
        except DataError as error:
            examples[split] = error
    return examples


def _texts(examples: Data) -> Iterator[str]:
    """Yield every text of the data; ``DataError`` for data that cannot be read."""
    for task, splits in examples.items():
        for split_examples in splits.values():
            if isinstance(split_examples, DataError):
                raise DataError(
                    f"task {task!r}: {split_examples}. The encoder has no list of words, so its vocabulary is made of "
                    "those in the data; --data FOLDER says where they are"
                ) from None
            for column in split_examples.columns:
                yield from column
