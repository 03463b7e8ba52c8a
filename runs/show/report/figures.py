"""Lines over epochs and bars by task."""

from collections.abc import Iterator, Mapping, Sequence

from taskloom.core.errors import count, shortened
from taskloom.runs.analysis.overview import BEST, LOSS, SCORE, Chart, Line
from taskloom.runs.analysis.tables import TableRow
from taskloom.runs.show.budget import budget_listing
from taskloom.runs.show.report.markup import Markup, element
from taskloom.runs.show.report.svg import Scale, described, percent, ticks
from taskloom.runs.show.report.view import SHORT, Section, View, make_list, make_table

#: The most rows that are drawn as lines, and as bars: the baseline and the best.
MOST_LINES, MOST_BARS = 40, 300
#: The size of a chart, and the space left of and below its lines; the height of a bar with its label.
WIDTH, HEIGHT, LEFT, BOTTOM, BAR = 360, 190, 46, 26, 32
#: Titles of charts; others are named after their quantity.
NAMES = {"conflicts": "share of steps with a conflict", "cosine": "cosine of the gradients"}


# Lines


def learning_section(view: View) -> Section | None:
    """Chart scores and training losses over the epochs."""
    charts = [chart for chart in view.overview.charts if chart.what in (SCORE, LOSS)]
    dashed = " Solid: dev. Dashed: a sample of the training data." if any(chart.train for chart in charts) else ""
    text = f"Over the epochs, the mean over the finished seeds of each row.{dashed}"
    return _charts(view, "learning", "Learning curves", text, charts)


def diagnostics_section(view: View) -> Section | None:
    """Chart margins, conflicts and other recorded quantities of losses and gradients over the epochs."""
    charts = [chart for chart in view.overview.charts if chart.what not in (SCORE, LOSS)]
    text = "Figures of the losses, and what was seen of the tasks’ gradients; over the epochs, means over seeds."
    return _charts(view, "diagnostics", "Margins and conflicts", text, charts)


def budget_section(view: View) -> Section | None:
    """Chart the expected best score over the number of trials, and list it."""
    budget, chart = view.overview.budget, view.overview.budget_chart
    text = (
        "The expected best score by the number of trials. The band is what eight of ten searches end in; of a search "
        "per seed it is the mean of the seeds' bands."
    )
    section = _charts(view, "budget", "Budget", text, [chart] if chart else [])
    if section is None or budget is None:
        return None
    listing = budget_listing(budget)
    rows = [
        element("tr", element("th", view.link(str(label)), scope="row"), *(element("td", cell) for cell in cells))
        for label, *cells in listing.rows
    ]
    table = make_table(f"Expected best {budget.column}", listing.headers, rows, name="Expected best scores")
    key, title, content = section
    return key, title, [*content, table, make_list(budget.checks)]


def _charts(view: View, key: str, title: str, text: str, charts: Sequence[Chart]) -> Section | None:
    figures = []
    for chart in charts:
        about = chart.about.replace("+", " and ")
        quantity = NAMES.get(chart.what, chart.what.replace("_", " "))
        name = f"{about}: {quantity}" if about else quantity
        lines = {label: chart.lines[label] for label in view.overview.ranked[:MOST_LINES] if label in chart.lines}
        if lines:
            figures.append(element("figure", element("figcaption", name), _line_chart(view, chart, lines, name)))
    if not figures:
        return None
    return key, title, [element("p", text), _legend(view), element("div", *figures, class_="charts")]


def _line_chart(view: View, chart: Chart, lines: Mapping[str, Line], name: str) -> Markup:
    """Draw a line for each row over epochs or trials, dashed for training data, and grey if the row has no colour."""
    train = {label: chart.train[label] for label in lines if label in chart.train}
    bands = {label: chart.bands[label] for label in lines if label in chart.bands and label in view.colours}
    tops = [top for _, top in bands.values()]  # the lower ends may be far below, and are cut off
    every = [point for line in (*lines.values(), *train.values(), *tops) for point in line]
    (first, *_, last), (least, *_, most) = (sorted([*values, *values]) for values in zip(*every, strict=True))
    pad = 0.05 * ((most - least) or abs(most) or 1.0)
    across = Scale(first, max(last, first + 1), LEFT + 6, WIDTH - 8)
    upward = Scale(least - pad, most + pad, HEIGHT - BOTTOM, 6)
    marks = _axes(across, upward)
    for end in chart.stages:
        marks.append(element("line", class_="stage", x1=across(end), x2=across(end), y1=6, y2=HEIGHT - BOTTOM))
    for label, (low, high) in bands.items():
        around = [(x, min(max(y, upward.low), upward.high)) for x, y in (*low, *reversed(high))]  # lines need the space
        points = " ".join(f"{across(x):.1f},{upward(y):.1f}" for x, y in around)
        marks.append(element("polygon", points=points, class_=f"band k{view.colours[label]}"))
    for label in reversed([*lines]):  # the baseline and the best on top
        title = element("title", f"{label}: {_figure(lines[label][0][1])} → {_figure(lines[label][-1][1])}")
        drawn = [_polyline(lines[label], across, upward)]
        drawn += [_polyline(train[label], across, upward, "d")] if label in train else []
        kind = f"l c{view.colours.get(label, 'x')}"
        marks.append(element("g", title, *drawn, class_=kind, data_r=view.row_indices[label]))
    unit = "Trials" if chart.what == BEST else "Epochs"
    about = f"{unit} {first:g} to {last:g}, values from {_figure(least)} to {_figure(most)}."
    return described("img", name, about, marks, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _figure(value: float) -> str:
    return (f"{value:.3g}" if abs(value) < 0.01 else f"{value:.3f}").replace("-", "−")


def _axes(x_scale: Scale, y_scale: Scale) -> list[Markup]:
    elements, bottom = [], HEIGHT - BOTTOM
    for tick, text in ticks(y_scale.low, y_scale.high):
        elements.append(element("line", class_="g", x1=LEFT, x2=WIDTH, y1=y_scale(tick), y2=y_scale(tick)))
        elements.append(element("text", text, class_="t e", x=LEFT - 5, y=y_scale(tick) + 4))
    steps = [tick for tick, _ in ticks(x_scale.low, x_scale.high, 8) if tick.is_integer()]
    elements += [element("text", f"{step:g}", class_="t", x=x_scale(step), y=bottom + 16) for step in steps]
    return [*elements, element("line", class_="z", x1=LEFT, x2=WIDTH, y1=bottom, y2=bottom)]


def _polyline(line: Line, x_scale: Scale, y_scale: Scale, kind: str | None = None) -> Markup:
    points = [(x_scale(x), y_scale(y)) for x, y in line]
    if len(points) == 1:
        return element("circle", cx=points[0][0], cy=points[0][1], r=2.5)
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=kind)


def _legend(view: View) -> Markup:
    ranked = view.overview.ranked
    entries = [
        element("li", _swatch(colour), view.link(label), data_r=view.row_indices[label])
        for label, colour in view.colours.items()
    ]
    grey = min(len(ranked), MOST_LINES) - len(entries)
    entries += [element("li", _swatch("x"), count(grey, "other row"))] if grey > 0 else []
    left = len(ranked) - MOST_LINES
    entries += [element("li", f"{count(left, 'row')} with less {view.primary} not drawn")] if left > 0 else []
    return element("ul", *entries, class_="legend", aria_label="Rows")


def _swatch(colour: int | str) -> Markup:
    """Draw a short sample of a row's line."""
    line = element("line", x1=1, x2=23, y1=6, y2=6)
    return element("svg", element("g", line, class_=f"l c{colour}"), class_="swatch", aria_hidden="true")


# Bars


def bars_section(view: View) -> Section:
    """Chart scores by task, with published figures as marks."""
    kept = {*view.overview.ranked[:MOST_BARS]}
    figures = []
    for column in view.overview.columns:
        rows = [row for row in view.table.rows if row.label in kept and row.figures[column].values]
        if rows:
            figures.append(element("figure", element("figcaption", column), _bars(view, rows, column)))
    text = "Means over seeds, from zero; a dot is one seed and leads to its cell."
    if view.table.reported:
        text += " A diamond is a published figure."
    if len(view.overview.ranked) > MOST_BARS:
        text += f" Only the best {MOST_BARS} rows are drawn."
    return "bars", "Scores by task", [element("p", text), element("div", *figures, class_="charts tall")]


def _bars(view: View, rows: Sequence[TableRow], column: str) -> Markup:
    """Draw a bar for each row over the full width, with a dot for each seed and a diamond for a published figure."""
    scores = [score for row in rows for score in (*row.figures[column].values, row.reported.get(column, 0.0))]
    scale = Scale(min(0.0, *scores), max(0.0, *scores) or 1.0, 0.6, 98.5)
    marks = [mark for index, row in enumerate(rows) for mark in _bar(view, row, column, scale, index * BAR)]
    name = f"{column} of each row"
    about = "; ".join(f"{row.label} {row.figures[column].mean:.{view.digits}f}" for row in rows[:20])
    return described("group", name, about, marks, class_="bars", height=BAR * len(rows) + 2)


def _bar(view: View, row: TableRow, column: str, scale: Scale, top: int) -> Iterator[Markup]:
    mean, reported = row.figures[column].mean or 0.0, row.reported.get(column)
    left, right = sorted((scale(0.0), scale(mean)))
    shown = f"{mean:.{view.digits}f}".replace("-", "−")
    published = "" if reported is None else f", published {reported:g} ({row.split})"
    parts = [
        element("title", f"{row.label}: {shown}{published}"),
        element("text", shortened(row.label, 40), x="0", y=top + 12),
        element("text", shown, class_="e", x="100%", y=top + 12),
        element("rect", class_="b", x=percent(left), width=percent(right - left), y=top + 17, height=9),
    ]
    yield element("a", *parts, href=view.anchor(row.label), data_r=view.row_indices[row.label])
    for seed in row.seeds:
        cell = view.results.finished.get((row.label, seed))
        score = None if cell is None else view.results.final_scores(row.label, cell).get(column)
        if cell is not None and score is not None and score == score:  # not NaN
            dot = element("circle", cx=percent(scale(score)), cy=top + 21.5, r=2.5)
            # Keyboards and screen readers use the link of the bar instead.
            yield element("a", dot, href=f"#c-{cell.id[:SHORT]}", tabindex=-1, aria_hidden="true")
    if reported is not None:
        yield element("text", "◆", class_="p", x=percent(scale(reported)), y=top + 26)
