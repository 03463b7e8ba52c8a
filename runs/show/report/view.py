"""Shared by all sections of a page: the grid's figures, its rows' differences to the baseline, tables and lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.overview import Overview
from taskloom.runs.show.differences import difference_texts, format_p, format_verdict
from taskloom.runs.show.report.markup import Markup, element

#: How many rows have a colour of their own; the baseline has the first one.
COLOURS = 8
SHORT = 12  # characters of a cell's identity
NO_RESULT = "no result"
#: All verdicts, in the order in which they are counted.
VERDICTS = ("better", "worse", "equal", "open", "one seed", "untrained", NO_RESULT)
#: A section of the page: its key, its title and its content.
Section = tuple[str, str, Sequence[Markup]]


@dataclass(frozen=True)
class ShownDifference:
    """A judged difference as a page shows it.

    ``word`` is the verdict in words, ``numbers`` the difference with its interval (``+0.021 [−0.004, +0.046]``),
    ``chance`` the p value or why there is none. ``interval`` is low end, difference and high end, rounded as in the
    texts.
    """

    verdict: str
    word: str
    numbers: str
    chance: str
    interval: tuple[float, float, float] | None

    @classmethod
    def of(cls, judged: Judged, digits: int) -> Self:
        """Format a judged difference with the table's ``digits``."""
        texts = difference_texts(judged, digits)
        delta, *ends = [text.replace("-", "−") for text in texts] or [""]
        verdict = judged.verdict if texts else NO_RESULT
        why = judged.contrast.why or ("" if judged.interval else "no interval")
        return cls(
            verdict,
            format_verdict(judged) if verdict == "equal" else verdict,
            f"{delta} [{ends[0]},\u00a0{ends[1]}]" if ends else delta,  # on one line
            why or f"p {format_p(judged.p)}{', own variance' * (judged.variance == 'own')}",
            (float(texts[1]), float(texts[0]), float(texts[2])) if ends else None,
        )


class View:
    """A grid's overview as the sections of a page show it, with differences to one of its rows, the ``baseline``."""

    def __init__(self, overview: Overview, baseline: str = "") -> None:
        self.overview = overview
        self.baseline = baseline or overview.baseline
        self.results, self.table = overview.results, overview.table
        self.digits, self.primary = self.table.digits, self.table.primary
        self.row_indices = self.results.row_index
        self.colours = {label: index for index, label in enumerate(overview.ranked[:COLOURS])}

    @cached_property
    def differences(self) -> dict[str, dict[str, ShownDifference]]:
        """Column → row → its difference to the baseline."""
        same = self.baseline == self.overview.baseline
        columns = self.overview.differences if same else self.overview.against(self.baseline)
        return {
            column: {label: ShownDifference.of(judged, self.digits) for label, judged in rows.items()}
            for column, rows in columns.items()
        }

    @property
    def splits(self) -> str:
        """The split, or splits, that were scored."""
        return " and ".join(dict.fromkeys(map(self.results.split_of, self.results.rows)))

    def base(self) -> Markup:
        """Mark up the baseline's name so that the script can replace it."""
        return element("span", self.baseline, class_="base")

    def link(self, label: str) -> Markup:
        """Link a row's name to the row's cells."""
        return element("a", label, href=self.anchor(label)) if label in self.row_indices else element("span", label)

    def anchor(self, label: str) -> str:
        return f"#r{self.row_indices[label]}"


def verdict_class(word: str) -> str:
    """Return the class, and thereby the colour, of a verdict or an answer.

    >>> verdict_class("one seed"), verdict_class("equal ±0.01"), verdict_class("holds")
    ('one-seed', 'equal', 'better')
    """
    return {"holds": "better", "contradicted": "worse"}.get(word, word.partition(" ±")[0].replace(" ", "-"))


def verdict_word(word: str) -> Markup:
    """Mark up a verdict or an answer in its colour."""
    return element("b", word, class_=verdict_class(word))


def make_table(
    caption: object,
    heads: Sequence[object],
    rows: Sequence[Markup],
    *,
    name: str | None = None,
    kept: object = None,
    **attributes: object,
) -> Markup:
    """Build a table that scrolls sideways where it does not fit; with a ``name``, by keyboard too.

    The rows may already be grouped into bodies. ``kept`` is the head of a column that stays in sight, if its cells are
    of the same class.
    """
    columns = (element("th", head, scope="col", class_="kept" if head == kept else None) for head in heads)
    head = element("thead", element("tr", *columns))
    bodies = rows if any(row.startswith("<tbody") for row in rows) else [element("tbody", *rows)]
    table = element("table", element("caption", element("span", caption)), head, *bodies, **attributes)
    region = {"tabindex": "0", "role": "region", "aria_label": name} if name else {}
    return element("div", table, class_="wide", **region)


def make_list(notes: Sequence[object]) -> Markup:
    return element("ul", *(element("li", note) for note in notes), class_="notes")
