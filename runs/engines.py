"""The engine that runs cells here, one after another."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from taskloom.core import Emit, Engine, Event, Job, TaskloomError, Work, hookimpl
from taskloom.registry.artifacts import Artifacts


class Local(Engine):
    """Runs the cells in this process, one after another.

    Each cell has all the cores (or the GPU) to itself. A cell that fails is reported with its reason and the next
    one begins; the whole traceback is in the cell's ``log.txt``.

    Example: ``taskloom run quickstart --engine local``
    """

    name = "local"

    def execute(self, jobs: Sequence[Job], work: Work, emit: Emit) -> None:
        for job in jobs:
            try:
                with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the table
                    work(job, emit)
            except Exception as error:
                log = Artifacts(Path(job.folder)).cell(job.cell) / "log.txt"
                with log.open("a", encoding="utf-8") as file:
                    file.write(traceback.format_exc())
                emit(Event("failed", job.cell, {"reason": reason_of(error)}))


def reason_of(error: BaseException) -> str:
    """One line for the table: our own messages as they are, others with their type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TaskloomError) else f"{type(error).__name__}: {text}".rstrip(": ")


@hookimpl
def taskloom_engines() -> list[type[Engine]]:
    return [Local]
