"""Lines over epochs and bars by task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taskloom.core.errors import count
from taskloom.runs.analysis.overview import Chart, Line
from taskloom.runs.analysis.tables import TableRow
from taskloom.runs.show.report.markup import Markup, element
from taskloom.runs.show.report.svg import Bar, bars, line_chart, swatch
from taskloom.runs.show.report.view import SHORT, Section, View

#: Rows that are drawn as lines, and as bars: the baseline and the best.
MOST_LINES, MOST_BARS = 40, 100
#: What charts are called; others by their own name.
NAMES = {"conflicts": "share of steps with a conflict", "cosine": "cosine of the gradients"}


def learning_section(view: View) -> Section | None:
    """Scores and train losses over the epochs."""
    charts = view.overview.learning
    if not charts:
        return None
    dashed = " Solid: dev. Dashed: a sample of the training data." if any(chart.train for chart in charts) else ""
    text = f"Over the epochs, the mean over the finished seeds of each row.{dashed}"
    return "learning", "Learning curves", [element("p", text), _legend(view), _charts(view, charts)]


def diagnostics_section(view: View) -> Section | None:
    """Margins, conflicts and what else is known of losses and gradients."""
    charts = view.overview.diagnostics
    if not charts:
        return None
    text = "Figures of the losses, and what was seen of the tasks’ gradients; over the epochs, means over seeds."
    return "diagnostics", "Margins and conflicts", [element("p", text), _legend(view), _charts(view, charts)]


def chart_name(chart: Chart) -> str:
    """What a chart shows, and of which task or pair of tasks."""
    about = chart.about.replace("+", " and ")
    what = NAMES.get(chart.what, chart.what.replace("_", " "))
    return f"{about}: {what}" if about else what


def _charts(view: View, charts: Sequence[Chart]) -> Markup:
    drawn = {*view.overview.ranked[:MOST_LINES]}
    figures = []
    for chart in charts:
        kept = replace(chart, lines=_only(chart.lines, drawn), train=_only(chart.train, drawn))
        if kept.lines:
            name = chart_name(chart)
            drawing = line_chart(kept, view.colours, view.places, name)
            figures.append(element("figure", element("figcaption", name), drawing))
    return element("div", *figures, class_="charts")


def _only(lines: Mapping[str, Line], kept: set[str]) -> dict[str, Line]:
    return {label: line for label, line in lines.items() if label in kept}


def _legend(view: View) -> Markup:
    ranked = view.overview.ranked
    items = [
        element("li", swatch(colour), view.link(label), data_r=view.places[label])
        for label, colour in view.colours.items()
    ]
    grey = min(len(ranked), MOST_LINES) - len(items)
    items += [element("li", swatch("x"), count(grey, "other row"))] if grey > 0 else []
    left = len(ranked) - MOST_LINES
    items += [element("li", f"{count(left, 'row')} with less {view.primary} not drawn")] if left > 0 else []
    return element("ul", *items, class_="legend", aria_label="Rows")


def bars_section(view: View) -> Section:
    """Scores by task, with published figures as marks."""
    kept = {*view.overview.ranked[:MOST_BARS]}
    figures = []
    for column in view.overview.columns:
        rows = [row for row in view.table.rows if row.label in kept]
        drawn = [bar for row in rows if (bar := _bar(view, row, column)) is not None]
        if drawn:
            drawing = bars(drawn, view.digits, f"{column} of each row")
            figures.append(element("figure", element("figcaption", column), drawing))
    text = "Means over seeds, from zero; a dot is one seed and leads to its cell."
    if view.table.reported:
        text += " A diamond is a published figure, hollow where it was taken on another split than ours."
    if len(view.overview.ranked) > MOST_BARS:
        text += f" Only the best {MOST_BARS} rows are drawn."
    return "bars", "Scores by task", [element("p", text), element("div", *figures, class_="charts tall")]


def _bar(view: View, row: TableRow, column: str) -> Bar | None:
    mean = row.figures[column].mean
    if mean is None:
        return None
    seeds = []
    for seed in row.seeds:
        if cell := view.results.finished.get((row.label, seed)):
            value = view.results.final_scores(row.label, cell).get(column)
            if value is not None and value == value:  # not NaN
                seeds.append((value, f"c-{cell.id[:SHORT]}"))
    ours = view.results.split_of(row.label)
    return Bar(row.label, view.places[row.label], mean, seeds, row.reported.get(column), row.split, row.split == ours)
