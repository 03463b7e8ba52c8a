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
from taskloom.core.testing.tracked import Call, run, without_scores

HOOKS = ("taskloom_run_started", "taskloom_epoch_ended", "taskloom_run_finished", "taskloom_run_failed")
#: Two cells of one row of the table: their labels are the same.
CELLS = ("0123456789abcdef0123", "3210fedcba9876543210")


def tracks(module: Any) -> bool:
    """Whether a module has a tracker hook."""
    return any(hasattr(module, hook) for hook in HOOKS)


@contextmanager
def _listening(plugin: Plugin) -> Iterator[pluggy.PluginManager]:
    """The plugin in a manager of its own, in a folder that goes away again."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin.module)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        yield manager


def _short(value: Any) -> str:
    """An argument in a few words: of a mapping, its keys."""
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, dict) else repr(value)


def _tell(manager: pluggy.PluginManager, calls: list[Call]) -> None:
    for hook, arguments in calls:
        with given(f"{hook}({', '.join(f'{key}={_short(value)}' for key, value in arguments.items())})"):
            getattr(manager.hook, hook)(**copy.deepcopy(arguments))


def it_takes_every_event_of_a_run(plugin: Plugin) -> None:
    with _listening(plugin) as manager:
        _tell(manager, run(CELLS[0]))


def it_takes_every_event_of_a_run_that_fails(plugin: Plugin) -> None:
    """Also of one that fails before its first epoch."""
    with _listening(plugin) as manager:
        _tell(manager, run(CELLS[0], fails=True))
        short = run(CELLS[1], fails=True)
        _tell(manager, [short[0], short[-1]])


def it_takes_a_run_without_epochs_or_scores(plugin: Plugin) -> None:
    """A stage of 0 epochs is scored as epoch 0, with no losses; where nothing can be scored, scores are empty."""
    with _listening(plugin) as manager:
        with given("a last stage of 0 epochs"):
            _tell(manager, run(CELLS[0], last=0))
        with given("a run of which nothing is scored"):
            _tell(manager, without_scores(run(CELLS[1])))


def it_takes_a_run_that_goes_on_from_a_checkpoint(plugin: Plugin) -> None:
    """Its beginning is told again, perhaps to a new process."""
    with _listening(plugin) as manager:
        calls = run(CELLS[0])
        _tell(manager, [*calls[:2], calls[0], *calls[2:]])


def it_keeps_two_cells_apart(plugin: Plugin) -> None:
    """Two cells of one label run at once; the same cell may run again."""
    with _listening(plugin) as manager:
        with given("two cells of one label in turns"):
            _tell(manager, [call for pair in zip(*(run(cell) for cell in CELLS), strict=True) for call in pair])
        with given("the same cell once more"):
            _tell(manager, run(CELLS[0]))


def it_leaves_what_it_is_told_as_it_is(plugin: Plugin) -> None:
    with _listening(plugin) as manager:
        for calls in (run(CELLS[0]), run(CELLS[1], fails=True)):
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
        _tell(manager, run(CELLS[0]))


def it_prints_nothing(plugin: Plugin) -> None:
    """Standard output is the command's."""
    printed = io.StringIO()
    with _listening(plugin) as manager, redirect_stdout(printed):
        _tell(manager, run(CELLS[0]))
    require(not printed.getvalue(), f"it prints {printed.getvalue()[:80]!r}")


LAWS = (
    it_takes_every_event_of_a_run,
    it_takes_every_event_of_a_run_that_fails,
    it_takes_a_run_without_epochs_or_scores,
    it_takes_a_run_that_goes_on_from_a_checkpoint,
    it_keeps_two_cells_apart,
    it_leaves_what_it_is_told_as_it_is,
    it_touches_no_global_random_state,
    it_prints_nothing,
)
