"""Figures of a page as SVG: scales, intervals, descriptions. Colours and sizes of type are the style sheet's."""

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from taskloom.runs.show.report.markup import Markup, element

#: The height of an interval's line.
STRIP = 24


@dataclass(frozen=True)
class Scale:
    """A linear map from values to positions: ``low`` is at ``start`` and ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``, in at most ``most`` steps.

    >>> ticks(-0.013, 0.041), ticks(0, 7)
    ([0.0, 0.02, 0.04], [0.0, 2.0, 4.0, 6.0])
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most)
    digits = 2 - math.floor(math.log10(step))  # 3 · 0.1 is 0.3
    multiples = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(multiple * step, digits) for multiple in multiples]


def tick_text(value: float, all_ticks: Sequence[float]) -> str:
    """Format a tick with the digits that tell it from its neighbours, in scientific notation if they are many.

    >>> tick_text(0.5, [0.25, 0.5]), tick_text(-2.0, [-2.0, 0.0]), tick_text(2e-5, [0, 1e-5, 2e-5])
    ('0.50', '−2', '0.00002')
    >>> tick_text(5e-5, [4.8e-5, 4.9e-5, 5e-5]), tick_text(0.0, [0.0, 1e-6])
    ('5.0e−5', '0')
    """
    step = min((b - a for a, b in itertools.pairwise(all_ticks)), default=abs(value) or 1.0)
    digits = max((digits for digits in range(20) if abs(round(step, digits) - step) > 1e-6 * step), default=-1) + 1
    text = f"{value:.{digits}f}"
    if len(text) > 7:
        power, finest = (math.floor(math.log10(abs(number) or step) + 1e-6) for number in (value, step))
        text = f"{value / 10.0**power:.{max(power - finest, 0)}f}e{power}" if value else "0"
    return text.replace("-", "−")


def span_of(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the span of an axis for intervals (low, middle, high): 0 and all of them, except outlying ends.

    An end more than ten times as far from 0 as the usual one lies beyond the axis, and is drawn as an arrow.

    >>> span_of([(-1, 0, 1), (-9, 0.5, 10)])
    (-9, 10)
    >>> span_of([(-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (-99, 1, 101)])
    (-1.25, 1.25)
    """
    ends = sorted(max(abs(low), abs(high)) for low, _, high in intervals) or [1.0]
    usual = max([ends[int(0.8 * (len(ends) - 1))], *(1.25 * abs(middle) for _, middle, _ in intervals)])
    most = (ends[-1] if ends[-1] <= 10 * usual else usual) or 1.0
    low = max(-most, min([-most / 5, *(low for low, _, _ in intervals)]))
    high = min(most, max([most / 5, *(high for _, _, high in intervals)]))
    return low, high


def percent(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") + "%"


def strip(interval: tuple[float, float, float] | None, scale: Scale, kind: str, margin: float | None = None) -> Markup:
    """Draw an interval (low, middle, high) over the full width; ends beyond the axis are arrows.

    Without an interval its marks are present but hidden, so that the page's script only has to move them.
    """
    low, middle, high = map(scale, interval or (0.0, 0.0, 0.0))
    zero = percent(scale(0.0))
    marks = []
    if margin:
        left, right = (min(max(scale(edge), 0.0), 100.0) for edge in (-margin, margin))
        marks.append(element("rect", class_="m", x=percent(left), width=percent(right - left), height=STRIP))
    marks += [
        element("line", class_="z", x1=zero, x2=zero, y2=STRIP),
        element("line", class_="i", x1=percent(max(low, 0.5)), x2=percent(min(high, 99.5)), **_hidden(not interval)),
        element("text", "‹", class_="a", x="0%", **_hidden(not interval or low >= 0)),
        element("text", "›", class_="a e", x="100%", **_hidden(not interval or high <= 100)),
        element("circle", cx=percent(min(max(middle, 1.0), 99.0)), r=5, **_hidden(not interval)),
    ]
    return element("svg", *marks, class_=f"f {kind.replace(' ', '-')}", height=STRIP, aria_hidden="true")


def _hidden(hidden: bool) -> dict[str, str]:
    return {"display": "none"} if hidden else {}


def strip_axis(scale: Scale) -> Markup:
    """Draw the axis above a forest plot."""
    shown = ticks(scale.low, scale.high)
    marks = []
    for tick in shown:
        position = scale(tick)
        side = " s" if position < 6 else " e" if position > 94 else ""
        end = tick in (shown[0], shown[-1]) and abs(position - scale(0.0)) > (45 if side else 30)
        kind = "t" if tick == 0 or end else "t n"  # where there is little space the others are left out
        text = ("+" if tick > 0 else "") + tick_text(tick, shown)
        marks.append(element("text", text, class_=kind + side, x=percent(position), y=13))
        marks.append(element("line", class_="g", x1=percent(position), x2=percent(position), y1=17, y2=22))
    return element("svg", *marks, class_="f axis", height=22, aria_hidden="true")


def described(role: str, name: str, about: str, marks: Sequence[Markup], **attributes: object) -> Markup:
    """Build an SVG with a title and a description for screen readers."""
    key = f"f{zlib.crc32((role + name).encode(errors='replace')):x}"
    heads = [element("title", name, id=key), element("desc", about, id=f"{key}d")]
    return element("svg", *heads, *marks, role=role, aria_labelledby=key, aria_describedby=f"{key}d", **attributes)
