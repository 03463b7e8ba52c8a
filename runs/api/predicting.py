"""What a finished cell predicts, written to files: for a split of its data, or for new texts."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO

from taskloom.core.errors import TaskloomError, count
from taskloom.core.rows import open_file
from taskloom.registry.results.outputs import check_location
from taskloom.registry.results.records import CellRecord
from taskloom.runs.api.answer import Answer
from taskloom.runs.api.find import Note
from taskloom.runs.show.parts import Listing

if TYPE_CHECKING:  # which import torch
    from taskloom.core.rows import Format
    from taskloom.runs.predict.texts import NewTexts

#: Instead of a file: stdin or stdout.
STREAM = Path("-")
#: The most unreadable rows that are named; further ones are counted.
NAMED = 10
#: Seconds between two progress notes.
PULSE = 5.0


@dataclass(frozen=True)
class PredictedTexts:
    """The task that new texts were predicted for, and how many rows were predicted and skipped."""

    task: str
    rows: int
    skipped: int


def predict_file(
    cell: CellRecord,
    registry: Path,
    texts_file: Path,
    out: Path | Callable[[str], None],
    *,
    tasks: Sequence[str],
    columns: Sequence[str],
    input_format: "Format",
    form: str | None,
    force: bool,
    note: Note,
) -> Answer[PredictedTexts]:
    """Predict the rows of a file or of stdin, into a file or, text by text, to a function."""
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.predict.predict import choose_task, new_texts, predict_texts
    from taskloom.runs.predict.sheets import format_of, sheet_file, text_sheet
    from taskloom.runs.predict.trained import load_trained

    # On a CPU oneDNN caches a kernel for each of up to 1,024 shapes, which would be most of the memory of a long file.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    file = out if isinstance(out, Path) else None
    reads: list[str | Path] = [texts_file, *cell.files]
    if file is not None:
        if file.is_dir():
            raise TaskloomError(f"--out {file} is a folder; with --input it should be a file")
        check_location(file, reads)
    file_format = format_of(file, form)
    named = itertools.count(1)
    with _opened(texts_file) as stream:
        model = load_trained(cell, load_catalogue(), registry)
        for line in model.notes:
            note(line)
        task = choose_task(model, tasks)
        source = new_texts(
            model,
            cell,
            task,
            stream,
            "stdin" if texts_file == STREAM else texts_file.name,
            texts=columns,
            format=input_format,
            skip=lambda why: note(f"skipped: {why}") if next(named) <= NAMED else None,
        )
        if isinstance(out, Path):
            with _sheet_folder(out), sheet_file(out, file_format, reads=reads, force=force) as write:
                rows = _counted(predict_texts(model, task, source, write), note)
            return _texts_answer(task, rows, source, [Listing([(task, rows, out)], ("task", "rows", "file"))])
        rows, notes = 0, []
        with suppress(BrokenPipeError):  # nobody reads on
            rows = _counted(predict_texts(model, task, source, text_sheet(file_format, out)), note)
            notes = [f"{count(rows, 'row')} of task {task!r} predicted"]
    return _texts_answer(task, rows, source, notes=notes)


def _texts_answer(
    task: str, rows: int, source: "NewTexts", parts: Sequence[Listing] = (), notes: Iterable[str] = ()
) -> Answer[PredictedTexts]:
    skipped = [f"{count(source.skipped, 'row')} skipped"] if source.skipped else []
    predicted = PredictedTexts(task, rows, source.skipped)
    return Answer(predicted, parts, vars(predicted), [vars(predicted)], (*notes, *skipped))


@contextmanager
def _opened(texts_file: Path) -> Iterator[BinaryIO]:
    """Open the file with new texts, or stdin."""
    if texts_file == STREAM:
        if sys.stdin is None:
            raise TaskloomError("--input - reads stdin, which is closed")
        yield sys.stdin.buffer
        return
    try:
        stream = open_file(texts_file)
    except OSError as error:
        raise TaskloomError(f"--input {texts_file} cannot be read: {error.strerror} (--input - reads stdin)") from None
    with stream:
        yield stream


@contextmanager
def _sheet_folder(out: Path) -> Iterator[None]:
    """Make the folder of a file that is written inside; remove it again if it stays empty."""
    new_folders = [folder for folder in out.parents if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise TaskloomError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error
    finally:
        with suppress(OSError):  # only those that stayed empty
            for folder in new_folders:
                folder.rmdir()


def _counted(batch_sizes: Iterator[int], note: Note) -> int:
    """Count the predicted rows, with a progress note every ``PULSE`` seconds."""
    rows, began = 0, monotonic()
    last_note = began
    for batch_size in batch_sizes:
        rows += batch_size
        if (now := monotonic()) - last_note > PULSE:
            note(f"{rows:,} row{'s'[: rows != 1]} predicted, {rows / (now - began):,.1f} per second")
            last_note = now
    return rows
