"""Interface 4 of 5: which batches make up one optimizer step."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core.component import Component
from taskloom.core.errors import Problem

#: Row numbers in a task's training data, counted from 0.
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """What a sampler knows of a task's training data: the number of rows, their labels, lengths and texts."""

    size: int
    labels: NDArray[np.float64] | None  # [size]; None: the data have none
    lengths: NDArray[np.int64]  # [size] tokens in all texts of the row
    texts: NDArray[np.int64]  # [size, columns] equal numbers for equal texts


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """One task's part of a step: the rows of its training data."""

    task: str
    rows: Rows


#: The task batches of one optimizer step, no task twice.
Group = tuple[TaskBatch, ...]


class Sampler(Component, ABC):
    """Yields groups: the task batches of one optimizer step.

    The runner calls :meth:`prepare` once, then iterates :meth:`epoch` for each epoch. State is small JSON and may
    be saved after any group: a sampler that loads it continues with the next one. Randomness comes from the generator
    passed to ``prepare`` and from nowhere else.
    """

    kind: ClassVar[str] = "sampler"

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        """Options that do not fit the tasks of the stage, such as a name that is none of them.

        Called before anything is trained; each problem's path is the option's name.
        """
        return []

    @abstractmethod
    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator, epochs: int = 1) -> None:
        """Called once before a stage with its tasks (in order), their data, and its number of epochs."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Groups in one epoch."""

    @abstractmethod
    def epoch(self) -> Iterator[Group]:
        """The remaining groups of the current epoch; at its end the next epoch begins."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to continue from here, as JSON values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; call after :meth:`prepare`."""
