"""Shared by several commands: output, the catalogue, and the lookup of grids and cells. No torch."""

import json
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from taskloom.core.errors import Problem, RegistryError, RequestError, TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridRecord
from taskloom.runs.analysis.cell_states import SHORT, finite, verified
from taskloom.runs.api import find
from taskloom.runs.cli.options import is_strict
from taskloom.runs.show.render import render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.runs.analysis.tables import Table
    from taskloom.runs.api.answer import Answer

_answers: TextIO | None = None  # the original stdout, once it is reserved for the answer


def take_stdout() -> None:
    """Reserve stdout for the answer: output of ``print``, ``os.write(1, …)`` or C code goes to stderr from now on."""
    global _answers
    with suppress(OSError):  # a stream that is closed
        _answers = open(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")  # noqa: SIM115, PTH123
        os.dup2(2, 1)


def answers() -> TextIO:
    """Return the stream of the answer: stdout, or the original one if :func:`take_stdout` reserved it."""
    return _answers or sys.stdout


def say(text: str, *, styled: bool = False) -> None:
    """Print the answer, or a part of it. A closed pipe (``| head``) ends the output, not the command.

    Control characters are escaped, unless the text is ``styled`` and escaped already.
    """
    write_answer(f"{text if styled else visible(text)}\n")


def write_answer(text: str) -> bool:
    """Print a part of the answer verbatim; returns False if the pipe is closed."""
    try:
        click.echo(text, file=answers(), nl=False)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers().fileno())  # or Python complains again at exit
        if not isinstance(error, BrokenPipeError):
            raise TaskloomError(f"the answer cannot be written: {error.strerror}") from None
        return False
    return True


def say_json(value: Any) -> None:
    """Print a JSON value as the answer."""
    say(json.dumps(value, indent=2, allow_nan=False))


def say_answer(answer: "Answer[Any]", *, as_json: bool = False) -> None:
    """Print an answer's notes to stderr, then the answer as text or as JSON."""
    for line in answer.notes:
        note(line)
    if as_json:
        say_json(answer.as_json())
    else:
        say(str(answer))


def note(text: object) -> None:
    """Print a note to stderr, beside the answer. If stderr is closed, later notes are dropped."""
    try:
        click.echo(visible(as_started(str(text))), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say_table(table: "Table", form: str, *, reported: bool = False) -> None:
    """Print a table, with bold type on a terminal."""
    bold = answers().isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    say(render(table, form, terminal=bold, reported=reported), styled=True)


def how_to_continue() -> str:
    """Return advice on how to continue a run that was cut short."""
    return f"Run the same command again to continue:\n  {program()} {shlex.join(sys.argv[1:])}"


def program(name: str = "taskloom") -> str:
    """Return the command that starts this program, or ``pip`` or ``python`` from the same environment.

    That is the bare name if it is on the PATH; else the path by which this program was started, such as
    ``.venv/bin/taskloom``.
    """
    started = Path(sys.argv[0])
    on_path = shutil.which("taskloom")
    if started.stem != "taskloom" or not started.exists() or (on_path and started.samefile(on_path)):
        return name
    return shlex.quote(str(started.with_name(f"{name}{started.suffix}")))


def as_started(hint: str) -> str:
    """Rewrite the commands in a hint so that they start this program and use the same registry."""
    here = re.sub(
        r"`taskloom (run|cells|explain|effects|claims)\b[^`]*(?=`)", lambda match: match[0] + registry_argument(), hint
    )
    return re.sub(r"`taskloom\b", lambda _: f"`{program()}", here)


def registry_argument() -> str:
    """Return the ``--registry`` option of this command line after a space, or "" if there is none."""
    for index, word in enumerate(sys.argv):
        if word == "--registry" or word.startswith("--registry="):
            return f" {shlex.join(sys.argv[index : index + 1 + ('=' not in word)])}"
    return ""


def checked_catalogue(*, quiet: bool = False) -> "Catalogue":
    """Load the catalogue of installed components, and name broken plugins on stderr unless ``quiet``.

    With ``--strict-plugins`` broken plugins raise a ``RequestError`` with every reason.
    """
    from taskloom.registry.installed.catalogue import load_catalogue

    catalogue = load_catalogue()
    if is_strict() and catalogue.failed:
        problems = [Problem("", f"{failure} (`{failure.removal}` ends that)") for failure in catalogue.failed]
        raise RequestError("--strict-plugins", problems)
    if not quiet:
        for failure in catalogue.failed:
            note(f"left out: {failure}")
    return catalogue


def recorded_grid(ledger: Ledger, source: str) -> GridRecord:
    """Find the record of a grid by its packaged name, its path, or its name in the registry."""
    return find.recorded_grid(ledger, source, note)


def grid_or_cell(ledger: Ledger, source: str) -> GridRecord | CellRecord:
    """Find a grid by its name or path; failing that, a cell by its identity or a unique prefix of it."""
    return find.grid_or_cell(ledger, source, note)


def find_cell(ledger: Ledger, source: str, row: str | None, seed: int | None) -> CellRecord:
    """Find a cell by its identity, or the finished cell of a grid with the best overall dev score."""
    grid = grid_or_cell(ledger, source)
    if isinstance(grid, CellRecord):
        if row is not None or seed is not None:
            raise RegistryError(f"--row and --seed choose among the cells of a grid; {source!r} is a single cell")
        return grid
    best = find.best_cell(ledger.folder, grid, row, seed)
    score = finite(verified(ledger.folder, best.cell).scores.get("overall"))
    overall = "" if score is None else f", overall {score:.3f}"
    note(f"Cell {best.cell.id[:SHORT]}: row {best.label!r}, seed {best.seed}{overall}.")
    return best.cell
