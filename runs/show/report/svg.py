"""Figures of a page as SVG: scales, intervals, descriptions. Colours and sizes of type are the style sheet's."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from taskloom.runs.show.report.markup import Markup, element

#: The height of an interval's line.
STRIP = 24


@dataclass(frozen=True)
class Scale:
    """A linear map from values to positions: ``low`` is drawn at ``start`` and ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """Return round numbers from ``low`` to ``high``, in at most ``most`` steps, each with its text.

    >>> ticks(-0.013, 0.041), ticks(-2e-6, 2.1e-6, 3)
    ([(0.0, '0.00'), (0.02, '0.02'), (0.04, '0.04')], [(-2e-06, '−2e−6'), (0.0, '0'), (2e-06, '2e−6')])
    """
    exponent = math.floor(math.log10((high - low) / most))
    factor = next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * 10.0**exponent) <= most)
    if factor == 10:
        factor, exponent = 1, exponent + 1
    step = factor * 10.0**exponent
    multiples = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    shown = []
    for digits in (multiple * factor for multiple in multiples):
        value = float(f"{digits}e{exponent}")
        text = f"{value:.{max(0, -exponent)}f}" if abs(exponent) <= 5 else f"{digits}e{exponent}" if digits else "0"
        shown.append((value, text.replace("-", "−")))
    return shown


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
    """Draw an interval (low, middle, high) over the full width; ends beyond the axis are arrows."""
    zero = percent(scale(0.0))
    marks = []
    if margin:
        left, right = (min(max(scale(edge), 0.0), 100.0) for edge in (-margin, margin))
        marks.append(element("rect", class_="m", x=percent(left), width=percent(right - left), height=STRIP))
    marks.append(element("line", class_="z", x1=zero, x2=zero, y2=STRIP))
    if interval:
        low, middle, high = map(scale, interval)
        marks.append(element("line", class_="i", x1=percent(max(low, 0.5)), x2=percent(min(high, 99.5))))
        marks += [element("text", "‹", class_="a", x="0%")] if low < 0 else []
        marks += [element("text", "›", class_="a e", x="100%")] if high > 100 else []
        marks.append(element("circle", cx=percent(min(max(middle, 1.0), 99.0)), r=5))
    return element("svg", *marks, class_=f"f {kind}", height=STRIP, aria_hidden="true")


def strip_axis(scale: Scale) -> Markup:
    """Draw the axis above a forest plot."""
    shown = ticks(scale.low, scale.high)
    marks = []
    for index, (tick, text) in enumerate(shown):
        position = scale(tick)
        side = " s" if position < 6 else " e" if position > 94 else ""
        end = index in (0, len(shown) - 1) and abs(position - scale(0.0)) > (45 if side else 30)
        kind = "t" if tick == 0 or end else "t n"  # where there is little space the others are left out
        marks.append(element("text", "+" * (tick > 0) + text, class_=kind + side, x=percent(position), y=13))
        marks.append(element("line", class_="g", x1=percent(position), x2=percent(position), y1=17, y2=22))
    return element("svg", *marks, class_="f axis", height=22, aria_hidden="true")


def described(role: str, name: str, about: str, marks: Sequence[Markup], **attributes: object) -> Markup:
    """Build an SVG with a title and a description for screen readers."""
    key = f"f{zlib.crc32((role + name).encode(errors='replace')):x}"
    heads = [element("title", name, id=key), element("desc", about, id=f"{key}d")]
    return element("svg", *heads, *marks, role=role, aria_labelledby=key, aria_describedby=f"{key}d", **attributes)
