"""What a step costs on a GPU does not creep up: kernels and host waits, counted on a pretend device.

A small model is bound by the launches of its kernels and by the host's waiting for them. Six layers and three tasks, as
MiniLM has them in ``tests/bench/kernels.py``, so that the figures mean the same; their widths do not count.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from counted import Counts, count_scoring, count_steps
from small_runs import generated, job_of

from taskloom.core.testing.device import PretendGPU
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.cell import Run
from taskloom.runs.training.stage import StageState

ENCODER = {"name": "minbert", "layers": 6, "width": 32, "heads": 2, "vocabulary": 64}
PAIR = {"name": "linear", "reads": "pair"}
TASKS = {
    "sst": generated("sentiment", 64, 40),
    "para": generated("paraphrase", 64, 40, head=PAIR, loss="binary_cross_entropy"),
    "sts": generated("similarity", 64, 40, head=PAIR, loss="mse", metric="pearson"),
}
#: The most kernels and waits of a training step.
BARS: dict[str, tuple[int, int]] = {"sum": (300, 1), "pcgrad": (480, 2)}
SCORING_WAITS = 2  # of a batch of scoring
HALF = 1.25  # bfloat16's kernels over float32's


def built(folder: Path, combiner: str = "sum", **changes: Any) -> tuple[Run, StageState]:
    job = job_of(folder, {"encoder": ENCODER, "tasks": TASKS, "stages": [{"combiner": combiner}], **changes})
    run = Run.build(job, lambda event: None, load_catalogue())
    run.model.freeze_encoder(False)
    return run, StageState.build(run, 0)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Counts]:
    @cache
    def count(combiner: str = "sum", precision: str = "float32") -> Counts:
        with PretendGPU() as gpu:
            return count_steps(gpu, *built(tmp_path_factory.mktemp("run"), combiner, precision=precision), steps=3)

    return count


@pytest.mark.parametrize("combiner", BARS)
def test_a_step_launches_few_kernels_and_hardly_waits(counted: Callable[..., Counts], combiner: str) -> None:
    counts = counted(combiner)
    kernels, waits = counts.median
    most_kernels, most_waits = BARS[combiner]
    assert waits <= most_waits, [line for line in counts.lines if line[0] == "wait"]
    assert kernels <= most_kernels, counts.lines[:20]


def test_bfloat16_launches_hardly_more_kernels(counted: Callable[..., Counts]) -> None:
    assert counted("sum", "bfloat16").median[0] <= HALF * counted("sum").median[0]


def test_scoring_hardly_waits(tmp_path: Path) -> None:
    with PretendGPU() as gpu:
        run, _ = built(tmp_path)
        for task in TASKS:
            counts = count_scoring(gpu, run, task)
            assert counts.median[1] <= SCORING_WAITS, [line for line in counts.lines if line[0] == "wait"]
