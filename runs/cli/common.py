"""What several commands share: output, the catalogue, and grids and cells by what the user typed. No torch."""

import json
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from taskloom.core.errors import Problem, RegistryError, RequestError, TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import SOURCE, CellRecord, GridRecord
from taskloom.runs.cli.options import is_strict
from taskloom.runs.show.render import render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.runs.analysis.tables import Table

NO_CELL = "and no cell's identity begins with it (`taskloom cells` lists them)"
_answers: TextIO | None = None  # what was stdout before it was taken


class NotRunError(RegistryError):
    """The grid exists, but was not run in this registry."""


def take_stdout() -> None:
    """Keep stdout for the answer: what ``print``, ``os.write(1, …)`` or C code writes from now on goes to stderr."""
    global _answers
    with suppress(OSError):  # a stream that is closed
        _answers = open(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")  # noqa: SIM115, PTH123
        os.dup2(2, 1)


def answers() -> TextIO:
    """Where the answer goes: stdout, or what was stdout before it was taken."""
    return _answers or sys.stdout


def say(text: str, *, styled: bool = False) -> None:
    """Print the answer, or a part of it. A reader that has gone away (``| head``) ends the output, not the command.

    Control characters are shown as escapes, unless the text is ``styled``: then its author has done so.
    """
    try:
        click.echo(text if styled else visible(text), file=answers())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers().fileno())  # or Python complains again at exit
        if not isinstance(error, BrokenPipeError):
            raise TaskloomError(f"the answer cannot be written: {error.strerror}") from None


def say_json(value: Any) -> None:
    """Print a JSON value as the answer."""
    say(json.dumps(value, indent=2, allow_nan=False))


def note(text: object) -> None:
    """Print to stderr what is not part of the answer. If nobody reads it, the rest is dropped."""
    try:
        click.echo(visible(as_started(str(text))), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say_table(table: "Table", form: str, *, reported: bool = False) -> None:
    """Print a table, on a terminal with bold type."""
    bold = answers().isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    say(render(table, form, terminal=bold, reported=reported), styled=True)


def counted_look(ledger: Ledger, made: "Table") -> "Table":
    """The table. If it has test scores, the look at them is written down, and said from the second time on."""
    if not any(row.split == "test" and any(row.figures[name].values for name in made.scores) for row in made.rows):
        return made
    try:
        looks = ledger.add_look(made.name)
    except RegistryError:  # a registry that may only be read
        return replace(made, checks=(*made.checks, "That the test scores were looked at could not be written down."))
    said = f"The test scores of this grid were looked at {looks} times; what is chosen by them is no longer a test."
    return replace(made, checks=(*made.checks, *([said] if looks > 1 else [])))


def how_to_continue() -> str:
    """What to do after a run that was cut short."""
    return f"Run the same command again to continue:\n  {program()} {shlex.join(sys.argv[1:])}"


def program(name: str = "taskloom") -> str:
    """What to type to start this program, or ``pip`` or ``python`` beside it.

    That is the name, if a shell finds this program by it; else the path by which it was started, such as
    ``.venv/bin/taskloom``.
    """
    started = Path(sys.argv[0])
    found = shutil.which("taskloom")
    if started.stem != "taskloom" or not started.exists() or (found and started.samefile(found)):
        return name
    return shlex.quote(str(started.with_name(f"{name}{started.suffix}")))


def as_started(hint: str) -> str:
    """A hint, whose commands are to be typed as this program was started."""
    return re.sub(r"`taskloom\b", lambda _: f"`{program()}", hint)


def checked_catalogue(*, quiet: bool = False) -> "Catalogue":
    """Every installed component. Broken plugins are named on stderr, unless ``quiet``.

    With ``--strict-plugins`` they are a ``RequestError`` with every reason.
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
    """The last run of a grid that is given by packaged name, by path, or by its name in the registry.

    Notes on stderr if the file has changed since.
    """
    from taskloom.runs.grid.file import extended, locate

    path, known_by = locate(source)
    names = ledger.grid_names()
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long for a file is not a file, and not an error
        if source not in names:
            known = f"run in registry {ledger.folder} so far"
            raise RegistryError(f"{unknown('grid', source, names, where=known)}, and no file of that name")
        if others := [name for name in names if name.endswith(f"/{source}")]:
            listed = ", ".join(others)
            note(f"{source!r} is the grid of {ledger.grid(source).spec.get(SOURCE)}; others of that name: {listed}")
        return ledger.grid(source)
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        known_by = "" if raw.get("name") else known_by
        name = str(raw.get("name") or path.stem)
        raw = extended(raw, path)
    except (OSError, ValueError, AttributeError):
        raw, name = None, path.stem
    except RequestError:  # it extends what is not there
        raw = None
    name = ledger.name_for(name, known_by, raw)
    if name not in names:
        raise NotRunError(
            f"grid {name!r} was not run in registry {ledger.folder} yet; `taskloom run {source}` does that "
            f"(run there so far: {', '.join(names) or 'none'})"
        )
    record = ledger.grid(name)
    if raw != record.written:
        note(f"{path} has changed since grid {name!r} was last run ({record.updated}); this shows that run.")
    return record


def grid_or_cell(ledger: Ledger, source: str) -> GridRecord | CellRecord:
    """A grid by its name or path; failing that, a cell by its identity or a unique prefix of it."""
    try:
        return recorded_grid(ledger, source)
    except NotRunError:
        raise
    except RegistryError as error:
        if ledger.has_cell(source):
            return ledger.cell(source)
        raise RegistryError(f"{error}, {NO_CELL}") from None
