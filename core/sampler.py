"""Interface 4 of 5: which batches make up one optimizer step."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core.component import Component
from taskloom.core.errors import Problem

#: Places in a task's training data, counted from 0.
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """What a sampler may know of a task's training data: how many rows, their labels, lengths and texts."""

    size: int
    labels: NDArray[np.float64] | None  # [size], None where the data have none
    lengths: NDArray[np.int64]  # [size] tokens of all texts of the row
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
    be taken after any group: a sampler that loads it goes on with the next one. Randomness comes in as a
    generator and nowhere else.
    """

    kind: ClassVar[str] = "sampler"
    #: What it promises of each task's rows; the conformance kit holds it to that. "passes": each once before any comes
    #: again; "every": each has its turn sooner or later; "some": rows may be left out.
    uses: Literal["passes", "every", "some"] = "every"

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        """What in the options does not fit the tasks of the stage, such as a name that is not among them.

        Asked before anything is trained; each problem's path is the option's name.
        """
        return []

    @abstractmethod
    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator, epochs: int = 1) -> None:
        """Learn the tasks (in order), their data, and how many epochs the stage has."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Groups in one epoch."""

    @abstractmethod
    def epoch(self) -> Iterator[Group]:
        """The groups of the current epoch that are still to come; at the end the next epoch begins."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, as JSON values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; call after :meth:`prepare`."""
