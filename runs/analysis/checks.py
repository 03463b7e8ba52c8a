"""Checks of a table: pitfalls of its rows, and of the examples that they are scored on."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from taskloom.core.errors import count
from taskloom.registry.results.records import IMPORTED, CellRecord, EpochRecord
from taskloom.registry.results.wording import named
from taskloom.runs.analysis.cell_states import UNVERIFIED
from taskloom.runs.analysis.influence import largest_group
from taskloom.runs.analysis.results import Constant, Results
from taskloom.runs.analysis.stale import OLDER
from taskloom.runs.analysis.tuning import tuning_checks
from taskloom.runs.grid.trainer import TRAINER

#: Standard errors within which a score is near that of a constant prediction.
NEAR = 2.0
#: Recorded versions that do not affect arithmetic; those of the other libraries are compared between rows.
NO_ARITHMETIC = frozenset({"taskloom", "tokenizers", "safetensors", "threads", IMPORTED})
#: Groups of rows that are listed; further ones are only counted.
MOST_GROUPS = 4


def checks_of(results: Results) -> list[str]:
    """Return the warnings to print below a table."""
    return [
        *stale_of(results),
        *tuning_checks(results),
        *_selection(results),
        *_trajectories(results),
        *_constants(results),
        *_shared_texts(results),
        *_seen(results),
        *_machines(results),
        *_versions(results),
        *_test_scores(results),
        *_unverified(results),
        *_imported(results),
    ]


def constants_of(results: Results) -> list[Constant]:
    """The best constant prediction of each task in which some row scores close to it or below."""
    constants = []
    for task, constant in results.floors.items():
        scores, indices = results.scores(task), [results.row_index[label] for label in results.rows_of_task[task]]
        means = np.nanmean(scores.values[indices], 1)
        errors = np.sqrt(np.einsum("rsrs->rs", scores.independent).max(1))[indices]
        if (means <= constant.score + NEAR * errors).any():
            constants.append(constant)
    return constants


def _selection(results: Results) -> Iterator[str]:
    """Warn if rows chose their best epoch on dev among different numbers of epochs: more epochs, larger maximum."""
    chosen = {}
    for (label, _), cell in results.finished.items():
        if cell.spec.get("selection") != "last" and results.split_of(label) == "dev" and cell.spec.get("stages"):
            chosen[label] = cell.spec["stages"][-1].get("epochs", 0)
    if len(set(chosen.values())) > 1:
        most = max(chosen.values())
        rows = [label for label, epochs in chosen.items() if epochs == most]
        yield (
            f"The best epoch is chosen on dev, which is also what is shown. That flatters rows with more epochs to "
            f"choose from: {named(rows)} had {most}, others as few as {min(chosen.values())}."
        )


def _trajectories(results: Results) -> Iterator[str]:
    """Warn of rows with identical epochs, of training without effect, and of idle combiners and margins.

    A warning is about rows for which it holds in every seed, so mostly one seed per row has to be read.
    """
    read = cache(lambda id, stage: [epoch for epoch in results.epochs(id) if epoch.stage == stage])
    cells = {row: row_cells for row in results.rows if (row_cells := results.cells_of(row))}

    def rows_where(holds: Callable[[Sequence[EpochRecord]], bool], rows: Iterable[str] = cells) -> list[str]:
        return [row for row in rows if all(holds(read(cell.id, _last_stage(cell))) for cell in cells[row])]

    runs: dict[tuple[str, ...], list[str]] = {}
    for row, row_cells in cells.items():
        runs.setdefault(tuple(cell.id for cell in row_cells), []).append(row)
    for rows in runs.values():
        # A grid may give one run two labels on purpose, with the same settings.
        if not _all_equal([stated.get("set", {}) if (stated := results.stated(row)) else row for row in rows]):
            yield f"One run under several labels, whose settings were overridden or change nothing: {named(rows)}."
    same: dict[str, list[str]] = {}
    for row in (rows[0] for rows in runs.values()):
        same.setdefault(repr([cell.scores for cell in cells[row]]), []).append(row)
    alike: dict[str, list[str]] = {}
    for row in (row for rows in same.values() if len(rows) > 1 for row in rows):
        history = [[(epoch.losses, epoch.scores) for epoch in read(cell.id, _last_stage(cell))] for cell in cells[row]]
        if any(history):
            alike.setdefault(repr(history), []).append(row)
    groups = [named(rows) for rows in alike.values() if len(rows) > 1]
    if groups:
        more = [f"{len(groups) - MOST_GROUPS} more groups of rows"] if len(groups) > MOST_GROUPS else []
        listed = "; ".join([*groups[:MOST_GROUPS], *more])
        yield f"The same losses and scores in every epoch, so whatever they differ in did nothing: {listed}."
    if still := rows_where(lambda history: len(history) > 1 and _all_equal([epoch.losses for epoch in history])):
        yield f"Training changed nothing in {named(still)}: the losses of all epochs are the same."
    if idle := rows_where(_removes_nothing):
        peaceful = rows_where(_has_no_conflict, idle)
        why = " met no conflict between tasks and" if peaceful == idle else ""
        yield f"The combiner of {named(idle)}{why} did only what a sum does."
    if fixed := rows_where(lambda history: len(history) > 1 and _all_equal(_margins(history))):
        yield f"The margin of {named(fixed)} never moved."


def _last_stage(cell: CellRecord) -> int:
    return len(cell.spec.get("stages", ())) - 1


def _all_equal(values: Sequence[object]) -> bool:
    """Whether there are values and all are equal."""
    return bool(values) and all(value == values[0] for value in values)


def _margins(history: Sequence[EpochRecord]) -> list[dict[str, float]]:
    """Per epoch, the margins of the tasks that have one; empty if no task has."""
    margins = [
        {task: values["margin"] for task, values in epoch.metrics.items() if "margin" in values} for epoch in history
    ]
    return margins if any(margins) else []


def _removes_nothing(history: Sequence[EpochRecord]) -> bool:
    """Whether all updates were plain sums; combiners without per-task gradients record nothing and return False."""
    removed = [epoch.diagnostics["removed"] for epoch in history if "removed" in epoch.diagnostics]
    return bool(removed) and not any(removed)


def _has_no_conflict(history: Sequence[EpochRecord]) -> bool:
    return not any(pair["conflicts"] for epoch in history for pair in epoch.diagnostics.get("pairs", {}).values())


def _constants(results: Results) -> Iterator[str]:
    same: dict[str, list[str]] = {}
    for label, cell, task, _ in results.facts:
        if results.is_constant(cell.id, results.split_of(label), task):
            same.setdefault(task, []).append(label)
    for task, rows in same.items():
        yield f"{named(rows)}: every prediction for {task} is the same, in one seed at least."
    facts_of = {(task, label): facts for label, _, task, facts in reversed(results.facts)}
    untrained: dict[Constant, list[str]] = {}
    for task, label in ((task, label) for task, rows in results.rows_of_task.items() for label in rows):
        if results.untrained(label, task) and (floor := results.constant(task, facts_of[task, label], task)):
            untrained.setdefault(floor, []).append(label)  # rows may have different metrics
    for floor, rows in untrained.items():
        yield f"{named(rows)}: untrained on {floor.task}, no better than {floor.says} ({floor.score:.3f})."


def _shared_texts(results: Results) -> Iterator[str]:
    shared: dict[str, str] = {}
    for key, task in dict.fromkeys((facts.examples, task) for *_, task, facts in results.facts):
        texts = results.examples(key).texts
        several, most = largest_group(texts)
        if several and task not in shared:
            shared[task] = f"{several:,} of {len(texts):,} in {task} (up to {most:,} with one text)"
    if shared:
        yield f"Examples that share a text with another are not counted as independent: {', '.join(shared.values())}."


def _seen(results: Results) -> Iterator[str]:
    overlaps = {
        task: f"{facts.seen:,} of {len(results.examples(facts.examples).expected):,} in {task}"
        for *_, task, facts in results.facts
        if facts.seen
    }
    if overlaps:
        yield f"Scored examples whose texts are also in the training data: {', '.join(overlaps.values())}."


def _machines(results: Results) -> Iterator[str]:
    """Warn of rows trained on different devices or numbers of threads, which are not reproducible bit for bit."""
    kinds: dict[tuple[str, str | None], list[str]] = {}
    for (label, _), cell in results.finished.items():
        device = cell.device or "an unknown device"
        threads = cell.versions.get("threads") if "cpu" in device else None  # a GPU computes the same with any number
        kinds.setdefault((device, threads), []).append(label)
    several = any(", then " in f"{device}{threads}" for device, threads in kinds)
    if several or len({device for device, _ in kinds}) > 1 or len({threads for _, threads in kinds if threads}) > 1:
        where = [f"{named(rows)} on {device}{_with(threads)}" for (device, threads), rows in kinds.items()]
        yield f"Rows were trained on different devices or numbers of threads: {'; '.join(where)}."


def _with(threads: str | None) -> str:
    return f" with {threads} {'thread' if threads == '1' else 'threads'}" if threads else ""


def _versions(results: Results) -> Iterator[str]:
    """Warn of rows from an older trainer, which would be trained anew, and of rows with different library versions."""
    older: dict[int, list[str]] = {}
    libraries: dict[str, dict[str, list[str]]] = {}
    for (label, _), cell in results.finished.items():
        trainer = cell.facts.get("trainer", TRAINER)
        if trainer != TRAINER:
            older.setdefault(trainer, []).append(label)
        code = {name.removeprefix("code of ") for name in cell.versions if name.startswith("code of ")}
        others = {*NO_ARITHMETIC, *code, *(f"code of {name}" for name in code)}
        for library in cell.versions.keys() - others:
            libraries.setdefault(library, {}).setdefault(str(cell.versions[library]), []).append(label)
    for trainer, rows in older.items():
        heading = f"Made by an older trainer ({trainer}; today's is {TRAINER})"
        yield f"{heading}: {named(rows)}. `taskloom run` would train them anew."
    for library, versions in sorted(libraries.items()):
        if len(versions) > 1:
            listed = "; ".join(f"{named(rows)} with {version}" for version, rows in versions.items())
            yield f"Rows were made with different versions of {library}: {listed}."


def stale_of(results: Results) -> Iterator[str]:
    """Name the rows that are not what the grid would run now; :func:`_versions` names those of an older trainer."""
    shown, hidden = dict[str, list[str]](), dict[str, list[str]]()
    for label, why in results.grid.stale.items():
        if label not in results.row_index:
            hidden.setdefault(why, []).append(label)
        elif why != OLDER:
            shown.setdefault(why, []).append(label)
    for heading, rows in (("Stale, not what the grid would run now", shown), ("Stale and left out", hidden)):
        if rows:
            listed = "; ".join(f"{named(labels)} ({why})" for why, labels in rows.items())
            yield f"{heading}: {listed}. `taskloom explain` says more."


def _unverified(results: Results) -> Iterator[str]:
    """Warn of cells whose score files fail verification."""
    cells = [row for row in results.grid.cells if (row.cell.reason or "").startswith(UNVERIFIED)]
    if cells:
        rows = named(list(dict.fromkeys(row.label for row in cells)))
        yield f"Not shown, because their files of scores are not their own: {count(len(cells), 'cell')} of {rows}."


def _imported(results: Results) -> Iterator[str]:
    """List the rows whose results were imported from archives."""
    rows = [label for (label, _), cell in results.finished.items() if cell.imported]
    if rows:
        archives = dict.fromkeys(cell.imported for cell in results.finished.values() if cell.imported)
        yield f"Imported, not run here: {named(list(dict.fromkeys(rows)))}, from {'; '.join(archives)}."


def _test_scores(results: Results) -> Iterator[str]:
    """Mention test scores that exist but are not shown."""
    if not results.shows_test and any(cell.test for cell in results.finished.values()):
        command = f"taskloom table {shlex.quote(results.grid.name)} --split test"
        yield f"There are test scores, too: `{command}` shows them, at best once, after everything was chosen on dev."
