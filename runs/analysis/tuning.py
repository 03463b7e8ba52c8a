"""What the search of a grid has chosen, in words, and what a reader should know of it. Reads only the grid's record."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskloom.core.errors import count
from taskloom.registry.results.records import TUNED, CellRecord
from taskloom.registry.results.wording import named
from taskloom.runs.analysis.results import Results

#: Rows whose settings are listed below a table; its JSON has all.
MOST_LISTED = 12
#: What verdicts are about, by what had a search of its own.
ABOUT = {
    "row": "Each row was tuned by one search, so verdicts are about these methods at these settings; a search per seed "
    '("per": "seed") would make them about the methods.',
    "seed": "Each seed of a row had a search of its own, so the noise of choosing settings counts, and verdicts are "
    "about the methods with their tuning.",
}


def chosen_settings(results: Results) -> Iterator[str]:
    """A line on how rows were tuned, then one on what was chosen for each row, or for each seed of it."""
    tuned = results.grid.spec.get(TUNED)
    if not tuned:
        return
    tried = sorted({search["tried"] for search in tuned["rows"]})
    trials = "–".join(map(str, tried if len(tried) < 2 else (tried[0], tried[-1])))
    yield f"Tuned with {trials} trials per {tuned['per']}, scored on {tuned['hold_out']:.0%} of the training rows:"
    for search in tuned["rows"][:MOST_LISTED]:
        yield f"{_owner(search)}: {_chosen(search)}"
    if left := tuned["rows"][MOST_LISTED:]:
        yield f"… and {len(left)} more, which the table's JSON has."


def _owner(search: Mapping[str, Any]) -> str:
    return repr(search["row"]) + ("" if search["seed"] is None else f", seed {search['seed']}")


def _chosen(search: Mapping[str, Any]) -> str:
    """The settings of the best trial, its score, and the trials that failed or ended early."""
    numbers = [*search["failed"]]
    failed = [f"failed: {'trial' if len(numbers) == 1 else 'trials'} {', '.join(numbers)}"] if numbers else []
    paused = [f"{count(search['paused'], 'trial')} ended after a third"] if search["paused"] else []
    if search["trial"] is None and len(numbers) < search["tried"]:
        return "no settings yet: its trials have not ended"
    if search["trial"] is None:
        reason = next(iter(search["failed"].values()))
        return f"no settings, since none of {count(search['tried'], 'trial')} has a score: {reason}"
    facts = [f"trial {search['trial']} of {search['tried']}, {search['score']:.3f}", *failed, *paused]
    return f"{in_words(search['settings'])} ({'; '.join(facts)})"


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings by the last parts of their paths, or by whole paths where these are alike.

    >>> in_words({"stages.0.optimizer.lr": 0.001, "stages.0.combiner": {"name": "sum"}})
    'lr=0.001, combiner=sum'
    """
    last = {path: path.rpartition(".")[2] for path in settings}
    times = Counter(last.values())
    names = {path: name if times[name] == 1 else path for path, name in last.items()}
    return ", ".join(f"{names[path]}={_value(value)}" for path, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"name"}:
        return str(value["name"])
    return value if isinstance(value, str) else json.dumps(value)


def tuning_checks(results: Results) -> Iterator[str]:
    """What verdicts on tuned rows are about, unequal budgets, settings at an edge, and rows that stopped early."""
    tuned = results.grid.spec.get(TUNED)
    if tuned:
        yield ABOUT[tuned["per"]]
        yield from _unequal(tuned["rows"])
        yield from at_edges(tuned["rows"])
    held_out = [row.label for row in results.grid.cells if row.cell.spec.get("hold_out")]
    if held_out and results.finished:
        yield f"Scores of {named(held_out)} are on training rows that were held out, not on dev."
    yield from _stopped_early(results)


def _unequal(searches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name the rows by how many trials they had, if these are not equally many."""
    rows: dict[int, list[str]] = {}
    for search in searches:
        rows.setdefault(search["tried"], []).append(search["row"])
    if len(rows) > 1:
        listed = "; ".join(f"{count(tried, 'trial')} for {named(labels)}" for tried, labels in sorted(rows.items()))
        yield f"Rows were tuned with different budgets: {listed}."


def at_edges(searches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name the rows whose best setting is the least or largest that was tried, by the wider range to try."""
    edges: dict[tuple[str, str], list[tuple[str, str]]] = {}  # path and wider range → rows and their values
    for search in searches:
        for edge in search["edges"]:
            key = edge["path"], json.dumps(edge["try"])
            edges.setdefault(key, []).append((search["row"], json.dumps(edge["value"])))
    for (path, wider), owners in edges.items():
        rows, values = (list(dict.fromkeys(names)) for names in zip(*owners, strict=True))
        among = sum(search["row"] in rows for search in searches)
        share = f" ({len(owners)} of {among} searches)" if among > len(rows) else ""
        are = "is" if len(rows) == 1 else "are"
        tried = f"{path} = {', '.join(values)}"
        yield f"{named(rows)}{share} {are} best at the edge of what was tried, {tried}; try {wider}."


def _stopped_early(results: Results) -> Iterator[str]:
    """Count the finished cells of which a stage ended before its last epoch, by patience."""
    ended: dict[str, list[int]] = {}
    for (label, _), cell in results.finished.items():
        if any("patience" in stage for stage in cell.spec.get("stages", ())):
            ended.setdefault(label, []).append(_is_early(results, cell))
    rows = {label: (sum(early), len(early)) for label, early in ended.items() if any(early)}
    if rows:
        listed = [f"{early} of {seeds} of {label!r}" for label, (early, seeds) in rows.items()]
        if left := len(listed[MOST_LISTED:]):
            listed[MOST_LISTED:] = [f"and those of {count(left, 'more row')}"]
        yield f"Seeds in which a stage stopped early, its score no longer improving: {', '.join(listed)}."


def _is_early(results: Results, cell: CellRecord) -> bool:
    done = Counter(epoch.stage for epoch in results.epochs(cell.id))
    stages = enumerate(cell.spec["stages"])
    return any("patience" in stage and 0 < done[index] < stage.get("epochs", 0) for index, stage in stages)
