"""The SICK corpus."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from taskloom.core import DataSet, Examples, Labels, Split, unknown
from taskloom.plugins.datasets.choosing import sample
from taskloom.plugins.datasets.files import content_of, place
from taskloom.plugins.datasets.reading import Layout, UnreadableError, read_examples
from taskloom.plugins.datasets.triples import RELATIONS, triples_of

PARTS: dict[Split, str] = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}
CLASSES = Labels.of_classes(len(RELATIONS))
#: Both directions of a pair: its texts, the column that relates them, and the names of the relations there.
DIRECTIONS = (
    (("sentence_A", "sentence_B"), "entailment_AB", ("A_entails_B", "A_neutral_B", "A_contradicts_B")),
    (("sentence_B", "sentence_A"), "entailment_BA", ("B_entails_A", "B_neutral_A", "B_contradicts_A")),
)


class SICK(DataSet):
    """SICK as it is distributed (one tab-separated file): inference, relatedness, or triples.

    ``task: "entailment"`` gives pairs with the classes entailment (0), neutral (1) and contradiction (2);
    ``task: "relatedness"`` the same pairs with a value from 1 to 5; ``task: "triples"`` premise, entailment and
    contradiction without labels. For triples every pair is read in both directions (``entailment_AB`` and
    ``entailment_BA``), and the k-th entailment of a premise stands with its k-th contradiction. The column
    ``SemEval_set`` says which split a row is in: TRAIN, TRIAL (dev) or TEST. A row that cannot be read is skipped and
    named; more than 1 % of a split is an error.

    Reads: ``SICK.txt``.

    Options:
        task: entailment (pairs, 3 classes), relatedness (pairs, 1 to 5) or triples (no labels).
        dir: the folder; relative to the current one, ``~`` and environment variables are expanded.
        strict: refuse the first row that cannot be read.
        limit: use at most so many training examples, a shuffled sample that is always the same.

    Siblings: ``snli`` has the same forms and fifty times the pairs.

    Reference: Marelli et al., "A SICK cure for the evaluation of compositional distributional semantic models",
    LREC 2014.

    Example: ``{"tasks": {"nli": {"data": {"name": "sick", "task": "triples", "dir": "$DATA/sick"}}}}``
    """

    name = "sick"
    location_options = frozenset({"dir", "strict"})  # strict refuses rows and changes none

    def __init__(
        self,
        *,
        task: Literal["entailment", "relatedness", "triples"],
        dir: str,
        strict: bool = False,
        limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.task = task
        self.dir = dir
        self.limit = limit
        self.columns = 3 if task == "triples" else 2
        self.labels = {"entailment": CLASSES, "relatedness": Labels.of_range(1, 5), "triples": None}[task]
        self.layout = Layout(
            texts=DIRECTIONS[0][0],
            label="relatedness_score" if task == "relatedness" else "entailment_label",
            id="pair_ID",
            labels=self.labels,
            names=() if task == "relatedness" else tuple(name.upper() for name in RELATIONS),
            format="tsv",
            quotes=False,
            strict=strict,
            also=("SemEval_set",),
        )

    def path(self) -> Path:
        """The file of all splits."""
        return place(self.dir) / "SICK.txt"

    def load(self, split: Split) -> Examples:
        layout = replace(self.layout, keep=partial(_belongs, PARTS[split]))
        if self.task == "triples":
            examples = triples_of(self._both_directions(layout), f"{self.path()}, {PARTS[split]}")
        else:
            examples = read_examples(self.path(), layout, needs_labels=split != "test")
        return sample(examples, self.limit) if self.limit is not None and split == "train" else examples

    def fingerprint(self) -> str:
        return content_of([self.path()], {"task": self.task, "limit": self.limit})

    def _both_directions(self, layout: Layout) -> Examples:
        """Each pair twice: all pairs as (a, b), then all as (b, a)."""
        one, other = (
            read_examples(
                self.path(),
                replace(layout, texts=texts, label=column, names=names, labels=CLASSES),
                needs_labels=True,
            )
            for texts, column, names in DIRECTIONS
        )
        assert one.labels is not None and other.labels is not None  # noqa: PT018
        return Examples(
            tuple(a + b for a, b in zip(one.columns, other.columns, strict=True)),
            np.concatenate([one.labels, other.labels]),
            one.ids + other.ids,
            tuple(dict.fromkeys(one.skipped + other.skipped)),
        )


def _belongs(part: str, values: Mapping[str, object]) -> bool:
    found = str(values.get("SemEval_set", "")).strip()
    if found not in PARTS.values():
        raise UnreadableError(f"SemEval_set: {unknown('split', found[:40], PARTS.values())}")
    return found == part
