"""Stored scores: a model's output for every example of a split, one columnar file per cell and split, no texts.

::

    cells/<id>/scores-dev.safetensors      <task>.score [n] or [n, classes], <task>.predicted [n], <task>.influence [n]
    examples/<key>.safetensors             ids, expected [n], texts [n, k]: what all cells on the same examples share

``score`` is the head's output (logits or a value), ``predicted`` the decision in the data's own units, ``influence``
how much an example moves the task's metric (``Metric.influence``). ``texts`` numbers the distinct texts.

The ledger keeps a digest of each of a cell's score files together with the scores that it records (``binding.py``),
and a score file one of its examples, so that an exchanged or edited file is noticed when it is read.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Examples, Metric
from taskloom.core.errors import RegistryError, TrainingError
from taskloom.registry.results.artifacts import Artifacts, write_bytes
from taskloom.registry.results.binding import bound_file, score_file
from taskloom.registry.results.records import CellRecord
from taskloom.registry.results.shapes import checked, conforms

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """The labelled examples of a split; of their texts only ``texts`` [n, k] is known: which are the same, by number.

    Registries of version 0.2 and older have kept one number per example, the same for all that chains of shared texts
    connect (``chained``). Those are read as if all of them shared one text.
    """

    key: str
    ids: tuple[str, ...]
    expected: Values
    texts: NDArray[np.int64]
    chained: bool = False

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """A digest of ids and labels, and one of those and the texts' numbers, if it has them; the last one binds."""
        content = hashlib.sha256(json.dumps(self.ids).encode())
        content.update(np.ascontiguousarray(self.expected, np.float64).tobytes())
        short = content.hexdigest()
        content.update(np.ascontiguousarray(self.texts, np.int64).tobytes())
        return (short,) if self.chained else (short, content.hexdigest())


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a task's stored scores.

    ``examples`` is the key of its examples and ``metric`` the name of its metric, which may be a ``correlation``;
    ``classes`` is the number of classes, 0 for values. ``seen`` counts the examples whose texts are also
    in the training data; ``names`` are those of the classes, if they have any. ``low`` and ``high`` are the least and
    the largest score that the metric can give, None where it states none; ``constant`` is the constant prediction that
    scores best, and ``floor`` its score, None where the metric gives none. ``logit`` says whether a score of one number
    is the logit of the second of two classes; None in files of versions that did not note it. ``digest`` is that of the
    examples' content, empty in files of versions that kept none.
    """

    examples: str
    metric: str
    correlation: bool
    classes: int
    seen: int = 0
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    constant: float | None = None
    floor: float | None = None
    logit: bool | None = None
    digest: str = ""

    @property
    def width(self) -> float:
        """The largest difference between two scores of the metric."""
        if self.low is not None and self.high is not None:
            return self.high - self.low
        return 2.0 if self.correlation else math.inf

    def called(self, number: float) -> str:
        """A class by its name, or by its number if it has none."""
        index = int(number)
        return self.names[index] if index < len(self.names) else str(index)


@dataclass(frozen=True)
class StoredScores:
    """The stored scores of a cell for one split; columns are read on demand.

    ``rows`` is the number of examples of each task.
    """

    path: Path
    tasks: dict[str, TaskFacts]
    rows: dict[str, int]

    def read(self, task: str, column: Literal["score", "predicted", "influence"]) -> NDArray[Any]:
        """A column of a task, [n] (``score`` may be [n, classes])."""
        with _opened(self.path) as file:
            values: NDArray[Any] = file.get_tensor(f"{task}.{column}")
            return values


def judge(metric: Metric, predicted: Values, expected: Values, classes: int) -> tuple[dict[str, Any], Values]:
    """Compute what follows from a metric, predictions and labels, apart from the score.

    Returns fields of :class:`TaskFacts` and the influence of each example. A metric need not be able to judge a
    constant prediction.
    """
    influence = np.asarray(metric.influence(predicted, expected), np.float64)
    if influence.shape != expected.shape or not np.isfinite(influence).all():
        subject = f"influence() of the metric {metric.name!r}"
        raise TrainingError(f"{subject} should give {len(expected)} finite numbers, one per example")
    low, high = (float(end) if math.isfinite(end) else None for end in metric.range)
    facts = {"metric": metric.name, "correlation": metric.correlation, "low": low, "high": high}
    if (best := best_constant(metric, expected, classes)) is not None:
        facts |= {"constant": best[0], "floor": best[1]}
    return facts, influence


def best_constant(metric: Metric, expected: Values, classes: int) -> tuple[float, float] | None:
    """The constant prediction that scores best, and its score; None where the metric judges none."""
    with np.errstate(all="ignore"):
        try:
            constant, floor = map(float, metric.best_constant(expected, classes))
        except Exception:
            return None
    return (constant, floor) if math.isfinite(constant) and math.isfinite(floor) else None


def number_texts(columns: tuple[tuple[str, ...], ...]) -> NDArray[np.int64]:
    """The texts of examples as numbers, [n, k]: equal ones, but for case and white space, have the same number.

    >>> number_texts((("a", "b", "c"), ("x", "A", "x"))).tolist()
    [[0, 3], [1, 0], [2, 3]]
    """
    numbers: dict[str, int] = {}
    rows = [
        [numbers.setdefault(" ".join(text.split()).casefold(), len(numbers)) for text in texts] for texts in columns
    ]
    return np.array(rows, np.int64).T


def key_of(examples: Examples) -> str:
    """The key of labelled examples: a hash of their texts, ids and labels."""
    assert examples.labels is not None
    digest = hashlib.sha256(json.dumps([examples.columns, examples.ids]).encode())
    digest.update(examples.labels.tobytes())
    return digest.hexdigest()[:32]


def save_examples(registry: Artifacts, examples: Examples) -> ExampleSet:
    """Write the labelled examples of a split, once for all cells.

    An existing file with other content, such as an imported one, is replaced: the data that a run reads are right.
    """
    from safetensors.numpy import save

    assert examples.labels is not None
    texts = np.ascontiguousarray(number_texts(examples.columns))
    kept = ExampleSet(key_of(examples), tuple(examples.ids), np.asarray(examples.labels, np.float64), texts)
    path = registry.examples() / f"{kept.key}.safetensors"
    try:
        same = load_examples(registry.folder, kept.key).digests == kept.digests
    except RegistryError:
        same = False
    if not same:
        ids = np.frombuffer(json.dumps(examples.ids).encode(), np.uint8)
        write_bytes(path, save({"ids": ids, "expected": kept.expected, "texts": texts}))
    return kept


def load_examples(registry: Path, key: str) -> ExampleSet:
    """The examples of a key; ``RegistryError`` if they cannot be read."""
    path = registry / "examples" / f"{key}.safetensors"
    with _opened(path) as file:
        chained = "texts" not in file.keys()  # noqa: SIM118 - it is no mapping
        ids = json.loads(file.get_tensor("ids").tobytes())
        expected = file.get_tensor("expected")
        texts = file.get_tensor("cluster")[:, None] if chained else file.get_tensor("texts")
        if not conforms(ids, list[str]) or (expected.dtype.kind, expected.ndim) != ("f", 1):
            raise ValueError("it should have ids and a label for each")
        if texts.dtype.kind != "i" or texts.ndim != 2 or not len(ids) == len(expected) == len(texts) > 0:
            raise ValueError(f"it should have a label and the numbers of its texts for each of {len(ids)} ids")
        if not np.isfinite(expected).all() or not texts.shape[1]:
            raise ValueError("its labels should be finite numbers, and every example should have a text")
        return ExampleSet(key, tuple(ids), expected.astype(np.float64), texts.astype(np.int64), chained)


def save_scores(
    folder: Path, split: str, tasks: Mapping[str, TaskFacts], columns: Mapping[str, Mapping[str, NDArray[Any]]]
) -> None:
    """Write a cell's score file of a split: by task, its facts and its columns."""
    from safetensors.numpy import save

    arrays = {
        f"{task}.{name}": np.ascontiguousarray(array)
        for task, by_name in columns.items()
        for name, array in by_name.items()
    }
    # One entry: several would come in any order, and the same scores should make the same file.
    metadata = {"tasks": json.dumps({task: asdict(facts) for task, facts in tasks.items()})}
    write_bytes(score_file(folder, split), save(arrays, metadata))


def find_scores(registry: Path, cell: CellRecord, split: str = "dev") -> StoredScores | None:
    """The stored scores of a cell; None if it has none, ``RegistryError`` if the file is not what it stored."""
    path = bound_file(registry, cell, split)
    return None if path is None else read_scores(path)


def read_scores(path: Path) -> StoredScores:
    """Read a score file from any source; ``RegistryError`` if it does not have the right form."""
    with _opened(path) as file:
        facts = json.loads(file.metadata()["tasks"])
        if not conforms(facts, dict[str, dict[str, Any]]):
            raise ValueError("its metadata should state facts of each task")
        named = {task: {**fields, "names": tuple(fields.get("names", ()))} for task, fields in facts.items()}
        tasks = {task: checked(TaskFacts(**fields)) for task, fields in named.items()}
        rows: dict[str, int] = {}
        for task, column in itertools.product(tasks, ("score", "predicted", "influence")):
            values = file.get_slice(f"{task}.{column}")
            shape = values.get_shape()
            if not values.get_dtype().startswith("F") or not 1 <= len(shape) <= (2 if column == "score" else 1):
                raise ValueError(f"{task}.{column} should be numbers, one for each example")
            if rows.setdefault(task, shape[0]) != shape[0]:
                raise ValueError(f"the columns of task {task!r} are not equally long")
        return StoredScores(path, tasks, rows)


def check_examples(stored: StoredScores, task: str, examples: ExampleSet) -> None:
    """Refuse examples that are not the ones that scores are about."""
    digest = stored.tasks[task].digest
    if stored.rows[task] != len(examples.ids) or (digest and digest not in examples.digests):
        raise RegistryError(
            f"examples {examples.key[:12]} of cell {stored.path.parent.name[:12]}, task {task!r}, are not those that "
            "its scores are about. Put back a copy of the file in examples/, or run its grid in another --registry."
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; ``RegistryError`` if it cannot be read or does not hold what it should."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        with safe_open(path, framework="np") as file:
            yield file
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RegistryError(f"{path} cannot be read: {error}. Put back a copy, or run the cell again.") from error
