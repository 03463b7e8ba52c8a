"""The stored predictions of cells, and the texts of their examples, read again from the data. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from taskloom.core.data import Split
from taskloom.core.errors import RegistryError, TaskloomError
from taskloom.registry.installed.manager import guard
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.registry.results.scores import (
    ExampleSet,
    StoredScores,
    TaskFacts,
    check_examples,
    find_scores,
    key_of,
    load_examples,
)
from taskloom.runs.analysis.contrasts import Values


@dataclass(frozen=True)
class Subject:
    """The finished seeds of a row of ``grid``, or a single cell (``grid`` is None)."""

    name: str
    cells: tuple[GridCell, ...]
    grid: GridRecord | None = None

    @property
    def spec(self) -> dict[str, Any]:
        return self.cells[0].cell.spec

    def tasks(self, registry: Path, split: str = "dev") -> dict[str, TaskFacts]:
        """The tasks with predictions for a split."""
        stored = _stored(registry, self.cells[0].cell, split).tasks
        return {task: stored[task] for task in self.spec["tasks"] if task in stored}


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of S models for the n examples of a task: ``predicted`` [S, n], a class or a value.

    If the metric is a correlation, they are rescaled to the units of the labels (see ``in_units``), and ``decided`` has
    the models' own output.
    ``probabilities`` [S, n, C] are those of the classes; None if a model's only output is a ``score`` [S, n], no logit.
    """

    task: str
    facts: TaskFacts
    examples: ExampleSet
    predicted: Values
    score: Values
    probabilities: Values | None
    decided: Values

    @classmethod
    def load(cls, registry: Path, task: str, cells: Sequence[CellRecord], split: str = "dev") -> "Predictions":
        """Load the stored predictions of these cells for a task."""
        stored = [_stored(registry, cell, split) for cell in cells]
        facts = stored[0].tasks[task]
        if any(task not in scores.tasks or scores.tasks[task].examples != facts.examples for scores in stored):
            raise RegistryError(f"task {task!r}: the seeds were scored on different examples; run the grid again")
        examples = load_examples(registry, facts.examples)
        for scores in stored:
            check_examples(scores, task, examples)
        decided = np.stack([scores.read(task, "predicted") for scores in stored]).astype(np.float64)
        predicted = np.stack([in_units(values, examples.expected, facts) for values in decided])
        score = np.stack([scores.read(task, "score") for scores in stored]).astype(np.float64)
        logits = score if score.ndim == 3 and score.shape[2] > 1 else None
        if logits is None:
            score = score.reshape(predicted.shape)
            # Older files do not say whether a score is a logit: it is if class 1 of 2 was decided exactly above 0.
            if facts.classes == 2 and np.all(decided == (score > 0)) if facts.logit is None else facts.logit:
                logits = np.stack([np.zeros_like(score), score], -1)
        probabilities = None if logits is None or not facts.classes else softmax(logits, -1)
        return cls(task, facts, examples, predicted, score, probabilities, decided)

    @property
    def expected(self) -> Values:
        return self.examples.expected

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether a class is the right one, [S, n]."""
        return np.asarray(self.predicted == self.expected)

    @cached_property
    def wrongness(self) -> Values:
        """How wrong each prediction is, [S, n]: 1 − the label's probability, or the absolute error."""
        if self.probabilities is not None:
            return 1.0 - self.probabilities[:, np.arange(len(self.expected)), self.expected.astype(int)]
        return np.abs((self.score if self.facts.classes else self.predicted) - self.expected)

    @cached_property
    def confidence(self) -> Values | None:
        """The probability that each model gave to the class that it predicted, [S, n]; None if it gave none."""
        if self.probabilities is None:
            return None
        confidence: Values = np.take_along_axis(self.probabilities, self.predicted.astype(int)[..., None], 2)[..., 0]
        return confidence


def in_units(predicted: NDArray[Any], expected: Values, facts: TaskFacts) -> Values:
    """Predictions [n] in units of the labels, so that they can be subtracted.

    A correlation leaves the scale of its values to the model, such as cosines for labels from 0 to 5. So they are
    mapped by the least-squares line onto the labels, with a slope of at least 0.
    """
    values: Values = predicted.astype(np.float64)
    if facts.classes or not facts.correlation:
        return values
    centred = values - values.mean()
    fitted: Values = expected.mean() + max(centred @ expected, 0.0) / ((centred @ centred) or 1.0) * centred
    return fitted


def _stored(registry: Path, cell: CellRecord, split: str) -> StoredScores:
    stored = find_scores(registry, cell, split)
    if stored is not None:
        return stored
    if split == "test":
        scored = 'a run with "score": {"test": true} keeps them'
        raise RegistryError(f"cell {cell.id[:12]} has no predictions for a labelled test split; {scored}")
    if split == "train":
        raise RegistryError("predictions for the training data are not kept; those for dev and test are")
    raise RegistryError(
        f"there are no stored predictions of cell {cell.id[:12]}: it was run before they were kept, or its files are "
        "gone. Run its grid again in another --registry."
    )


@dataclass(frozen=True)
class Texts:
    """The texts of stored examples, in order; None if they cannot be read, for the reason in ``note``."""

    rows: tuple[tuple[str, ...], ...] | None
    note: str = ""


def texts_of(
    task: str, spec: Mapping[str, Any], examples: ExampleSet, folder: Path | None = None, split: Split = "dev"
) -> Texts:
    """The texts of a task's examples, read again from its data set (``spec``), which may be in a ``folder`` now."""
    from taskloom.runs.grid.contents import read_split  # which reports do not need

    try:
        with guard(f"data set {spec.get('name')!r}"):
            current = read_split(spec, split, folder)
    except TaskloomError as error:
        advice = "--data FOLDER says where they are now" if folder is None else "put the files back to see texts"
        return Texts(None, f"{task}: ids are shown, because the data cannot be read ({error}); {advice}")
    if current.labels is None or key_of(current) != examples.key:
        return Texts(None, f"{task}: ids are shown, because the data have changed since the run")
    return Texts(tuple(zip(*current.columns, strict=True)))
