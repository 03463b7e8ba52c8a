"""What gradient surgery costs: a ``pcgrad`` step against a ``sum`` step, in time and in peak memory.

    python tests/bench/combiner_step.py --data ../shared/data/cs224n

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW. Times are medians of steps that take turns in one
process on the same batches; peak memory is the largest resident size of a process of its own for each combiner.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from taskloom.core import Event, Group, Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.machine import keep_freed_memory, peak_memory
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run


def spec_of(data: str, combiners: list[str]) -> dict[str, Any]:
    """A resolved run with one stage per combiner."""

    def course(task: str) -> dict[str, str]:
        return {"name": "cs224n", "task": task, "dir": data}

    pair = {"name": "linear", "reads": "pair"}
    run = {
        "encoder": {"name": "minbert", "weights": "minilm"},
        "tasks": {
            "sst": {"data": course("sst")},
            "para": {"data": course("para"), "head": pair, "loss": "binary_cross_entropy"},
            "sts": {"data": course("sts"), "head": pair, "loss": "mse", "metric": "pearson"},
        },
        "stages": [{"combiner": combiner} for combiner in combiners],
    }
    resolved, problems = load_catalogue().resolve_run(run)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    return resolved


def ignore(event: Event) -> None:
    pass


def prepare(spec: dict[str, Any], folder: str) -> tuple[Run, list[StageState]]:
    keep_freed_memory()
    run = Run.build(Job("bench", "bench", 0, spec, folder), ignore, load_catalogue())
    run.model.freeze_encoder(False)
    states = [StageState.build(run, i, stage, tuple(stage["tasks"])) for i, stage in enumerate(spec["stages"])]
    run.model.train()
    return run, states


def step(run: Run, state: StageState, group: Group) -> None:
    state.combiner.update(
        GroupStep(
            group,
            model=run.model,
            feeds=run.train,
            shared=run.model.shared_parameters(),
            trained=state.trained,
            optimizer=state.optimizer,
            clip=None,
        )
    )


def times(data: str, combiners: list[str], steps: int, folder: str) -> list[float]:
    """Median seconds of a step for each combiner, the combiners taking turns on the same batches."""
    run, states = prepare(spec_of(data, combiners), folder)
    taken: list[list[float]] = [[] for _ in combiners]
    for place, group in zip(range(steps + 3), states[0].sampler.epoch(), strict=False):
        for seconds, state in zip(taken, states, strict=True):
            began = time.perf_counter()
            step(run, state, group)
            if place >= 3:  # the first steps fill caches and make the optimizer's state
                seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in taken]


def memory(data: str, combiner: str, steps: int, folder: str) -> int:
    """Peak bytes of this process after some steps."""
    run, (state,) = prepare(spec_of(data, [combiner]), folder)
    for _, group in zip(range(steps), state.sampler.epoch(), strict=False):
        step(run, state, group)
    return peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the course's files")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--combiners", nargs="+", default=["sum", "pcgrad"], help="the first is the measure")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak_of:
        print(memory(given.data, given.peak_of, given.steps, given.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = times(given.data, given.combiners, given.steps, folder)
        peaks = []
        for combiner in given.combiners:
            command = [sys.executable, str(Path(__file__)), "--data", given.data, "--steps", "8"]
            command += ["--peak-of", combiner, "--folder", folder]
            peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"{torch.get_num_threads()} threads, {given.steps} steps each")
    for combiner, taken, peak in zip(given.combiners, seconds, peaks, strict=True):
        facts = {
            "combiner": combiner,
            "ms": round(taken * 1e3, 1),
            "time ratio": round(taken / seconds[0], 3),
            "peak MiB": round(peak / 2**20),
            "memory ratio": round(peak / peaks[0], 3),
        }
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
