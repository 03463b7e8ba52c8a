"""What a run consists of, how its gaps are filled, and which of its parts do not fit together."""

from collections.abc import Iterator, Mapping
from typing import Any

from taskloom.core import Component, Metric, Overall, Problem, unknown
from taskloom.registry.installed.problems import below, noted
from taskloom.registry.installed.words import join, kind_word

_TASK_PARTS = ("data", "head", "loss", "metric")
_STAGE_PARTS = ("sampler", "combiner")
#: The papers' learning rates for a trained and for a frozen encoder.
LR, LR_FROZEN = 1e-5, 1e-3


def homes_of(run: Mapping[str, Any]) -> Iterator[tuple[str, Any, str | int, str]]:
    """Every place of a component: its path, what holds it, its key there, and its kind."""
    homes: list[tuple[str, Any, tuple[str, ...]]] = [("", run, ("encoder",))]
    homes += [(f"tasks.{name}", task, _TASK_PARTS) for name, task in run.get("tasks", {}).items()]
    homes += [(f"stages.{place}", stage, _STAGE_PARTS) for place, stage in enumerate(run.get("stages", ()))]
    for path, home, kinds in homes:
        for kind in (kind for kind in kinds if kind in home):
            if isinstance(home[kind], list):
                yield from ((join(path, kind, place), home[kind], place, kind) for place in range(len(home[kind])))
            else:
                yield join(path, kind), home, kind, kind


def split_metrics(run: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The run with one metric for each task, its first, and the further ones by task: they change no training."""
    tasks, further = dict(run.get("tasks", {})), {}
    for name, task in tasks.items():
        if isinstance(metrics := task.get("metric"), list):
            tasks[name], further[name] = {**task, "metric": metrics[0]}, metrics[1:]
    return {**run, "tasks": tasks}, further


def fill_gaps(run: dict[str, Any]) -> None:
    """Write out, in place, what depends on the rest of the run; leave out what says nothing."""
    for stage in run["stages"]:
        if stage["tasks"] is None:
            stage["tasks"] = list(run["tasks"])
        if stage["optimizer"]["lr"] is None:
            frozen = stage["frozen"] or run["encoder"].get("trainable") is False
            stage["optimizer"]["lr"] = LR_FROZEN if frozen else LR
        if stage["micro_batch"] is None:
            del stage["micro_batch"]
    run["overall"] = _counted(run)
    run["resources"] = {key: value for key, value in run["resources"].items() if value is not None}
    for key, default in (("precision", "float32"), ("resources", {})):
        if run[key] == default:
            del run[key]


def _counted(run: Mapping[str, Any]) -> str | dict[str, Any]:
    """How tasks count in the overall score: in words alone where the weights of all trained tasks are the same."""
    how, trained = run["overall"], {name for stage in run["stages"] for name in stage["tasks"]}
    weights = {name: how["weights"].get(name, 1.0) for name in run["tasks"] if name in trained}
    if len({*weights.values()}) == 1 and all(weights.values()):
        return str(how["name"])
    return {**how, "weights": {name: weight for name, weight in weights.items() if weight != 1}}


def name_problems(run: Mapping[str, Any]) -> Iterator[Problem]:
    """Tasks that are named and not there."""
    tasks: list[str] = list(run["tasks"])
    for place, stage in enumerate(run["stages"]):
        for name in stage["tasks"] or ():
            if name not in tasks:
                yield Problem(f"stages.{place}.tasks", unknown("task", name, tasks, where="tasks"))
    for name in run["overall"]["weights"]:
        if name not in tasks:
            yield Problem(f"overall.weights.{name}", unknown("task", name, tasks, where="tasks"))
    if run["selection"] not in (*tasks, "overall", "last"):
        yield Problem("selection", unknown("selection", run["selection"], [*tasks, "overall", "last"]))


def fit_problems(run: Mapping[str, Any], made: Mapping[str, Component]) -> list[Problem]:
    """Parts that do not fit together; ``made`` are the components that could be constructed, by path."""
    from taskloom.core import Encoder, GradientCombiner, Head, Sampler  # import torch, which `homes_of` should not need
    from taskloom.registry.installed.task import Task

    problems: list[Problem] = []
    encoder = made.get("encoder")
    for name in run["tasks"]:
        head = made.get(f"tasks.{name}.head")
        if isinstance(encoder, Encoder) and isinstance(head, Head) and head.pooling not in (None, *encoder.poolings):
            why = unknown("pooling", head.pooling, encoder.poolings, where=f"known to encoder {encoder.name!r}")
            problems.append(Problem(f"tasks.{name}.head", f"{why}; leave pooling out to have the encoder's own"))
        places = [(path, kind) for path, _, _, kind in homes_of({"tasks": {name: run["tasks"][name]}})]
        # Of several metrics the first is the task's, so it comes last here.
        parts: dict[str, Any] = {kind: made[path] for path, kind in reversed(places) if path in made}
        if all(path in made for path, _ in places):
            names = ", ".join(f"{kind_word(kind)} {parts[kind].name!r}" for kind in _TASK_PARTS)
            with noted(f"{names} cannot be checked", problems, f"tasks.{name}"):
                task = Task(name=name, **parts)
                problems += (Problem(f"tasks.{name}.{part}", why) for part, why in task.problems())
                metrics = {path: each for path, _ in places if isinstance(each := made[path], Metric)}
                problems += (Problem(path, why) for path, each in metrics.items() for why in task.unfit(each))
    trained = {name for stage in run["stages"] for name in stage["tasks"]}
    scored = [name for name in run["tasks"] if name in trained and _has_score(made, name)]
    if run["selection"] in run["tasks"] and run["selection"] not in scored:
        why = "has no dev score" if run["selection"] in trained else "is not trained in any stage"
        problems.append(Problem("selection", f"task {run['selection']!r} {why}, so it cannot choose the best epoch"))
    if scored and not Overall.of(run).shares(scored):
        listed = ", ".join(scored)
        problems.append(Problem("overall.weights", f"one task with a dev score should weigh more than 0 ({listed})"))
    for place, stage in enumerate(run["stages"]):
        for kind in _STAGE_PARTS:
            path = f"stages.{place}.{kind}"
            part = made.get(path)
            if isinstance(part, Sampler | GradientCombiner):
                with noted(f"{kind_word(kind)} {part.name!r} cannot be checked", problems, path):
                    problems += below(path, part.problems(stage["tasks"]))
    return problems


def _has_score(made: Mapping[str, Component], task: str) -> bool:
    """Whether a task has a dev score, as far as its parts could be made."""
    data, head = made.get(f"tasks.{task}.data"), made.get(f"tasks.{task}.head")
    return getattr(data, "labels", True) is not None and getattr(head, "gives", "") != "vectors"
