"""Comparisons and errors, example by example, as text and as JSON. Control characters in texts are escaped."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from taskloom.core.errors import count
from taskloom.runs.analysis.cell_states import finite
from taskloom.runs.analysis.compare import Comparison, FurtherMetric, Stratum, TaskComparison
from taskloom.runs.analysis.errors import Example, TaskErrors
from taskloom.runs.analysis.predictions import Subject
from taskloom.runs.show.differences import format_difference, format_p, format_verdict, judged_json
from taskloom.runs.show.parts import Aligned, Listing, Part
from taskloom.runs.show.render import listing
from taskloom.runs.show.visible import one_line

_DIFFERENCE = ("B - A [95 % interval]", "p")


# Comparisons


def comparison_parts(comparison: Comparison, limit: int) -> list[Part]:
    """Show A and B, their differences by task, and for each task the first ``limit`` examples that flipped."""
    used = [sorted({pair[side] for pair in comparison.seeds}) for side in (0, 1)]
    subjects = zip("AB", (comparison.a, comparison.b), used, strict=True)
    heads = [f"{name}: {_subject(subject, seeds)}" for name, subject, seeds in subjects]
    sizes = {task.of.task: len(task.of.expected) for task in comparison.tasks}
    compared: list[tuple[str, str, TaskComparison | FurtherMetric]]
    compared = [(task.of.task, task.of.facts.metric, task) for task in comparison.tasks]
    for further_metric in comparison.further:
        task_name, _, metric_name = further_metric.column.partition(":")
        compared.append((task_name, metric_name, further_metric))
    rows = [
        (
            *(task, metric, sizes[task]),
            *map(_figure, metric_comparison.scores),
            *(format_difference(judged), format_p(judged.p), format_verdict(judged)),
            "McNemar" if metric_comparison.mcnemar else f"paired, noise: {judged.variance or 'unknown'}",
        )
        for (task, metric, metric_comparison), judged in zip(compared, comparison.judged, strict=True)
    ]
    headers = ("task", "metric", "examples", "A", "B", *_DIFFERENCE, "verdict", "test")
    notes = "\n".join(map(one_line, _notes(comparison)))
    tasks = [Aligned(_show_task(task, len(comparison.seeds), limit)) for task in comparison.tasks]
    return ["\n".join(heads), Listing(rows, headers, (0, 1)), notes, *tasks]


def _notes(comparison: Comparison) -> Iterator[str]:
    """Explain the differences, intervals and p values, and name what is not compared."""
    yield (
        "Differences are B less A. The p values and intervals of a table are corrected for its rows (Holm). For the "
        "paired test both seeds and examples are noise, that of seeds pooled over the rows or, where that leaves less "
        "open, the difference's own."
    )
    if comparison.split != "dev":
        yield f"Scores and predictions are those of {comparison.split}."
    if len(comparison.seeds) == 1:
        yield "One seed: this is about these two models, not about these two methods."
    yield from (f"{task.of.task}: {why}" for task in comparison.tasks if (why := task.contrast.why))
    yield from (f"{task} is not compared: A and B do not have the same examples and metric" for task in comparison.left)


def _show_task(task: TaskComparison, seeds: int, limit: int) -> str:
    classes = task.of.facts.classes
    most = f" in most of {seeds} seeds" if seeds > 1 else ""
    titles = ("wrong in A, right in B", "right in A, wrong in B") if classes else ("nearer in B", "nearer in A")
    parts = [f"== {one_line(task.of.task)}"]
    if task.mcnemar is not None:
        only_a, only_b, p = task.mcnemar.only_a, task.mcnemar.only_b, format_p(task.mcnemar.p)
        parts.append(f"Right in A only {only_a}, in B only {only_b}; McNemar's exact test: p {p}, not corrected.")
    for title, back in zip(titles, (False, True), strict=True):
        number, examples = task.flipped(limit, back=back)
        shown = f" (the first {len(examples)})" if number > len(examples) > 0 else ""
        lines = [f"{count(number, 'example')}: {title}{most}{shown}"]
        parts.append("\n".join([*lines, *(_show_example(example, task, "AB", seeds) for example in examples)]))
    unit = "accuracy" if classes else "mean absolute error"
    for head, breakdown in (("class" if classes else "label", task.by_label), ("words", task.by_length)):
        if breakdown:
            parts.append(f"{unit} by {head}\n{_show_parts(breakdown, head, task)}")
    return "\n\n".join([*parts, *_task_notes(task)])


def _show_parts(parts: Iterable[Stratum], head: str, task: TaskComparison) -> str:
    rows = []
    for part in parts:
        low, high = (f"{bound:g}" if head == "words" else _label(bound, task) for bound in (part.low, part.high))
        name = low if low == high else f"{low} to {high}"
        difference = format_difference(part.judged), format_p(part.judged.p)
        rows.append((name, part.examples, _figure(part.a), _figure(part.b), *difference))
    return listing(rows, [head, "examples", "A", "B", *_DIFFERENCE])


# Errors


def show_errors(subject: Subject, tasks: Sequence[TaskErrors]) -> str:
    """Render the worst errors of each task, its confusion matrix and the scores of its classes."""
    return "\n\n".join([_subject(subject, [grid_cell.seed for grid_cell in subject.cells]), *map(_show_errors, tasks)])


def _show_errors(task: TaskErrors) -> str:
    of, seeds = task.of, len(task.scores)
    counts = task.confusion.counts
    wrong = f", {counts.sum() - counts.trace()} of {counts.sum()} predictions wrong" if of.facts.classes else ""
    parts = [f"== {one_line(of.task)}: {of.facts.metric} {_mean(task.scores, 3)}{wrong}"]
    title = "largest errors" if not of.facts.classes else "worst errors, surest first"
    lines = [_show_example(example, task, ["predicted"], seeds) for example in task.worst]
    parts += ["\n".join([title, *lines])] if lines else []
    body = [[name, *row] for name, row in zip(task.confusion.names, counts.tolist(), strict=True)]
    title = f"confusion matrix, a row per label, a column per prediction{', all seeds' * (seeds > 1)}\n"
    parts.append(title + listing(body, ["", *task.confusion.names]))
    if task.by_class:
        rows = [
            [name, _figure(scores.precision), _figure(scores.recall), _figure(scores.f1), scores.support]
            for name, scores in zip(task.confusion.names, task.by_class, strict=True)
        ]
        parts.append(listing(rows, ["class", "precision", "recall", "F1", "examples"]))
    return "\n\n".join([*parts, *_task_notes(task)])


# Shared by both


def _subject(subject: Subject, seeds: Sequence[int]) -> str:
    """Name a subject with the seeds that are used and, if its row has more, all of the row's seeds."""
    if subject.grid is None:
        return one_line(subject.name)
    planned = [grid_cell.seed for grid_cell in subject.grid.cells if grid_cell.label == subject.cells[0].label]
    rest = f" of {', '.join(map(str, planned))}" if len(seeds) < len(planned) else ""
    return one_line(f"{subject.name}, seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}{rest}")


def _show_example(example: Example, task: TaskComparison | TaskErrors, by: Sequence[str], seeds: int) -> str:
    """Render an example: a line with its label and the predictions of each model, and its texts below."""
    models = zip(by, example.predicted, example.confidence, strict=True)
    guesses = [f"{name} {_guess(predicted, confidence, task)}" for name, predicted, confidence in models]
    several = [f"{example.seeds} of {seeds} seeds"] if seeds > 1 and task.of.facts.classes else []
    facts = ", ".join([f"label {_label(example.label, task)}", *guesses, *several])
    texts = [f"      {one_line(text)}" for text in example.texts or ()]
    return "\n".join([f"  {one_line(example.id)}: {one_line(facts)}", *texts])


def _task_notes(task: TaskComparison | TaskErrors) -> Iterator[str]:
    facts = task.of.facts
    if facts.correlation and not facts.classes:
        yield f"Values are in units of the labels, by the best straight line: {facts.metric} leaves their scale open."
    if task.texts.note:
        yield one_line(task.texts.note)


def _label(label: float, task: TaskComparison | TaskErrors) -> str:
    """Format a label: the name of a class, its number if it has no name, or a value."""
    if not task.of.facts.classes:
        return f"{label:.2f}"
    return task.of.facts.called(label)


def _guess(predicted: Sequence[float], confidence: float | None, task: TaskComparison | TaskErrors) -> str:
    """Format the predictions of one or several models for an example, with their confidence.

    Classes are counted; values are given as mean ± standard deviation over the models.
    """
    if not task.of.facts.classes:
        return _mean(predicted, 2)
    counts = Counter(_label(label, task) for label in predicted).most_common()
    classes = ", ".join(f"{name} ×{times}" if len(counts) > 1 else name for name, times in counts)
    return classes if confidence is None else f"{classes} ({confidence:.0%} sure)"


def _mean(values: Sequence[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def _figure(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


# JSON


def comparison_json(comparison: Comparison, limit: int) -> dict[str, Any]:
    """Return a comparison as JSON values; differences are B less A."""
    compared: list[TaskComparison | FurtherMetric] = [*comparison.tasks, *comparison.further]
    scores = [
        {"a": finite(metric.scores[0]), "b": finite(metric.scores[1]), **judged_json(judged)}
        for metric, judged in zip(compared, comparison.judged, strict=True)
    ]
    tasks = len(comparison.tasks)
    return {
        "a": _subject_json(comparison.a),
        "b": _subject_json(comparison.b),
        "seeds": [list(pair) for pair in comparison.seeds],
        "tasks": [
            {
                **_task_json(task),
                **task_scores,
                "mcnemar": task.mcnemar and {**vars(task.mcnemar), "p": task.mcnemar.p},
                "better": _flipped_json(*task.flipped(limit)),
                "worse": _flipped_json(*task.flipped(limit, back=True)),
                "by_label": [_part_json(part) for part in task.by_label],
                "by_length": [_part_json(part) for part in task.by_length],
            }
            for task, task_scores in zip(comparison.tasks, scores[:tasks], strict=True)
        ],
        "further": [
            {"column": metric.column, **metric_scores}
            for metric, metric_scores in zip(comparison.further, scores[tasks:], strict=True)
        ],
        "not_compared": comparison.left,
        "split": comparison.split,
        "checks": list(comparison.checks),
    }


def errors_json(subject: Subject, tasks: Sequence[TaskErrors]) -> dict[str, Any]:
    """Return a subject's errors as JSON values; the confusion matrix counts the predictions of all seeds."""
    return {
        **_subject_json(subject),
        "tasks": [
            {
                **_task_json(task),
                "scores": [finite(score) for score in task.scores],
                "worst": [vars(example) for example in task.worst],
                "confusion": {"names": task.confusion.names, "counts": task.confusion.counts.tolist()},
                "by_class": [vars(scores) for scores in task.by_class],
            }
            for task in tasks
        ],
    }


def _subject_json(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "grid": subject.grid and subject.grid.name,
        "cells": [
            {"id": grid_cell.cell.id, "row": grid_cell.label, "seed": grid_cell.seed} for grid_cell in subject.cells
        ],
    }


def _task_json(task: TaskComparison | TaskErrors) -> dict[str, Any]:
    facts = task.of.facts
    return {
        "task": task.of.task,
        "metric": facts.metric,
        "classes": list(facts.names) or facts.classes,
        "examples": len(task.of.expected),
        "note": task.texts.note,
    }


def _part_json(part: Stratum) -> dict[str, Any]:
    facts = {key: value for key, value in vars(part).items() if key != "judged"}
    return {**facts, **judged_json(part.judged)}


def _flipped_json(number: int, examples: Sequence[Example]) -> dict[str, Any]:
    return {"count": number, "examples": [vars(example) for example in examples]}
