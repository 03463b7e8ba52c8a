"""The tables of a page: scores, errors, failures, the environment, every cell."""

from collections.abc import Sequence

from taskloom.core.errors import count
from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.errors import Confusion
from taskloom.runs.analysis.tables import TableRow
from taskloom.runs.grid.data_facts import remarks
from taskloom.runs.show.data import data_listing
from taskloom.runs.show.render import number
from taskloom.runs.show.report.markup import Markup, element, joined
from taskloom.runs.show.report.view import (
    NO_RESULT,
    SHORT,
    VERDICTS,
    Section,
    View,
    make_list,
    make_table,
    verdict_class,
    verdict_word,
)


def scores_section(view: View) -> Section:
    """Show the table with its controls and notes."""
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
    rows, kept = [_row(view, row) for row in table.rows], _column_name(view.primary)
    scores = make_table(caption, heads, rows, id="scores-table", name="Table of scores", kept=kept)
    notes = [
        *table.checks,
        *(f"{row.label}: {row.note}" for row in table.rows if row.note),
        *table.notes,
        *table.settings,
    ]
    notes += [
        f"{constant.task}: {constant.says} scores {constant.score:.{view.digits}f}." for constant in table.constants
    ]
    parts = [_controls(view), scores]
    return "table", "Table", [*parts, *([element("h3", "What to know"), make_list(notes)] if notes else [])]


def _controls(view: View) -> Markup:
    """Build the controls of the table, hidden until the script that serves them shows them."""
    verdicts = [element("option", "any verdict", value="")]
    verdicts += [element("option", word, value=verdict_class(word)) for word in VERDICTS if word != NO_RESULT]
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
    return element("tr", *cells, data_r=view.row_indices[row.label])


def _figure(view: View, row: TableRow, column: str) -> Markup:
    figure, anchor = row.figures[column], view.anchor(row.label)
    kept = "kept" if column == view.primary else None
    if figure.mean is None:
        return element("td", element("a", "—", href=anchor, aria_label="missing"), class_=kept)
    mean = element("a", number(column, figure.mean, view.digits), href=anchor)
    if view.table.best.get(column) == row.label:
        mean = element("strong", mean)
    parts: list[object] = [mean, "" if figure.sd is None else f"\u00a0±\u00a0{number(column, figure.sd, view.digits)}"]
    if row.complete and len(figure.values) < len(row.seeds):
        parts.append(element("span", f" ({len(figure.values)} of {len(row.seeds)})", class_="lacking"))
    if column in view.differences:
        kind = "primary" if column == view.primary else None  # whose verdicts the rows are filtered by
        parts.append(element("small", _difference(view, row, column), class_=kind))
    return element("td", *parts, data_v=f"{figure.mean:.6g}", class_=kept)


def _difference(view: View, row: TableRow, column: str) -> Markup:
    difference = view.differences[column].get(row.label)
    numbers = f" {difference.numbers}" if difference and difference.numbers else ""
    return joined([verdict_word(difference.word if difference else "baseline"), numbers])


def difference_cells(view: View) -> list[Markup]:
    """Return the differences under the figures of the table of scores, row by row."""
    return [
        _difference(view, row, column)
        for row in view.table.rows
        for column in view.table.columns
        if column in view.differences and row.figures[column].mean is not None
    ]


def errors_section(view: View) -> Section | None:
    """Show the confusion matrices of the baseline and the best other row."""
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
    for task, confusions in tables.items():
        parts += [element("h3", task), element("div", *confusions, class_="charts")]
    return "errors", "Errors", parts


def _confusion(view: View, label: str, confusion: Confusion) -> Markup:
    rows = []
    for name, counts in zip(confusion.names, confusion.counts.tolist(), strict=True):
        cells = [_share(predicted, sum(counts)) for predicted in counts]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    return make_table(view.link(label), ("is \\ predicted", *confusion.names), rows, class_="confusion")


def _share(part: int, total: int) -> Markup:
    if not total:
        return element("td", "–")
    shade = f"q{min(9, 10 * part // total)}"
    return element("td", f"{100 * part / total:.0f}", class_=shade, title=f"{part} of {total}")


def data_section(view: View) -> Section | None:
    """Show what the data hold, and what a reader of the scores should know of it."""
    data = view.overview.data
    listing, notes = data_listing(data), [remark for facts in data for remark in remarks(facts)]
    rows = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
        for row in listing.rows
    ]
    text = (
        "What the data hold. “constant” is the score of the best constant prediction, “words” the length of the median "
        "and the longest text, “shared” are examples that share a text with another, “seen” those that are training "
        "examples, too, and “cut” is the share of sequences that are longer than the encoder takes."
    )
    table = make_table(text, listing.headers, rows)
    return ("data-sets", "Data", [table, *([make_list(notes)] if notes else [])]) if rows else None


def failures_section(view: View) -> Section | None:
    """List cells without a result, and figures that are not numbers."""
    cells = {(grid_cell.label, grid_cell.seed): grid_cell.cell for grid_cell in view.results.grid.cells}
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
    """List every cell under its row; the figures elsewhere link here."""
    columns = view.table.columns
    seen: set[str] = set()
    bodies = []
    for label in view.row_indices:
        grid_cells = [grid_cell for grid_cell in view.results.grid.cells if grid_cell.label == label]
        rows: list[Markup] = []
        for grid_cell in grid_cells:
            anchor = f"c-{grid_cell.cell.id[:SHORT]}"
            head = [] if rows else [element("th", label, scope="rowgroup", rowspan=len(grid_cells))]
            cells = _cell(view, label, grid_cell.seed, grid_cell.cell, columns)
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
        figure = values.get(column)
        figures.append(element("td", "—" if figure is None else number(column, figure, view.digits)))
    command = element("code", f"taskloom cells {cell.id[:SHORT]}")
    return [element("td", seed), element("td", cell.status), *figures, element("td", command)]


def _column_name(column: str) -> str:
    return "memory (MiB)" if column == "memory" else column
