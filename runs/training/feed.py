"""Training data: texts tokenized once, cached as flat arrays on disk, arranged batch by batch."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import Encoder, Examples, Ids, Pool, Tokens, arrange
from taskloom.registry.installed.task import Task
from taskloom.registry.results.tensors import load_folder, save_folder


@dataclass(frozen=True, eq=False)
class Column:
    """A column of tokenized texts: all ids in one row, memory-mapped if cached, and where each text begins."""

    ids: NDArray[np.int32]  # [tokens]
    starts: NDArray[np.int64]  # [texts + 1]

    def __getitem__(self, row: int) -> Ids:
        return self.ids[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


#: Texts that are tokenized between two calls of ``alive``.
TEXTS_AT_A_TIME = 4096


def tokenized(
    texts: tuple[str, ...], encoder: Encoder, cache: Path | None = None, alive: Callable[[], None] = lambda: None
) -> Column:
    """Tokenize a column, or read it from the cache if its texts were tokenized with this vocabulary before."""
    if cache is None:
        return _tokenize(texts, encoder, alive)
    key = hashlib.sha256(encoder.vocabulary_key().encode())
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        key.update(len(raw).to_bytes(8, "big"))
        key.update(raw)
    folder = cache / "tokens" / key.hexdigest()[:32]
    try:
        tensors, _ = load_folder(folder)
    except ValueError:  # it does not exist, or is damaged
        column = _tokenize(texts, encoder, alive)
        save_folder(folder, {"ids": torch.from_numpy(column.ids), "starts": torch.from_numpy(column.starts)}, {})
        return column
    return Column(tensors["ids"].numpy(), tensors["starts"].numpy())


def _tokenize(texts: tuple[str, ...], encoder: Encoder, alive: Callable[[], None]) -> Column:
    sequences: list[Ids] = []
    for start in range(0, len(texts), TEXTS_AT_A_TIME):
        sequences += encoder.tokenize(texts[start : start + TEXTS_AT_A_TIME])
        alive()
    lengths = np.fromiter((len(ids) for ids in sequences), np.int64, len(sequences))
    ids = np.concatenate([np.empty(0, np.int32), *sequences]).astype(np.int32)
    return Column(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Feed:
    """One split of one task, tokenized, which arranges batches for its head."""

    task: Task
    examples: Examples
    columns: tuple[Column, ...]
    encoder: Encoder
    device: torch.device

    @classmethod
    def open(
        cls,
        task: Task,
        examples: Examples,
        encoder: Encoder,
        cache: Path | None,
        device: torch.device,
        alive: Callable[[], None] = lambda: None,
    ) -> "Feed":
        """Tokenize a split, or read it from the cache; ``alive`` is called regularly meanwhile."""
        columns = tuple(tokenized(texts, encoder, cache, alive) for texts in examples.columns)
        return cls(task, examples, columns, encoder, device)

    def __len__(self) -> int:
        return len(self.examples)

    def tokens(self, rows: NDArray[np.int64]) -> Tokens:
        """The rows' texts as the head reads them."""
        return self.host_tokens(rows).to(self.device)

    def host_tokens(self, rows: NDArray[np.int64]) -> Tokens:
        """The rows' texts as the head reads them, not yet on the device."""
        texts = [[column[row] for row in rows] for column in self.columns]
        head, encoder = self.task.head, self.encoder
        frame = head.frame(encoder.special_tokens)
        return arrange(texts, head.reads, frame, encoder.max_length, pooling=head.pooling)

    def host_target(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | NDArray[np.float32]:
        """The rows' labels, [B], not yet on the device: class numbers or values; zeros where the data have none."""
        labels = self.examples.labels
        values = np.zeros(len(rows)) if labels is None else labels[rows]
        return values.astype(np.int64) if self.task.labels.classes else values.astype(np.float32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, all its texts together, [size]."""
        total: NDArray[np.int64] = np.sum([column.lengths for column in self.columns], axis=0)
        return total

    def pool(self) -> Pool:
        """The facts about this split that samplers use."""
        return Pool(len(self), self.examples.labels, self.lengths, numbered_texts(self.examples))


def numbered_texts(examples: Examples) -> NDArray[np.int64]:
    """Equal numbers for equal texts, [size, columns]."""
    numbers: dict[str, int] = {}
    columns = [[numbers.setdefault(text, len(numbers)) for text in column] for column in examples.columns]
    return np.array(columns, np.int64).T
