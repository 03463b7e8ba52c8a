"""An answer as paragraphs and listings: text for a terminal, HTML for a notebook."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskloom.runs.show.render import listing
from taskloom.runs.show.visible import one_line, visible


@dataclass(frozen=True)
class Listing:
    """Rows under headers; ``labels`` are the columns that name a row, which a narrow terminal repeats."""

    rows: Sequence[Sequence[object]]
    headers: Sequence[str]
    labels: Sequence[int] = (0,)


class Aligned(str):
    """Text whose columns are aligned by spaces."""

    __slots__ = ()


Part = Listing | str


def as_text(parts: Iterable[Part], width: int | None = None) -> str:
    """Render the parts as text, separated by empty lines, with listings in a width if one is given."""
    shown = (part if isinstance(part, str) else listing(part.rows, part.headers, width, part.labels) for part in parts)
    return "\n\n".join(filter(None, shown))


def as_html(parts: Iterable[Part]) -> str:
    """Render the parts as HTML tables and paragraphs, with their text escaped.

    >>> as_html(["a < b\\nc"])
    '<p>a &lt; b<br>c</p>'
    """
    return "\n".join(_paragraph(part) if isinstance(part, str) else _table(part) for part in parts if part)


def _paragraph(text: str) -> str:
    if isinstance(text, Aligned):
        return f"<pre>{html.escape(visible(text))}</pre>"
    lines = "<br>".join(html.escape(visible(line)) for line in text.split("\n"))
    return f"<p>{lines}</p>"


def _table(part: Listing) -> str:
    from tabulate import tabulate

    cells = [[html.escape(one_line(str("" if cell is None else cell))) for cell in row] for row in part.rows]
    headers = [html.escape(visible(head)) for head in part.headers]
    return tabulate(cells, headers=headers, tablefmt="unsafehtml", disable_numparse=True)
