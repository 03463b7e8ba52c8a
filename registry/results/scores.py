"""What a cell's model gave for every example of a split: one columnar file per cell and split, no texts.

::

    cells/<id>/scores-dev.safetensors      <task>.score [n] or [n, classes], <task>.predicted [n], <task>.influence [n]
    examples/<key>.safetensors             ids, expected [n], texts [n, k]: what all cells on the same examples share

``score`` is what the head gave (logits or a value), ``predicted`` the decision in the data's own units, ``influence``
how much an example moves the task's metric (``Metric.influence``). ``texts`` numbers the distinct texts.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Examples
from taskloom.core.errors import RegistryError
from taskloom.registry.results.artifacts import Artifacts, write_bytes

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """The labelled examples of a split; of their texts only ``texts`` [n, k] is known: which are the same, by number.

    Registries of version 0.2 and older have kept one number per example, the same for all that chains of shared texts
    connect. Those are read as if all of them shared one text.
    """

    key: str
    ids: tuple[str, ...]
    expected: Values
    texts: NDArray[np.int64]


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task's stored scores.

    ``examples`` is the key of its examples and ``metric`` the name of its metric, which may be a ``correlation``;
    ``classes`` is the number of classes, 0 for values. ``seen`` counts the examples whose texts are also
    in the training data; ``names`` are those of the classes, if they have any. ``low`` and ``high`` are the least and
    the largest score that the metric can give, None where it states none; ``constant`` is the constant prediction that
    scores best, and ``floor`` its score, None where the metric gives none. ``logit`` says whether a score of one number
    is the logit of the second of two classes; None in files of versions that did not note it.
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

    @property
    def width(self) -> float:
        """The largest difference between two scores of the metric."""
        if self.low is not None and self.high is not None:
            return self.high - self.low
        return 2.0 if self.correlation else math.inf

    def called(self, number: float) -> str:
        """A class by its name, or by its number if it has none."""
        place = int(number)
        return self.names[place] if place < len(self.names) else str(place)


@dataclass(frozen=True)
class StoredScores:
    """The stored scores of a cell for one split; columns are read when they are asked for."""

    path: Path
    tasks: dict[str, TaskFacts]

    def read(self, task: str, column: Literal["score", "predicted", "influence"]) -> NDArray[Any]:
        """A column of a task, [n] (``score`` may be [n, classes])."""
        with _opened(self.path) as file:
            found: NDArray[Any] = file.get_tensor(f"{task}.{column}")
            return found


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
    """What labelled examples are known by: a hash of their texts, ids and labels."""
    assert examples.labels is not None
    digest = hashlib.sha256(json.dumps([examples.columns, examples.ids]).encode())
    digest.update(examples.labels.tobytes())
    return digest.hexdigest()[:32]


def save_examples(registry: Artifacts, examples: Examples) -> str:
    """Keep the labelled examples of a split, once for all cells; returns their key."""
    from safetensors.numpy import save

    assert examples.labels is not None
    key = key_of(examples)
    path = registry.examples() / f"{key}.safetensors"
    if not path.exists() or not _has_texts(path):
        ids = np.frombuffer(json.dumps(examples.ids).encode(), np.uint8)
        arrays: dict[str, NDArray[Any]] = {
            "ids": ids,
            "expected": examples.labels,
            "texts": number_texts(examples.columns),
        }
        write_bytes(path, save(arrays))
    return key


def load_examples(registry: Path, key: str) -> ExampleSet:
    """The examples of a key; ``RegistryError`` if they cannot be read."""
    with _opened(registry / "examples" / f"{key}.safetensors") as file:
        ids = json.loads(file.get_tensor("ids").tobytes())
        texts = file.get_tensor("texts") if "texts" in file.keys() else file.get_tensor("cluster")[:, None]  # noqa: SIM118
        return ExampleSet(key, tuple(ids), file.get_tensor("expected"), texts)


def _has_texts(path: Path) -> bool:
    """Whether examples were kept by a version that numbers their texts."""
    try:
        with _opened(path) as file:
            return "texts" in file.keys()  # noqa: SIM118 - it is no mapping
    except RegistryError:
        return False


def save_scores(
    folder: Path, split: str, tasks: Mapping[str, TaskFacts], columns: Mapping[str, Mapping[str, NDArray[Any]]]
) -> None:
    """Keep what a cell's model gave for a split: by task, its facts and its columns."""
    from safetensors.numpy import save

    arrays = {
        f"{task}.{name}": np.ascontiguousarray(array) for task, each in columns.items() for name, array in each.items()
    }
    # One entry: several would come in any order, and the same scores should make the same file.
    metadata = {"tasks": json.dumps({task: asdict(facts) for task, facts in tasks.items()})}
    write_bytes(folder / f"scores-{split}.safetensors", save(arrays, metadata))


def find_scores(registry: Path, cell: str, split: str = "dev") -> StoredScores | None:
    """The stored scores of a cell; None if it has none."""
    path = registry / "cells" / cell / f"scores-{split}.safetensors"
    if not path.is_file():
        return None
    with _opened(path) as file:
        tasks = json.loads(file.metadata()["tasks"])
        names = {task: tuple(map(str, facts.pop("names", ()))) for task, facts in tasks.items()}
        return StoredScores(path, {task: TaskFacts(**facts, names=names[task]) for task, facts in tasks.items()})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is a ``RegistryError``."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RegistryError(f"{path} cannot be read: {error}. Put back a copy, or run the cell again.") from error
