"""What cells predicted for every example of the dev split, and the texts of those examples, read again. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core import DataSet
from taskloom.core.errors import RegistryError, TaskloomError, count, unknown
from taskloom.registry.installed.light import make_light
from taskloom.registry.installed.manager import guard
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.registry.results.scores import ExampleSet, StoredScores, TaskFacts, find_scores, key_of, load_examples
from taskloom.runs.analysis.contrasts import Values
from taskloom.runs.grid.contents import read_split

#: The loss whose single score is a logit.
_ONE_LOGIT = "binary_cross_entropy"


@dataclass(frozen=True)
class Subject:
    """What is looked at: the finished seeds of a row of ``grid``, or a single cell (``grid`` is None)."""

    name: str
    cells: tuple[GridCell, ...]
    grid: GridRecord | None = None

    @property
    def spec(self) -> dict[str, Any]:
        return self.cells[0].cell.spec

    def stored(self, registry: Path) -> dict[str, StoredScores]:
        """Cell → its stored scores; ``RegistryError`` if one has none."""
        found = {place.cell.id: find_scores(registry, place.cell.id) for place in self.cells}
        missing = [id[:12] for id, scores in found.items() if scores is None]
        if missing:
            raise RegistryError(
                f"{self.name}: there are no stored predictions of cell {', '.join(missing)}: it was run before they "
                "were kept, or its files are gone. Run its grid again in another --registry."
            )
        return {id: scores for id, scores in found.items() if scores is not None}

    def tasks(self, registry: Path, only: Sequence[str] = ()) -> list[str]:
        """The tasks with predictions, or those of them that are named."""
        stored = next(iter(self.stored(registry).values())).tasks
        tasks = [task for task in self.spec["tasks"] if task in stored]
        for name in only:
            if name not in tasks:
                raise RegistryError(unknown("task", name, tasks, where=f"tasks of {self.name} with predictions"))
        return [task for task in tasks if not only or task in only]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What S models predicted for the n examples of a task: ``predicted`` and ``score`` [S, n].

    ``score`` is None if the models gave a score per class; then ``probabilities`` [S, n, C] are their softmax.
    """

    task: str
    facts: TaskFacts
    examples: ExampleSet
    predicted: Values
    score: Values | None
    probabilities: Values | None

    @classmethod
    def load(cls, registry: Path, task: str, cells: Sequence[CellRecord]) -> "Predictions":
        """Of these cells, which have stored scores."""
        stored = [_scores(registry, cell.id, task) for cell in cells]
        facts = stored[0].tasks[task]
        if any(each.tasks[task].examples != facts.examples for each in stored):
            raise RegistryError(f"task {task!r}: the seeds were scored on different examples; run the grid again")
        examples = load_examples(registry, facts.examples)
        predicted = np.stack([each.read(task, "predicted") for each in stored]).astype(np.float64)
        scores = np.stack([each.read(task, "score") for each in stored]).astype(np.float64)
        one = scores.shape[2] == 1 if scores.ndim == 3 else True
        score = scores.reshape(predicted.shape) if one else None
        probabilities = None
        if facts.classes and score is None:
            probabilities = _softmax(scores)
        elif facts.classes == 2 and _ONE_LOGIT in _names(cells[0].spec["tasks"][task].get("loss")):
            assert score is not None
            probabilities = _softmax(np.stack([np.zeros_like(score), score], -1))
        return cls(task, facts, examples, predicted, score, probabilities)

    @property
    def expected(self) -> Values:
        return self.examples.expected

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether a class is the right one, [S, n]."""
        return np.asarray(self.predicted == self.expected)

    @cached_property
    def wrongness(self) -> Values:
        """How far each prediction is from the label, [S, n]: only its order counts where it is of a class.

        Of a value the absolute error; of a class 1 − the probability of the right one, or how far the score is on the
        wrong side of where the decision changes.
        """
        if self.probabilities is not None:
            return 1.0 - self.probabilities[:, np.arange(len(self.expected)), self.expected.astype(int)]
        if not self.facts.classes:
            return np.abs(self.predicted - self.expected)
        assert self.score is not None
        if self.facts.classes > 2:
            return np.abs(self.score - self.expected)
        return np.stack([self._wrong_side(*each) for each in zip(self.score, self.predicted, strict=True)])

    def _wrong_side(self, score: Values, predicted: Values) -> Values:
        low, high = score[predicted == 0], score[predicted == 1]
        border = (low.max() + high.min()) / 2 if len(low) and len(high) else score.mean()
        found: Values = (score - border) * np.where(self.expected == 1, -1.0, 1.0)
        return found

    @cached_property
    def confidence(self) -> Values | None:
        """The probability that each model gave to the class that it predicted, [S, n]; None if it gave none."""
        if self.probabilities is None:
            return None
        found: Values = np.take_along_axis(self.probabilities, self.predicted.astype(int)[..., None], 2)[..., 0]
        return found

    @property
    def on_another_scale(self) -> bool:
        """Whether values are worse than a constant though they go with the labels: they are on another scale."""
        if self.facts.classes or not self.facts.correlation or np.ptp(self.expected) == 0:
            return False
        with_labels = ((self.predicted - self.predicted.mean(1, keepdims=True)) * self.expected).mean(1) > 0
        return bool((with_labels & (((self.predicted - self.expected) ** 2).mean(1) > self.expected.var())).any())

    def fitted(self) -> "Predictions":
        """The same on the scale of the labels: the straight line of each model's predictions that fits best."""
        return replace(self, predicted=best_line(self.predicted, self.expected))


def best_line(predicted: Values, expected: Values) -> Values:
    """Predictions [.., n] on the scale of the labels: a straight line of them, that with the least squared error."""
    x = predicted - predicted.mean(-1, keepdims=True)
    size = (x * x).sum(-1, keepdims=True)
    slope = (x * expected).sum(-1, keepdims=True) / np.where(size == 0, 1.0, size)
    found: Values = expected.mean() + slope * x
    return found


def _scores(registry: Path, cell: str, task: str) -> StoredScores:
    stored = find_scores(registry, cell)
    if stored is None or task not in stored.tasks:
        raise RegistryError(f"cell {cell[:12]} has no stored predictions of task {task!r}; run its grid again")
    return stored


def _softmax(scores: Values) -> Values:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    found: Values = shifted / shifted.sum(-1, keepdims=True)
    return found


def _names(component: Any) -> Iterator[str]:
    """The names of a component and of those inside it."""
    if isinstance(component, Mapping):
        yield str(component.get("name"))
        for each in component.values():
            yield from _names(each)


@dataclass(frozen=True)
class Texts:
    """The texts of stored examples, in their order; None for what could not be found, and ``note`` says why.

    ``names`` are those of the classes, if they have any.
    """

    rows: tuple[tuple[str, ...] | None, ...]
    names: tuple[str, ...] = ()
    note: str = ""

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Words of each example; None unless every text is known."""
        words = [sum(len(text.split()) for text in row) for row in self.rows if row is not None]
        return np.array(words) if len(words) == len(self.rows) else None


def texts_of(task: str, spec: Mapping[str, Any], examples: ExampleSet, folder: Path | None = None) -> Texts:
    """The texts of a task's examples, read again from its data set (``spec``), which may be in another ``folder`` now.

    They are matched by their ids, and only where the label is the one that was stored.
    """
    names: tuple[str, ...] = ()
    try:
        with guard(f"data set {spec.get('name')!r}"):
            labels = make_light(DataSet, spec).labels
            names = labels.names if labels is not None else ()
            found = read_split(spec, "dev", folder)
    except TaskloomError as error:
        advice = "--data FOLDER says where they are now" if "dir" in spec else "put the files back to see texts"
        note = f"{task}: ids are shown instead of texts, because the data cannot be read ({error}); {advice}"
        return Texts((None,) * len(examples.ids), names, note)
    rows = list(zip(*found.columns, strict=True))
    if found.labels is not None and key_of(found) == examples.key:
        return Texts(tuple(rows), names)
    known: dict[str, list[tuple[tuple[str, ...], float | None]]] = {}
    for place, (id, row) in enumerate(zip(found.ids, rows, strict=True)):
        known.setdefault(id, []).append((row, None if found.labels is None else float(found.labels[place])))
    matched = tuple(
        next((row for row, found_label in known.get(id, ()) if found_label == label and len(known[id]) == 1), None)
        for id, label in zip(examples.ids, examples.expected, strict=True)
    )
    missing = sum(row is None for row in matched)
    lost = f"; {count(missing, 'example')} of {len(matched)} with no such id and label are shown by id" * bool(missing)
    return Texts(matched, names, f"{task}: the data have changed since the run, and texts are those of now{lost}")
