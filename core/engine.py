"""Engines: where the cells of a plan are executed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from taskloom.core.component import Component
from taskloom.core.events import Event, Job

Emit = Callable[[Event], None]
Work = Callable[[Job, Emit], None]


class Engine(Component, ABC):
    """Executes jobs and passes on what they report.

    One job's failure never stops the others: it becomes a ``failed`` event with its reason. ``execute`` returns
    when every job has finished or failed.
    """

    kind: ClassVar[str] = "engine"

    @abstractmethod
    def execute(self, jobs: Sequence[Job], work: Work, emit: Emit) -> None:
        """Run ``work(job, emit)`` for every job, in whatever place and order suits."""
