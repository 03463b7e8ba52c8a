"""Shared by all sections of a page: the grid's figures, the indices and colours of its rows, tables and lists."""

from collections.abc import Sequence
from functools import cached_property

from taskloom.runs.analysis.overview import Overview
from taskloom.runs.show.report.markup import Markup, element
from taskloom.runs.show.report.packed import ShownDifference

#: How many rows have a colour of their own; the baseline has the first one.
COLOURS = 8
SHORT = 12  # characters of a cell's identity
#: A section of the page: its key, its title and its content.
Section = tuple[str, str, Sequence[Markup]]


class View:
    """A grid's overview with what the sections of a page need of it."""

    def __init__(self, overview: Overview) -> None:
        self.overview = overview
        self.results, self.table = overview.results, overview.table
        self.digits, self.primary = self.table.digits, self.table.primary
        self.row_indices = {label: index for index, label in enumerate(self.results.rows)}
        self.colours = {label: index for index, label in enumerate(overview.ranked[:COLOURS])}

    @cached_property
    def differences(self) -> dict[str, dict[str, ShownDifference]]:
        """Column → row → its difference to the baseline."""
        return {
            column: {label: ShownDifference(judged, self.digits) for label, judged in rows.items()}
            for column, rows in self.overview.differences.items()
        }

    @property
    def splits(self) -> str:
        """The split, or splits, that were scored."""
        return " and ".join(dict.fromkeys(map(self.results.split_of, self.results.rows)))

    def base(self) -> Markup:
        """Mark up the baseline's name so that the script can change it."""
        return element("span", self.overview.baseline, class_="base")

    def link(self, label: str) -> Markup:
        """Link a row's name to the row's cells."""
        return element("a", label, href=self.anchor(label)) if label in self.row_indices else element("span", label)

    def anchor(self, label: str) -> str:
        return f"#r{self.row_indices[label]}"


def make_table(
    caption: object, heads: Sequence[object], rows: Sequence[Markup], *, name: str | None = None, **attributes: object
) -> Markup:
    """Build a table that scrolls sideways where it does not fit; with a ``name``, by keyboard too.

    The rows may already be grouped into bodies.
    """
    head = element("thead", element("tr", *(element("th", head, scope="col") for head in heads)))
    bodies = rows if any(row.startswith("<tbody") for row in rows) else [element("tbody", *rows)]
    table = element("table", element("caption", element("span", caption)), head, *bodies, **attributes)
    region = {"tabindex": "0", "role": "region", "aria_label": name} if name else {}
    return element("div", table, class_="wide", **region)


def make_list(notes: Sequence[object]) -> Markup:
    return element("ul", *(element("li", note) for note in notes), class_="notes")
