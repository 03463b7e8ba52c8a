"""What trackers are told of small runs: the keys and types of real ones, which a test compares with them."""

from typing import Any

Call = tuple[str, dict[str, Any]]


def _stage(*tasks: str, epochs: int) -> dict[str, Any]:
    return {
        "tasks": list(tasks),
        "sampler": {"name": "round_robin", "batch_size": 8, "iterations": "largest"},
        "combiner": {"name": "sum"},
        "optimizer": {"lr": 1e-05, "betas": [0.9, 0.999], "eps": 1e-06, "weight_decay": 0.0},
        "schedule": {"name": "constant", "warmup": 0.0},
        "epochs": epochs,
        "frozen": False,
        "clip": None,
    }


def _task(data: str, head: str, loss: str) -> dict[str, Any]:
    return {
        "data": {"name": "generated", "task": data, "size": 16, "dev_size": 8},
        "head": {"name": head},
        "loss": {"name": loss},
        "metric": {"name": "accuracy"},
    }


def spec(last: int) -> dict[str, Any]:
    """A specification: a stage of which nothing is scored, then ``last`` epochs of all tasks."""
    return {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "trainable": True},
        "tasks": {
            "pairs": _task("paraphrase", "embedding", "dynamic_margin"),
            "sst": _task("sentiment", "linear", "cross_entropy"),
        },
        "stages": [_stage("pairs", epochs=1), _stage("pairs", "sst", epochs=last)],
        "overall": "mean",
        "selection": "overall",
        "seed": 0,
    }


def epoch_facts(stage: int, epoch: int) -> dict[str, Any]:
    """The facts of an epoch. Epoch 0 scores what is not trained: there are no losses. Stage 0 has no dev scores."""
    tasks = ("pairs", "sst") if stage else ("pairs",)
    score = 0.25 * (1 + epoch)
    return {
        "stage": stage,
        "epoch": epoch,
        "step": 2 * epoch,
        "losses": dict.fromkeys(tasks, 1.5 / epoch) if epoch else {},
        "scores": {"sst": score, "overall": score} if stage else {},
        "metrics": {"pairs": {"margin": 0.05 * (stage + epoch)}},
        "seconds": 0.5 * (stage + epoch),
        "memory": 10**8 + epoch,
    }


def run(cell: str, *, last: int = 2, fails: bool = False) -> list[Call]:
    """Every call for one run, whose last stage has ``last`` epochs."""
    about = {"cell": cell, "label": "sum"}
    epochs = [(0, 1), *((1, epoch) for epoch in range(1, last + 1))] if last else [(0, 1), (1, 0)]
    calls: list[Call] = [("taskloom_run_started", {**about, "spec": spec(last)})]
    calls += [("taskloom_epoch_ended", {**about, "facts": epoch_facts(*place)}) for place in epochs]
    if fails:
        reason = "the loss 'cross_entropy' of task 'sst' is nan (stage 1, epoch 3, step 2)"
        return [*calls, ("taskloom_run_failed", {**about, "reason": reason})]
    scores = epoch_facts(*epochs[-1])["scores"]
    facts = {"scores": scores, "best_epoch": last, "seconds": 2.0, "peak_memory": 10**8 + last}
    return [*calls, ("taskloom_run_finished", {**about, "facts": facts})]


def without_scores(calls: list[Call]) -> list[Call]:
    """The same run where no task has labels or a head that predicts: no epoch has scores, nor has the end."""
    return [
        (hook, {**told, "facts": {**told["facts"], "scores": {}}} if "facts" in told else told) for hook, told in calls
    ]
