"""What the benchmarks of training share: options, runs stepped by hand, sides that take turns, lines with bars."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from taskloom.core import Group, Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.cell import Run
from taskloom.runs.training.machine import keep_freed_memory
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState

sys.modules.setdefault("kernels", None)  # type: ignore[arg-type] # transformers would take kernels.py for that package
#: Of the machine, before the program began.
LOAD = os.getloadavg()[0]
WARM = 2  # first turns that are not counted: they fill caches and make the optimizers' state
Turn = TypeVar("Turn")


def parser(doc: str | None, *, steps: int) -> argparse.ArgumentParser:
    """The options that all programs have; ``parse`` reads them."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, help="folder that holds cs224n/")
    made.add_argument("--steps", type=int, default=steps, help=f"turns; the first {WARM} are not counted")
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--quick", action="store_true", help="one turn: shows that it works, not how fast")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """What was given, and a process set up as a worker's is."""
    given = made.parse_args()
    if given.quick:
        given.steps = 1
    if not (given.data / "cs224n").is_dir():
        made.error(f"--data should be a folder that holds cs224n/. Found {given.data}.")
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    return given


def course_run(
    data: Path,
    combiners: list[Any],
    wrap: Callable[[str], Any] = lambda loss: loss,
    *,
    batch: int = 8,
    pooling: str = "pooler",
    reads: str = "pair",
) -> dict[str, Any]:
    """MiniLM with SST, Quora and STS, and one stage per combiner; ``wrap`` makes a loss of another."""

    def task(name: str, loss: str, **rest: Any) -> dict[str, Any]:
        return {"data": {"name": "cs224n", "task": name, "dir": str(data / "cs224n")}, "loss": wrap(loss), **rest}

    two = {"name": "linear", "reads": reads}
    sampler = {"name": "round_robin", "batch_size": batch}
    return {
        "encoder": {"name": "minbert", "weights": "minilm", "pooling": pooling},
        "tasks": {
            "sst": task("sst", "cross_entropy"),
            "para": task("para", "binary_cross_entropy", head=two),
            "sts": task("sts", "mse", head=two, metric="pearson"),
        },
        "stages": [{"combiner": combiner, "sampler": sampler} for combiner in combiners],
    }


def build(run: dict[str, Any], folder: str) -> tuple[Run, list[StageState]]:
    """A run in training mode, and its stages."""
    spec, problems = load_catalogue().resolve_run(run)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    built = Run.build(Job("bench", "bench", 0, spec, folder), lambda event: None, load_catalogue())
    built.model.freeze_encoder(False)
    built.model.train()
    return built, [StageState.build(built, index) for index in range(len(spec["stages"]))]


def groups(state: StageState, steps: int) -> list[Group]:
    """The batches of the first steps."""
    return list(islice(state.sampler.epoch(), steps))


def stepping(run: Run, state: StageState) -> Callable[[Group], object]:
    """The step that a run takes."""
    return lambda group: state.combiner.update(GroupStep(group, run, state))


def take_turns(sides: Mapping[str, Callable[[Turn], object]], turns: Sequence[Turn]) -> dict[str, list[float]]:
    """Seconds of every side in every turn that counts: all sides meet the same batch and the same disturbances.

    Another side begins each time: what a process prepares once for a batch's size, the first one pays for.
    """
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number, turn in enumerate(turns):
        order = list(sides.items())
        for side, call in order[number % len(order) :] + order[: number % len(order)]:
            began = time.perf_counter()
            call(turn)
            seconds[side].append(time.perf_counter() - began)
    return {side: taken[WARM:] or taken for side, taken in seconds.items()}


def over(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each turn."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def show(
    name: str, ratios: Sequence[float], *, at_least: float = 0.0, at_most: float = float("inf"), note: str = ""
) -> None:
    """One line: the median of the ratios, its bar, whether it is met, the quartiles, the load of the machine before."""
    value = statistics.median(ratios)
    bars = [f"≥ {at_least:g}"] * (at_least > 0) + [f"≤ {at_most:g}"] * (at_most < float("inf"))
    verdict = ("ok" if at_least <= value <= at_most else "MISSED") if bars else ""
    low, _, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else (value,) * 3
    facts = [f"quartiles {low:.2f} {high:.2f}"] * (len(ratios) > 1) + [f"load {LOAD:.1f}"] + [note] * bool(note)
    print(f"{name:66} {value:6.2f}  {' '.join(bars):6}  {verdict:6}  {', '.join(facts)}", flush=True)


def ask(file: str, *arguments: object) -> Any:
    """What a benchmark prints, as JSON, in a process of its own."""
    command = [sys.executable, file, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
