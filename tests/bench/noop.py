"""Work that does nothing, for engines: what is left is what running a cell costs beside its training."""

from taskloom.core import Emit, Event, Job


def noop(job: Job, emit: Emit) -> None:
    """Report what every cell reports, and nothing else: ``"noop:noop"`` with this folder on the path."""
    emit(Event("started", job.cell, {"device": "cpu"}))
    scores = {**dict.fromkeys(job.spec["tasks"], 0.5), "overall": 0.5}
    epoch = {"stage": 0, "epoch": 1, "step": 1, "losses": {}, "scores": scores, "metrics": {}, "seconds": 0.0}
    emit(Event("epoch", job.cell, epoch))
    emit(Event("finished", job.cell, {"scores": scores, "best_epoch": 1, "seconds": 0.001, "peak_memory": 1}))
