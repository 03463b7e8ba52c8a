"""What combiners and SMART cost against a ``sum`` step, in time and in peak memory.

    python tests/bench/combiner_step.py --data DIR

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW; SMART with the values of its paper. The steps take
turns in one process on the same batches; peak memory is the largest resident size of a process of its own for each.
"SMART with GSE" is the row that ran out of memory in its paper.
"""

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from steps import ask, build, course_run, groups, over, parse, parser, show, stepping, take_turns

from taskloom.runs.training.machine import peak_memory

#: Name → combiner, whether losses are wrapped in SMART, bar of time, bar of memory; 0: not measured.
CELLS: dict[str, tuple[Any, bool, float, float]] = {
    "sum": ("sum", False, 1.0, 1.0),
    "pcgrad": ("pcgrad", False, 1.05, 1.15),
    "gse": ("gse", False, 2.1, 1.3),
    "SMART": ("sum", True, 2.8, 1.3),
    "SMART with GSE": ("gse", True, 0, 1.3),
    "SMART with GSE, kept": ({"name": "gse", "second": "kept"}, True, 0, 1.3),
}
PEAK_STEPS = 8  # after which memory no longer grows


def smart(loss: str) -> dict[str, Any]:
    return {"name": "smart", "loss": loss, "weight": 5.0, "step": 1e-3, "epsilon": 1e-5, "noise": 1e-5}


def run_of(data: Path, cell: str) -> dict[str, Any]:
    combiner, smoothed, _, _ = CELLS[cell]
    return course_run(data, [combiner], smart) if smoothed else course_run(data, [combiner])


def compare_times(data: Path, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = {cell: build(run_of(data, cell), folder) for cell, (_, _, bar, _) in CELLS.items() if bar}
        sides = {cell: stepping(run, state) for cell, (run, (state,)) in built.items()}
        times = take_turns(sides, groups(built["sum"][1][0], steps))
    for cell, taken in times.items():
        if cell != "sum":
            note = f"{median(taken) * 1e3:.0f} against {median(times['sum']) * 1e3:.0f} ms"
            show(f"{cell} over sum, time", over(taken, times["sum"]), at_most=CELLS[cell][2], note=note)


def compare_memory(data: Path, threads: int, steps: int, cells: list[str]) -> None:
    given = ("--data", data, "--threads", threads, "--steps", steps)
    peaks = {cell: ask(__file__, *given, "--peak-of", cell) for cell in cells}
    for cell, peak in peaks.items():
        if cell != "sum":
            note = f"{peak / 2**20:.0f} against {peaks['sum'] / 2**20:.0f} MiB"
            show(f"{cell} over sum, memory", [peak / peaks["sum"]], at_most=CELLS[cell][3], note=note)


def main() -> None:
    made = parser(__doc__, steps=16)
    made.add_argument("--peak-of", choices=CELLS, help="print the peak memory of one cell's process, in bytes")
    given = parse(made)
    if given.peak_of:
        with tempfile.TemporaryDirectory() as folder:
            run, (state,) = build(run_of(given.data, given.peak_of), folder)
            step = stepping(run, state)
            for group in groups(state, given.steps):
                step(group)
        print(peak_memory())
        return
    compare_times(given.data, given.steps)
    cells, steps = (["sum", "pcgrad"], 1) if given.quick else (list(CELLS), PEAK_STEPS)
    compare_memory(given.data, given.threads, steps, cells)


if __name__ == "__main__":
    main()
