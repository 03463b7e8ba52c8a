"""The components of a run, the defaults that depend on the rest of it, and which components do not fit together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskloom.core import Component, Metric, Overall, Problem, unknown
from taskloom.registry.installed.problems import below, noted
from taskloom.registry.installed.words import join, kind_word

_TASK_PARTS = ("data", "head", "loss", "metric")
_STAGE_PARTS = ("sampler", "combiner")
#: The papers' learning rates for a trained and for a frozen encoder.
LR, LR_FROZEN = 1e-5, 1e-3


def homes_of(run: Mapping[str, Any]) -> Iterator[tuple[str, Any, str | int, str]]:
    """Every component of a run: its path, the object or list that holds it, its key there, and its kind."""
    parents: list[tuple[str, Any, tuple[str, ...]]] = [("", run, ("encoder",))]
    parents += [(f"tasks.{name}", task, _TASK_PARTS) for name, task in run.get("tasks", {}).items()]
    parents += [(f"stages.{index}", stage, _STAGE_PARTS) for index, stage in enumerate(run.get("stages", ()))]
    for path, parent, kinds in parents:
        for kind in (kind for kind in kinds if kind in parent):
            if isinstance(parent[kind], list):
                yield from ((join(path, kind, index), parent[kind], index, kind) for index in range(len(parent[kind])))
            else:
                yield join(path, kind), parent, kind, kind


def split_metrics(run: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The run with only the first metric of each task, and the further ones by task: they do not affect training."""
    tasks, further = dict(run.get("tasks", {})), {}
    for name, task in tasks.items():
        if isinstance(metrics := task.get("metric"), list):
            tasks[name], further[name] = {**task, "metric": metrics[0]}, metrics[1:]
    return {**run, "tasks": tasks}, further


def fill_gaps(run: dict[str, Any]) -> None:
    """Write out, in place, defaults that depend on the rest of the run; remove keys without effect."""
    for stage in run["stages"]:
        if stage["tasks"] is None:
            stage["tasks"] = list(run["tasks"])
        if stage["optimizer"]["lr"] is None:
            frozen = stage["frozen"] or run["encoder"].get("trainable") is False
            stage["optimizer"]["lr"] = LR_FROZEN if frozen else LR
        for key in ("micro_batch", "patience"):
            if stage[key] is None:
                del stage[key]
    run["overall"] = _canonical_overall(run)
    run["resources"] = {key: value for key, value in run["resources"].items() if value is not None}
    for key, default in (("precision", "float32"), ("resources", {}), ("hold_out", None)):
        if run[key] == default:
            del run[key]


def _canonical_overall(run: Mapping[str, Any]) -> str | dict[str, Any]:
    """The overall score in canonical form: its name alone if all trained tasks have one weight that is not 0."""
    overall, trained = run["overall"], {name for stage in run["stages"] for name in stage["tasks"]}
    weights = {name: overall["weights"].get(name, 1.0) for name in run["tasks"] if name in trained}
    if len({*weights.values()}) == 1 and all(weights.values()):
        return str(overall["name"])
    return {**overall, "weights": {name: weight for name, weight in weights.items() if weight != 1}}


def name_problems(run: Mapping[str, Any]) -> Iterator[Problem]:
    """References to tasks that do not exist."""
    tasks: list[str] = list(run["tasks"])
    for index, stage in enumerate(run["stages"]):
        for name in stage["tasks"] or ():
            if name not in tasks:
                yield Problem(f"stages.{index}.tasks", unknown("task", name, tasks, where="tasks"))
    for name in run["overall"]["weights"]:
        if name not in tasks:
            yield Problem(f"overall.weights.{name}", unknown("task", name, tasks, where="tasks"))
    if run["selection"] not in (*tasks, "overall", "last"):
        yield Problem("selection", unknown("selection", run["selection"], [*tasks, "overall", "last"]))


def fit_problems(run: Mapping[str, Any], components: Mapping[str, Component]) -> list[Problem]:
    """Components that do not fit together; ``components`` are those that could be constructed, by path."""
    from taskloom.core import Encoder, GradientCombiner, Head, Sampler  # import torch, which `homes_of` should not need
    from taskloom.registry.installed.task import Task

    problems: list[Problem] = []
    encoder = components.get("encoder")
    for name in run["tasks"]:
        head = components.get(f"tasks.{name}.head")
        if isinstance(encoder, Encoder) and isinstance(head, Head) and head.pooling not in (None, *encoder.poolings):
            reason = unknown("pooling", head.pooling, encoder.poolings, where=f"known to encoder {encoder.name!r}")
            problems.append(Problem(f"tasks.{name}.head", f"{reason}; leave pooling out to have the encoder's own"))
        paths = [(path, kind) for path, _, _, kind in homes_of({"tasks": {name: run["tasks"][name]}})]
        # Of several metrics the first is the task's, so it comes last here.
        parts: dict[str, Any] = {kind: components[path] for path, kind in reversed(paths) if path in components}
        if all(path in components for path, _ in paths):
            names = ", ".join(f"{kind_word(kind)} {parts[kind].name!r}" for kind in _TASK_PARTS)
            with noted(f"{names} cannot be checked", problems, f"tasks.{name}"):
                task = Task(name=name, **parts)
                problems += (Problem(f"tasks.{name}.{part}", reason) for part, reason in task.problems())
                metrics = {path: metric for path, _ in paths if isinstance(metric := components[path], Metric)}
                problems += (Problem(path, reason) for path, metric in metrics.items() for reason in task.unfit(metric))
    trained = {name for stage in run["stages"] for name in stage["tasks"]}
    scored = [name for name in run["tasks"] if name in trained and _has_score(components, name)]
    if run["selection"] in run["tasks"] and run["selection"] not in scored:
        reason = "has no dev score" if run["selection"] in trained else "is not trained in any stage"
        problems.append(Problem("selection", f"task {run['selection']!r} {reason}, so it cannot choose the best epoch"))
    if scored and not Overall.of(run).shares(scored):
        listed = ", ".join(scored)
        problems.append(Problem("overall.weights", f"one task with a dev score should weigh more than 0 ({listed})"))
    problems += _unwatchable(run, scored)
    for index, stage in enumerate(run["stages"]):
        for kind in _STAGE_PARTS:
            path = f"stages.{index}.{kind}"
            part = components.get(path)
            if isinstance(part, Sampler | GradientCombiner):
                with noted(f"{kind_word(kind)} {part.name!r} cannot be checked", problems, path):
                    problems += below(path, part.problems(stage["tasks"]))
    return problems


def _unwatchable(run: Mapping[str, Any], scored: Sequence[str]) -> Iterator[Problem]:
    """Stages with patience that have no selection score to watch; ``scored`` are the tasks with a dev score."""
    trained: set[str] = set()
    for index, stage in enumerate(run["stages"]):
        trained |= {*stage["tasks"]}
        if "patience" not in stage:
            continue
        if run["selection"] == "last":
            text = 'watches the selection score, and selection is "last"; choose "overall" or a task'
        elif run["selection"] not in ("overall", *trained) or not trained & {*scored}:
            text = f"watches the selection score, {run['selection']!r}, which does not exist before a later stage"
        else:
            continue
        yield Problem(f"stages.{index}.patience", f"{text}. Found {stage['patience']}.")


def _has_score(components: Mapping[str, Component], task: str) -> bool:
    """Whether a task has a dev score, as far as its components could be constructed."""
    data, head = components.get(f"tasks.{task}.data"), components.get(f"tasks.{task}.head")
    return getattr(data, "labels", True) is not None and getattr(head, "gives", "") != "vectors"
