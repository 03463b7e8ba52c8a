"""Tracker hooks: plugins that want to know how runs go."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from taskloom.core import Event, Job

if TYPE_CHECKING:
    from taskloom.registry.installed.manager import Failure, Plugins

HOOKS = {
    "started": "taskloom_run_started",
    "resumed": "taskloom_run_started",
    "epoch": "taskloom_epoch_ended",
    "finished": "taskloom_run_finished",
    "failed": "taskloom_run_failed",
}


def notify_trackers(plugins: "Plugins", event: Event, job: Job) -> Iterator[str]:
    """Call the trackers' hooks for an event, each with copies of its own.

    Yields a message for each one that raises, once for each hook; the run goes on.
    """
    if event.what not in HOOKS:
        return
    offered: dict[str, Any] = {
        "cell": event.cell,
        "label": job.label,
        "spec": job.spec,
        "facts": {name: fact for name, fact in event.facts.items() if name != "retold"},  # late, and else the same
        "reason": event.facts.get("reason", ""),
    }
    known = len(plugins.failed)
    plugins.results(HOOKS[event.what], **offered)
    yield from (f"{failure} (said once; the run goes on)" for failure in plugins.failed[known:])


def broken_trackers(plugins: "Plugins") -> "list[Failure]":
    """The first error of each plugin in each tracker hook so far: with ``--strict-plugins`` a run then ends with 1."""
    return [failure for failure in plugins.failed if failure.hook in HOOKS.values()]
