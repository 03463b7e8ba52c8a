"""A grid's results as one HTML file: figures, tables, and a script of its own; nothing is fetched from anywhere.

The page is complete without its script, which sorts and filters the table, changes the baseline and highlights the row
under the pointer. The differences to every other baseline are computed here (``packed.py``).
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from taskloom.core.errors import count, shortened
from taskloom.runs.analysis.overview import Differences, Overview
from taskloom.runs.show.report.figures import bars_section, diagnostics_section, learning_section
from taskloom.runs.show.report.forest import claims_section, effects_section, forest_section, scale_of
from taskloom.runs.show.report.markup import Markup, element
from taskloom.runs.show.report.packed import ShownDifference, counted
from taskloom.runs.show.report.svg import strip_axis
from taskloom.runs.show.report.tables import (
    cells_section,
    environment_section,
    errors_section,
    failures_section,
    scores_section,
)
from taskloom.runs.show.report.view import Section, View
from taskloom.runs.show.visible import visible

ASSETS = Path(__file__).parent / "assets"
#: The sections of a page in their order.
SECTIONS = (
    forest_section,
    scores_section,
    claims_section,
    effects_section,
    learning_section,
    diagnostics_section,
    bars_section,
    errors_section,
    failures_section,
    environment_section,
    cells_section,
)
#: The most bytes of a page, about. A grid of hundreds of rows offers as many baselines as fit, the best rows first.
MOST = 2_900_000


def render_report(overview: Overview) -> str:
    """Render the page."""
    view = View(overview)
    sections = [section for make in SECTIONS if (section := make(view)) is not None]
    style, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    links = [element("li", element("a", title, href=f"#{key}")) for key, title, _ in sections]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{view.results.grid.name} – taskloom report"),
        element("style", Markup(style)),
    ]
    main = element("main", *map(_section, sections))
    body = [
        element("header", *_summary(view), element("nav", element("ul", *links), aria_label="Sections")),
        main,
        element("footer", element("p", f"Made by taskloom {version('taskloom')}.")),
        element("script", _data(view, MOST - len(main.encode())), type="application/json", id="data"),
        element("script", Markup(script)),
    ]
    return f"<!doctype html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _section(section: Section) -> Markup:
    key, title, content = section
    return element("section", element("h2", title, id=f"{key}-h"), *content, id=key, aria_labelledby=f"{key}-h")


def _summary(view: View) -> Iterator[Markup]:
    grid = view.results.grid
    cells = {grid_cell.cell.id: grid_cell.cell for grid_cell in grid.cells}
    finished = sum(cell.status == "finished" for cell in cells.values())
    size = f"{count(len(view.results.rows), 'row')}, {count(len(view.results.seeds), 'seed')}"
    moment = grid.updated[:16].replace("T", " ")
    yield element("h1", grid.name)
    if grid.spec.get("description"):
        yield element("p", grid.spec["description"])
    yield element("p", f"{size}: {finished} of {count(len(cells), 'cell')} finished. Last run {moment} UTC.")
    if differences := view.differences[view.primary]:
        words = element("strong", counted(differences.values()), id="counted")
        yield element("p", "Differences to ", view.base(), f" in {view.primary}: ", words, ".")
        if (stated := grid.spec.get("baseline")) != view.overview.baseline:
            why = f"The grid’s baseline, {stated}, has no result" if stated else "The grid names no baseline"
            yield element("p", f"{why}; the first row that has a result is taken.")


def _differences(overview: Overview, baseline: str) -> Differences:
    return overview.differences if baseline == overview.baseline else overview.against(baseline)


def _data(view: View, left: int) -> Markup:
    """Pack the data for the script: the differences to every row that may become the baseline, in ``left`` bytes."""
    overview = view.overview
    against: dict[int, list[str]] = {}
    axes: dict[int, list[float | str]] = {}  # baseline → the ends of its forest plot's axis, and how that is drawn
    reasons: list[str] = []
    for label in overview.ranked:
        columns = {
            column: {row: ShownDifference(judged, view.digits) for row, judged in differences.items()}
            for column, differences in _differences(overview, label).items()
        }
        packed = [
            "".join(differences[row].packed(reasons) if row in differences else "x" for row in view.results.rows)
            for differences in columns.values()
        ]
        scale = scale_of(columns[view.primary].values())
        axes[view.row_indices[label]] = [scale.low, scale.high, strip_axis(scale)]
        against[view.row_indices[label]] = packed
        left -= sum(map(len, packed)) + len(strip_axis(scale))
        if left < 0:
            break
    column_indices = {column: index for index, column in enumerate(overview.columns)}
    content = {
        "digits": view.digits,
        "rows": [visible(shortened(label)) for label in view.results.rows],
        "base": view.row_indices[overview.baseline],
        "columns": [column_indices.get(column) for column in view.table.columns],
        "primary": column_indices[overview.table.primary],
        "margin": overview.margin,
        "reasons": reasons,
        "against": against,
        "axes": axes,
        "left": len(overview.ranked) - len(against),
    }
    return Markup(json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))
