"""What a step of training and a batch of scoring cost on a GPU: kernels and host waits, counted on a pretend one."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from taskloom.core.testing.device import PretendGPU
from taskloom.runs.training.cell import Pulse, Run, Stopped
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import train_epoch

WARM = 2  # steps that make the optimizer's state and fill caches


def _short(line: str) -> str:
    """The end of a path: folder, file and line."""
    return "/".join(Path(line).parts[-3:])


@dataclass
class Counts:
    """Kernels and waits of each step, and the lines that they come from."""

    kernels: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    lines: list[tuple[str, str, int]] = field(default_factory=list)  # of the last: "kernel" or "wait", where, how often

    def take(self, gpu: PretendGPU) -> None:
        """Add what was counted since the last time."""
        self.kernels.append(gpu.kernels.total())
        self.waits.append(gpu.waits.total())
        both = {"kernel": gpu.kernels, "wait": gpu.waits}
        self.lines = [
            (what, f"{_short(line)} {name}", n) for what, c in both.items() for (name, line), n in c.most_common()
        ]
        gpu.reset()

    def warm(self) -> "Counts":
        """Without the first steps, which are not like the others."""
        return Counts(self.kernels[WARM:], self.waits[WARM:], self.lines)

    @property
    def median(self) -> tuple[float, float]:
        return median(self.kernels), median(self.waits)


class _StepEnds(Pulse):
    """Counts where a step ends, and stops when there are enough of them; no step of them reports."""

    due = False  # type: ignore[assignment]

    def __init__(self, gpu: PretendGPU, run: Run, steps: int) -> None:
        super().__init__(run.job, run.emit)
        self.gpu, self.steps, self.found = gpu, WARM + steps, Counts()

    def __call__(self) -> None:
        self.found.take(self.gpu)
        if len(self.found.kernels) == self.steps:
            raise Stopped


def count_steps(gpu: PretendGPU, run: Run, state: StageState, steps: int) -> Counts:
    """What each of some steps costs, from the sampler to the pulse."""
    run.pulse = ends = _StepEnds(gpu, run, steps)
    gpu.reset()
    with suppress(Stopped):
        train_epoch(run, state, 1)
    found = ends.found.warm()
    assert len(found.kernels) == steps, f"the sampler has {state.sampler.steps} steps, {WARM + steps} are needed"
    return found


def count_scoring(gpu: PretendGPU, run: Run, task: str, rows: Any = None) -> Counts:
    """What each batch of scoring a task's dev split costs."""
    found = Counts()
    gpu.reset()
    predictions(run.model, task, run.dev[task], lambda: found.take(gpu), chosen=rows)
    return found
