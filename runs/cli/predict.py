"""``taskloom predict``."""

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO

import click
from click.core import ParameterSource

from taskloom.core.errors import TaskloomError, count
from taskloom.core.rows import open_file
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.outputs import check_location
from taskloom.registry.results.records import CellRecord
from taskloom.runs.api.questions import folder_of
from taskloom.runs.cli.common import answers, checked_catalogue, find_cell, note, say, write_answer
from taskloom.runs.cli.options import force_option, moved_data_option, path_option, registry_option, strict_option
from taskloom.runs.show.render import listing
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.core.data import Split
    from taskloom.core.rows import Format
    from taskloom.runs.predict.predict import Form


#: Instead of a file: stdin or stdout.
STREAM = Path("-")
#: The most unreadable rows that are named; further ones are counted.
NAMED = 10
#: Seconds between two progress notes.
PULSE = 5.0
#: Options that need --input, and options that exclude it.
WITH_INPUT, WITH_SPLIT = ("text", "input_format"), ("split", "data")
SHEETS, FORMS = ("csv", "tsv", "jsonl", "parquet"), ("submission", "jsonl")


@click.command(short_help="Write what a finished cell predicts: for a file of new texts, or as files to hand in.")
@click.argument("source", metavar="CELL|GRID")
@click.option("--row", metavar="LABEL", help="Of GRID, only the row with this label.")
@click.option("--seed", type=int, metavar="N", help="Of GRID, only cells with this seed.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only this task; may be repeated without --input.")
@path_option("--input", metavar="FILE", help="New texts: a CSV, TSV or JSON-lines file, or - for stdin.")
@click.option(
    "--text",
    multiple=True,
    metavar="COLUMN",
    help="The column of --input that holds the text; once for each text that the task reads.",
)
@click.option(
    "--input-format",
    type=click.Choice(["auto", "csv", "tsv", "jsonl"]),
    default="auto",
    show_default=True,
    help="How --input is written; auto decides by its name and first line.",
)
@click.option("--split", type=click.Choice(["dev", "test"]), default="test", show_default=True, help="Of which data.")
@path_option(
    "--out",
    metavar="FILE|FOLDER",
    help="With --input the file to write, or - for stdout; else the folder for files, those of the same name are "
    "replaced.  [default: stdout with --input, else predictions]",
)
@moved_data_option
@click.option(
    "--format",
    "form",
    type=click.Choice(list(dict.fromkeys((*SHEETS, *FORMS)))),
    help="With --input csv, tsv, jsonl or parquet (default: by the suffix of --out, else csv). Without it submission, "
    "CSV files, the course's own for its data (default), or jsonl, JSON lines as runs keep them.",
)
@force_option
@registry_option
@strict_option
@click.pass_context
def predict(
    context: click.Context,
    source: str,
    row: str | None,
    seed: int | None,
    tasks: tuple[str, ...],
    input: Path | None,
    text: tuple[str, ...],
    input_format: "Format",
    split: "Split",
    out: Path | None,
    data: Path | None,
    form: str | None,
    force: bool,
    registry: Path,
) -> None:
    """Write what a finished cell predicts for new texts, or for the test or dev data of its tasks.

    CELL is a cell's identity or a prefix of one (see `taskloom cells`). With GRID, the finished cell with the
    best overall dev score is taken; --row and --seed narrow the choice.

    With --input one table is written, row by row: the id if there is one, the texts, the prediction by the name of
    its class, and the probability of every class (p_NAME) if the head gives any. The file needs a header, or objects
    with keys; its columns of texts are those that the task's data set names, or text, sentence, text_1 and text_2,
    sentence1 and sentence2, or those of --text. A row that cannot be read is named on stderr and skipped. If several
    tasks of the cell predict, --task chooses one. Exits with 0 when every row was predicted, 1 when some were skipped,
    2 when nothing was written.

    Without --input one file per task is written. For the course's data the files are those that its own code writes
    (sst-test-output.csv …, lines "id , value"), for others a CSV with the columns id and prediction. Test data need no
    labels. A task whose data cannot be read is named on stderr and the others are still written. Exits with 0 when
    every task was written, 1 when some were, 2 when none was.

    \b
    Examples:
      taskloom predict 3f0c9a --input new.csv > predicted.csv
      taskloom predict quickstart --task sst --input new.jsonl --out predicted.parquet
      zcat pairs.tsv.gz | taskloom predict 3f0c9a --task sts --input - --text question --text answer
      taskloom predict 3f0c9a
      taskloom predict quickstart --row pcgrad --seed 0 --split dev
      taskloom predict finetuning-techniques --data ~/data --task sst --task sts
      taskloom predict 3f0c9a --format jsonl --out answers
    """
    _check_options(context, input, form)
    with Ledger.open(registry, create=False) as ledger:
        cell = find_cell(ledger, source, row, seed)
    if input is not None:
        file = None if out is None or out == STREAM else out
        context.exit(_predict_input(cell, registry, tasks, input, text, input_format, file, form, force=force))

    from taskloom.runs.predict.predict import predict_cell

    folder = Path("predictions") if out is None else out
    kept: Form = "jsonl" if form == "jsonl" else "submission"
    where = folder_of(data)
    outcome = predict_cell(
        cell, checked_catalogue(), registry, folder, split=split, only=tasks, data=where, form=kept, force=force
    )
    for line in outcome.notes:
        note(line)
    for written in outcome.files:
        if written.skipped:
            rows = count(len(written.skipped), "row")
            note(f"{written.task}: no prediction for {rows} that cannot be read, the first: {written.skipped[0]}")
    for name, reason in outcome.missing.items():
        note(f"{name} not written: {reason}")
    say(listing([(written.task, written.rows, written.path) for written in outcome.files], ("task", "rows", "file")))
    context.exit(1 if outcome.missing else 0)


def _check_options(context: click.Context, input: Path | None, form: str | None) -> None:
    """Refuse combinations of options that have no meaning."""
    for name in WITH_SPLIT if input is not None else WITH_INPUT:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            when = "means nothing with --input" if input is not None else "needs --input FILE"
            raise TaskloomError(f"{option} {when}")
    allowed = SHEETS if input is not None else FORMS
    if form not in (None, *allowed):
        when = "with --input" if input is not None else "without --input"
        raise TaskloomError(f"--format should be {' or '.join(allowed)} {when}. Found {form}.")


def _predict_input(
    cell: CellRecord,
    registry: Path,
    tasks: tuple[str, ...],
    input: Path,
    text: tuple[str, ...],
    input_format: "Format",
    out: Path | None,
    form: str | None,
    *,
    force: bool,
) -> int:
    """Predict the rows of a file or of stdin, to a file or stdout; returns the exit code."""
    from taskloom.runs.predict.predict import choose_task, new_texts, predict_texts
    from taskloom.runs.predict.sheets import format_of, sheet_file, text_sheet
    from taskloom.runs.predict.trained import load_trained

    # On a CPU oneDNN caches a kernel for each of up to 1,024 shapes, which would be most of the memory of a long file.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    if out is not None:
        if out.is_dir():
            raise TaskloomError(f"--out {out} is a folder; with --input it should be a file")
        check_location(out, [input, *cell.files])
    written_as = format_of(out, form)
    named = itertools.count(1)
    with _opened(input) as stream:
        model = load_trained(cell, checked_catalogue(), registry)
        for line in model.notes:
            note(line)
        task = choose_task(model, tasks)
        rows = new_texts(
            model,
            cell,
            task,
            stream,
            "stdin" if input == STREAM else input.name,
            texts=text,
            format=input_format,
            skip=lambda why: note(f"skipped: {why}") if next(named) <= NAMED else None,
        )
        if out is None:
            with suppress(BrokenPipeError):  # nobody reads on
                done = _watch(predict_texts(model, task, rows, text_sheet(written_as, _emit)))
                note(f"{count(done, 'row')} of task {task!r} predicted")
        else:
            new_folders = [folder for folder in out.parents if not folder.exists()]
            try:
                out.parent.mkdir(parents=True, exist_ok=True)
                with sheet_file(out, written_as, reads=[input, *cell.files], force=force) as write:
                    done = _watch(predict_texts(model, task, rows, write))
            except OSError as error:
                raise TaskloomError(
                    f"{out} cannot be written: {error.strerror or error}; choose another --out"
                ) from error
            finally:
                with suppress(OSError):  # only those that stayed empty
                    for folder in new_folders:
                        folder.rmdir()
            say(listing([(task, done, out)], ("task", "rows", "file")))
    if rows.skipped:
        note(f"{count(rows.skipped, 'row')} skipped")
    return 1 if rows.skipped else 0


@contextmanager
def _opened(input: Path) -> Iterator[BinaryIO]:
    """Open the file with new texts, or stdin."""
    if input == STREAM:
        if sys.stdin is None:
            raise TaskloomError("--input - reads stdin, which is closed")
        yield sys.stdin.buffer
        return
    try:
        stream = open_file(input)
    except OSError as error:
        raise TaskloomError(f"--input {input} cannot be read: {error.strerror} (--input - reads stdin)") from None
    with stream:
        yield stream


def _emit(text: str) -> None:
    """Print rows verbatim; on a terminal with control characters escaped."""
    if not write_answer(visible(text) if answers().isatty() else text):
        raise BrokenPipeError


def _watch(batch_sizes: Iterator[int]) -> int:
    """Count the predicted rows, with a progress note every ``PULSE`` seconds."""
    rows, began = 0, monotonic()
    last_note = began
    for batch_size in batch_sizes:
        rows += batch_size
        if (now := monotonic()) - last_note > PULSE:
            note(f"{rows:,} row{'s'[: rows != 1]} predicted, {rows / (now - began):,.1f} per second")
            last_note = now
    return rows
