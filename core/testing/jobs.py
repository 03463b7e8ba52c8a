"""The work that the kit gives to an engine: a job's ``spec["do"]`` says what it does."""

import time
from pathlib import Path

from taskloom.core.engine import Emit
from taskloom.core.events import Event, Job

WORK = f"{__name__}:work"
STEPS = 5
#: Seconds after which a job that waits to be stopped gives up, so that nothing is left behind.
LONGEST = 300.0


def work(job: Job, emit: Emit) -> None:
    """``count`` reports steps, ``wait`` goes on until it is asked to stop, ``raise`` and ``silent`` end badly.

    One that waits counts in a file, so that it can be seen whether it is still there.
    """
    emit(Event("started", job.cell))
    do = job.spec["do"]
    if do == "raise":
        raise ValueError(f"{job.cell} was told to fail")
    if do == "silent":
        return
    if do == "wait":
        until, beats = time.monotonic() + LONGEST, 0
        while not emit.stop_asked and time.monotonic() < until:
            beats += 1
            beat_file(job).write_text(str(beats))
            time.sleep(0.005)
        emit(Event("interrupted", job.cell))
        return
    for step in range(STEPS):
        emit(Event("log", job.cell, facts_of(step)))
    emit(Event("finished", job.cell, {"scores": {"one": 0.5}}))
    if do == "talkative":
        emit(Event("log", job.cell, {"text": "after the end"}))
        emit(Event("failed", job.cell, {"reason": "a second end"}))


def beat_file(job: Job) -> Path:
    """Where a job that waits counts."""
    return Path(job.folder) / f"{job.cell}.beats"


def facts_of(step: int) -> dict[str, object]:
    """Facts of every JSON type."""
    return {
        "step": step,
        "text": "ü “quoted”\nline",
        "share": step / 7,
        "none": None,
        "list": [1, [True]],
        "map": {"a": {}},
    }
