"""Figures for papers, drawn with matplotlib: one column wide (claims: two), 8-point type, colour-blind safe."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taskloom.core.errors import TaskloomError, shortened, unknown
from taskloom.runs.analysis.budget import no_trials
from taskloom.runs.analysis.claims import Claim
from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.overview import SCORE, Chart, Overview
from taskloom.runs.show.differences import format_verdict
from taskloom.runs.show.report.figures import NAMES
from taskloom.runs.show.report.svg import span_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The width of a paper's column, in inches.
COLUMN = 3.3
#: The colours of Okabe and Ito, and dashes that tell lines apart in print without colour.
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
GREEN, ORANGE, BLUE, PURPLE, OPEN = "#009e73", "#d55e00", "#0072b2", "#7a5195", "#666666"
VERDICTS = {"better": GREEN, "worse": ORANGE, "equal": BLUE}
ANSWERS = {"holds": GREEN, "contradicted": ORANGE, "equal": BLUE, "not that large": PURPLE}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # letters stay letters, as journals ask
    "svg.fonttype": "none",
    "svg.hashsalt": "taskloom",  # the same file for the same numbers
    "figure.constrained_layout.use": True,
    "text.parse_math": False,  # a label may have a $ in it
}
#: Suffix → metadata that would differ from one call to the next, unset.
FORMATS = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}


def draw(overview: Overview, kind: str, suffix: str) -> bytes:
    """Draw the figure ``kind``, a key of ``FIGURES``; returns the content of a file in the format of ``suffix``."""
    if suffix not in FORMATS:
        raise TaskloomError(f"the name of the figure should end in {', '.join(FORMATS)}. Found {suffix!r}.")
    if kind not in FIGURES:
        raise TaskloomError(unknown("figure", kind, FIGURES, where="there are"))
    return saved(lambda figure: FIGURES[kind](figure, overview), suffix)


def saved(paint: Callable[["Figure"], None], suffix: str) -> bytes:
    """The file, in the format of ``suffix``, of the figure that ``paint`` fills, in the style of all figures here."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskloomError("plots need matplotlib: pip install 'taskloom[plots]'") from None
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = Figure()
        paint(figure)
        figure.savefig(file, format=suffix[1:], metadata=FORMATS[suffix], dpi=300)
    return file.getvalue()


def _forest(figure: "Figure", overview: Overview) -> None:
    differences = overview.differences[overview.table.primary]
    lines = [_line(shortened(label, 28), judged) for label, judged in differences.items() if judged.contrast.seeds]
    if not lines:
        raise TaskloomError(f"{overview.table.name} has no second row with a result, so there is nothing to compare")
    axes = _intervals(figure, lines, overview.margin)
    axes.set_xlabel(f"difference to {overview.baseline} in {overview.table.primary}")


def _effects(figure: "Figure", overview: Overview) -> None:
    lines = [
        _line(f"{shortened(f'{effect.before} → {effect.after}', 28)}\n{shortened(effect.factor.name, 28)}", judged)
        for effect in overview.effects.main
        if (judged := effect.judged) is not None
    ]
    if not lines:
        raise TaskloomError(
            f"no two rows of {overview.table.name} differ in exactly one setting, so no effect can be estimated"
        )
    axes = _intervals(figure, lines, overview.margin)
    axes.set_xlabel(f"effect on {overview.effects.column}")


def _claims(figure: "Figure", overview: Overview) -> None:
    if not overview.claims:
        raise TaskloomError(f"{overview.table.name} makes no claims; `taskloom claims --help` shows one")
    draw_claims(figure, overview.claims, overview.margin)


def draw_claims(figure: "Figure", claims: Sequence[Claim], margin: float | None) -> None:
    """Draw the differences that claims are about, each with its interval, its answer and its published size."""
    drawn = [claim for claim in claims if claim.judged.contrast.seeds]
    previous = ["", *(claim.says for claim in drawn)]  # a statement about several columns is written once
    lines = [
        ForestLine(
            claim.column if claim.says == statement else f"{shortened(claim.says, 64)} · {claim.column}",
            claim.judged,
            claim.answer,
            ANSWERS.get(claim.answer, OPEN),
            claim.answer in ANSWERS,
            claim.reported,
        )
        for statement, claim in zip(previous, drawn, strict=False)
    ]
    if not lines:
        raise TaskloomError("no claim is about two rows that have both been run, so there is nothing to draw")
    axes = _intervals(figure, lines, margin, width=2 * COLUMN)
    published = "; diamonds: published" if any(line.published is not None for line in lines) else ""
    axes.set_xlabel(f"difference{published}")


@dataclass(frozen=True)
class ForestLine:
    """A judged difference to draw: its label, its verdict in a word, and the published difference if there is one."""

    label: str
    judged: Judged
    word: str
    colour: str
    filled: bool
    published: float | None = None


def _line(label: str, judged: Judged) -> ForestLine:
    word = format_verdict(judged) if judged.interval else "no interval"
    return ForestLine(label, judged, word, VERDICTS.get(judged.verdict, OPEN), judged.verdict in VERDICTS)


def _intervals(figure: "Figure", lines: Sequence[ForestLine], margin: float | None, *, width: float = COLUMN) -> "Axes":
    tall = 0.36 if any("\n" in line.label for line in lines) else 0.22
    figure.set_size_inches(width, 0.6 + tall * len(lines))
    axes = figure.add_subplot()
    if margin:
        axes.axvspan(-margin, margin, color="#eeeeee", linewidth=0)
    axes.axvline(0, color="#888888", linewidth=0.6)
    shown = []
    for y, line in enumerate(lines):
        delta = line.judged.contrast.delta
        low, high = line.judged.interval or (delta, delta)
        shown.append((low, delta, high))
        if line.published is not None:
            shown.append((line.published,) * 3)
            axes.plot(line.published, y, "d", markersize=4, color="black", markerfacecolor="white", zorder=3)
        axes.plot([low, high], [y, y], color=line.colour)
        axes.plot(
            delta, y, "o", markersize=4, color=line.colour, markerfacecolor=line.colour if line.filled else "white"
        )
        at_right: Any = ("axes fraction", "data")
        axes.annotate(line.word, (1.02, y), xycoords=at_right, va="center", color=line.colour, fontsize=7)
    first, last = span_of(shown)
    pad = 0.04 * (last - first)
    axes.set_xlim(first - pad, last + pad)
    for y, line in enumerate(lines):  # what the axis cuts off
        low, high = line.judged.interval or (line.judged.contrast.delta,) * 2
        for edge, arrow, beyond in ((first - pad, "<", low < first - pad), (last + pad, ">", high > last + pad)):
            if beyond:
                axes.plot(edge, y, arrow, markersize=4, color=line.colour, clip_on=False)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return axes


def _panels(figure: "Figure", overview: Overview, *, quantity: str) -> None:
    """Draw the charts of a quantity over the epochs."""
    charts = [chart for chart in overview.charts if chart.what == quantity]
    if not charts:
        hint = "combiners that keep tasks apart record conflicts, such as pcgrad"
        raise TaskloomError(f"no cell of {overview.table.name} has recorded {quantity}; {hint}")
    thin = " (thin lines: train)" if any(chart.train for chart in charts) else ""
    _lines(figure, overview, charts, f"epoch{thin}")


def _budget(figure: "Figure", overview: Overview) -> None:
    if overview.budget_chart is None:
        raise no_trials(overview.table.name)
    _lines(figure, overview, [overview.budget_chart], "trials (shaded: eight of ten searches)")


def _lines(figure: "Figure", overview: Overview, charts: Sequence[Chart], across: str) -> None:
    """Draw a panel for each chart of the same quantity, with one legend; rows beyond the colours are grey."""
    from matplotlib.ticker import MaxNLocator

    drawn = [label for label in overview.ranked if any(label in chart.lines for chart in charts)]
    styles = dict(zip(drawn, zip(COLOURS, DASHES, strict=True), strict=False))
    legend: dict[str, Any] = {}
    for axes, chart in zip(_grid(figure, len(charts), 1.25, 0.08 * len(styles) + 0.5), charts, strict=True):
        for label in reversed(drawn):
            colour, dash = styles.get(label, ("#bbbbbb", "-"))
            if label in chart.bands and label in styles:
                (xs, lows), (_, highs) = (zip(*end, strict=True) for end in chart.bands[label])
                axes.fill_between(xs, lows, highs, color=colour, alpha=0.1, linewidth=0)
            for lines, width in ((chart.train, 0.6), (chart.lines, 1.3)):
                if label in lines:
                    xs, ys = zip(*lines[label], strict=True)
                    marker = "o" if len(xs) == 1 else None
                    (line,) = axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=width, marker=marker, ms=3)
                    legend[shortened(label, 24) if label in styles else "other rows"] = line
        if chart.bands:  # a range is cut off below, where it would press the lines together
            tops = [top for _, top in chart.bands.values()]
            scores = [score for line in (*chart.lines.values(), *tops) for _, score in line]
            pad = 0.05 * (max(scores) - min(scores) or 1.0)
            axes.set_ylim(min(scores) - pad, max(scores) + pad)
        for end in chart.stages:
            axes.axvline(end, color="#cccccc", linewidth=0.6, linestyle=":")
        axes.set_title(chart.about.replace("+", " and "))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.supylabel(NAMES.get(charts[0].what, charts[0].what), fontsize=8)
    figure.supxlabel(across, fontsize=8)
    names = [*reversed(legend)]  # the baseline first, as it was drawn last
    figure.legend([legend[name] for name in names], names, loc="outside upper center", ncols=2, frameon=False)


def _grid(figure: "Figure", panels: int, height: float, more: float, *, share: bool = False) -> "list[Axes]":
    """Add panels to a figure, two side by side, and leave ``more`` inches of height around them."""
    across = min(panels, 2)
    down = -(-panels // across)
    figure.set_size_inches(COLUMN, height * down + more)
    subplots = list(figure.subplots(down, across, sharey=share, squeeze=False).flat)
    for axes in subplots[panels:]:
        axes.set_visible(False)
    return subplots[:panels]


def _bars(figure: "Figure", overview: Overview) -> None:
    rows = [row for row in overview.table.rows if row.n]
    columns = overview.columns
    for axes, column in zip(_grid(figure, len(columns), 0.4 + 0.16 * len(rows), 0.3, share=True), columns, strict=True):
        for row_index, row in enumerate(rows):
            values = row.figures[column].values
            axes.barh(row_index, row.figures[column].mean or 0.0, height=0.6, color="#56b4e9")
            axes.plot(values, [row_index] * len(values), ".", color="black", markersize=2.5)
            if column in row.reported:
                axes.plot(row.reported[column], row_index, "D", markersize=4, color="#d55e00")
        axes.set_title(column)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(range(len(rows)), [shortened(row.label, 20) for row in rows])
    if overview.table.reported:
        figure.supxlabel("diamonds: published", fontsize=7)


def _confusion(figure: "Figure", overview: Overview) -> None:
    confusions = list(overview.confusions(overview.baseline))
    if not confusions:
        raise TaskloomError(
            f"the predictions of {overview.baseline!r} are not in the registry, so there is no confusion"
        )
    for axes, confusion in zip(_grid(figure, len(confusions), 1.6, 0.2), confusions, strict=True):
        totals = confusion.counts.sum(1, keepdims=True)
        shares = confusion.counts / totals.clip(1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for row, column in np.ndindex(shares.shape):
            share = shares[row, column]
            colour = "white" if share > 0.6 else "black"
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=6, color=colour)
        ticks = range(len(confusion.names))
        axes.set_xticks(ticks, confusion.names, rotation=90 if max(map(len, confusion.names)) > 2 else 0)
        axes.set_yticks(ticks, confusion.names)
        axes.set_title(confusion.task)
    figure.supxlabel(f"predicted by {shortened(overview.baseline, 28)} (%)", fontsize=8)
    figure.supylabel("right", fontsize=8)


FIGURES: dict[str, Callable[["Figure", Overview], None]] = {
    "forest": _forest,
    "curves": partial(_panels, quantity=SCORE),
    "bars": _bars,
    "effects": _effects,
    "claims": _claims,
    "budget": _budget,
    "conflicts": partial(_panels, quantity="conflicts"),
    "confusion": _confusion,
}
