"""What a cell's log file says of it: a line with the time for each start, epoch, stage and end."""

from datetime import datetime

from taskloom.core.events import Event
from taskloom.core.units import duration, figures, memory, out_of_memory


def story_line(event: Event, moment: datetime | None = None) -> str | None:
    """An event as a line of its cell's log; ``None`` for those that are no part of it.

    >>> story_line(Event("started", "c0", {"worker": "cpu:1", "device": "cpu"}), datetime(2026, 5, 4, 3, 2, 1))
    '2026-05-04 03:02:01  started on cpu, worker cpu:1'
    """
    text = _text(event)
    return None if text is None else f"{moment or datetime.now():%Y-%m-%d %H:%M:%S}  {text}"


def _text(event: Event) -> str | None:
    facts = event.facts
    match event.what:
        case "started" | "resumed":
            parts = [f"{event.what} on {facts.get('device', 'an unknown device')}"]
            parts += [f"worker {facts['worker']}"] if facts.get("worker") else []
            parts += [f"attempt {facts['attempt']}"] if facts.get("attempt", 1) > 1 else []
            parts += [f"at most {facts['micro_batch']} at a time"] if facts.get("micro_batch") else []
            return ", ".join(parts)
        case "epoch":
            parts = [f"stage {facts['stage'] + 1} epoch {facts['epoch']}"]
            parts += [f"loss {figures(facts['losses'])}"] if facts.get("losses") else []
            parts += [f"dev {figures(facts['scores'])}"] if facts.get("scores") else []
            parts += [memory(facts["memory"])] if facts.get("memory") else []
            return "  ".join(parts)
    return told_news(event, best=True)


def told_news(event: Event, epochs: int | None = None, *, best: bool = False) -> str | None:
    """A stage taken over, a plugin's word or an end, as a line; ``None`` for other events.

    >>> told_news(Event("finished", "c0", {"seconds": 3, "scores": {"sst": 0.5}, "best_epoch": 2}), best=True)
    'finished in 3.0 s, best epoch 2, dev sst 0.500'
    """
    facts = event.facts
    match event.what:
        case "stage" if facts.get("shared"):
            return f"stage {facts['index'] + 1} taken over from another cell"
        case "log":
            return str(facts["message"])
        case "finished":
            took = f" in {duration(facts['seconds'])}" if facts.get("seconds") is not None else ""
            epoch = f", best epoch {facts.get('best_epoch')}" if best else ""
            return f"finished{took}{epoch}, dev {figures(facts.get('scores', {}))}"
        case "failed" | "oom" | "lost" | "interrupted":
            return told_end(event, epochs)
    return None


def told_end(event: Event, epochs: int | None = None) -> str:
    """Why an attempt ended, and what follows from it.

    ``epochs`` is how many it had done, if that is known.
    ``again`` in its facts says that the cell is tried again: ``attempt`` of ``attempts``, or with ``next_micro_batch``.

    >>> facts = {"reason": "worker cpu:1 was killed (signal 9)", "again": True, "attempt": 2, "attempts": 3}
    >>> told_end(Event("lost", "c0", facts))
    'worker cpu:1 was killed (signal 9); is tried again, attempt 2 of 3'
    """
    facts, what = event.facts, event.what
    reason = " ".join(str(facts.get("reason") or "").split())
    if what == "oom":
        reason = out_of_memory(reason)
    if not facts.get("again"):
        if what == "interrupted":
            return f"interrupted{f': {reason}' if reason else ''}; goes on when it is run again"
        return reason if what == "oom" else f"{what}: {reason or 'no reason given'}"
    if what == "oom":
        size = facts.get("next_micro_batch")
        return f"{reason}; tried again with {size}" if size else f"{reason}; tried again"
    follows = "is tried again" if epochs is None else f"goes on from epoch {epochs}" if epochs else "begins again"
    attempt = f", attempt {facts['attempt']}" if "attempt" in facts else ""
    most = f" of {facts['attempts']}" if attempt and "attempts" in facts else ""
    return f"{reason or what}; {follows}{attempt}{most}"
