"""What a cell's log file says of it: a line with the time for each start, epoch, stage and end."""

from datetime import datetime

from taskloom.core.events import Event
from taskloom.runs.board import told_news
from taskloom.runs.units import figures, memory


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
