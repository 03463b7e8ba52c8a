"""Completion in bash, zsh and fish: grids, rows, cells and components by name. No torch, and no error ever."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.arguments import registry_folder

#: The lines of a class of components that say its base class and its name.
_LINES = re.compile(r'^class (\w+)\((\w+)|^    name(?:: \w+)?(?:, \w+)* = "([A-Za-z0-9][\w.:-]*)"', re.MULTILINE)
#: Characters of a cell's identity that are offered.
SHORT = 12


@add_completion_class
class _Fish(FishComplete):
    """click's, which would cut a label at its first comma."""

    source_template = FishComplete.source_template.replace('split ","', 'split --max 1 ","')


class Named(click.types.StringParamType):
    """Text of which the possible values are known: ``names(context)`` gives them, with what they are."""

    def __init__(self, name: str, names: Callable[[click.Context], Iterable[tuple[str, str]]], *, files: bool) -> None:
        self.name, self._names, self._files = name, names, files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known: dict[str, str] = {}
        with suppress(Exception):  # whatever is wrong there is told by the command itself
            for value, help in self._names(ctx):
                known.setdefault(value, help)
        if self._files:
            known |= dict.fromkeys(_grid_files(incomplete), "")
        quoted = _bash_word if os.environ.get("_TASKLOOM_COMPLETE") == "bash_complete" else str
        matching = {value: help for value, help in known.items() if value.startswith(incomplete)}
        items = [CompletionItem(quoted(value), help=help) for value, help in matching.items()]
        return items or ([CompletionItem(incomplete, type="file")] if self._files else [])


def _bash_word(value: str) -> str:
    """A value as bash should insert it: quoted if it has spaces or breaks words there, unless a quote is open."""
    if os.environ.get("COMP_WORDS", "").count('"') % 2:
        return value
    word = shlex.quote(value)
    return f"'{word}'" if word == value and {"=", ":"} & {*value} else word


def _grid_files(incomplete: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    home = Path(os.path.expanduser(folder or ("/" if incomplete.startswith("/") else ".")))  # noqa: PTH111 - the other raises
    prefix = incomplete[: len(incomplete) - len(start)]
    return [f"{prefix}{path.name}" for path in sorted(home.glob("*.json"))]


def _ledger(context: click.Context) -> "Ledger | nullcontext[None]":
    return Ledger.find(registry_folder(context.params.get("registry"))) or nullcontext()


def _grids(context: click.Context) -> Iterator[tuple[str, str]]:
    from taskloom.registry.installed.manager import packaged_grids

    yield from ((name, "packaged grid") for name in packaged_grids())
    with _ledger(context) as ledger:
        yield from ((name, "grid that was run") for name in (ledger.grid_names() if ledger else ()))


def _cells(context: click.Context) -> Iterator[tuple[str, str]]:
    with _ledger(context) as ledger:
        for grid in ledger.grids() if ledger else ():
            yield from ((row.cell.id[:SHORT], f"{row.label}, seed {row.seed}") for row in grid.cells)


def _cells_without_row(context: click.Context) -> Iterator[tuple[str, str]]:
    with _ledger(context) as ledger:
        of_rows = {row.cell.id for grid in ledger.grids() for row in grid.cells} if ledger else set()
        cells = ledger.cells() if ledger else ()
        yield from ((cell.id[:SHORT], f"without a row, {cell.status}") for cell in cells if cell.id not in of_rows)


def _rows(context: click.Context) -> Iterator[tuple[str, str]]:
    """The rows of the grid on the command line, as it was run or is written; without one, all rows."""
    from taskloom.runs.api.find import recorded_grid
    from taskloom.runs.api.grid import unrun
    from taskloom.runs.api.written import WrittenGrid

    source = context.params.get("grid")
    if source is None and context.command.name not in ("compare", "errors"):  # whose arguments are rows
        source = context.params.get("source") or next(iter(context.args), None)  # unread behind an option without value
    with _ledger(context) as ledger:
        if source is None:
            records = list(ledger.grids()) if ledger else []
        else:
            try:
                assert ledger is not None
                records = [recorded_grid(ledger, source, lambda _: None)]
            except Exception:  # it was not run
                records = [unrun(WrittenGrid(source, registry=context.params.get("registry")))]
    yield from ((row.label, f"row of {record.name}") for record in records for row in record.cells)


def _components(context: click.Context, interface: str = "") -> Iterator[tuple[str, str]]:
    """The components of all installed plugins, or of one interface, by the source of their modules, not imported."""
    for plugin in entry_points(group="taskloom"):
        spec = find_spec(plugin.module)
        home = Path(spec.origin) if spec is not None and spec.origin else None
        files = [] if home is None else home.parent.glob("*.py") if home.name == "__init__.py" else [home]
        for file in files:
            interfaces, base = dict[str, str](), ""
            for cls, parent, name in _LINES.findall(file.read_text(encoding="utf-8")):
                if cls:
                    base = interfaces[cls] = interfaces.get(parent, parent)
                elif interface in ("", base):
                    yield name, plugin.name


def _several(
    *sources: Callable[[click.Context], Iterable[tuple[str, str]]],
) -> Callable[..., Iterator[tuple[str, str]]]:
    return lambda context: (pair for names in sources for pair in names(context))


GRID = Named("grid", _grids, files=True)
GRID_OR_CELL = Named("grid or cell", _several(_grids, _cells), files=True)
ROW = Named("row", _rows, files=False)
ROW_OR_CELL = Named("row or cell", _several(_rows, _cells), files=False)
CELL = Named("cell", _cells_without_row, files=False)
COMPONENT = Named("component", _components, files=False)
METRIC, ENGINE, TRACKER = (
    Named(interface.lower(), partial(_components, interface=interface), files=False)
    for interface in ("Metric", "Engine", "Tracker")
)
