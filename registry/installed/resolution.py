"""What a run consists of, how its gaps are filled, and which of its parts do not fit together."""

from collections.abc import Iterator, Mapping
from typing import Any

from taskloom.core import Component, Problem, unknown
from taskloom.registry.installed.problems import below, noted
from taskloom.registry.installed.words import join, kind_word

_TASK_PARTS = ("data", "head", "loss", "metric")
_STAGE_PARTS = ("sampler", "combiner")
#: The papers' learning rates for a trained and for a frozen encoder.
LR, LR_FROZEN = 1e-5, 1e-3


def homes_of(run: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Every place of a component: its path, what holds it, and its kind, which is its key there."""
    homes: list[tuple[str, Any, tuple[str, ...]]] = [("", run, ("encoder",))]
    homes += [(f"tasks.{name}", task, _TASK_PARTS) for name, task in run.get("tasks", {}).items()]
    homes += [(f"stages.{place}", stage, _STAGE_PARTS) for place, stage in enumerate(run.get("stages", ()))]
    for path, home, kinds in homes:
        yield from ((join(path, kind), home, kind) for kind in kinds if kind in home)


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
    run["resources"] = {key: value for key, value in run["resources"].items() if value is not None}
    for key, default in (("precision", "float32"), ("resources", {})):
        if run[key] == default:
            del run[key]


def name_problems(run: Mapping[str, Any]) -> Iterator[Problem]:
    """Tasks that are named and not there."""
    tasks: list[str] = list(run["tasks"])
    for place, stage in enumerate(run["stages"]):
        for name in stage["tasks"] or ():
            if name not in tasks:
                yield Problem(f"stages.{place}.tasks", unknown("task", name, tasks, where="tasks"))
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
        parts: dict[str, Any] = {kind: made[path] for kind in _TASK_PARTS if (path := f"tasks.{name}.{kind}") in made}
        if len(parts) == len(_TASK_PARTS):
            names = ", ".join(f"{kind_word(kind)} {part.name!r}" for kind, part in parts.items())
            with noted(f"{names} cannot be checked", problems, f"tasks.{name}"):
                wrong = Task(name=name, **parts).problems()
                problems += (Problem(f"tasks.{name}.{part}", why) for part, why in wrong)
    name = run["selection"]
    if name in run["tasks"]:
        data, head = made.get(f"tasks.{name}.data"), made.get(f"tasks.{name}.head")
        why = ""
        if not any(name in stage["tasks"] for stage in run["stages"]):
            why = "is not trained in any stage"
        elif getattr(data, "labels", True) is None or getattr(head, "gives", "") == "vectors":
            why = "has no dev score"
        if why:
            problems.append(Problem("selection", f"task {name!r} {why}, so it cannot choose the best epoch"))
    for place, stage in enumerate(run["stages"]):
        for kind in _STAGE_PARTS:
            path = f"stages.{place}.{kind}"
            part = made.get(path)
            if isinstance(part, Sampler | GradientCombiner):
                with noted(f"{kind_word(kind)} {part.name!r} cannot be checked", problems, path):
                    problems += below(path, part.problems(stage["tasks"]))
    return problems
