"""A table as text: plain, github, latex, html, csv or json.

The best mean of a column is bold where the format has bold; in plain text it is bold on a terminal and marked with
``*`` anywhere else. Means that look the same are all marked. Under the text formats stand the reasons for every hole.
"""

import csv
import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tabulate import tabulate

from taskloom.core.errors import unknown
from taskloom.runs.tables import Row, Table

FORMATS = ("plain", "github", "latex", "html", "csv", "json")
#: More reasons than this are counted; ``taskloom cells`` and the json format have them all.
MOST_NOTES = 12

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "—": "---",
    "Δ": r"$\Delta$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _github(text: str) -> str:
    # An underscore inside a word is no emphasis there, and names are full of them.
    return re.sub(r"[\\|*`<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


@dataclass(frozen=True)
class _Style:
    """How one format writes a table: tabulate's name for it, and its ways to escape, mark and annotate."""

    tabulate: str
    escape: Callable[[str], str]
    bold: str
    note: str


_STYLES = {
    "plain": _Style("simple", str, "*{}", "{}"),
    "terminal": _Style("simple", str, "\x1b[1m{}\x1b[0m", "{}"),
    "github": _Style("pipe", _github, "**{}**", "- {}"),
    "latex": _Style("latex_raw", _latex, r"\textbf{{{}}}", r"\par{{\footnotesize {}}}"),
    "html": _Style("unsafehtml", html.escape, "<b>{}</b>", "<p><small>{}</small></p>"),
}


def render(table: Table, form: str, *, terminal: bool = False) -> str:
    """The table in one of ``FORMATS``; ``terminal`` lets plain text use bold."""
    if form not in FORMATS:
        raise ValueError(unknown("format", form, FORMATS))
    if form == "json":
        return json.dumps(as_json(table), indent=2, allow_nan=False)
    if form == "csv":
        return _csv(table)
    style = _STYLES["terminal" if form == "plain" and terminal else form]
    cells = _Cells(table, style)
    marked = "" if style.bold != "*{}" or not cells.marked else "* best of its column"
    notes = [style.note.format(style.escape(note)) for note in [*_notes(table), marked] if note]
    text = tabulate(
        cells.body,
        headers=[style.escape(head) for head in cells.head],
        tablefmt=style.tabulate,
        disable_numparse=True,
        colalign=["left", *["right"] * (len(cells.head) - 1)],
    )
    return "\n".join([text, "", *notes] if notes else [text])


class _Cells:
    """Head and body of the table as text in one style."""

    def __init__(self, table: Table, style: _Style) -> None:
        self.table, self.style, self.marked = table, style, False
        self._best = {column: table.best(column) for column in table.columns}
        parts: list[tuple[str, Callable[[Row], str]]] = [("seeds", _seeds)]
        for column in table.columns:
            title = "memory (MiB)" if column == "memory" else column
            parts.append((title, partial(self._figure, column)))
            if column in table.reported:
                parts.append((f"{title} reported", partial(self._reported, column)))
        if table.baseline is not None and "overall" in table.columns:
            parts.append(("Δ overall", self._delta))
        self.head = ["", *(title for title, _ in parts)]
        self.body = [
            [style.escape(" ".join(row.label.split())), *(part(row) for _, part in parts)] for row in table.rows
        ]

    def _figure(self, column: str, row: Row) -> str:
        figure, digits = row.figures[column], self.table.digits
        if figure.mean is None:
            return self.style.escape("—")
        mean = number(column, figure.mean, digits)
        text = mean if figure.sd is None else f"{mean} ± {number(column, figure.sd, digits)}"
        best = self._best[column]
        if not row.complete or best is None or mean != number(column, best, digits):
            return self.style.escape(text)
        self.marked = True
        return self.style.bold.format(self.style.escape(text))

    def _reported(self, column: str, row: Row) -> str:
        if column not in row.reported:
            return ""
        return self.style.escape(number(column, row.reported[column], self.table.digits))

    def _delta(self, row: Row) -> str:
        if row.label == self.table.baseline:
            return "baseline"
        delta = self.table.delta(row, "overall")
        return self.style.escape("—" if delta is None else number("overall", delta, self.table.digits, sign="+"))


def _seeds(row: Row) -> str:
    return str(row.n) if row.complete else f"{row.n}/{len(row.seeds)}"


def number(column: str, value: float, digits: int, *, sign: str = "") -> str:
    """A figure as the table prints it: scores with ``digits``, seconds with one, memory in MiB.

    >>> number("sst", 0.51249, 3), number("seconds", 12.345, 3), number("memory", 3 * 2**20, 3)
    ('0.512', '12.3', '3')
    """
    if column == "memory":
        value, digits = value / 2**20, 0
    elif column == "seconds":
        digits = 1
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def _notes(table: Table) -> list[str]:
    notes: list[str] = []
    for row in table.rows:
        seeds: dict[str, list[int]] = {}
        for missing in row.missing:
            seeds.setdefault(missing.why, []).append(missing.seed)
        for why, which in seeds.items():
            if len(which) == len(row.seeds) and len(which) > 1:
                who = row.label
            else:
                who = f"{row.label}, seed{'s' if len(which) > 1 else ''} {', '.join(map(str, which))}"
            notes.append(f"— {who}: {why}")
    if len(notes) > MOST_NOTES:
        more = len(notes) - MOST_NOTES
        notes = [*notes[:MOST_NOTES], f"— and {more} more: `taskloom cells {table.name}` lists them all"]
    return notes


def as_json(table: Table) -> list[dict[str, Any]]:
    """One object per row: label, number of finished seeds, and per metric mean and sd."""
    rows = []
    for row in table.rows:
        metrics: dict[str, dict[str, float | int | None]] = {}
        for column, figure in row.figures.items():
            metrics[column] = {"mean": figure.mean, "sd": figure.sd, "n": len(figure.values)}
            if table.baseline is not None:
                metrics[column]["delta"] = table.delta(row, column)
        rows.append(
            {
                "label": row.label,
                "n": row.n,
                "seeds": list(row.seeds),
                "baseline": row.label == table.baseline,
                "metrics": metrics,
                "reported": row.reported,
                "missing": [vars(missing) for missing in row.missing],
            }
        )
    return rows


def _csv(table: Table) -> str:
    """Raw figures, mean and sd in columns of their own; memory in bytes."""
    text = io.StringIO()
    parts = {column: ["mean", "sd", *(["reported"] * (column in table.reported))] for column in table.columns}
    writer = csv.writer(text, lineterminator="\n")
    names = [f"{column} {part}" for column in table.columns for part in parts[column]]
    writer.writerow(["label", "n", "seeds", *names, "missing"])
    for row in table.rows:
        figures = []
        for column, figure in row.figures.items():
            values = {"mean": figure.mean, "sd": figure.sd, "reported": row.reported.get(column)}
            figures += [values[part] for part in parts[column]]
        missing = "; ".join(f"seed {missing.seed}: {missing.why}" for missing in row.missing)
        writer.writerow([row.label, row.n, len(row.seeds), *figures, missing])
    return text.getvalue().rstrip("\n")
