"""Why a cell is new, cached, excluded or stale, in words and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.analysis.explain import Explanation
from taskloom.runs.grid.differences import Difference
from taskloom.runs.show.visible import one_line

SHOWN = 8  # differences of one row that are shown


def show_explained(explained: Sequence[Explanation]) -> str:
    """The rows of a grid, each with its state, why, and the differences; then how many are in which state."""
    lines = []
    for one in explained:
        seed = "" if one.seed is None else f", seed {one.seed}"
        cell = f" (cell {one.cell[:SHORT]})" if one.cell else ""
        lines.append(f"{one_line(one.label)}{seed}: {one.state}{cell} – {one_line(one.why)}")
        lines += _differences(one.differences)
    counts = Counter(one.state for one in explained)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*lines, "", f"{len(explained)} in all: {summary}"])


def show_explained_cell(record: CellRecord, explained: Explanation) -> str:
    """One cell: which rows it is or was, when and with what it ran, and whether it would be the same today."""
    ran = f" {record.finished or record.started}" if record.started else ""
    device = f" on {record.device}" if record.device else ""
    lines = [f"cell {record.id}: {record.status}{ran}{device}"]
    for row, found in explained.rows:
        place = f"row {row.label!r}, seed {row.seed} of grid {row.grid!r}"
        now = f"its row is now cell {row.now[:SHORT]}, because:" if row.now else "the grid has no such row now"
        is_or_was = f"is {place} since {row.first}" if row.now == record.id else f"was {place} until {row.last}; {now}"
        lines += [f"  {is_or_was}", *_differences(found, indent=6)]
    if record.versions:
        lines.append(f"  ran with {', '.join(f'{name} {version}' for name, version in record.versions.items())}")
    lines.append(f"{explained.state}: {explained.why}")
    if explained.against not in {row.now for row, _ in explained.rows}:  # else they are listed with that row
        lines += _differences(explained.differences)
    return "\n".join(lines)


def explained_cell_json(record: CellRecord, explained: Explanation) -> dict[str, Any]:
    facts = {key: getattr(record, key) for key in ("status", "started", "finished", "versions")}
    rows = [{**vars(row), "differences": found} for row, found in explained.rows]
    return {**explained.as_dict(), **facts, "rows": rows, "plugins": record.facts.get("plugins")}


def _differences(differences: Sequence[Difference], indent: int = 4) -> Iterator[str]:
    for difference in differences[:SHOWN]:
        yield " " * indent + one_line(difference["text"])
    if len(differences) > SHOWN:
        yield " " * indent + f"and {len(differences) - SHOWN} more (--json has all)"
