"""Tracker hooks: plugins that want to know how runs go."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from taskloom.core import Event, Job

if TYPE_CHECKING:
    from taskloom.registry.manager import Plugins

HOOKS = {
    "started": "taskloom_run_started",
    "resumed": "taskloom_run_started",
    "epoch": "taskloom_epoch_ended",
    "finished": "taskloom_run_finished",
    "failed": "taskloom_run_failed",
}


def tell_trackers(plugins: "Plugins", event: Event, job: Job) -> Iterator[str]:
    """Call the trackers' hooks for an event; yields a message for each one that raises, and goes on."""
    if event.what not in HOOKS:
        return
    offered: dict[str, Any] = {
        "cell": event.cell,
        "label": job.label,
        "spec": job.spec,
        "facts": event.facts,
        "reason": event.facts.get("reason", ""),
    }
    known = len(plugins.failed)
    plugins.results(HOOKS[event.what], **offered)
    yield from (str(failure) for failure in plugins.failed[known:])
