"""What all parts of a page share: the grid's numbers, where its rows are, and what they look like."""

from collections.abc import Sequence
from functools import cached_property

from taskloom.runs.analysis.overview import Overview
from taskloom.runs.show.report.markup import Markup, element
from taskloom.runs.show.report.packed import Shown, shown

#: Rows that have a colour of their own; the baseline has the first one.
COLOURS = 8
SHORT = 12  # characters of a cell's identity
#: A part of the page: its key, its title and what is in it.
Section = tuple[str, str, Sequence[Markup]]


class View:
    """A grid's overview as a page sees it."""

    def __init__(self, overview: Overview) -> None:
        self.overview = overview
        self.results, self.table = overview.results, overview.table
        self.digits, self.primary = self.table.digits, self.table.primary
        self.places = {label: place for place, label in enumerate(self.results.rows)}
        self.colours = {label: place for place, label in enumerate(overview.ranked[:COLOURS])}

    @cached_property
    def differences(self) -> dict[str, dict[str, Shown]]:
        """Column → row → its difference to the baseline."""
        return {
            column: {label: shown(judged, self.digits) for label, judged in found.items()}
            for column, found in self.overview.differences.items()
        }

    @property
    def splits(self) -> str:
        """The split that the scores are of, or both."""
        return " and ".join(dict.fromkeys(map(self.results.split_of, self.results.rows)))

    def base(self) -> Markup:
        """The baseline's name, which the script changes."""
        return element("span", self.overview.baseline, class_="base")

    def link(self, label: str) -> Markup:
        """A row's name; it leads to the row's cells."""
        return element("a", label, href=self.anchor(label)) if label in self.places else element("span", label)

    def anchor(self, label: str) -> str:
        return f"#r{self.places[label]}"


def make_table(
    caption: object, heads: Sequence[object], rows: Sequence[Markup], *, name: str | None = None, **attributes: object
) -> Markup:
    """A table, whose rows may be in bodies already; it is scrolled sideways where it does not fit.

    If it has a name, it is scrolled by keyboard, too.
    """
    head = element("thead", element("tr", *(element("th", head, scope="col") for head in heads)))
    bodies = rows if any(row.startswith("<tbody") for row in rows) else [element("tbody", *rows)]
    table = element("table", element("caption", element("span", caption)), head, *bodies, **attributes)
    region = {"tabindex": "0", "role": "region", "aria_label": name} if name else {}
    return element("div", table, class_="wide", **region)


def make_list(notes: Sequence[object]) -> Markup:
    return element("ul", *(element("li", note) for note in notes), class_="notes")
