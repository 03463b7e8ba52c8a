"""A grid or a cell by what the user typed."""

from collections.abc import Iterable
from difflib import get_close_matches

from taskloom.core.errors import RegistryError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridRecord
from taskloom.runs.cli.common import NotRunError, recorded_grid


def grid_or_cell(ledger: Ledger, source: str) -> GridRecord | CellRecord:
    """A grid by its name or path; failing that, a cell by its identity or a unique prefix of it."""
    try:
        return recorded_grid(ledger, source)
    except NotRunError:
        raise
    except RegistryError as error:
        if ledger.has_cell(source):
            return ledger.cell(source)
        raise RegistryError(f"{error}, and no cell's identity begins with it (`taskloom cells` lists them)") from None


def unknown_row(row: str, labels: Iterable[str]) -> RegistryError:
    """The error for a row that a grid does not have. Labels are quoted: most contain commas."""
    names = sorted(set(labels))
    near = get_close_matches(row, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return RegistryError(f"no row {row!r}{hint} (rows: {', '.join(map(repr, names))})")
