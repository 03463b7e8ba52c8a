"""Data for training: texts tokenized once, kept flat on disk, laid out batch by batch."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskloom.core import Encoder, Examples, Ids, Pool, Reads, Tokens, arrange
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import partial_prefix, sync
from taskloom.runs.training.checkpoint import put_folder, sha256_of


@dataclass(frozen=True, eq=False)
class Column:
    """A column of tokenized texts: all ids in one row (memory-mapped if it was read), and where each text begins."""

    ids: NDArray[np.int32]  # [tokens]
    starts: NDArray[np.int64]  # [texts + 1]

    def __getitem__(self, row: int) -> Ids:
        return self.ids[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


#: Texts that are tokenized between two signs of life.
SOME = 4096
#: What the cache keeps of a column: its two arrays, and their checksums.
IDS, STARTS, CHECK = "ids.npy", "starts.npy", "sha256"


def tokenized(
    texts: tuple[str, ...], encoder: Encoder, cache: Path, alive: Callable[[], None] = lambda: None
) -> Column:
    """The tokens of a column, from the cache if the same texts were tokenized the same way before."""
    key = hashlib.sha256(encoder.vocabulary_key().encode())
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        key.update(len(raw).to_bytes(8, "big"))
        key.update(raw)
    folder = cache / "tokens" / key.hexdigest()[:32]
    column = _read(folder)
    if column is None or len(column.starts) != len(texts) + 1:
        sequences: list[Ids] = []
        for start in range(0, len(texts), SOME):
            sequences += encoder.tokenize(texts[start : start + SOME])
            alive()
        column = _joined(sequences)
        _write(folder, column)
    return column


def _joined(sequences: list[Ids]) -> Column:
    lengths = np.fromiter((len(ids) for ids in sequences), np.int64, len(sequences))
    ids = np.concatenate([np.empty(0, np.int32), *sequences]).astype(np.int32)
    return Column(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _read(folder: Path) -> Column | None:
    """What the cache holds, or nothing if that is not what was written."""
    try:
        if _checksums(folder) != (folder / CHECK).read_text(encoding="ascii"):
            return None
        path = folder / IDS
        few = path.stat().st_size < 4096  # no more than a page, and an empty file cannot be mapped
        ids = np.load(path, mmap_mode=None if few else "r", allow_pickle=False)
        return Column(ids, np.load(folder / STARTS, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None


def _write(folder: Path, column: Column) -> None:
    """Write the arrays into a folder that appears whole or not at all; a damaged one makes way for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=folder.parent))
    try:
        np.save(partial / STARTS, column.starts)
        np.save(partial / IDS, column.ids)
        (partial / CHECK).write_text(_checksums(partial), encoding="ascii")
        for path in (partial / STARTS, partial / IDS, partial / CHECK, partial):
            sync(path)
        if _read(folder) is None:  # else another process was quicker
            put_folder(partial, folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checksums(folder: Path) -> str:
    return f"{sha256_of(folder / STARTS)} {sha256_of(folder / IDS)}\n"


@dataclass(frozen=True, eq=False)
class Feed:
    """One split of one task, ready to be laid out for its head."""

    examples: Examples
    columns: tuple[Column, ...]
    encoder: Encoder
    reads: Reads
    classes: bool
    device: torch.device

    @classmethod
    def open(
        cls,
        task: Task,
        examples: Examples,
        encoder: Encoder,
        cache: Path,
        device: torch.device,
        alive: Callable[[], None] = lambda: None,
    ) -> "Feed":
        """Tokenize a split, or find it in the cache; ``alive`` is called now and then meanwhile."""
        columns = tuple(tokenized(texts, encoder, cache, alive) for texts in examples.columns)
        return cls(examples, columns, encoder, task.head.reads, task.labels.classes > 0, device)

    def __len__(self) -> int:
        return len(self.examples)

    def tokens(self, rows: NDArray[np.int64]) -> Tokens:
        """The rows' texts as the head reads them."""
        texts = [[column[row] for row in rows] for column in self.columns]
        return arrange(texts, self.reads, self.encoder.special_tokens, self.encoder.max_length).to(self.device)

    def target(self, rows: NDArray[np.int64]) -> Tensor:
        """The rows' labels, [B]: class numbers or values; zeros where the data have none."""
        labels = self.examples.labels
        values = np.zeros(len(rows)) if labels is None else labels[rows]
        return torch.tensor(values, dtype=torch.int64 if self.classes else torch.float32, device=self.device)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, all its texts together, [size]."""
        total: NDArray[np.int64] = np.sum([column.lengths for column in self.columns], axis=0)
        return total

    def pool(self) -> Pool:
        """What a sampler may know of this split."""
        numbers: dict[str, int] = {}
        texts = np.array(
            [[numbers.setdefault(text, len(numbers)) for text in column] for column in self.examples.columns],
            np.int64,
        ).T
        return Pool(len(self), self.examples.labels, self.lengths, texts)
