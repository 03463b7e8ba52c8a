"""``taskloom explain``."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import RegistryError, RequestError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import (
    json_option,
    note,
    registry_option,
    say,
    say_json,
    strict_check,
    strict_option,
    yes_option,
)
from taskloom.runs.cli.lookup import unknown_row
from taskloom.runs.cli.overriding import override_options
from taskloom.runs.show.visible import one_line

if TYPE_CHECKING:
    from taskloom.registry.results.records import CellRecord, PastRow
    from taskloom.runs.analysis.explain import Difference
    from taskloom.runs.grid.grid import Grid
    from taskloom.runs.grid.overrides import Overrides

SHORT = 12  # characters of an identity that are shown
SHOWN = 8  # differences of one row that are shown


@click.command(short_help="Say why a cell is new, cached, excluded or stale.")
@click.argument("source", metavar="CELL|GRID")
@click.argument("row", required=False)
@registry_option
@override_options
@yes_option
@strict_option
@json_option
def explain(source: str, row: str | None, registry: Path, yes: bool, as_json: bool, overrides: "Overrides") -> None:
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
    ledger = Ledger.find(registry)
    with ledger or nullcontext():
        record = _cell(ledger, source) if ledger is not None and row is None else None
        if record is not None and ledger is not None:
            _explain_cell(record, ledger, as_json=as_json)
        else:
            _explain_grid(_grid(ledger, source), row, ledger, yes=yes, as_json=as_json, overrides=overrides)


def _cell(ledger: Ledger, source: str) -> "CellRecord | None":
    """The cell that is meant, unless it is a grid."""
    from taskloom.registry.installed.manager import packaged_grids

    if not source.isalnum() or source in packaged_grids() or source in ledger.grid_names():
        return None
    if os.path.isfile(source) or not ledger.has_cell(source):  # noqa: PTH113 - too long
        return None
    return ledger.cell(source)


def _grid(ledger: Ledger | None, source: str) -> "Grid":
    """A grid by packaged name or path, or as it was last run under its name."""
    from taskloom.core.specs import GridSpec
    from taskloom.registry.results.records import OVERRIDES
    from taskloom.runs.grid.grid import Grid, load_grid

    try:
        return load_grid(source)
    except RequestError as error:
        if ledger is None or Path(source).suffix:
            raise
        if source not in ledger.grid_names():
            why = "and no cell's identity begins with it (`taskloom cells` lists them)"
            raise RegistryError(f"{error}; {why}") from None
    raw = {key: value for key, value in ledger.grid(source).spec.items() if key != OVERRIDES}
    return Grid(source, Path(source), GridSpec.model_validate(raw), raw)


def _explain_cell(record: "CellRecord", ledger: Ledger, *, as_json: bool) -> None:
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.analysis.explain import explain_cell

    explained = explain_cell(record, strict_check(load_catalogue()), ledger)
    if as_json:
        rows = [{**vars(row), "differences": [one.as_dict() for one in found]} for row, found in explained.rows]
        facts: dict[str, Any] = {"status": record.status, "started": record.started, "finished": record.finished}
        facts |= {"versions": record.versions, "rows": rows, "plugins": record.facts.get("plugins")}
        say_json({**explained.as_dict(), **facts})
        return
    ran = f" {record.finished or record.started}" if record.started else ""
    device = f" on {record.device}" if record.device else ""
    say(f"cell {record.id}: {record.status}{ran}{device}")
    for row, found in explained.rows:
        say(f"  {_row(row, record.id)}")
        _say_differences(found, indent=6)
    if record.versions:
        say(f"  ran with {', '.join(f'{name} {version}' for name, version in record.versions.items())}")
    say(f"{explained.state}: {explained.why}")
    if explained.against not in {row.now for row, _ in explained.rows}:  # else they are listed with that row
        _say_differences(explained.differences)


def _row(row: "PastRow", cell: str) -> str:
    place = f"row {row.label!r}, seed {row.seed} of grid {row.grid!r}"
    if row.now == cell:
        return f"is {place} since {row.first}"
    now = f"its row is now cell {row.now[:SHORT]}, because:" if row.now else "the grid has no such row now"
    return f"was {place} until {row.last}; {now}"


def _explain_grid(
    grid: "Grid", row: str | None, ledger: Ledger | None, *, yes: bool, as_json: bool, overrides: "Overrides"
) -> None:
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.analysis.explain import explain_plan
    from taskloom.runs.grid.plan import make_plan

    plan = make_plan(grid, strict_check(load_catalogue()), ledger, allow_large=yes, overrides=overrides)
    for line in plan.notes:
        if "`taskloom explain`" not in line:
            note(line)
    found = explain_plan(plan, ledger)
    if row is not None:
        labels = {one.label for one in found}
        found = [one for one in found if one.label == row]
        if not found:
            raise unknown_row(row, labels)
    if as_json:
        say_json({"grid": plan.grid.name, "cells": [one.as_dict() for one in found]})
        return
    for one in found:
        seed = "" if one.seed is None else f", seed {one.seed}"
        cell = f" (cell {one.cell[:SHORT]})" if one.cell else ""
        why = one.why.replace(one.against, one.against[:SHORT]) if one.against else one.why
        say(f"{one_line(one.label)}{seed}: {one.state}{cell} – {one_line(why)}")
        _say_differences(one.differences)
    counts = Counter(one.state for one in found)
    say(f"\n{len(found)} in all: " + ", ".join(f"{count} {state}" for state, count in counts.items()))


def _say_differences(differences: "Sequence[Difference]", indent: int = 4) -> None:
    for difference in differences[:SHOWN]:
        say(" " * indent + one_line(str(difference)))
    if len(differences) > SHOWN:
        say(" " * indent + f"and {len(differences) - SHOWN} more (--json has all)")
