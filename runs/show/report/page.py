"""A grid's results as one HTML file: figures, tables, and a script of its own; nothing is fetched from anywhere.

The page is complete without its script, which sorts and filters the table, highlights the row under the pointer and
changes the baseline. The script draws nothing: what the elements of ``SLOTS`` contain with another baseline is rendered
here too, and stored in the page in compressed form.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from taskloom.core.errors import count, shortened
from taskloom.runs.analysis.overview import Overview
from taskloom.runs.show.report.figures import bars_section, budget_section, diagnostics_section, learning_section
from taskloom.runs.show.report.forest import claims_section, effects_section, forest_cells, forest_section
from taskloom.runs.show.report.markup import Markup, element, text
from taskloom.runs.show.report.tables import (
    cells_section,
    data_section,
    difference_cells,
    environment_section,
    errors_section,
    failures_section,
    scores_section,
)
from taskloom.runs.show.report.view import VERDICTS, Section, View
from taskloom.runs.show.visible import visible

ASSETS = Path(__file__).parent / "assets"
#: The sections of a page in their order.
SECTIONS = (
    forest_section,
    scores_section,
    claims_section,
    effects_section,
    budget_section,
    learning_section,
    diagnostics_section,
    bars_section,
    errors_section,
    data_section,
    failures_section,
    environment_section,
    cells_section,
)
#: The elements whose content depends on the baseline, as selectors of CSS.
SLOTS = (".base", "#counted", "#forest-table thead th:nth-child(2)", "#forest-table td", "#scores-table small")
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
    if view.differences[view.primary]:
        counts = element("strong", _counted(view), id="counted")
        yield element("p", "Differences to ", view.base(), f" in {view.primary}: ", counts, ".")
        if (stated := grid.spec.get("baseline")) != view.overview.baseline:
            why = f"The grid’s baseline, {stated}, has no result" if stated else "The grid names no baseline"
            yield element("p", f"{why}; the first row that has a result is taken.")


def _counted(view: View) -> Markup:
    """Count the verdicts: ``2 better, 1 worse, 5 open``."""
    words = [difference.verdict for difference in view.differences[view.primary].values()]
    return text(", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words))


def _data(view: View, left: int) -> Markup:
    """Return the data of the script: the rows that may become the baseline, as many as fit into ``left`` bytes."""
    baselines: dict[int, tuple[str, str]] = {}  # index of the row → its name, and the compressed contents of SLOTS
    for label in view.overview.ranked:
        name, contents = visible(shortened(label)), _contents(View(view.overview, label))
        packed = zlib.compress(json.dumps(contents, separators=(",", ":")).encode(), 9)
        baselines[view.row_indices[label]] = name, base64.b64encode(packed).decode()
        left -= len(baselines[view.row_indices[label]][1])
        if left < 0:
            break
    content = {
        "base": view.row_indices[view.baseline],
        "slots": SLOTS,
        "baselines": baselines,
        "left": len(view.overview.ranked) - len(baselines),
    }
    return Markup(json.dumps(content, separators=(",", ":")).replace("<", "\\u003c"))


def _contents(view: View) -> list[list[Markup]]:
    """Render the contents of the elements of ``SLOTS``, in the order in which they stand in the page."""
    axis, forest = forest_cells(view)
    return [[text(view.baseline)] * 3, [_counted(view)], [axis], forest, difference_cells(view)]
