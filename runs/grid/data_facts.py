"""What the data of a grid hold, and what of it makes training pointless or scores misleading."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Examples, Labels
from taskloom.core.errors import shortened
from taskloom.registry.results.scores import number_texts

if TYPE_CHECKING:  # which imports torch
    from taskloom.core.tokens import Reads, SpecialTokens

#: Rows of a split, evenly spread, whose tokens are counted.
SAMPLE = 1000
#: Characters per token that a sequence can hold: what a text has beyond them is not tokenized to see if it is cut.
CHARACTERS = 16
#: More special tokens than a sequence has.
SPECIAL = 16
#: Highest learning rates in common use: of pretrained weights, and of everything else.
USUAL_RATES = {True: 1e-4, False: 1e-2}
#: Times the usual learning rate from which one is remarked upon.
FAR_ABOVE = 100
#: Share of a split from which sequences that are cut, and dev examples that are training examples, are remarked upon.
WORTH_MENTION, LEAKED = 0.01, 0.05
#: Classes that a remark names.
NAMED = 3


@dataclass(frozen=True)
class SplitFacts:
    """What a split of a task's data holds.

    ``unreadable`` counts rows that could not be read, ``unlabelled`` rows without a label for this task. ``classes``
    are the declared classes with their numbers of examples; values have a ``low``, ``mean`` and ``high``. ``constant``
    is the metric's score of the best constant prediction. ``words`` and ``longest`` are those of the median and of the
    longest text. ``shared`` counts examples that share a text with another of the split, ``seen`` dev examples whose
    texts are all those of a training example. ``cut`` is the share of sequences longer than ``max_length``, the
    most tokens that the encoder takes, among ``sampled`` rows. None: it is not known, or there is no such thing.
    """

    task: str
    split: str
    examples: int
    unreadable: int | None = None
    unlabelled: int | None = None
    classes: tuple[tuple[str, int], ...] = ()
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    constant: float | None = None
    words: int | None = None
    longest: int | None = None
    shared: int | None = None
    seen: int | None = None
    cut: float | None = None
    max_length: int | None = None
    sampled: int | None = None

    def record(self) -> dict[str, Any]:
        """The facts for JSON, without those that do not apply."""
        record = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return record | ({"classes": dict(self.classes)} if self.classes else {})

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """The facts in a record, without what another version may have recorded beside them."""
        known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        return cls(**known | {"classes": tuple(record.get("classes", {}).items())})

    @property
    def only_label(self) -> str | None:
        """The label of all examples, if several have one and the same."""
        if self.examples < 2:
            return None
        if self.classes:
            occurring = [name for name, number in self.classes if number]
            return repr(occurring[0]) if len(occurring) == 1 else None
        return None if self.low is None or self.low != self.high else f"{self.low:g}"


def label_facts(expected: NDArray[np.float64], classes: int, names: Sequence[str]) -> dict[str, Any]:
    """Numbers of examples by class, or the range and mean of values."""
    if not classes:
        return {"low": float(expected.min()), "mean": float(expected.mean()), "high": float(expected.max())}
    numbers = np.bincount(expected.astype(np.int64), minlength=classes).tolist()
    return {"classes": tuple(zip(names or map(str, range(classes)), numbers, strict=True))}


def split_facts(split: str, examples: Examples, labels: Labels | None, train: Examples) -> SplitFacts:
    """The facts of a split that depend on its data alone; ``train`` are the training examples."""
    lengths = [len(text.split()) for column in examples.columns for text in column]
    known = set(zip(*train.columns, strict=True)) if split != "train" else None
    of_labels = {}
    if labels is not None and examples.labels is not None:
        of_labels = label_facts(examples.labels, labels.classes, labels.names)
    return SplitFacts(
        task="",
        split=split,
        examples=len(examples),
        unreadable=len(examples.skipped),
        unlabelled=examples.unlabelled,
        words=int(np.median(lengths)),
        longest=max(lengths),
        shared=count_sharing(number_texts(examples.columns)),
        seen=None if known is None else sum(texts in known for texts in zip(*examples.columns, strict=True)),
        **of_labels,
    )


def count_sharing(texts: NDArray[np.int64]) -> int:
    """How many examples share a text, by its number [n, k], with another.

    >>> count_sharing(np.array([[0, 1], [2, 2], [3, 1]]))
    2
    """
    ordered = np.sort(texts, 1)
    distinct = np.diff(ordered, axis=1, prepend=-1) > 0  # a text that an example has twice counts once
    examples = np.bincount(ordered[distinct])  # that have each text
    return int((examples[texts] > 1).any(1).sum())


def sample_of(examples: Examples) -> tuple[tuple[str, ...], ...]:
    """The texts of the rows whose tokens are counted: the columns, with at most ``SAMPLE`` texts."""
    rows = np.unique(np.linspace(0, len(examples) - 1, min(SAMPLE, len(examples))).astype(int))
    return tuple(tuple(column[row] for row in rows) for column in examples.columns)


def may_be_cut(texts: Sequence[str], max_length: int) -> bool:
    """Whether a row of texts may have more tokens than that: a token is a byte of text at least, or a special one."""
    return sum(len(text.encode()) for text in texts) + SPECIAL > max_length


def count_cut(lengths: NDArray[np.int64], reads: "Reads", frame: "SpecialTokens", max_length: int) -> float:
    """How many rows' worth of sequences are cut: texts of these lengths, [columns, rows], as a head ``reads`` them."""
    from taskloom.core.tokens import COLUMNS

    texts = lengths[: COLUMNS[reads]]
    if reads in ("joint", "both_orders"):
        parts = (frame.start, frame.middle, frame.second_start, frame.end)
        texts = texts.sum(0, keepdims=True) + sum(map(len, parts))
    else:
        texts = texts + len(frame.start) + len(frame.end)
    return float((texts > max_length).mean(0).sum())


def pointless(facts: SplitFacts, *, needs_labels: bool) -> str:
    """Why no model can learn from these training examples, or ""."""
    if facts.examples == 1:
        return "the training data have a single example; give a file with more, or raise the limit"
    if needs_labels and (label := facts.only_label) is not None:
        equal = f"all {facts.examples:,} training labels are {label}, so there is nothing to learn"
        return f"{equal}; give examples with other labels, or name another label column"
    return ""


def remarks(facts: SplitFacts) -> Iterator[str]:
    """What a reader of this task's scores should know of its data."""
    where = f"task {facts.task!r}"
    data = {"train": "training data", "dev": "dev data"}.get(facts.split, facts.split)
    if label := facts.only_label:
        if facts.split != "train":
            yield f"{where}: all {facts.examples:,} labels of its {data} are {label}, as a constant prediction would be"
    elif absent := [name for name, number in facts.classes if not number]:
        noun = "class" if len(absent) == 1 else "classes"
        yield f"{where}: its {data} have no example of the {noun} {_some(absent)}"
    if facts.seen and facts.seen >= LEAKED * facts.examples:
        seen = f"all {facts.examples:,}" if facts.seen == facts.examples else f"{facts.seen:,} of {facts.examples:,}"
        yield (
            f"{where}: {seen} {facts.split} examples are in the training data, so its scores show what was "
            'memorised; name other dev data, or hold out a part of train ("dev_share" of a table)'
        )
    if facts.cut is not None and facts.cut >= WORTH_MENTION:
        sample = f" ({facts.sampled:,} rows were counted)" if facts.sampled not in (None, facts.examples) else ""
        yield (
            f"{where}: {facts.cut:.0%} of the sequences of its {data} are longer than {facts.max_length} tokens, the "
            f"encoder's max_length, and are cut{sample}; its longest text has {facts.longest:,} words"
        )


def rate_remarks(spec: Mapping[str, Any], *, pretrained: bool) -> Iterator[str]:
    """A remark on each stage with a learning rate far above those in common use."""
    for index, stage in enumerate(spec["stages"]):
        rate, usual = stage["optimizer"]["lr"], USUAL_RATES[pretrained and not stage["frozen"]]
        if rate > FAR_ABOVE * usual:
            yield (
                f"stages.{index}.optimizer.lr: {rate:g} is more than {FAR_ABOVE} times the learning rates in common "
                f"use (up to {usual:g} here); training will probably diverge"
            )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(repr(shortened(name)) for name in names[:NAMED]) + more
