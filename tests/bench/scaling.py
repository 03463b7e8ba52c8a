"""What a step costs with more tasks, more tokens and a larger model: time and memory of ``sum`` and ``pcgrad``.

    python tests/bench/scaling.py [--out runs/docs/pages/explanation/scaling.svg]

Untrained encoders on generated pairs. Each point is a process of its own. The limit of time is what the matrix
products of the real tokens need at the largest rate at which the machine multiplied matrices between the steps; that of
memory is weights, gradient and AdamW's state. Memory is counted from a process that has built nothing.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers import batches_of, best_rate, forward_flops, lengths_of, products
from steps import LOAD, ask, build, groups, over, show, stepping, take_turns

from taskloom.runs.training.machine import keep_freed_memory, peak_memory

COMBINERS = ("sum", "pcgrad")


@dataclass(frozen=True)
class Point:
    """How many tasks, examples of each in a batch, layers, and values in a state."""

    tasks: int = 4
    batch: int = 8
    layers: int = 4
    width: int = 256


#: What grows, what of a measured point is on its axis, and the points.
AXES: dict[str, tuple[str, list[Point]]] = {
    "tasks": ("tasks", [Point(tasks=tasks) for tasks in (2, 4, 8, 16)]),
    "tokens in a step, 4 tasks": ("tokens", [Point(batch=batch) for batch in (2, 8, 32, 128)]),
    "million weights, 4 tasks": (
        "weights",
        [Point(layers=layers, width=width) for layers, width in ((2, 128), (4, 256), (6, 384), (8, 512))],
    ),
}


def measure(point: Point, combiner: str, steps: int) -> dict[str, float]:
    """Time and memory of a step in this process, and the limits of both."""
    sides = products()
    take_turns(sides, [None])
    empty = peak_memory()
    data = {"name": "generated", "task": "similarity", "size": point.batch * steps, "dev_size": 1}
    task = {"head": {"name": "linear", "reads": "pair"}, "loss": "mse", "metric": "pearson"}
    stage = {"combiner": combiner, "sampler": {"name": "round_robin", "batch_size": point.batch}}
    encoder = {"name": "minbert", "layers": point.layers, "width": point.width, "heads": point.width // 64}
    spec: dict[str, Any] = {
        "encoder": encoder,
        "tasks": {f"t{number}": {"data": {**data, "seed": number}, **task} for number in range(point.tasks)},
        "stages": [stage],
    }
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build(spec, folder)
        drawn = groups(state, steps)
        batches = batches_of(run, drawn)
        times = take_turns({"step": stepping(run, state), **sides}, drawn)
        memory, rates = peak_memory() - empty, best_rate(times)
    needed, counted = [], 0
    for batch, rate in zip(batches[-len(rates) :], rates, strict=True):
        lengths = [length for tokens, _ in batch.values() for length in lengths_of(tokens)]
        sizes = {"layers": point.layers, "width": point.width, "feed_forward": 4 * point.width}
        needed.append(3 * forward_flops(lengths, **sizes, first=True, pooler=True) / rate)
        counted += sum(lengths)
    weights = sum(parameter.numel() for parameter in run.model.parameters())
    return {
        "tasks": point.tasks,
        "tokens": counted / len(rates),
        "weights": weights / 1e6,
        "ms": median(times["step"]) * 1e3,
        "least ms": median(needed) * 1e3,
        "over": median(over(times["step"], needed)),
        "MiB": memory / 2**20,
        "least MiB": 4 * 4 * weights / 2**20,  # float32: weights, gradient, two moments
    }


Figures = dict[tuple[Point, str], dict[str, float]]


def draw(figures: Figures, out: Path, conditions: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scaling", "font.size": 9})
    figure, rows = pyplot.subplots(2, len(AXES), figsize=(10, 5.5), sharex="col", sharey="row", layout="constrained")
    limits = {"ms": "matrix products alone", "MiB": "weights, gradient, AdamW's state"}
    for column, (title, (key, points)) in enumerate(AXES.items()):
        for row, unit in zip(rows, ("ms", "MiB"), strict=True):
            axes = row[column]
            for combiner, mark in zip(COMBINERS, ("o", "s"), strict=True):
                found = [figures[point, combiner] for point in points]
                xs = [each[key] for each in found]
                axes.plot(xs, [each[unit] for each in found], marker=mark, markersize=4, label=combiner)
            least = [figures[point, "sum"][f"least {unit}"] for point in points]
            axes.plot(xs, least, "k--", linewidth=1, label=f"limit: {limits[unit]}")
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(xs, [f"{x:.0f}" for x in xs], minor=False)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            if not column:
                axes.set_ylabel("ms a step" if unit == "ms" else "MiB at the peak")
                axes.legend(fontsize=8, loc="upper left")
        rows[-1][column].set_xlabel(title)
    figure.suptitle(conditions, fontsize=9)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the picture goes: .svg or .png")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="one point, one step: shows that it works, not how fast")
    parser.add_argument("--point", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        torch.set_num_threads(given.threads)
        keep_freed_memory()
        print(json.dumps(measure(Point(*map(int, given.point[:4])), given.point[4], given.steps)))
        return
    points = [Point()] if given.quick else dict.fromkeys(point for _, some in AXES.values() for point in some)
    figures: Figures = {}
    for point in points:
        for combiner in COMBINERS:
            where = (point.tasks, point.batch, point.layers, point.width, combiner)
            steps = 1 if given.quick else given.steps
            figures[point, combiner] = ask(__file__, "--steps", steps, "--threads", given.threads, "--point", *where)
        one, other = (figures[point, combiner] for combiner in COMBINERS)
        name = f"{point.tasks} tasks, {one['tokens']:.0f} tokens, {one['weights']:.1f} M weights"
        note = f"{one['ms']:.0f} ms and {one['MiB']:.0f} MiB; pcgrad {other['ms']:.0f} ms and {other['MiB']:.0f} MiB"
        show(f"sum over the limit of time: {name}", [one["over"]], note=note)
    if given.out and not given.quick:
        draw(figures, given.out, f"{given.threads} threads, load of the machine before: {LOAD:.1f}")


if __name__ == "__main__":
    main()
