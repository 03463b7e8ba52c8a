"""Data sets that break a law."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from mutants.base import mutant, then
from pydantic import Field

from taskloom.core import DataSet, Examples, Labels, Split

_COUNT = count()
LINES = str(Path(__file__))


class Sentences(DataSet):
    """Texts in two classes.

    Options:
        size: how many
        file: where more of them are
        limit: the most training examples
    """

    name = "sentences"
    labels = Labels.of_classes(2)
    path_options = frozenset({"file"})

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=1)] = 20,
        file: str | None = None,
        limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.size, self.file, self.limit = size, file, limit

    def load(self, split: Split) -> Examples:
        texts = [f"text {row} of {split}" for row in range(self.size)]
        texts += self.more() if split == "train" else []
        rows = self.sample(range(len(texts))) if split == "train" else range(len(texts))
        return Examples(
            (tuple(texts[row] for row in rows),),
            np.array([row % 2.0 for row in rows]),
            tuple(f"{split}-{row}" for row in rows),
        )

    def sample(self, rows: Sequence[int]) -> Sequence[int]:
        return rows[: self.limit]

    def more(self) -> list[str]:
        lines = Path(self.file).read_text().splitlines() if self.file else []
        return [line for line in lines if line.strip()]

    def fingerprint(self) -> str:
        return f"{self.size} texts and {self.more()}, {self.limit}"


class Deduplicates(Sentences):
    """Drops what appears twice with a set, and keeps the set's order.

    Options:
        size: how many
    """

    name = "deduplicates"
    path_options = frozenset[str]()

    def __init__(self, *, size: Annotated[int, Field(ge=1)] = 20) -> None:
        super().__init__(size=size)

    def load(self, split: Split) -> Examples:
        found = super().load(split)
        return Examples((tuple(set(found.columns[0])),), found.labels, found.ids)


def loaded(change: Any) -> Any:
    """A load whose examples are changed."""
    return then(Sentences.load, lambda self, found, _: change(self, found))


def turning(self: Any, found: Examples) -> Examples:
    self.turn = not getattr(self, "turn", False)
    return found if self.turn else Examples((found.columns[0][::-1],), found.labels, found.ids)


def drawing(self: Any, found: Examples) -> Examples:
    np.random.rand()
    return found


SOUND: list[tuple[type, dict[str, Any]]] = [(Sentences, {}), (Sentences, {"size": 7, "file": LINES})]
MUTANTS: dict[str, list[Any]] = {
    "examples are whole": [
        mutant(
            Sentences, "has an id twice", load=loaded(lambda self, e: Examples(e.columns, e.labels, ("a",) * len(e)))
        ),
        mutant(
            Sentences,
            "has an empty text",
            load=loaded(lambda self, e: Examples(((" ", *e.columns[0][1:]),), e.labels, e.ids)),
        ),
    ],
    "labels are what it says": [
        mutant(Sentences, "has a label that is not a class", labels=Labels.of_classes(1)),
        mutant(Sentences, "has labels where it should have none", labels=None),
    ],
    "it gives the same again and in a new process": [
        mutant(Sentences, "turns its examples round", load=loaded(turning)),
        mutant(Sentences, "draws", load=loaded(drawing)),
        mutant(Sentences, "has another fingerprint each time", fingerprint=lambda self: str(next(_COUNT))),
        Deduplicates,
    ],
    "dev is not train again": [
        mutant(Sentences, "has one split under three names", load=lambda self, split: Sentences.load(self, "train")),
    ],
    "a limit leaves out and changes nothing else": [
        mutant(
            Sentences, "shuffles its sample", sample=lambda self, rows: rows[: self.limit][:: -1 if self.limit else 1]
        ),
        mutant(Sentences, "has one more", sample=lambda self, rows: rows[: self.limit and self.limit + 1]),
    ],
    "the fingerprint follows the examples": [
        mutant(
            Sentences,
            "has one fingerprint for all sizes",
            fingerprint=lambda self: f"some texts and {self.more()}, {self.limit}",
        ),
        mutant(Sentences, "has one fingerprint for all limits", fingerprint=lambda self: f"{self.size}, {self.more()}"),
        (
            mutant(Sentences, "does not look at its file", fingerprint=lambda self: f"{self.size}, {self.limit}"),
            {"file": LINES},
        ),
    ],
}
