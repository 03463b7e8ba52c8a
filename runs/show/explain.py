"""Why a cell is new, cached, excluded or stale, in words and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.analysis.explain import Explanation
from taskloom.runs.grid.differences import Difference
from taskloom.runs.show.visible import one_line

SHOWN = 8  # the most differences that are listed for a row


def show_explained(explained: Sequence[Explanation]) -> str:
    """List the rows of a grid with state, reason and differences, then how many are in which state."""
    lines = []
    for explanation in explained:
        seed = "" if explanation.seed is None else f", seed {explanation.seed}"
        cell = f" (cell {explanation.cell[:SHORT]})" if explanation.cell else ""
        lines.append(f"{one_line(explanation.label)}{seed}: {explanation.state}{cell} – {one_line(explanation.why)}")
        lines += _differences(explanation.differences)
    counts = Counter(explanation.state for explanation in explained)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*lines, "", f"{len(explained)} in all: {summary}"])


def show_explained_cell(record: CellRecord, explained: Explanation) -> str:
    """Explain a cell: every grid row it has occupied, when and with what it ran, and whether it is current."""
    moment = f" {record.finished or record.started}" if record.started else ""
    device = f" on {record.device}" if record.device else ""
    lines = [f"cell {record.id}: {record.status}{moment}{device}"]
    for row, differences in explained.rows:
        row_name = f"row {row.label!r}, seed {row.seed} of grid {row.grid!r}"
        now = f"its row is now cell {row.now[:SHORT]}, because:" if row.now else "the grid has no such row now"
        is_current = row.now == record.id
        period = f"is {row_name} since {row.first}" if is_current else f"was {row_name} until {row.last}; {now}"
        lines += [f"  {period}", *_differences(differences, indent=6)]
    if record.versions:
        lines.append(f"  ran with {', '.join(f'{name} {version}' for name, version in record.versions.items())}")
    lines.append(f"{explained.state}: {explained.why}")
    if explained.against not in {row.now for row, _ in explained.rows}:  # else they are listed with that row
        lines += _differences(explained.differences)
    return "\n".join(lines)


def explained_cell_json(record: CellRecord, explained: Explanation) -> dict[str, Any]:
    facts = {key: getattr(record, key) for key in ("status", "started", "finished", "versions")}
    rows = [{**vars(row), "differences": differences} for row, differences in explained.rows]
    return {**explained.as_dict(), **facts, "rows": rows, "plugins": record.facts.get("plugins")}


def _differences(differences: Sequence[Difference], indent: int = 4) -> Iterator[str]:
    for difference in differences[:SHOWN]:
        yield " " * indent + one_line(difference["text"])
    if len(differences) > SHOWN:
        yield " " * indent + f"and {len(differences) - SHOWN} more (--json has all)"
