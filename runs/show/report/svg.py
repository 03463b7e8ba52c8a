"""Figures of a page as SVG: intervals, lines over epochs, bars. Colours and sizes of type are the style sheet's."""

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskloom.runs.analysis.overview import Chart, Line
from taskloom.runs.show.report.markup import Markup, element

#: The size of a chart, and the space left of and below its lines.
WIDTH, HEIGHT, LEFT, BOTTOM = 360, 190, 46, 26
#: The height of an interval's line, and of a bar with its label.
STRIP, BAR = 24, 32


@dataclass(frozen=True)
class Scale:
    """From a value to a position: ``low`` is at ``start`` and ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``.

    >>> ticks(-0.013, 0.041), ticks(0, 7)
    ([0.0, 0.02, 0.04], [0.0, 2.0, 4.0, 6.0])
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most)
    return [
        round(place * step, 10) for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def tick_text(value: float, all_ticks: Sequence[float]) -> str:
    """A tick with as many digits as its neighbours need.

    >>> tick_text(0.5, [0.25, 0.5]), tick_text(-2.0, [-2.0, 0.0]), tick_text(2e-5, [0, 1e-5, 2e-5])
    ('0.50', '−2', '0.00002')
    """
    step = min((b - a for a, b in itertools.pairwise(all_ticks)), default=abs(value) or 1.0)
    digits = max((digits for digits in range(10) if abs(round(step, digits) - step) > 1e-11), default=-1) + 1
    return f"{value:.{digits}f}".replace("-", "−")


def span_of(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """What an axis shows of intervals (low, middle, high): 0, all middles, and the ends but for a few very long ones.

    >>> span_of([(-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (-99, 1, 101)])
    (-1.25, 1.25)
    """
    ends = sorted(max(abs(low), abs(high)) for low, _, high in intervals) or [1.0]
    usual = max([ends[int(0.8 * (len(ends) - 1))], *(1.25 * abs(middle) for _, middle, _ in intervals)])
    most = (ends[-1] if ends[-1] <= 2 * usual else usual) or 1.0
    low = max(-most, min([-most / 5, *(low for low, _, _ in intervals)]))
    high = min(most, max([most / 5, *(high for _, _, high in intervals)]))
    return low, high


def _percent(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") + "%"


def strip(interval: tuple[float, float, float] | None, scale: Scale, kind: str, margin: float | None = None) -> Markup:
    """One line of a forest plot, as wide as there is space: low, middle, high; ends beyond the axis are arrows."""
    zero = _percent(scale(0.0))
    marks = [element("line", class_="z", x1=zero, x2=zero, y2=STRIP)]
    if margin:
        left, right = (min(max(scale(edge), 0.0), 100.0) for edge in (-margin, margin))
        marks.insert(0, element("rect", class_="m", x=_percent(left), width=_percent(right - left), height=STRIP))
    if interval is not None:
        low, middle, high = interval
        left, right = max(scale(low), 0.5), min(scale(high), 99.5)
        marks.append(element("line", class_="i", x1=_percent(left), x2=_percent(right), y1=12, y2=12))
        if scale(low) < 0:
            marks.append(element("text", "‹", class_="a", x="0%", y=17))
        if scale(high) > 100:
            marks.append(element("text", "›", class_="a e", x="100%", y=17))
        marks.append(element("circle", cx=_percent(min(max(scale(middle), 1.0), 99.0)), cy=12, r=5))
    return element("svg", *marks, class_=f"f {kind}", height=STRIP, aria_hidden="true")


def strip_axis(scale: Scale) -> Markup:
    """The axis over a forest plot."""
    shown = ticks(scale.low, scale.high)
    marks = []
    for tick in shown:
        place = scale(tick)
        side = " s" if place < 6 else " e" if place > 94 else ""
        end = tick in (shown[0], shown[-1]) and abs(place - scale(0.0)) > (45 if side else 30)
        kind = "t" if tick == 0 or end else "t n"  # where there is little space the others are left out
        marks.append(element("text", signed_tick(tick, shown), class_=kind + side, x=_percent(place), y=13))
        marks.append(element("line", class_="g", x1=_percent(place), x2=_percent(place), y1=17, y2=22))
    return element("svg", *marks, class_="f axis", height=22, aria_hidden="true")


def signed_tick(value: float, all_ticks: Sequence[float]) -> str:
    return ("+" if value > 0 else "") + tick_text(value, all_ticks)


def line_chart(chart: Chart, colours: Mapping[str, int], places: Mapping[str, int], name: str) -> Markup:
    """A line for each row over the epochs, those for the training data dashed; rows without a colour are grey."""
    every = [*chart.lines.values(), *chart.train.values()]
    xs = [x for line in every for x, _ in line]
    ys = [y for line in every for _, y in line]
    pad = 0.05 * (max(ys) - min(ys)) or 0.05
    across = Scale(min(xs), max(max(xs), min(xs) + 1), LEFT + 6, WIDTH - 8)
    upward = Scale(min(ys) - pad, max(ys) + pad, HEIGHT - BOTTOM, 6)
    marks = _axes(across, upward, HEIGHT - BOTTOM)
    marks += [
        element("line", class_="stage", x1=across(end), x2=across(end), y1=6, y2=HEIGHT - BOTTOM)
        for end in chart.stages
    ]
    for label in sorted({**chart.lines, **chart.train}, key=lambda label: -colours.get(label, len(colours))):
        lines = [(kind, each[label]) for kind, each in (("", chart.lines), ("d", chart.train)) if label in each]
        first, last = lines[0][1][0][1], lines[0][1][-1][1]
        title = element("title", f"{label}: {_figure(first)} → {_figure(last)}")
        drawn = [_polyline(line, across, upward, kind) for kind, line in lines]
        marks.append(element("g", title, *drawn, class_=f"l c{colours.get(label, 'x')}", data_r=places[label]))
    about = f"Epochs {min(xs):g} to {max(xs):g}, values from {_figure(min(ys))} to {_figure(max(ys))}."
    return _described("img", name, about, marks, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.3f}".replace("-", "−")


def _axes(across: Scale, upward: Scale, bottom: float) -> list[Markup]:
    marks, rows = [], ticks(upward.low, upward.high)
    for tick in rows:
        marks.append(element("line", class_="g", x1=LEFT, x2=WIDTH, y1=upward(tick), y2=upward(tick)))
        exact = tick_text(tick, rows)
        shown = exact if len(exact) < 8 else f"{tick:.2g}".replace("-", "−")
        marks.append(element("text", shown, class_="t e", x=LEFT - 5, y=upward(tick) + 4))
    columns = [tick for tick in ticks(across.low, across.high, 8) if tick == int(tick)]
    marks += [element("text", f"{tick:g}", class_="t", x=across(tick), y=bottom + 16) for tick in columns]
    return [*marks, element("line", class_="z", x1=LEFT, x2=WIDTH, y1=bottom, y2=bottom)]


def _polyline(line: Line, across: Scale, upward: Scale, kind: str) -> Markup:
    points = [(across(x), upward(y)) for x, y in line]
    if len(points) == 1:
        return element("circle", cx=points[0][0], cy=points[0][1], r=2.5)
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=kind or None)


def _described(role: str, name: str, about: str, marks: Sequence[Markup], **attributes: object) -> Markup:
    """An SVG with a title and a description for those who do not see it."""
    key = f"f{zlib.crc32((role + name).encode(errors='replace')):x}"
    heads = [element("title", name, id=key), element("desc", about, id=f"{key}d")]
    return element("svg", *heads, *marks, role=role, aria_labelledby=key, aria_describedby=f"{key}d", **attributes)


@dataclass(frozen=True)
class Bar:
    """A row's bar: its mean, its seeds with their cells' anchors, and what was published, on which split.

    ``same`` says whether ours is of that split, too.
    """

    label: str
    place: int
    mean: float
    seeds: Sequence[tuple[float, str]]
    reported: float | None
    split: str
    same: bool


def bars(found: Sequence[Bar], digits: int, name: str) -> Markup:
    """A bar for each row, as wide as there is space: a dot for each seed, a diamond for a published figure."""
    values = [value for bar in found for value in (bar.mean, bar.reported, *(value for value, _ in bar.seeds))]
    known = [value for value in values if value is not None]
    scale = Scale(min(0.0, *known), max(0.0, *known) or 1.0, 0.6, 98.5)
    marks: list[Markup] = []
    for number, bar in enumerate(found):
        top = number * BAR
        left, right = sorted((scale(0.0), scale(bar.mean)))
        shown = f"{bar.mean:.{digits}f}".replace("-", "−")
        published = "" if bar.reported is None else f", published {bar.reported:g} ({bar.split})"
        parts = [
            element("title", f"{bar.label}: {shown}{published}"),
            element("text", _clipped(bar.label), x="0", y=top + 12),
            element("text", shown, class_="e", x="100%", y=top + 12),
            element("rect", class_="b", x=_percent(left), width=_percent(right - left), y=top + 17, height=9),
        ]
        marks.append(element("a", *parts, href=f"#r{bar.place}", data_r=bar.place))
        for value, anchor in bar.seeds:  # by keyboard and by ear the bar leads there
            dot = element("circle", cx=_percent(scale(value)), cy=top + 21.5, r=2.5)
            marks.append(element("a", dot, href=f"#{anchor}", tabindex=-1, aria_hidden="true"))
        if bar.reported is not None:
            kind = "p" if bar.same else "p o"
            marks.append(element("text", "◆", class_=kind, x=_percent(scale(bar.reported)), y=top + 26))
    about = f"{name}: " + "; ".join(f"{bar.label} {bar.mean:.{digits}f}" for bar in found[:20])
    return _described("group", name, about, marks, class_="bars", height=BAR * len(found) + 2)


def _clipped(label: str, most: int = 40) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def swatch(colour: int | str) -> Markup:
    """A piece of a row's line, for a legend."""
    line = element("line", x1=1, x2=23, y1=6, y2=6)
    return element("svg", element("g", line, class_=f"l c{colour}"), class_="swatch", aria_hidden="true")
