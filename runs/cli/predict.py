"""``taskloom predict``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from taskloom.core.errors import TaskloomError
from taskloom.runs.api.predicting import STREAM
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import answers, checked_catalogue, nearby, note, say_answer, write_answer
from taskloom.runs.cli.completion import GRID_OR_CELL, ROW
from taskloom.runs.cli.options import force_option, moved_data_option, path_option, registry_option, strict_option
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.core.data import Split
    from taskloom.core.rows import Format

#: Options that need --input, and options that exclude it.
INPUT_ONLY, SPLIT_ONLY = ("text", "input_format"), ("split", "data")
TABLE_FORMATS, SPLIT_FORMATS = ("csv", "tsv", "jsonl", "parquet"), ("submission", "jsonl")


@click.command(short_help="Write what a finished cell predicts: for a file of new texts, or as files to hand in.")
@click.argument("source", metavar="CELL|GRID", type=GRID_OR_CELL)
@click.option("--row", type=ROW, metavar="LABEL", help="Of GRID, only the row with this label.")
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
    "-o",
    "--out",
    metavar="FILE|FOLDER",
    help="With --input the file to write, or - for stdout; else the folder for files, those of the same name are "
    "replaced.  [default: stdout with --input, else predictions]",
)
@moved_data_option
@click.option(
    "--format",
    "form",
    type=click.Choice(list(dict.fromkeys((*TABLE_FORMATS, *SPLIT_FORMATS)))),
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
    cell = Registry(nearby(registry, source)).cell(source, row, seed, note=note)
    checked_catalogue()
    if input is None:
        split_form: Any = form or "submission"
        files = cell.predict_split(
            out or "predictions", split=split, tasks=tasks, data=data, form=split_form, force=force
        )
        say_answer(files)
        context.exit(1 if files.found.missing else 0)
    predicted = cell.predict_file(
        input,
        _emit if out in (None, STREAM) else out,
        tasks=tasks,
        columns=text,
        input_format=input_format,
        form=form,
        force=force,
        note=note,
    )
    say_answer(predicted)
    context.exit(1 if predicted.found.skipped else 0)


def _check_options(context: click.Context, input: Path | None, form: str | None) -> None:
    """Refuse options that do not apply with --input, or without it."""
    for name in SPLIT_ONLY if input is not None else INPUT_ONLY:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            when = "does not apply with --input" if input is not None else "needs --input FILE"
            raise TaskloomError(f"{option} {when}")
    allowed = TABLE_FORMATS if input is not None else SPLIT_FORMATS
    if form not in (None, *allowed):
        when = "with --input" if input is not None else "without --input"
        raise TaskloomError(f"--format should be {' or '.join(allowed)} {when}. Found {form}.")


def _emit(text: str) -> None:
    """Print rows verbatim; on a terminal with control characters escaped."""
    if not write_answer(visible(text) if answers().isatty() else text):
        raise BrokenPipeError
