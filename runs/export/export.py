"""The model of a finished cell as a folder for other programs: encoder, heads and card. Only reads the registry."""

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from taskloom.core import DataError, Examples, Split, TaskloomError
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.results.artifacts import partial_prefix
from taskloom.registry.results.records import CellRecord
from taskloom.runs.export.card import write_card
from taskloom.runs.export.heads import HEADS, write_heads
from taskloom.runs.export.modules import write_modules
from taskloom.runs.grid.contents import read_split
from taskloom.runs.training.checkpoint import put_folder
from taskloom.runs.training.trained import TrainedModel, load_trained

Form = Literal["sentence-transformers", "transformers", "onnx"]
#: What has to be installed beside taskloom, and the extra that brings it.
_PACKAGES = {"huggingface_hub": "hf", "transformers": "hf", "onnx": "onnx", "onnxscript": "onnx"}
#: How states become one vector, in every format; what an encoder calls otherwise is unknown on the other side.
_POOLINGS = ("pooler", "cls", "mean", "max")

#: The examples of a task's split, or why they cannot be read.
Data = Mapping[str, Mapping[Split, Examples | DataError]]


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

    ``replace`` puts it in the place of an earlier export. ``data`` is a folder to look for the data in, instead of where
    the run had them: the card tells their sizes, and an encoder that hashes words needs the words.
    """
    _check(folder, registry, form, replace=replace)
    model = load_trained(cell, catalogue, registry).cpu()
    if model.pooling not in _POOLINGS:
        raise TaskloomError(
            f"encoder {model.encoder.name!r} pools by {model.pooling!r}, which no other program knows; what can be "
            f"exported pools by {', '.join(_POOLINGS)}"
        )
    examples: Data = {name: _read(task["data"], data) for name, task in cell.spec["tasks"].items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=partial_prefix(), dir=folder.parent) as room:
            made = Path(room) / "made"  # a temporary folder itself is its user's alone
            made.mkdir()
            _write(made, folder.name, model, cell, catalogue, registry, form, examples)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            put_folder(made, folder)
    except OSError as error:
        raise TaskloomError(f"{folder} cannot be written: {error.strerror}; choose another DIR") from error
    return Exported(sorted(path for path in folder.rglob("*") if path.is_file()), _notes(model, cell, examples))


def _write(
    made: Path,
    name: str,
    model: TrainedModel,
    cell: CellRecord,
    catalogue: Catalogue,
    registry: Path,
    form: Form,
    examples: Data,
) -> None:
    model.encoder.export(made, _texts(examples))
    if form == "sentence-transformers":
        write_modules(made, model)
    elif form == "onnx":
        from taskloom.runs.export.graph import write_graph

        write_graph(made, model)
    write_heads(made, model, cell.spec["tasks"])
    write_card(made, name, model, cell, catalogue, registry, form, examples)


def _check(folder: Path, registry: Path, form: Form, *, replace: bool) -> None:
    """Before any work: whether there is room for the folder, and everything that writes it is installed."""
    if folder.resolve().is_relative_to(registry.resolve()):
        raise TaskloomError(f"{folder} is inside the registry {registry}; choose a folder outside")
    if folder.exists() and not folder.is_dir():
        raise TaskloomError(f"{folder} should be a new folder. Found a file; choose another DIR")
    if folder.is_dir() and any(folder.iterdir()):
        if not replace:
            raise TaskloomError(f"{folder} is not empty; choose another DIR, or --replace what was exported there")
        if not (folder / HEADS).is_file():
            raise TaskloomError(f"{folder} holds no export (it has no {HEADS}), so --replace leaves it alone")
    needed = ("huggingface_hub",) if form != "onnx" else tuple(_PACKAGES)
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
                    f"task {task!r}: {found}. The encoder hashes words, so its vocabulary is made of those in the data; "
                    "--data FOLDER says where they are"
                ) from None
            for column in found.columns:
                yield from column


def _notes(model: TrainedModel, cell: CellRecord, examples: Data) -> list[str]:
    """What a user of the folder should know, beside what its card says."""
    unread = {
        task: str(found)
        for task, splits in examples.items()
        for found in splits.values()
        if isinstance(found, DataError)
    }
    return [*model.notes, *(f"{task}: the card has no sizes, because {why}" for task, why in unread.items())]


FORMS: tuple[Form, ...] = get_args(Form)
