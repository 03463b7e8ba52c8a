"""The Stanford Natural Language Inference corpus."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from taskloom.core import DataSet, Examples, Labels, Split
from taskloom.plugins.datasets.choosing import sample
from taskloom.plugins.datasets.files import content_of, place
from taskloom.plugins.datasets.reading import Layout, read_examples
from taskloom.plugins.datasets.triples import RELATIONS, triples_of

#: The gold label of a pair on which the annotators did not agree.
UNDECIDED = "-"


class SNLI(DataSet):
    """SNLI as it is distributed (JSON lines): pairs in three classes, or triples for contrastive learning.

    ``task: "entailment"`` gives premise and hypothesis with the classes entailment (0), neutral (1) and
    contradiction (2); ``task: "triples"`` gives premise, entailment and contradiction without labels, for premises
    that have both: the k-th entailment with the k-th contradiction. Pairs without a gold label ("-") are left out,
    as the corpus asks. A row that cannot be read is skipped and named; more than 1 % of a file is an error.

    Reads: ``snli_1.0_train.jsonl``, ``snli_1.0_dev.jsonl``, ``snli_1.0_test.jsonl``; of each line ``gold_label``,
    ``sentence1``, ``sentence2`` and ``pairID``.

    Options:
        task: entailment (pairs, 3 classes) or triples (no labels).
        dir: the folder; relative to the current one, ``~`` and environment variables are expanded.
        strict: refuse the first row that cannot be read.
        limit: use at most so many training examples, a shuffled sample that is always the same.

    Siblings: ``sick`` has the same forms, ``generated`` with ``task: "entailment"`` makes triples without files.

    Reference: Bowman et al., "A large annotated corpus for learning natural language inference", EMNLP 2015.

    Example: ``{"tasks": {"nli": {"data": {"name": "snli", "task": "triples", "dir": "$DATA/snli_1.0"}}}}``
    """

    name = "snli"
    location_options = frozenset({"dir", "strict"})  # strict refuses rows and changes none

    def __init__(
        self,
        *,
        task: Literal["entailment", "triples"],
        dir: str,
        strict: bool = False,
        limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.task = task
        self.dir = dir
        self.limit = limit
        self.columns = 2 if task == "entailment" else 3
        self.labels = Labels.of_classes(len(RELATIONS)) if task == "entailment" else None
        self.layout = Layout(
            texts=("sentence1", "sentence2"),
            label="gold_label",
            id="pairID",
            labels=Labels.of_classes(len(RELATIONS)),
            names=RELATIONS,
            format="jsonl",
            strict=strict,
            keep=_decided,
        )

    def path(self, split: Split) -> Path:
        """The file of a split."""
        return place(self.dir) / f"snli_1.0_{split}.jsonl"

    def load(self, split: Split) -> Examples:
        needs_labels = split != "test" or self.task == "triples"
        examples = read_examples(self.path(split), self.layout, needs_labels=needs_labels)
        if self.task == "triples":
            examples = triples_of(examples, str(self.path(split)))
        return sample(examples, self.limit) if self.limit is not None and split == "train" else examples

    def fingerprint(self) -> str:
        return content_of([self.path("train"), self.path("dev")], {"task": self.task, "limit": self.limit})


def _decided(values: Mapping[str, object]) -> bool:
    return values.get("gold_label") != UNDECIDED
