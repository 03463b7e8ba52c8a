"""What gradient surgery costs: a ``pcgrad`` step against a ``sum`` step, in time and in peak memory.

    python tests/bench/combiner_step.py --data ../shared/data/cs224n

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW. Times are medians of steps that take turns in one
process on the same batches; peak memory is the largest resident size of a process of its own for each combiner.
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
from steps import ask, build, course_run

from taskloom.runs.training.machine import keep_freed_memory, peak_memory
from taskloom.runs.training.optimize import GroupStep


def times(data: str, combiners: list[str], steps: int, folder: str) -> list[float]:
    """Median seconds of a step for each combiner, the combiners taking turns on the same batches."""
    run, states = build(course_run(data, combiners), folder)
    taken: list[list[float]] = [[] for _ in combiners]
    for place, group in zip(range(steps + 3), states[0].sampler.epoch(), strict=False):
        for seconds, state in zip(taken, states, strict=True):
            began = time.perf_counter()
            state.combiner.update(GroupStep(group, run, state))
            if place >= 3:  # the first steps fill caches and make the optimizer's state
                seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in taken]


def memory(data: str, combiner: str, steps: int, folder: str) -> int:
    """Peak bytes of this process after some steps."""
    run, (state,) = build(course_run(data, [combiner]), folder)
    for _, group in zip(range(steps), state.sampler.epoch(), strict=False):
        state.combiner.update(GroupStep(group, run, state))
    return peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the course's files")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--combiners", nargs="+", default=["sum", "pcgrad"], help="the first is the measure")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    keep_freed_memory()
    if given.peak_of:
        print(memory(given.data, given.peak_of[0], given.steps, given.peak_of[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = times(given.data, given.combiners, given.steps, folder)
        own = ("--data", given.data, "--steps", 8, "--peak-of")
        peaks = [ask(__file__, *own, combiner, folder) for combiner in given.combiners]
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
