"""What a table does not say by itself, found by computing: pitfalls of rows, and of the examples they are scored on."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from taskloom.core.errors import count
from taskloom.registry.results.records import CellRecord, EpochRecord
from taskloom.runs.analysis.results import Results

Epochs = Callable[[str], Sequence[EpochRecord]]
#: Rows that are named; further ones are counted.
MOST_NAMED = 4
#: Standard errors within which a score is near that of a constant prediction.
NEAR = 2.0


@dataclass(frozen=True)
class Constant:
    """The best that a prediction without looking at the text can do: the majority class, or any value."""

    task: str
    says: str
    score: float


def checks_of(results: Results, epochs: Epochs) -> list[str]:
    """Sentences for the foot of a table; none where nothing is to be said."""
    return [
        *_selection(results),
        *_trajectories(results, epochs),
        *_constants(results),
        *_clusters(results),
        *_seen(results),
        *_machines(results),
    ]


def constants_of(results: Results) -> list[Constant]:
    """What a constant prediction scores in each task, where some row is near it or below."""
    stored = filter(None, (results.stored(cell.id) for cell in results.finished.values()))
    tasks = {(task, facts.metric, facts.examples): None for each in stored for task, facts in each.tasks.items()}
    found: dict[str, Constant] = {}
    for task, metric, examples in tasks:
        scores = results.scores(task)
        constant = _constant(task, metric, results.examples(examples).expected)
        if constant is None or task in found:
            continue
        means = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in scores.values])
        errors = np.sqrt(np.einsum("rsrs->rs", scores.shared).max(1))
        if (means <= constant.score + NEAR * errors).any():
            found[task] = constant
    return list(found.values())


def _constant(task: str, metric: str, expected: np.ndarray) -> Constant | None:
    classes, counts = np.unique(expected, return_counts=True)
    share = counts.max() / counts.sum()
    most = f"always class {classes[counts.argmax()]:g}"
    if metric == "accuracy":
        return Constant(task, most, float(share))
    if metric == "macro_f1":
        return Constant(task, most, float(2 * share / (1 + share) / len(classes)))
    if metric in ("pearson", "spearman"):
        return Constant(task, "always the same value", 0.0)
    return None


def _selection(results: Results) -> Iterator[str]:
    """The best epoch is chosen on the split that is shown: a maximum over more epochs is larger by chance alone."""
    chosen = {}
    for (label, _), cell in results.finished.items():
        if cell.spec.get("selection") != "last":
            chosen[label] = cell.spec["stages"][-1].get("epochs", 0)
    if len(set(chosen.values())) > 1:
        most = max(chosen.values())
        rows = [label for label, epochs in chosen.items() if epochs == most]
        yield (
            f"The best epoch is chosen on dev, which is also what is shown. That flatters rows with more epochs: "
            f"{named(rows)} had {most}, others as few as {min(chosen.values())}."
        )


def _trajectories(results: Results, epochs: Epochs) -> Iterator[str]:
    """Rows whose every epoch is the same, epochs that change nothing, and parts that had nothing to do."""
    by_row: dict[str, list[object]] = {}
    still, idle, fixed = [], [], []
    for (label, _), cell in results.finished.items():
        history = [each for each in epochs(cell.id) if each.stage == len(cell.spec["stages"]) - 1]
        by_row.setdefault(label, []).append([(each.losses, each.scores) for each in history])
        if len(history) > 1 and all(each.losses == history[0].losses for each in history):
            still.append(label)
        removed = [each.diagnostics["removed"] for each in history if "removed" in each.diagnostics]
        if removed and _is_surgery(cell) and not any(removed):
            idle.append(label)
        margins = [values["margin"] for each in history for values in each.metrics.values() if "margin" in values]
        if len(margins) > 1 and len(set(margins)) == 1:
            fixed.append(label)
    same: dict[str, list[str]] = {}
    for label, trajectories in by_row.items():
        if any(trajectories):
            same.setdefault(repr(trajectories), []).append(label)
    for rows in same.values():
        if len(rows) > 1:
            yield f"{named(rows)} went through the same losses and scores: what they differ in did nothing."
    if still:
        yield f"Training changed nothing in {named(still)}: the losses of all epochs are the same."
    if idle:
        yield f"The combiner of {named(idle)} met no conflict: it did what a sum does."
    if fixed:
        yield f"The margin of {named(fixed)} never moved."


def _is_surgery(cell: CellRecord) -> bool:
    return any(
        stage.get("combiner", {}).get("name") not in ("sum", "mean", "weighted") for stage in cell.spec["stages"]
    )


def _constants(results: Results) -> Iterator[str]:
    for task in dict.fromkeys(task for cell in results.finished.values() for task in cell.scores):
        constant = [
            label
            for (label, _), cell in results.finished.items()
            if (stored := results.stored(cell.id)) is not None
            and task in stored.tasks
            and np.ptp(stored.read(task, "predicted")) == 0
        ]
        if constant:
            yield f"{named(constant)}: every prediction for {task} is the same."
    for each in constants_of(results):
        means = {
            label: np.nanmean(row)
            for label, row in zip(results.rows, results.scores(each.task).values, strict=True)
            if np.isfinite(row).any()
        }
        below = [label for label, mean in means.items() if mean <= each.score]
        if below:
            yield f"{named(below)}: no better on {each.task} than {each.says} ({each.score:.3f})."


def _clusters(results: Results) -> Iterator[str]:
    sizes = {}
    for key, task in _example_sets(results):
        clusters = results.examples(key).cluster
        shared = sum(size for size in Counter(clusters.tolist()).values() if size > 1)
        if shared:
            sizes[task] = f"{shared:,} of {len(clusters):,} in {task}"
    if sizes:
        yield f"Examples that share a text count as one where noise is concerned: {', '.join(sizes.values())}."


def _seen(results: Results) -> Iterator[str]:
    found = {}
    for cell in results.finished.values():
        stored = results.stored(cell.id)
        for task, facts in stored.tasks.items() if stored else ():
            if facts.seen:
                found[task] = f"{facts.seen:,} of {len(results.examples(facts.examples).expected):,} in {task}"
    if found:
        yield f"Texts of the dev split that are also in the training data: {', '.join(found.values())}."


def _machines(results: Results) -> Iterator[str]:
    """Rows that were trained on other devices, or with another number of threads: bit for bit they are not alike."""
    kinds: dict[str, list[str]] = {}
    for (label, _), cell in results.finished.items():
        threads = cell.versions.get("threads")
        kind = f"{cell.device} with {count(int(threads), 'thread')}" if threads else str(cell.device)
        kinds.setdefault(kind, []).append(label)
    if len(kinds) > 1:
        where = "; ".join(f"{named(rows)} on {kind}" for kind, rows in kinds.items())
        yield f"Rows were trained on different machines: {where}."


def _example_sets(results: Results) -> dict[tuple[str, str], None]:
    """The sets of examples that the rows were scored on, with their task."""
    stored = (results.stored(cell.id) for cell in results.finished.values())
    return dict.fromkeys(
        (facts.examples, task) for each in stored if each is not None for task, facts in each.tasks.items()
    )


def named(rows: Sequence[str]) -> str:
    """Rows in words: each once, in quotes, not too many.

    >>> named(["a", "b", "a"]), named(list("abcdef"))
    ("'a' and 'b'", "'a', 'b', 'c', 'd' and 2 more")
    """
    names = [repr(row) for row in dict.fromkeys(rows)]
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
