"""What several commands share: options, output, and grids by name or path without torch."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from tabulate import tabulate

from taskloom.core.errors import Problem, RegistryError, RequestError, TaskloomError, unknown
from taskloom.core.visible import one_line, visible
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import OVERRIDES, GridRecord
from taskloom.runs.show.render import FORMATS

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.installed.manager import Failure

Command = TypeVar("Command", bound=Callable[..., Any])
REGISTRY = "taskloom-runs"
STRICT = "TASKLOOM_STRICT_PLUGINS"
_answers: TextIO | None = None  # what was stdout before it was taken


class NotRunError(RegistryError):
    """The grid exists, but was not run in this registry."""


def registry_option(command: Command) -> Command:
    """``--registry``: where results are kept."""
    return click.option(
        "--registry",
        envvar="TASKLOOM_REGISTRY",
        type=click.Path(path_type=Path),
        callback=lambda context, parameter, value: Path(os.path.expanduser(value)),  # noqa: PTH111 - the other raises
        default=Path(REGISTRY),
        show_default=True,
        show_envvar=True,
        metavar="FOLDER",
        help="Where results are kept.",
    )(command)


def json_option(command: Command) -> Command:
    """``--json``: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def format_option(command: Command) -> Command:
    """``--format``: how a table is written."""
    return click.option(
        "--format", "form", type=click.Choice(FORMATS), default="plain", show_default=True, help="The table's format."
    )(command)


def yes_option(command: Command) -> Command:
    """``--yes``: accept large grids."""
    return click.option("--yes", is_flag=True, help="Accept a grid of more than 10,000 cells.")(command)


def strict_option(command: Command) -> Command:
    """``--strict-plugins``: a plugin that cannot be used is an error. :func:`strict_check` does the checking."""
    return click.option(
        "--strict-plugins",
        is_flag=True,
        envvar=STRICT,
        show_envvar=True,
        expose_value=False,
        callback=lambda context, parameter, value: context.meta.__setitem__(STRICT, value),
        help="Refuse to work while any plugin is broken.",
    )(command)


def strict() -> bool:
    """Whether ``--strict-plugins`` was given to the command that is running."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(STRICT))


def strict_check(catalogue: "Catalogue") -> "Catalogue":
    """The same catalogue; with ``--strict-plugins``, ``RequestError`` with every reason if a plugin is broken."""
    if strict() and catalogue.failed:
        problems = [Problem("", f"{failure} (`{failure.removal}` ends that)") for failure in catalogue.failed]
        raise RequestError("--strict-plugins", problems)
    return catalogue


def strict_check_only() -> None:
    """The same for a command that needs no components itself: they are imported only with ``--strict-plugins``."""
    if strict():
        from taskloom.registry.installed.catalogue import load_catalogue

        strict_check(load_catalogue())


def note_left_out(failures: "Sequence[Failure]") -> None:
    """Say on stderr which plugins are broken and therefore not used."""
    for failure in failures:
        note(f"left out: {failure}")


def strict_end(catalogue: "Catalogue") -> int:
    """The minimum exit code of a completed run: 1 with ``--strict-plugins`` if a tracker raised, else 0."""
    from taskloom.runs.driver.track import broken_trackers

    failures = broken_trackers(catalogue.plugins) if strict() else []
    for failure in failures:
        note(f"--strict-plugins: {failure}")
    return 1 if failures else 0


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


def note(text: str) -> None:
    """Print to stderr what is not part of the answer. If nobody reads it, the rest is dropped."""
    try:
        click.echo(visible(text), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def listing(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    """Rows under headers, as text."""
    cells = [[one_line(str("" if cell is None else cell)) for cell in row] for row in rows]
    return tabulate(cells, headers=[visible(head) for head in headers], tablefmt="simple", disable_numparse=True)


def on_terminal() -> bool:
    """Whether the answer is shown in bold type."""
    return answers().isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def recorded_grid(ledger: Ledger, source: str) -> GridRecord:
    """The last run of a grid that is given by packaged name, by path, or by its name in the registry.

    Says on stderr if the file has changed since.
    """
    from taskloom.registry.installed.manager import packaged_grids

    packaged = packaged_grids()
    path = packaged[source].path if source in packaged else Path(os.path.expanduser(source))  # noqa: PTH111 - the other raises
    names = ledger.grid_names()
    if not _is_file(path):
        if source not in names:
            known = f"run in registry {ledger.folder} so far"
            raise RegistryError(f"{unknown('grid', source, names, where=known)}, and no file of that name")
        return ledger.grid(source)
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        name = str(raw.get("name") or path.stem)
    except (OSError, ValueError, AttributeError):
        raw, name = None, path.stem
    if name not in names:
        raise NotRunError(
            f"grid {name!r} was not run in registry {ledger.folder} yet; `taskloom run {source}` does that "
            f"(run there so far: {', '.join(names) or 'none'})"
        )
    record = ledger.grid(name)
    if raw != {key: value for key, value in record.spec.items() if key != OVERRIDES}:
        note(f"{path} has changed since grid {name!r} was last run ({record.updated}); this shows that run.")
    return record


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # too long for a path, or in a folder that may not be read
