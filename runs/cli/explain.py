"""``taskloom explain``."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import RegistryError, RequestError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import SOURCE, CellRecord, GridRecord
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.cli.common import NO_CELL, checked_catalogue, note, say, say_json
from taskloom.runs.cli.options import json_option, plan_options, registry_option
from taskloom.runs.show.visible import one_line

if TYPE_CHECKING:
    from taskloom.runs.analysis.explain import Difference, Explanation
    from taskloom.runs.grid.grid import GridFile

SHOWN = 8  # differences of one row that are shown


@click.command(short_help="Say why a cell is new, cached, excluded or stale.")
@click.argument("source", metavar="CELL|GRID")
@click.argument("row", required=False)
@registry_option
@plan_options
@json_option
def explain(source: str, row: str | None, registry: Path, as_json: bool, **planning: Any) -> None:
    """Say why a cell is new, cached, excluded or stale, as a difference field by field.

    With CELL, a cell's identity or a prefix of it: which rows it is or was, when and with which versions it ran, and
    whether the same specification with today's data and plugins would still be that cell.

    With GRID, and perhaps the label of one ROW: what running it now would find. A row is cached (its result is
    there), stale (its earlier result was for another specification, other data or other plugins), new, running,
    interrupted, failed, oom, or excluded. Give the options with which the grid is run.

    \b
    Examples:
      taskloom explain 3f0c9a
      taskloom explain grid.json
      taskloom explain grid.json pcgrad
      taskloom explain quickstart --json | jq -r '.cells[].differences[].text'
    """
    from taskloom.runs.analysis.explain import explain_cell, explain_plan
    from taskloom.runs.grid.plan import make_plan

    with Ledger.find(registry) or nullcontext() as ledger:
        found = _find(ledger, source, row)
        if isinstance(found, CellRecord):
            assert ledger is not None
            _show_cell(found, explain_cell(found, checked_catalogue(quiet=True), ledger), as_json=as_json)
            return
        plan = make_plan(found, checked_catalogue(quiet=True), ledger, **planning)
        explained = explain_plan(plan, ledger)
    for line in plan.notes:
        if "`taskloom explain`" not in line:
            note(line)
    chosen = [one for one in explained if row in (None, one.label)]
    if not chosen and row is not None:
        raise RegistryError(unknown("row", row, {one.label for one in explained}, where="rows"))
    further = list(GridRecord(plan.grid.name, plan.grid.raw, "", "", ()).further)
    if as_json:
        cells = [one.as_dict() for one in chosen]
        say_json({"grid": plan.grid.name, "cells": cells, "further_metrics": further})
        return
    for one in chosen:
        seed = "" if one.seed is None else f", seed {one.seed}"
        cell = f" (cell {one.cell[:SHORT]})" if one.cell else ""
        say(f"{one_line(one.label)}{seed}: {one.state}{cell} – {one_line(one.why)}")
        _show_differences(one.differences)
    counts = Counter(one.state for one in chosen)
    say(f"\n{len(chosen)} in all: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if further:
        say(f"Further metrics are computed from what is stored and make no new cell: {', '.join(further)}")


def _find(ledger: Ledger | None, source: str, row: str | None) -> "CellRecord | GridFile":
    """A grid by packaged name or path, a grid as it was last run under its name, or a cell by its identity."""
    from taskloom.core.specs import GridSpec
    from taskloom.runs.grid.grid import GridFile, load_grid

    try:
        return load_grid(source)
    except RequestError as error:
        if ledger is None or Path(source).suffix:
            raise
        if source in ledger.grid_names():
            record = ledger.grid(source)
            raw, known_by = record.written, str(record.spec.get(SOURCE, ""))
            return GridFile(source, Path(source), GridSpec.model_validate({**raw, "name": None}), raw, source=known_by)
        if row is None and ledger.has_cell(source):
            return ledger.cell(source)
        raise RegistryError(f"{error}; {NO_CELL}") from None


def _show_cell(record: CellRecord, explained: "Explanation", *, as_json: bool) -> None:
    if as_json:
        facts = {key: getattr(record, key) for key in ("status", "started", "finished", "versions")}
        rows = [{**vars(row), "differences": found} for row, found in explained.rows]
        say_json({**explained.as_dict(), **facts, "rows": rows, "plugins": record.facts.get("plugins")})
        return
    ran = f" {record.finished or record.started}" if record.started else ""
    device = f" on {record.device}" if record.device else ""
    say(f"cell {record.id}: {record.status}{ran}{device}")
    for row, found in explained.rows:
        place = f"row {row.label!r}, seed {row.seed} of grid {row.grid!r}"
        now = f"its row is now cell {row.now[:SHORT]}, because:" if row.now else "the grid has no such row now"
        say(f"  is {place} since {row.first}" if row.now == record.id else f"  was {place} until {row.last}; {now}")
        _show_differences(found, indent=6)
    if record.versions:
        say(f"  ran with {', '.join(f'{name} {version}' for name, version in record.versions.items())}")
    say(f"{explained.state}: {explained.why}")
    if explained.against not in {row.now for row, _ in explained.rows}:  # else they are listed with that row
        _show_differences(explained.differences)


def _show_differences(differences: "Sequence[Difference]", indent: int = 4) -> None:
    lines = [one_line(difference["text"]) for difference in differences[:SHOWN]]
    if len(differences) > SHOWN:
        lines.append(f"and {len(differences) - SHOWN} more (--json has all)")
    for line in lines:
        say(" " * indent + line)
