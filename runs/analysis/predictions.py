"""What cells predicted for every example of a split, and the texts of those examples, read again. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Split
from taskloom.core.errors import RegistryError, TaskloomError
from taskloom.registry.installed.manager import guard
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.registry.results.scores import ExampleSet, StoredScores, TaskFacts, find_scores, key_of, load_examples
from taskloom.runs.analysis.contrasts import Values


@dataclass(frozen=True)
class Subject:
    """What is looked at: the finished seeds of a row of ``grid``, or a single cell (``grid`` is None)."""

    name: str
    cells: tuple[GridCell, ...]
    grid: GridRecord | None = None

    @property
    def spec(self) -> dict[str, Any]:
        return self.cells[0].cell.spec

    def tasks(self, registry: Path, split: str = "dev") -> dict[str, TaskFacts]:
        """The tasks with predictions for a split."""
        stored = _stored(registry, self.cells[0].cell.id, split).tasks
        return {task: stored[task] for task in self.spec["tasks"] if task in stored}


@dataclass(frozen=True, eq=False)
class Predictions:
    """What S models predicted for the n examples of a task: ``predicted`` [S, n], a class or a value.

    Where a correlation is the metric, those are in units of the labels (see ``in_units``), and ``decided`` is what the
    models themselves gave.
    ``probabilities`` [S, n, C] are those of the classes; None if the models gave one ``score`` [S, n] that is no logit.
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
        """Of these cells."""
        stored = [_stored(registry, cell.id, split) for cell in cells]
        facts = stored[0].tasks[task]
        if any(task not in each.tasks or each.tasks[task].examples != facts.examples for each in stored):
            raise RegistryError(f"task {task!r}: the seeds were scored on different examples; run the grid again")
        examples = load_examples(registry, facts.examples)
        decided = np.stack([each.read(task, "predicted") for each in stored]).astype(np.float64)
        predicted = np.stack([in_units(values, examples.expected, facts) for values in decided])
        score = np.stack([each.read(task, "score") for each in stored]).astype(np.float64)
        logits = score if score.ndim == 3 and score.shape[2] > 1 else None
        if logits is None:
            score = score.reshape(predicted.shape)
            # Older files do not say what one number is: a logit where the second of two classes is decided above 0.
            if facts.classes == 2 and np.all(decided == (score > 0)) if facts.logit is None else facts.logit:
                logits = np.stack([np.zeros_like(score), score], -1)
        probabilities = None if logits is None or not facts.classes else _softmax(logits)
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
        """How far each prediction is from the label, [S, n]: 1 − its probability, or a distance."""
        if self.probabilities is not None:
            return 1.0 - self.probabilities[:, np.arange(len(self.expected)), self.expected.astype(int)]
        return np.abs((self.score if self.facts.classes else self.predicted) - self.expected)

    @cached_property
    def confidence(self) -> Values | None:
        """The probability that each model gave to the class that it predicted, [S, n]; None if it gave none."""
        if self.probabilities is None:
            return None
        found: Values = np.take_along_axis(self.probabilities, self.predicted.astype(int)[..., None], 2)[..., 0]
        return found


def in_units(predicted: NDArray[Any], expected: Values, facts: TaskFacts) -> Values:
    """Predictions [n] in units of the labels, so that they can be subtracted.

    A correlation leaves it to a model on which scale its values are, such as cosines for labels from 0 to 5. So they
    are replaced by the rising straight line of them with the least squared error.
    """
    values: Values = predicted.astype(np.float64)
    if facts.classes or not facts.correlation:
        return values
    x = values - values.mean()
    found: Values = expected.mean() + max(x @ expected, 0.0) / ((x @ x) or 1.0) * x
    return found


def _stored(registry: Path, cell: str, split: str) -> StoredScores:
    stored = find_scores(registry, cell, split)
    if stored is not None:
        return stored
    if split == "test":
        scored = 'a run with "score": {"test": true} keeps them'
        raise RegistryError(f"cell {cell[:12]} has no predictions for a labelled test split; {scored}")
    if split == "train":
        raise RegistryError("predictions for the training data are not kept; those for dev and test are")
    raise RegistryError(
        f"there are no stored predictions of cell {cell[:12]}: it was run before they were kept, or its files are "
        "gone. Run its grid again in another --registry."
    )


def _softmax(scores: Values) -> Values:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    found: Values = shifted / shifted.sum(-1, keepdims=True)
    return found


@dataclass(frozen=True)
class Texts:
    """The texts of stored examples, in their order; None if they cannot be found, and ``note`` says why."""

    rows: tuple[tuple[str, ...], ...] | None
    note: str = ""


def texts_of(
    task: str, spec: Mapping[str, Any], examples: ExampleSet, folder: Path | None = None, split: Split = "dev"
) -> Texts:
    """The texts of a task's examples, read again from its data set (``spec``), which may be in a ``folder`` now."""
    from taskloom.runs.grid.contents import read_split  # which a report does without

    try:
        with guard(f"data set {spec.get('name')!r}"):
            found = read_split(spec, split, folder)
    except TaskloomError as error:
        advice = "--data FOLDER says where they are now" if folder is None else "put the files back to see texts"
        return Texts(None, f"{task}: ids are shown, because the data cannot be read ({error}); {advice}")
    if found.labels is None or key_of(found) != examples.key:
        return Texts(None, f"{task}: ids are shown, because the data have changed since the run")
    return Texts(tuple(zip(*found.columns, strict=True)))
