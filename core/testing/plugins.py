"""Laws of whole plugins, and of the trackers and packaged grids in them."""

import copy
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pluggy
from pydantic import ValidationError

from taskloom.core import hookspecs
from taskloom.core.component import Component
from taskloom.core.errors import unknown
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.core.testing.law import given, law, require

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("taskloom_"))
TRACKER_HOOKS = ("taskloom_run_started", "taskloom_epoch_ended", "taskloom_run_finished", "taskloom_run_failed")


def classes_of(module: Any) -> list[Any]:
    """The components that the plugin adds."""
    if not hasattr(module, "taskloom_components"):
        return []
    with given("taskloom_components()"):
        found = module.taskloom_components()
        sound = isinstance(found, Sequence) and not isinstance(found, str)
        require(sound, f"it should return a list of classes. Found {found!r}.")
    return list(found)


def _manager(module: Any) -> pluggy.PluginManager:
    """The plugin in a manager of its own."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    return manager


@law("plugin")
def its_hooks_are_those_of_taskloom(module: Any) -> None:
    """Spelt as they are, marked with ``@hookimpl``, and with arguments that exist; and there is at least one."""
    own = [name for name in dir(module) if name.startswith("taskloom_")]
    for name in own:
        require(name in HOOKS, unknown("hook", name, HOOKS, where="hooks"))
        require(hasattr(getattr(module, name), "taskloom_impl"), f"{name} should be marked with @hookimpl")
    require(bool(own), f"the module has no hook; a function such as {HOOKS[0]}() says what it adds")
    _manager(module).check_pending()


@law("plugin")
def its_components_are_whole_classes_of_different_names(module: Any) -> None:
    known: dict[tuple[str, str], Any] = {}
    for one in classes_of(module):
        sound = isinstance(one, type) and issubclass(one, Component)
        require(sound, f"taskloom_components() should return components. Found {one!r}.")
        missing = sorted(getattr(one, "__abstractmethods__", ()))
        require(not missing, f"{one.__name__} does not define {', '.join(missing)}")
        other = known.setdefault((one.kind, one.name), one)
        require(other is one, f"{other.__name__} and {one.__name__} are both called {one.name!r}")


# Packaged grids


def _grids(module: Any) -> Iterator[tuple[str, Path]]:
    found = module.taskloom_grids()
    sound = isinstance(found, list | tuple) and bool(found) and all(isinstance(path, Path) for path in found)
    require(sound, f"taskloom_grids() should return the paths of its files. Found {found!r}.")
    yield from ((path.name, path) for path in found)


@law("grid", cases=_grids)
def its_files_are_grids_with_a_name_and_a_description(module: Any, path: Path) -> None:
    """JSON in the form of a grid; what axes and cells fill may be missing in the base. A grid's name is its file's."""
    sound = path.suffix == ".json" and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", path.stem) is not None
    require(sound, f"a file should be called like 'my-grid.json'. Found {path.name!r}.")
    names = [other.stem for _, other in _grids(module)]
    require(names.count(path.stem) == 1, f"the name {path.stem!r} appears twice")
    grid = json.loads(path.read_text(encoding="utf-8"))
    problems = _problems(GridSpec, grid)
    require(not problems, "; ".join(problems))
    require(bool(grid.get("description")), "it should have a description, a line for the listing")
    if isinstance(grid["base"], dict):
        groups = [grid.get("axes", {}), *grid.get("zip", []), *(cell.get("set", {}) for cell in grid.get("cells", []))]
        varied = {str(key).partition(".")[0] for group in groups for key in group}
        problems = [one for one in _problems(RunSpec, grid["base"]) if re.split(r"[.:]", one)[0] not in varied]
        require(not problems, "; ".join(f"base.{one}" for one in problems))


def _problems(model: type[GridSpec] | type[RunSpec], value: Any) -> list[str]:
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []


# Trackers: hooks that are called while runs go on. The calls have the keys and types of real ones.

Call = tuple[str, dict[str, Any]]
#: Two cells of one row of the table: their labels are the same.
CELLS = ("0123456789abcdef0123", "3210fedcba9876543210")


def _spec(last: int) -> dict[str, Any]:
    """A specification: a stage of which nothing is scored, then ``last`` epochs of all tasks."""
    tasks = {
        "pairs": {"data": {"name": "generated"}, "head": {"name": "embedding"}, "loss": {"name": "dynamic_margin"}},
        "sst": {"data": {"name": "generated"}, "head": {"name": "linear"}, "loss": {"name": "cross_entropy"}},
    }
    stages = [{"tasks": ["pairs"], "epochs": 1}, {"tasks": ["pairs", "sst"], "epochs": last}]
    rates = [{**stage, "optimizer": {"lr": 1e-05}} for stage in stages]
    spec = RunSpec.model_validate({"encoder": {"name": "minbert"}, "tasks": tasks, "stages": rates})
    unset: Any = {"precision": True, "resources": True, "stages": {"__all__": {"micro_batch"}}}
    return spec.model_dump(mode="json", exclude=unset)


def _epoch_facts(stage: int, epoch: int, *, scored: bool) -> dict[str, Any]:
    """The facts of an epoch. Epoch 0 scores what is not trained: there are no losses. Stage 0 has no dev scores."""
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
    about = {"cell": cell, "label": "sum"}
    epochs = [(0, 1), *((1, epoch) for epoch in range(1, last + 1))] if last else [(0, 1), (1, 0)]
    calls: list[Call] = [("taskloom_run_started", {**about, "spec": _spec(last)})]
    calls += [("taskloom_epoch_ended", {**about, "facts": _epoch_facts(*at, scored=scored)}) for at in epochs]
    if fails:
        reason = "the loss 'cross_entropy' of task 'sst' is nan (stage 1, epoch 3, step 2)"
        return [*calls, ("taskloom_run_failed", {**about, "reason": reason})]
    scores = _epoch_facts(*epochs[-1], scored=scored)["scores"]
    costs = {"examples": 64 * last, "backwards": 2 * last}
    facts = {"scores": scores, "best_epoch": last, "test": {}, "costs": costs, "seconds": 2.0}
    facts["peak_memory"] = 10**8 + last
    return [*calls, ("taskloom_run_finished", {**about, "facts": facts})]


def _runs(_: Any) -> Iterator[tuple[str, list[Call]]]:
    """Runs of every sort, in the order of their calls."""
    whole, failed = run_calls(), run_calls(fails=True)
    yield "a run", whole
    yield "a run that fails", failed
    yield "a run that fails before its first epoch", [failed[0], failed[-1]]
    yield "a last stage of 0 epochs, which is scored as epoch 0", run_calls(last=0)
    yield "a run of which nothing is scored", run_calls(scored=False)
    yield "a run that goes on from a checkpoint", [*whole[:2], whole[0], *whole[2:]]
    yield "a run that is run again", [*whole, *whole]
    pairs = zip(*(run_calls(cell) for cell in CELLS), strict=True)
    yield "two cells of one label in turns", [call for pair in pairs for call in pair]


@law("tracker", cases=_runs)
def it_takes_every_call_of_every_run(module: Any, calls: list[Call]) -> None:
    """Of runs that fail, are resumed, run side by side, or have nothing to score, too."""
    manager = _manager(module)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for hook, arguments in calls:
            shown = (f"{key}={_short(value)}" for key, value in arguments.items())
            with given(f"{hook}({', '.join(shown)})"):
                getattr(manager.hook, hook)(**copy.deepcopy(arguments))


def _short(value: Any) -> str:
    """An argument in a few words: of a mapping, its keys."""
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, dict) else repr(value)
