"""The tables of a page: scores, errors, failures, the environment, every cell."""

from collections.abc import Sequence

from taskloom.core.errors import count
from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.errors import Confusion
from taskloom.runs.analysis.tables import TableRow
from taskloom.runs.show.render import number
from taskloom.runs.show.report.forest import verdict_word
from taskloom.runs.show.report.markup import Markup, element, joined
from taskloom.runs.show.report.packed import LETTERS
from taskloom.runs.show.report.view import SHORT, Section, View, make_list, make_table


def scores_section(view: View) -> Section:
    """The table, what controls it, and what its readers should know."""
    table, columns = view.table, view.table.columns
    caption = joined(
        [
            f"Mean ± sample standard deviation over seeds, on {view.splits}; under it the difference to ",
            view.base(),
            f" with its interval and verdict. The rows’ differences in {view.primary} are one family of comparisons "
            "(Holm), those in all other columns a second one. Bold: better than the next best row by the same test.",
        ]
    )
    heads = ("row", "seeds", *map(_column_name, columns))
    made = make_table(
        caption, heads, [_row(view, row) for row in table.rows], id="scores-table", name="Table of scores"
    )
    notes = [*table.checks, *(f"{row.label}: {row.note}" for row in table.rows if row.note), *table.notes, *table.laid]
    notes += [f"{each.task}: {each.says} scores {each.score:.{view.digits}f}." for each in table.constants]
    parts = [_controls(view), made]
    return "table", "Table", [*parts, *([element("h3", "What to know"), make_list(notes)] if notes else [])]


def _controls(view: View) -> Markup:
    """What only the script can serve, which also shows it."""
    verdicts = [element("option", each, value=each) for each in ("any verdict", *LETTERS)]
    parts = [
        element("label", "Baseline ", element("select", id="base")),
        element("label", "Rows with ", element("input", id="filter", type="search", placeholder="part of a name")),
        element("label", f"and, in {view.primary}, ", element("select", *verdicts, id="verdict")),
        element("output", id="found", aria_live="polite"),
    ]
    return element("form", *parts, id="controls", hidden=True)


def _row(view: View, row: TableRow) -> Markup:
    seeds = str(row.n) if row.complete else f"{row.n} of {len(row.seeds)}"
    cells = [
        element("th", view.link(row.label), scope="row"),
        element("td", seeds, class_=None if row.complete else "lacking", data_v=row.n),
        *(_figure(view, row, column) for column in view.table.columns),
    ]
    return element("tr", *cells, data_r=view.places[row.label])


def _figure(view: View, row: TableRow, column: str) -> Markup:
    figure, anchor = row.figures[column], view.anchor(row.label)
    if figure.mean is None:
        return element("td", element("a", "—", href=anchor, aria_label="missing"))
    mean = element("a", number(column, figure.mean, view.digits), href=anchor)
    if view.table.best.get(column) == row.label:
        mean = element("strong", mean)
    parts: list[object] = [mean, "" if figure.sd is None else f"\u00a0±\u00a0{number(column, figure.sd, view.digits)}"]
    if row.complete and len(figure.values) < len(row.seeds):
        parts.append(element("span", f" ({len(figure.values)} of {len(row.seeds)})", class_="lacking"))
    if column in view.differences:
        each = view.differences[column].get(row.label)
        numbers = f" {each.numbers}" if each and each.numbers else ""
        parts.append(element("small", verdict_word(each.word if each else "baseline"), numbers))
    return element("td", *parts, data_v=f"{figure.mean:.6g}")


def errors_section(view: View) -> Section | None:
    """What the baseline and the best other row predicted for what."""
    tables: dict[str, list[Markup]] = {}
    for label in view.overview.ranked[:2]:
        for confusion in view.overview.confusions(label):
            tables.setdefault(confusion.task, []).append(_confusion(view, label, confusion))
    if not tables:
        return None
    text = (
        "What was predicted (across) for what is right (down), in percent of each line, over all seeds; values are "
        "counted in bins. Of the baseline and the best other row."
    )
    parts = [element("p", text)]
    for task, made in tables.items():
        parts += [element("h3", task), element("div", *made, class_="charts")]
    return "errors", "Errors", parts


def _confusion(view: View, label: str, confusion: Confusion) -> Markup:
    rows = []
    for name, line in zip(confusion.names, confusion.counts.tolist(), strict=True):
        cells = [_share(each, sum(line)) for each in line]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    return make_table(view.link(label), ("is \\ predicted", *confusion.names), rows, class_="confusion")


def _share(part: int, total: int) -> Markup:
    if not total:
        return element("td", "–")
    shade = f"q{min(9, 10 * part // total)}"
    return element("td", f"{100 * part / total:.0f}", class_=shade, title=f"{part} of {total}")


def failures_section(view: View) -> Section | None:
    """Cells without a result, and figures that are not numbers."""
    cells = {(place.label, place.seed): place.cell for place in view.results.grid.cells}
    rows = []
    for row in view.table.rows:
        for missing in row.missing:
            anchor = f"#c-{cells[row.label, missing.seed].id[:SHORT]}"
            seed = element("td", element("a", missing.seed, href=anchor))
            rows.append(
                element("tr", element("th", view.link(row.label), scope="row"), seed, element("td", missing.why))
            )
    if not rows:
        return None
    return "failures", "Failures", [make_table("What is missing, and why.", ("row", "seed", "reason"), rows)]


def environment_section(view: View) -> Section:
    rows = []
    for name, values in view.overview.environment.items():
        text = ", ".join(f"{value} ({count(cells, 'cell')})" for value, cells in values.items())
        rows.append(element("tr", element("th", name, scope="row"), element("td", text)))
    table = make_table("Devices and versions that the cells ran with.", ("what", "value"), rows)
    return "environment", "Environment", [table]


def cells_section(view: View) -> Section:
    """Every cell, under its row: what numbers lead to."""
    columns = view.table.columns
    own = {label: [place for place in view.results.grid.cells if place.label == label] for label in view.places}
    seen: set[str] = set()
    bodies = []
    for label, places in own.items():
        rows: list[Markup] = []
        for place in places:
            anchor = f"c-{place.cell.id[:SHORT]}"
            head = [] if rows else [element("th", label, scope="rowgroup", rowspan=len(places))]
            cells = _cell(view, label, place.seed, place.cell, columns)
            rows.append(element("tr", *head, *cells, id=None if anchor in seen else anchor))
            seen.add(anchor)
        bodies.append(element("tbody", *rows, id=view.anchor(label)[1:]))
    heads = ("row", "seed", "state", *map(_column_name, columns), "look at it with")
    caption = "Every cell: one row with one seed."
    return "cells", "Cells", [make_table(caption, heads, bodies, class_="cells", name="Table of cells")]


def _cell(view: View, label: str, seed: int, cell: CellRecord, columns: Sequence[str]) -> list[Markup]:
    costs = {"seconds": cell.seconds, "memory": cell.peak_memory, **cell.costs}
    values = {**view.results.final_scores(label, cell), **costs}
    figures = []
    for column in columns:
        value = values.get(column)
        figures.append(element("td", "—" if value is None else number(column, value, view.digits)))
    command = element("code", f"taskloom cells {cell.id[:SHORT]}")
    return [element("td", seed), element("td", cell.status), *figures, element("td", command)]


def _column_name(column: str) -> str:
    return "memory (MiB)" if column == "memory" else column
