"""Shared by several commands: output, the check of plugins, and the choice of a cell. No torch."""

import logging
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from taskloom.core.errors import Problem, RequestError, TaskloomError
from taskloom.runs.api.find import registry_beside
from taskloom.runs.api.grid import Grid
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.runs.api.answer import Answer

#: Seconds of reading data after which it is said what is being read.
PATIENCE = 2.0
#: What options of several commands leave in click's ``meta``; of the second it is also the environment variable.
COLOR, STRICT = "taskloom.color", "TASKLOOM_STRICT_PLUGINS"

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


def say(text: str) -> None:
    """Print the answer, or a part of it, with control characters escaped."""
    write_answer(f"{visible(text)}\n")


def write_answer(text: str) -> bool:
    """Print a part of the answer verbatim; returns False if the pipe is closed.

    A closed pipe (``| head``) ends the output, not the command.
    """
    try:
        click.echo(text, file=answers(), nl=False)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers().fileno())  # or Python complains again at exit
        if not isinstance(error, BrokenPipeError):
            raise TaskloomError(f"the answer cannot be written: {error.strerror}") from None
        return False
    return True


def say_answer(answer: "Answer[Any]", form: str = "plain") -> None:
    """Print an answer's notes to stderr, then the answer in a format, in colours and as wide as the terminal is."""
    for line in answer.notes:
        note(line)
    color = click.get_current_context().meta.get(COLOR, "auto")
    colors = answers().isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    if text := answer.format(form, colors=colors if color == "auto" else color == "always", width=_width()):
        write_answer(f"{text}\n")


def _width() -> int | None:
    """The columns of the terminal that shows the answer, or of ``COLUMNS``; None for a file, a pipe or no size."""
    if not answers().isatty():
        return None
    stated = os.environ.get("COLUMNS", "")
    return (
        int(stated) if stated.isdecimal() and int(stated) else os.get_terminal_size(answers().fileno()).columns or None
    )


def note(text: object) -> None:
    """Print a note to stderr, beside the answer. If stderr is closed, later notes are dropped."""
    try:
        click.echo(visible(as_started(str(text))), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def nearby(registry: Path, grid: str | None) -> Path:
    """The registry beside a grid's file where none is named and the current folder has none, with a note; else this."""
    if (other := _beside(registry, grid)) is not None:
        note(f"The registry is {other}, beside the grid; --registry names another.")
    return other or registry


def _beside(registry: Path, grid: str | None) -> Path | None:
    stated = click.get_current_context().get_parameter_source("registry") != ParameterSource.DEFAULT
    if stated or grid is None or not grid.endswith(".json") or registry.exists():
        return None
    return registry_beside(Path(os.path.expanduser(grid)))  # noqa: PTH111 - the other raises


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


def is_strict() -> bool:
    """Return whether the running command has ``--strict-plugins``."""
    return bool(click.get_current_context().meta.get(STRICT))


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


def valid_grid(source: str, registry: Path | None, *, quiet: bool = True, progress: bool = True) -> Grid:
    """A grid whose file can be read, after the plugins were checked; with ``progress`` of reading its data.

    A registry beside the grid's file that is not the one to be used is named.
    """
    grid = Grid(source, registry=registry)
    _ = grid.file  # before torch is imported: a misspelt path should be reported at once
    if progress and registry is not None and (other := _beside(registry, source)) is not None:
        note(f"The registry beside the grid, {other}, is not used here; --registry {other} does that.")
    checked_catalogue(quiet=quiet)
    if progress and sys.stderr.isatty():
        logger = logging.getLogger("taskloom.data")
        logger.handlers = [_Slow()]
        logger.setLevel(logging.DEBUG)
    return grid


class _Slow(logging.Handler):
    """Says on stderr what is being read, once reading has taken some seconds; a debug record says that it was read."""

    _begun = 0.0
    _timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self._begun = self._begun or record.created
        if self._timer is not None:
            self._timer.cancel()
        if record.levelno > logging.DEBUG:
            left = max(0.0, self._begun + PATIENCE - record.created)
            self._timer = Timer(left, note, [f"{record.getMessage()} …"])
            self._timer.daemon = True  # it keeps no process alive
            self._timer.start()
