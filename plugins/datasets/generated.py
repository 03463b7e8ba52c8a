"""A corpus from a grammar."""

import hashlib
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from taskloom.core import DataSet, Examples, Labels, Split
from taskloom.plugins.datasets.grammar import Draw, draw_frame, split_of
from taskloom.plugins.datasets.rules import agreement, entailment, in_words, paraphrase, sentiment, similarity

GeneratedTask = Literal["sentiment", "paraphrase", "similarity", "entailment"]
#: Examples of a split; more would not fit into memory.
Size = Annotated[int, Field(ge=1, le=10_000_000)]
#: Draws that may repeat an earlier example of the split before a repetition is accepted.
PATIENCE = 200
#: Of each task the texts of an example, the meaning of its labels, and how many classes (or numbers of changes)
#: alternate, so that a corpus of any size is balanced.
TASKS: dict[GeneratedTask, tuple[int, Labels | None, int]] = {
    "sentiment": (1, Labels.of_classes(5), 5),
    "paraphrase": (2, Labels.of_classes(2), 2),
    "similarity": (2, Labels.of_range(0, 5), 6),
    "entailment": (3, None, 1),
}


class Generated(DataSet):
    """Sentences from a grammar: any size, no files, the same on every machine.

    ``sentiment`` is one sentence in 5 balanced classes; its class follows from graded words, adverbs, "not" and
    "but". ``paraphrase`` is a pair in 2 balanced classes: the same meaning in other words, voice and order, or
    another meaning, mostly with much the same words. ``similarity`` is a pair with a value from 0 to 5: five times
    the weight of the parts of meaning that agree (agent, action, object, quality, number, place; synonyms agree)
    over the weight of all. ``entailment`` is a premise, a sentence that follows and one that contradicts, without
    labels. The four share their words.

    No meaning is in two splits, whatever the options, and a larger size begins with the smaller one's examples.

    Reads: nothing.

    Options:
        task: which of the four.
        size: training examples.
        dev_size: dev examples.
        test_size: test examples.
        seed: another corpus of the same kind; not the run's seed, so that runs of several seeds see the same data.
        noise: the share of training labels that are drawn at random instead.

    Siblings: ``cs224n`` reads the course's files, ``table`` any others.

    Example: ``{"tasks": {"para": {"data": {"name": "generated", "task": "paraphrase", "size": 2000}}}}``
    """

    name = "generated"

    def __init__(
        self,
        *,
        task: GeneratedTask,
        size: Size = 1200,
        dev_size: Size = 300,
        test_size: Size = 300,
        seed: Annotated[int, Field(ge=0)] = 0,
        noise: Annotated[float, Field(ge=0, le=1)] = 0.0,
    ) -> None:
        self.task: GeneratedTask = task
        self.sizes: dict[Split, int] = {"train": size, "dev": dev_size, "test": test_size}
        self.seed = seed
        self.noise = noise
        self.columns, self.labels, _ = TASKS[task]

    @classmethod
    def smoke_options(cls, columns: int, labels: Labels | None) -> dict[str, Any]:
        task: GeneratedTask = "similarity"
        if labels is None or columns > 2:
            task = "entailment"
        elif labels.classes:  # a head that reads one text uses the first of a pair
            task = "sentiment" if labels.classes != 2 and columns == 1 else "paraphrase"
        return {"task": task, "size": 32, "dev_size": 16, "test_size": 4}

    def load(self, split: Split) -> Examples:
        return _generate(self.task, split, self.sizes[split], self.seed, self.noise if split == "train" else 0.0)

    def fingerprint(self) -> str:
        return _fingerprint(self.task, self.sizes["train"], self.sizes["dev"], self.seed, self.noise)


@lru_cache(maxsize=64)
def _fingerprint(task: GeneratedTask, size: int, dev_size: int, seed: int, noise: float) -> str:
    """A hash of the examples themselves, so that any change of the grammar shows."""
    digest = hashlib.sha256()
    for examples in (_generate(task, "train", size, seed, noise), _generate(task, "dev", dev_size, seed, 0.0)):
        digest.update(repr(examples.columns).encode())
        digest.update(b"" if examples.labels is None else examples.labels.tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=3)  # the fingerprinted examples are loaded next
def _generate(task: GeneratedTask, split: Split, size: int, seed: int, noise: float) -> Examples:
    _, meaning, turns = TASKS[task]
    draw = Draw(seed, "generated", task, split)
    seen: set[tuple[str, ...]] = set()
    rows: list[tuple[str, ...]] = []
    labels: list[float] = []
    while len(rows) < size:
        for turn in draw.shuffled(range(turns)):
            for _ in range(PATIENCE):
                texts, label = _draw_example(task, split, turn, draw)
                if texts not in seen:
                    break
            seen.add(texts)
            rows.append(texts)
            labels.append(label)
    columns = tuple(zip(*rows[:size], strict=True))
    ids = tuple(f"{task}-{split}-{row}" for row in range(size))
    if meaning is None:
        return Examples(columns, None, ids)
    labels = labels[:size]
    if noise:  # from a stream of its own: the texts are those of a corpus without noise
        draw = Draw(seed, "generated", task, "noise")
        values = [float(value) for value in range(meaning.classes)] or sorted(set(labels))
        labels = [draw.pick(values) if draw.chance(noise) else label for label in labels]
    return Examples(columns, np.array(labels), ids)


def _draw_example(task: GeneratedTask, split: Split, turn: int, draw: Draw) -> tuple[tuple[str, ...], float]:
    """One to three sentences, all of whose meanings belong to the split, and their label."""
    while True:
        label = float(turn)
        if task == "sentiment":
            text = sentiment(turn, draw)
            if split_of(text) == split:
                return (text,), label
            continue
        first = draw_frame(draw)
        if split_of(first) != split:
            continue
        if task == "paraphrase":
            frames = paraphrase(first, turn, draw)
        elif task == "similarity":
            frames = similarity(first, turn, draw)
            label = agreement(*frames)
        else:
            frames = entailment(first, draw)
        if all(split_of(frame) == split for frame in frames):
            return in_words(frames, draw), label
