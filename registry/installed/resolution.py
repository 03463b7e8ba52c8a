"""A run as a user wrote it → its canonical form: every component complete, every default written out, all checked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from taskloom.core import Component, GradientCombiner, Problem, RunSpec, Sampler, Task, TaskloomError, plain, unknown
from taskloom.core.guard import guard
from taskloom.core.words import join, kind_word, show
from taskloom.registry.installed.problems import problems_of

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

_TASK_PARTS = ("data", "head", "loss", "metric")
_STAGE_PARTS = ("sampler", "combiner")
#: What a task may be called, as a pattern that means the same in Python and in a JSON schema.
TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$(?!\n)"
#: Names of columns, which a task's name would hide; "last" is a way to select an epoch.
RESERVED = ("overall", "seconds", "memory", "last")
#: The papers' learning rates for a trained and for a frozen encoder.
LR, LR_FROZEN = 1e-5, 1e-3


def slots_of(run: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Every component of a run as (path, kind, component); a run that is wrong in form gives those it has."""
    for path, home, kind in _slots(run):
        yield path, kind, home[kind]


def _slots(run: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Every place of a component: its path, what holds it, and its kind, which is its key there."""
    if "encoder" in run:
        yield "encoder", run, "encoder"
    tasks, stages = run.get("tasks"), run.get("stages")
    parts: list[tuple[str, Any, tuple[str, ...]]] = []
    if isinstance(tasks, Mapping):
        parts += [(f"tasks.{name}", task, _TASK_PARTS) for name, task in tasks.items()]
    if isinstance(stages, list | tuple):
        parts += [(f"stages.{place}", stage, _STAGE_PARTS) for place, stage in enumerate(stages)]
    for path, part, kinds in parts:
        if isinstance(part, Mapping):
            yield from ((f"{path}.{kind}", part, kind) for kind in kinds if kind in part)


def resolve_run(catalogue: "Catalogue", spec: RunSpec | Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """See ``Catalogue.resolve_run``."""
    try:
        run: dict[str, Any] = plain(spec if isinstance(spec, RunSpec) else RunSpec.model_validate(spec))
    except ValidationError as error:
        return {}, _best_effort(catalogue, spec, problems_of(error, RunSpec))
    problems: list[Problem] = []
    failed = _resolve_parts(catalogue, run, problems)
    problems += _name_problems(run)
    for stage in run["stages"]:
        if stage["tasks"] is None:
            stage["tasks"] = list(run["tasks"])
        if stage["optimizer"]["lr"] is None:
            frozen = stage["frozen"] or run["encoder"].get("trainable") is False
            stage["optimizer"]["lr"] = LR_FROZEN if frozen else LR
    _leave_out_defaults(run)
    problems += _construction_problems(catalogue, run, failed)
    # A task that no stage trains decides nothing: without it, runs that give the same result are the same run.
    trained = {name for stage in run["stages"] for name in stage["tasks"]}
    run["tasks"] = {name: task for name, task in run["tasks"].items() if name in trained}
    return run, problems


def _leave_out_defaults(run: dict[str, Any]) -> None:
    """Take out what came to specifications later and is at its default, so that older runs stay the same run."""
    run["resources"] = {key: value for key, value in run["resources"].items() if value is not None}
    for home, key, default in [
        (run, "precision", "float32"),
        (run, "resources", {}),
        *((stage, "micro_batch", None) for stage in run["stages"]),
    ]:
        if home[key] == default:
            del home[key]


def _resolve_parts(catalogue: "Catalogue", run: dict[str, Any], problems: list[Problem]) -> set[str]:
    """Complete every component in place; returns the paths of those that have problems."""
    failed = set()
    for path, home, kind in list(_slots(run)):
        home[kind], found = catalogue.resolve(kind, home[kind], path)
        problems += found
        if found:
            failed.add(path)
    return failed


def _best_effort(catalogue: "Catalogue", run: Any, problems: list[Problem]) -> list[Problem]:
    """The components' problems of a run that is wrong in form, so that the user hears of all at once."""
    heard = {problem.path for problem in problems}
    for path, kind, component in slots_of(run if isinstance(run, Mapping) else {}):
        found = catalogue.resolve(kind, component, path)[1]
        problems += [one for one in found if one.path not in heard and join(one.path, "name") not in heard]
    return problems


def _name_problems(run: Mapping[str, Any]) -> Iterator[Problem]:
    tasks: list[str] = list(run["tasks"])
    for name in tasks:
        if not re.search(TASK_NAME, name):
            text = "a task's name should be up to 64 letters, digits, '_' and '-', with a letter or digit first."
            yield Problem("tasks", f"{text} Found {show(name)}.", "form")
        elif name in RESERVED:
            yield Problem("tasks", f"a task should not be called {', '.join(RESERVED)}. Found {name!r}.", "form")
    for place, stage in enumerate(run["stages"]):
        yield from _stage_problems(f"stages.{place}.tasks", stage["tasks"], tasks)
    if run["selection"] not in (*tasks, "overall", "last"):
        yield Problem("selection", unknown("selection", run["selection"], [*tasks, "overall", "last"]), "form")


def _stage_problems(path: str, named: Sequence[str] | None, tasks: Sequence[str]) -> Iterator[Problem]:
    if named is None:
        return
    if not named:
        yield Problem(path, "should name at least one task. Found [].", "form")
    for name in dict.fromkeys(named):
        if name not in tasks:
            yield Problem(path, unknown("task", name, tasks, where="tasks"), "form")
        elif named.count(name) > 1:
            yield Problem(path, f"should name a task once. Found {name!r} {named.count(name)} times.", "form")


def _construction_problems(catalogue: "Catalogue", run: Mapping[str, Any], failed: set[str]) -> Iterator[Problem]:
    """What only the components themselves can tell: constructors that refuse, parts of a task that do not fit."""
    made: dict[str, Component] = {}
    for path, kind, component in slots_of(run):
        if path in failed:
            continue
        tried = catalogue.try_out(kind, component)
        if isinstance(tried, Component):
            made[path] = tried
        else:
            yield from (Problem(join(path, one.path), one.message) for one in tried)
    for name in run["tasks"]:
        parts: dict[str, Any] = {kind: made[path] for kind in _TASK_PARTS if (path := f"tasks.{name}.{kind}") in made}
        if len(parts) == len(_TASK_PARTS):
            yield from _fit_problems(name, parts)
    yield from _selection_problems(run, made)
    for place, stage in enumerate(run["stages"]):
        for kind in _STAGE_PARTS:
            path = f"stages.{place}.{kind}"
            part = made.get(path)
            if isinstance(part, Sampler | GradientCombiner):
                yield from _stage_part_problems(path, part, stage["tasks"])


def _selection_problems(run: Mapping[str, Any], made: Mapping[str, Component]) -> Iterator[Problem]:
    """A task can only choose the best epoch if it is trained and has a score."""
    name = run["selection"]
    if name not in run["tasks"]:
        return
    data, head = made.get(f"tasks.{name}.data"), made.get(f"tasks.{name}.head")
    if not any(name in stage["tasks"] for stage in run["stages"]):
        yield Problem("selection", f"task {name!r} takes part in no stage, so it cannot choose the best epoch")
    elif getattr(data, "labels", True) is None or getattr(head, "gives", "") == "vectors":
        yield Problem("selection", f"task {name!r} has no dev score, so it cannot choose the best epoch")


def _fit_problems(name: str, parts: dict[str, Any]) -> list[Problem]:
    names = ", ".join(f"{kind_word(kind)} {part.name!r}" for kind, part in parts.items())
    try:
        with guard(f"{names} cannot be checked against each other"):
            return Task(name=name, **parts).problems()
    except TaskloomError as error:
        return [Problem(f"tasks.{name}", str(error))]


def _stage_part_problems(path: str, part: Sampler | GradientCombiner, tasks: Sequence[str]) -> list[Problem]:
    try:
        with guard(f"{kind_word(part.kind)} {part.name!r} cannot be checked"):
            return [Problem(join(path, one.path), one.message) for one in part.problems(tasks)]
    except TaskloomError as error:
        return [Problem(path, str(error))]
