"""HTML and SVG in which text from outside is always escaped."""

import html
from typing import Any

from taskloom.core.errors import shortened
from taskloom.runs.show.visible import LONGEST_TEXT, visible

_EMPTY = {"meta", "link", "input", "br", "wbr"}
_SELF_CLOSING = {"line", "rect", "circle", "path", "polyline", "use"}


class Markup(str):
    """Text that is markup already; any other string is escaped when it becomes part of an element."""

    __slots__ = ()


def text(value: object) -> Markup:
    r"""Escape a value as text of a page, control characters included, and cut it if it is very long.

    >>> text("<b>&\x07")
    '&lt;b&gt;&amp;\\u0007'
    """
    return value if isinstance(value, Markup) else Markup(html.escape(visible(shortened(str(value), LONGEST_TEXT))))


def element(name: str, /, *content: object, **attributes: Any) -> Markup:
    """Build an element; an attribute that is None or False is left out, and ``_`` in a name stands for ``-``.

    >>> element("td", "a < b", class_="x", colspan=None, aria_label='"')
    '<td class="x" aria-label="&quot;">a &lt; b</td>'
    """
    shown = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{shown}>")
    if name in _SELF_CLOSING and not content:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{joined(content)}</{name}>")


def joined(parts: Any, between: str = "") -> Markup:
    """Concatenate parts, with ``between`` between them."""
    return Markup(between.join(text(part) for part in parts))


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if isinstance(value, float):  # a coordinate, which needs no more than a tenth of a pixel
        value = f"{value:.1f}".removesuffix(".0")
    return f" {name}" if value is True else f' {name}="{text(value)}"'
