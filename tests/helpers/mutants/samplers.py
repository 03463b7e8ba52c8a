"""Samplers that break a law."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from mutants.base import mutant, then

from taskloom.core import Pool, Sampler, TaskBatch

_COUNT = count()


class Shuffled(Sampler):
    """Four rows of each task in every step, in passes that are shuffled anew."""

    name = "shuffled"

    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator, epochs: int = 1) -> None:
        self.sizes = {task: pool.size for task, pool in pools.items()}
        self.seed = int(torch.randint(2**31, (1,), generator=generator))
        self.step = self.ended = 0

    @property
    def steps(self) -> int:
        return -(-max(self.sizes.values()) // 4)

    def epoch(self) -> Iterator[Any]:
        while self.step < self.steps:
            self.step += 1
            yield self.group(self.ended * self.steps + self.step - 1)
        self.step, self.ended = 0, self.ended + 1

    def group(self, step: int) -> Any:
        return tuple(TaskBatch(task, self.rows(task, range(4 * step, 4 * step + 4))) for task in self.sizes)

    def rows(self, task: str, places: range) -> Any:
        size = self.sizes[task]
        orders = {turn: self.order(turn, size) for turn in {place // size for place in places}}
        return np.array([orders[place // size][place % size] for place in places], dtype=np.int64)

    def order(self, turn: int, size: int) -> Any:
        return np.random.Generator(np.random.Philox([self.seed, turn])).permutation(size)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "step": self.step, "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed, self.step, self.ended = state["seed"], state["step"], state["ended"]


class AsTheSetHasThem(Shuffled):
    """Goes through the tasks as a set gives them: in one process always the same, in another not."""

    name = "as_the_set_has_them"

    def prepare(self, pools: Mapping[str, Pool], **given: Any) -> None:
        super().prepare({task: pools[task] for task in set(pools)}, **given)


def prepared(more: Any) -> Any:
    """A prepare that does something more."""
    return then(Shuffled.prepare, lambda self, _, pools, *given: more(self, pools))


def rows(change: Any) -> Any:
    """Rows that are changed."""
    return then(Shuffled.rows, lambda self, rows, task, _: change(self, rows, self.sizes[task]))


def late(self: Any) -> Iterator[Any]:
    while self.step < self.steps:
        yield self.group(self.ended * self.steps + self.step)
        self.step += 1
    self.step, self.ended = 0, self.ended + 1


def one_too_few(self: Any) -> Iterator[Any]:
    while self.step < self.steps - 1:
        self.step += 1
        yield self.group(self.ended * self.steps + self.step)
    self.step, self.ended = 0, self.ended + 1


SOUND: list[tuple[type, dict[str, Any]]] = [(Shuffled, {})]
MUTANTS = {
    "an epoch has as many steps as it says": [
        mutant(Shuffled, "ends early", epoch=one_too_few),
    ],
    "groups hold rows of the tasks": [
        mutant(
            Shuffled,
            "asks for a row too far",
            rows=rows(lambda self, rows, size: rows if rows[-1] else np.append(rows[:-1], size)),
        ),
        mutant(Shuffled, "gives lists", rows=rows(lambda self, rows, size: rows.astype(np.int32))),
        mutant(Shuffled, "has a task twice", group=lambda self, step: 2 * Shuffled.group(self, step)),
    ],
    "every row has its turn": [
        mutant(
            Shuffled,
            "never asks for the last row",
            rows=rows(lambda self, rows, size: np.where(rows == size - 1, 0, rows)),
        ),
    ],
    "it gives the same again and in a new process": [
        mutant(Shuffled, "draws", prepare=prepared(lambda self, pools: torch.rand(1))),
        mutant(
            Shuffled, "has a seed of its own", prepare=prepared(lambda self, _: setattr(self, "seed", next(_COUNT)))
        ),
        AsTheSetHasThem,
    ],
    "it leaves the pools as they are": [
        mutant(
            Shuffled,
            "sorts the lengths in place",
            prepare=prepared(lambda self, pools: [pool.lengths.sort() for pool in pools.values()]),
        ),
    ],
    "its state survives saving": [
        mutant(Shuffled, "counts a group when the next one is asked for", epoch=late),
        mutant(
            Shuffled,
            "forgets the number of the epoch",
            state_dict=lambda self: {**Shuffled.state_dict(self), "ended": 0},
        ),
        mutant(
            Shuffled,
            "saves a tensor",
            state_dict=lambda self: {**Shuffled.state_dict(self), "more": torch.zeros(1)},
        ),
    ],
}
