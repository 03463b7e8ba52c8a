"""Laws of trackers: a plugin's hooks that are told how runs go."""

import copy
import io
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.testing.law import RAISED, Plugin, given, require, untouched_randomness

HOOKS = ("taskloom_run_started", "taskloom_epoch_ended", "taskloom_run_finished", "taskloom_run_failed")
Call = tuple[str, dict[str, Any]]
#: Two cells of one row of the table: their labels are the same.
CELLS = ("0123456789abcdef", "fedcba9876543210")


def tracks(module: Any) -> bool:
    """Whether a module has a tracker hook."""
    return any(hasattr(module, hook) for hook in HOOKS)


def _run(cell: str, *, fails: bool = False) -> list[Call]:
    """What a tracker is told of one small run."""
    about = {"cell": cell, "label": "sum"}
    spec = {"encoder": {"name": "minbert"}, "tasks": {"sst": {"loss": {"name": "cross_entropy"}}}, "seed": 0}
    calls: list[Call] = [("taskloom_run_started", {**about, "spec": spec})]
    for epoch in (1, 2):
        scores = {"dev": {"sst": 0.25 * epoch}, "overall": 0.25 * epoch}
        facts = {"stage": 0, "epoch": epoch, "losses": {"sst": 1.5 / epoch}, "seconds": 0.5, **scores}
        calls.append(("taskloom_epoch_ended", {**about, "facts": facts}))
    if fails:
        return [*calls, ("taskloom_run_failed", {**about, "reason": "TrainingError: the loss of 'sst' is not finite"})]
    facts = {"scores": {"sst": 0.5, "overall": 0.5}, "best_epoch": 2, "seconds": 1.0, "peak_memory": 10**8}
    return [*calls, ("taskloom_run_finished", {**about, "facts": facts})]


@contextmanager
def _listening(plugin: Plugin) -> Iterator[pluggy.PluginManager]:
    """The plugin in a manager of its own, in a folder that goes away again."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin.module)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        yield manager


def _tell(manager: pluggy.PluginManager, calls: list[Call]) -> None:
    for hook, arguments in calls:
        with given(f"{hook}({', '.join(f'{key}={str(value)[:40]!r}' for key, value in arguments.items())})"):
            getattr(manager.hook, hook)(**copy.deepcopy(arguments))


def it_takes_every_event_of_a_run(plugin: Plugin) -> None:
    with _listening(plugin) as manager:
        _tell(manager, _run(CELLS[0]))


def it_takes_every_event_of_a_run_that_fails(plugin: Plugin) -> None:
    """Also of one that fails before its first epoch."""
    with _listening(plugin) as manager:
        _tell(manager, _run(CELLS[0], fails=True))
        short = _run(CELLS[1], fails=True)
        _tell(manager, [short[0], short[-1]])


def it_takes_a_run_that_goes_on_from_a_checkpoint(plugin: Plugin) -> None:
    """Its beginning is told again, perhaps to a new process."""
    with _listening(plugin) as manager:
        calls = _run(CELLS[0])
        _tell(manager, [*calls[:2], calls[0], *calls[2:]])


def it_keeps_two_cells_apart(plugin: Plugin) -> None:
    """Two cells of one label run at once; the same cell may run again."""
    with _listening(plugin) as manager:
        with given("two cells of one label in turns"):
            _tell(manager, [call for pair in zip(*(_run(cell) for cell in CELLS), strict=True) for call in pair])
        with given("the same cell once more"):
            _tell(manager, _run(CELLS[0]))


def it_leaves_what_it_is_told_as_it_is(plugin: Plugin) -> None:
    with _listening(plugin) as manager:
        for calls in (_run(CELLS[0]), _run(CELLS[1], fails=True)):
            for hook, arguments in calls:
                before = copy.deepcopy(arguments)
                try:
                    getattr(manager.hook, hook)(**arguments)
                except RAISED:
                    continue  # a law of its own
                for key, value in arguments.items():
                    require(value == before[key], f"with {hook}: {key!r} was {before[key]}, and is {value}")


def it_touches_no_global_random_state(plugin: Plugin) -> None:
    with _listening(plugin) as manager, untouched_randomness():
        _tell(manager, _run(CELLS[0]))


def it_prints_nothing(plugin: Plugin) -> None:
    """Standard output is the command's."""
    printed = io.StringIO()
    with _listening(plugin) as manager, redirect_stdout(printed):
        _tell(manager, _run(CELLS[0]))
    require(not printed.getvalue(), f"it prints {printed.getvalue()[:80]!r}")


LAWS = (
    it_takes_every_event_of_a_run,
    it_takes_every_event_of_a_run_that_fails,
    it_takes_a_run_that_goes_on_from_a_checkpoint,
    it_keeps_two_cells_apart,
    it_leaves_what_it_is_told_as_it_is,
    it_touches_no_global_random_state,
    it_prints_nothing,
)
