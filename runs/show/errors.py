"""Comparisons and errors, example by example, as text and as JSON. Texts are of others: none steers the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from taskloom.core.errors import count
from taskloom.runs.analysis.compare import Comparison, Part, TaskComparison
from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.errors import Example, Guess, TaskErrors
from taskloom.runs.analysis.predictions import Subject
from taskloom.runs.show.render import listing
from taskloom.runs.show.visible import one_line

#: Characters of a text, and classes of a confusion matrix, that are shown; the JSON form has all of them.
LONGEST, MOST_CLASSES = 400, 20
_VARIANCES = {
    "pooled": "pooled over the rows",
    "own": "that of the difference itself",
}


CONFIDENCE = "In parentheses is the probability that a model gave to its prediction, the mean over seeds."


# Comparisons


def show_comparison(made: Comparison) -> str:
    """A and B, the differences task by task, and for each task what flipped and where."""
    used = [sorted({pair[side] for pair in made.seeds}) for side in (0, 1)]
    heads = [f"{name}: {_subject(each, seeds)}" for name, each, seeds in zip("AB", (made.a, made.b), used, strict=True)]
    table = listing(
        [
            (
                task.task,
                task.metric,
                task.examples,
                *map(_figure, task.scores),
                *_difference(task.judged),
                task.judged.verdict,
            )
            for task in made.tasks
        ],
        ["task", "metric", "examples", "A", "B", "B - A", "interval", "p", "verdict"],
    )
    notes = [*_test_notes(made), *made.notes]
    parts = ["\n".join(heads), table, "\n".join(map(one_line, notes))]
    return "\n\n".join([*parts, *(_show_task(task, len(made.seeds)) for task in made.tasks)])


def _test_notes(made: Comparison) -> Iterator[str]:
    """What the differences, intervals and p values are."""
    yield (
        "Differences are B less A. The p values of a table are corrected for its rows (Holm); its intervals hold "
        "together at 95 % and agree with them."
    )
    if any(_has_confidence([*task.better[1], *task.worse[1]]) for task in made.tasks):
        yield CONFIDENCE
    exact = [task.task for task in made.tasks if task.test == "mcnemar"]
    if exact:
        yield f"Tested by McNemar's exact test: {', '.join(exact)}."
    if len(made.seeds) == 1:
        yield "One seed: this is about these two models, not about these two methods."
    else:
        used: dict[str, list[str]] = {}
        for task in made.tasks:
            if words := _VARIANCES.get(task.judged.contrast.variance or ""):
                used.setdefault(words, []).append(task.task)
        named = [f"{words} ({', '.join(tasks)})" if len(used) > 1 else words for words, tasks in used.items()]
        if named:
            yield f"Both seeds and examples count as noise; the seed variance is {' and '.join(named)}."
    for task in made.tasks:
        if task.judged.contrast.why:
            yield f"{task.task}: no test, because {task.judged.contrast.why}."


def _show_task(task: TaskComparison, seeds: int) -> str:
    most = f" in most of {seeds} seeds" if seeds > 1 else ""
    if task.classes:
        titles, unit = (f"wrong in A, right in B{most}", f"right in A, wrong in B{most}"), "accuracy"
    else:
        titles, unit = ("error shrank from A to B", "error grew from A to B"), "mean absolute error"
    parts = [f"== {task.task}"]
    if task.mcnemar is not None:
        only_a, only_b, p = task.mcnemar.only_a, task.mcnemar.only_b, _p(task.mcnemar.p, "= ")
        parts.append(f"Right in A only {only_a}, in B only {only_b}; McNemar's exact test: p {p}, not corrected.")
    for title, (number, examples) in zip(titles, (task.better, task.worse), strict=True):
        shown = f" (the first {len(examples)})" if number > len(examples) > 0 else ""
        lines = [f"{count(number, 'example')}: {title}{shown}"]
        parts.append("\n".join([*lines, *(_show_flip(each, task, seeds) for each in examples)]))
    kind = "class" if task.classes else "label"
    for head, found in ((kind, task.by_label), ("words", task.by_length)):
        if found:
            names = task.names if head == "class" else ()
            parts.append(f"{unit} by {head}\n{_show_parts(found, head, names)}")
    parts += [one_line(note) for note in task.notes]
    return "\n\n".join(parts)


def _show_flip(example: Example, task: TaskComparison, seeds: int) -> str:
    a, b = (_guess(guess, task) for guess in example.guesses)
    label = _label(example.expected, task)
    flipped = f", {example.seeds} of {seeds} seeds" if seeds > 1 and task.classes else ""
    return _block(example, f"label {label}, A {a}, B {b}{flipped}")


def _show_parts(parts: Iterable[Part], head: str, names: Sequence[str]) -> str:
    rows = [
        (
            _range(part.low, part.high, head, names),
            part.examples,
            _figure(part.a),
            _figure(part.b),
            *_difference(part.judged),
        )
        for part in parts
    ]
    return listing(rows, [head, "examples", "A", "B", "B - A", "interval", "p"])


def _range(low: float, high: float, head: str, names: Sequence[str]) -> str:
    if names:
        return names[int(low)]
    digits = 2 if head == "label" else 0
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}"


# Errors


def show_errors(subject: Subject, tasks: Sequence[TaskErrors]) -> str:
    """The worst errors of each task, and where they are."""
    seeds = [place.seed for place in subject.cells]
    head = [_subject(subject, seeds)]
    head += [CONFIDENCE] if any(_has_confidence(task.worst) for task in tasks) else []
    return "\n\n".join(["\n".join(head), *(_show_errors(task) for task in tasks)])


def _show_errors(task: TaskErrors) -> str:
    seeds = len(task.scores)
    mean = f", mean over {seeds} seeds" if seeds > 1 else ""
    wrong = f", {task.wrong:.{int(seeds > 1)}f} of {count(task.examples, 'example')} wrong" if task.classes else ""
    parts = [f"== {one_line(task.task)}: {task.metric} {_mean(task.scores, 3)}{wrong}{mean}"]
    title = "largest errors" if not task.classes else "wrong in most seeds" if seeds > 1 else "worst errors"
    lines = [_show_error(each, task, seeds) for each in task.worst]
    parts.append("\n".join([f"{title}{', surest first' * bool(task.classes)}", *lines] if lines else ["no errors"]))
    if 0 < task.classes <= MOST_CLASSES:
        labels, digits = [_label(each, task) for each in range(task.classes)], int(seeds > 1)
        matrix = [[f"{each:.{digits}f}" for each in row] for row in task.confusion]
        title = f"confusion matrix (a row per label, a column per prediction{mean})\n"
        body = [[label, *row] for label, row in zip(labels, matrix, strict=True)]
        parts.append(title + listing(body, ["", *labels]))
    elif task.classes:
        parts.append(f"The confusion matrix of {task.classes} classes is left to --json.")
    if task.classes:
        rows = [
            [_label(place, task), _figure(each.precision), _figure(each.recall), _figure(each.f1), each.support]
            for place, each in enumerate(task.by_class)
        ]
        parts.append(listing(rows, ["class", "precision", "recall", "F1", "examples"]))
    if task.bins:
        rows = [
            [_range(each.low, each.high, "label", ()), each.examples, f"{each.residual:+.3f}", _figure(each.error)]
            for each in task.bins
        ]
        title = f"residual (prediction less label) by label{mean}\n"
        parts.append(title + listing(rows, ["label", "examples", "residual", "absolute error"]))
    return "\n\n".join([*parts, *map(one_line, task.notes)])


def _show_error(example: Example, task: TaskErrors, seeds: int) -> str:
    (guess,) = example.guesses
    told = f", {example.seeds} of {seeds} seeds" if seeds > 1 and task.classes else ""
    size = "" if task.classes else f", off by {_number(example.size)}"
    return _block(example, f"label {_label(example.expected, task)}, predicted {_guess(guess, task)}{size}{told}")


# What both share


def _subject(subject: Subject, seeds: Sequence[int]) -> str:
    every = [place.seed for place in subject.cells]
    which = ", ".join(map(str, seeds))
    rest = f" of {', '.join(map(str, every))}" if list(seeds) != sorted(every) else ""
    if subject.grid is None:
        return one_line(subject.name)
    planned = sum(place.label == subject.cells[0].label for place in subject.grid.cells)
    missing = f" ({planned - len(every)} of {planned} seeds not finished)" if planned > len(every) else ""
    return one_line(f"{subject.name}, seed{'s'[: len(seeds) > 1]} {which}{rest}{missing}")


def _has_confidence(examples: Sequence[Example]) -> bool:
    return any(guess.confidence is not None for example in examples for guess in example.guesses)


def _block(example: Example, facts: str) -> str:
    """An example as a line, and its texts below."""
    texts = [_cut(one_line(text)) for text in example.texts or ()]
    return "\n".join([f"  {one_line(example.id)}: {one_line(facts)}", *(f"      {text}" for text in texts)])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _label(value: float, task: TaskComparison | TaskErrors) -> str:
    """A label: the name of a class, or its number; or a value."""
    if not task.classes:
        return _number(value)
    number = int(value)
    return task.names[number] if number < len(task.names) else str(number)


def _guess(guess: Guess, task: TaskComparison | TaskErrors) -> str:
    """What was predicted, by how many of several models, and how sure they were.

    A value is the mean ± the standard deviation of the models' predictions.
    """
    if not task.classes:
        return _mean(guess.predicted, 2)
    counts = Counter(_label(each, task) for each in guess.predicted).most_common()
    several = len(counts) > 1
    classes = ", ".join(f"{name} ×{times}" if several else name for name, times in counts)
    return classes if guess.confidence is None else f"{classes} ({guess.confidence:.2f})"


def _mean(values: Sequence[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _figure(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


def _p(p: float | None, equals: str = "") -> str:
    return "—" if p is None else "<0.001" if p < 0.001 else f"{equals}{p:.3f}"


def _difference(judged: Judged) -> list[str]:
    """A difference, its interval and its p value."""
    interval = "—" if judged.interval is None else "{:+.3f} to {:+.3f}".format(*judged.interval)
    return [f"{judged.contrast.delta:+.3f}", interval, _p(judged.p)]


# JSON


def comparison_json(made: Comparison) -> dict[str, Any]:
    """Everything in a comparison; differences are B less A."""
    return {
        "a": _subject_json(made.a),
        "b": _subject_json(made.b),
        "seeds": [list(pair) for pair in made.seeds],
        "tasks": [
            {
                "task": task.task,
                "metric": task.metric,
                "classes": list(task.names) or task.classes,
                "examples": task.examples,
                "a": _finite(task.scores[0]),
                "b": _finite(task.scores[1]),
                **_judged_json(task.judged),
                "verdict": task.judged.verdict,
                "variance": task.judged.contrast.variance,
                "test": task.test,
                "mcnemar": task.mcnemar
                and {"only_a": task.mcnemar.only_a, "only_b": task.mcnemar.only_b, "p": task.mcnemar.p},
                "better": {"count": task.better[0], "examples": [_flip_json(each) for each in task.better[1]]},
                "worse": {"count": task.worse[0], "examples": [_flip_json(each) for each in task.worse[1]]},
                "by_label": [_part_json(part) for part in task.by_label],
                "by_length": [_part_json(part) for part in task.by_length],
                "notes": list(task.notes),
            }
            for task in made.tasks
        ],
        "notes": list(made.notes),
    }


def errors_json(subject: Subject, tasks: Sequence[TaskErrors]) -> dict[str, Any]:
    """Everything about a subject's errors."""
    return {
        **_subject_json(subject),
        "tasks": [
            {
                "task": task.task,
                "metric": task.metric,
                "classes": list(task.names) or task.classes,
                "examples": task.examples,
                "scores": [_finite(score) for score in task.scores],
                "wrong": task.wrong if task.classes else None,
                "worst": [
                    {**_example_json(each), **vars(each.guesses[0]), "wrong_seeds": each.seeds, "size": each.size}
                    for each in task.worst
                ],
                "confusion": task.confusion.tolist(),
                "by_class": [vars(each) for each in task.by_class],
                "bins": [vars(each) for each in task.bins],
                "notes": list(task.notes),
            }
            for task in tasks
        ],
    }


def _subject_json(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "grid": subject.grid and subject.grid.name,
        "cells": [{"id": place.cell.id, "row": place.label, "seed": place.seed} for place in subject.cells],
    }


def _judged_json(judged: Judged) -> dict[str, Any]:
    interval = judged.interval and list(judged.interval)
    return {"delta": _finite(judged.contrast.delta), "interval": interval, "p": judged.p}


def _part_json(part: Part) -> dict[str, Any]:
    same = ("low", "high", "examples", "a", "b")
    return {**{key: getattr(part, key) for key in same}, **_judged_json(part.judged)}


def _flip_json(example: Example) -> dict[str, Any]:
    a, b = (vars(guess) for guess in example.guesses)
    return {**_example_json(example), "a": a, "b": b, "seeds": example.seeds, "change": example.size}


def _example_json(example: Example) -> dict[str, Any]:
    return {"id": example.id, "texts": example.texts, "label": example.expected}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
