"""Laws of trackers, tried with runs of every sort, whose facts have the keys and types of real ones."""

import copy
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from taskloom.core.specs import RunSpec
from taskloom.core.testing.law import given, law
from taskloom.core.testing.specimens import Specimen
from taskloom.core.tracker import TrackedRun, Tracker

#: A method and its arguments.
Call = tuple[str, tuple[Any, ...]]
#: Two cells of one row of the table: their labels are the same.
CELLS = ("0123456789abcdef0123", "3210fedcba9876543210")
TABLE = "|     |   seeds |\n|:----|--------:|\n| sum |       2 |\n\n- 1 cell failed: loss is nan"


def _spec(last: int) -> dict[str, Any]:
    """A specification: a stage that is not scored, then ``last`` epochs of all tasks."""
    tasks = {
        "pairs": {"data": {"name": "generated"}, "head": {"name": "embedding"}, "loss": {"name": "dynamic_margin"}},
        "sst": {"data": {"name": "generated"}, "head": {"name": "linear"}, "loss": {"name": "cross_entropy"}},
    }
    stages = [{"tasks": ["pairs"], "epochs": 1}, {"tasks": ["pairs", "sst"], "epochs": last}]
    rates = [{**stage, "optimizer": {"lr": 1e-05}} for stage in stages]
    spec = RunSpec.model_validate({"encoder": {"name": "minbert"}, "tasks": tasks, "stages": rates})
    of_stages = {"__all__": {"micro_batch", "patience"}}
    unset: Any = {"precision": True, "resources": True, "hold_out": True, "stages": of_stages}
    return {**spec.model_dump(mode="json", exclude=unset), "overall": spec.overall.name}  # as a resolved run has it


def _epoch_facts(stage: int, epoch: int, *, scored: bool) -> dict[str, Any]:
    """The facts of an epoch. Epoch 0 scores an untrained model and has no losses; stage 0 has no dev scores."""
    tasks = ("pairs", "sst") if stage else ("pairs",)
    score = 0.25 * (1 + epoch)
    return {
        "stage": stage,
        "epoch": epoch,
        "step": 2 * epoch,
        "losses": dict.fromkeys(tasks, 1.5 / epoch) if epoch else {},
        "scores": {"sst": score, "overall": score} if stage and scored else {},
        "train": {},
        "diagnostics": {"learning_rate": 1e-5, "gradient_norm": 0.5} if epoch else {},
        "metrics": {"pairs": {"margin": 0.05 * (stage + epoch)}},
        "seconds": 0.5 * (stage + epoch),
        "memory": 10**8 + epoch,
    }


def run_calls(cell: str = CELLS[0], *, last: int = 2, fails: bool = False, scored: bool = True) -> list[Call]:
    """Every call for one run, whose last stage has ``last`` epochs."""
    run = TrackedRun(cell, "sum", 0, "small", _spec(last))
    epochs = [(0, 1), *((1, epoch) for epoch in range(1, last + 1))] if last else [(0, 1), (1, 0)]
    calls: list[Call] = [("run_started", (run,))]
    calls += [("epoch_ended", (run, _epoch_facts(*at, scored=scored))) for at in epochs]
    if fails:
        reason = "the loss 'cross_entropy' of task 'sst' is nan (stage 1, epoch 3, step 2)"
        return [*calls, ("run_failed", (run, reason))]
    scores = _epoch_facts(*epochs[-1], scored=scored)["scores"]
    costs = {"examples": 64 * last, "backwards": 2 * last}
    facts = {"scores": scores, "best_epoch": last, "test": {}, "costs": costs, "seconds": 2.0}
    facts["peak_memory"] = 10**8 + last
    return [*calls, ("run_finished", (run, facts))]


def _runs() -> Iterator[tuple[str, list[Call]]]:
    """Runs of every sort, in the order of their calls."""
    whole, failed = run_calls(), run_calls("f" * 20, fails=True)
    yield "a run", whole
    yield "a run that goes on from a checkpoint", [*whole[:2], *whole]
    yield "a run that is told again, as it was finished before", _remembered(whole)
    yield "a run that fails", failed
    yield "a run that fails before its first epoch", [failed[0], failed[-1]]
    yield "a last stage of 0 epochs, which is scored as epoch 0", run_calls("0" * 20, last=0)
    yield "a run of which nothing is scored", run_calls("1" * 20, scored=False)
    pairs = zip(*(run_calls(cell) for cell in CELLS), strict=True)
    yield "two cells of one label in turns", [call for pair in pairs for call in pair]
    yield "the table", [("grid_finished", ("small", TABLE))]
    yield "the table, again", [("grid_finished", ("small", TABLE.replace("2", "3")))]


def _remembered(calls: list[Call]) -> list[Call]:
    """The calls without the facts that the ledger does not keep."""
    kept = copy.deepcopy(calls)
    for method, arguments in kept:
        if method == "epoch_ended":
            arguments[1]["memory"] = None
    return kept


def tell(tracker: Tracker, calls: list[Call]) -> None:
    """Make the calls, with copies of their arguments."""
    for method, arguments in calls:
        with given(f"{method}({', '.join(map(_short, arguments))})"):
            getattr(tracker, method)(*copy.deepcopy(arguments))


@law("tracker")
def it_takes_every_call_of_every_run(specimen: Specimen) -> None:
    """Also of runs that fail, are resumed or told again, run side by side, or have nothing to score."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder):
        tracker: Tracker = specimen.make()
        tell(tracker, [("open", (Path(folder),))])
        for words, calls in _runs():
            with given(words):
                tell(tracker, calls)
        tell(tracker, [("close", ())])


@law("tracker")
def it_may_be_closed_at_any_time(specimen: Specimen) -> None:
    """In the middle of a run, as after Ctrl-C; twice; and if it was never opened."""
    with given("a tracker that was never opened"):
        specimen.make().close()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder):
        tracker: Tracker = specimen.make()
        with given("a run that has not ended"):
            tell(tracker, [("open", (Path(folder),)), run_calls()[0], ("close", ()), ("close", ())])
        again: Tracker = specimen.make()
        with given("another one later, which is told of the same run"):
            tell(again, [("open", (Path(folder),)), run_calls()[0], ("close", ())])


def _short(value: Any) -> str:
    """An argument in short: of a mapping, its keys."""
    if isinstance(value, TrackedRun):
        return f"run of {value.cell}"
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, dict) else repr(value)
