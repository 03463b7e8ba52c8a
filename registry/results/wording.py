"""A cell's events and its state in words: for its log, the progress of a run, listings, tables and explanations."""

from collections.abc import Mapping, Sequence
from typing import Any

from taskloom.core.engine import Event
from taskloom.core.errors import count

#: Rows that are named in a sentence; further ones are counted.
MOST_NAMED = 4
#: How the reason of a cell begins that pauses after the epochs that its job wants.
PAUSED = "halving: paused"


def format_event(event: Event, spec: Mapping[str, Any]) -> str | None:
    """An event of a cell with this ``spec`` on one line; ``None`` for a stage that was simply trained.

    >>> format_event(Event("finished", "c0", {"seconds": 3, "scores": {"sst": 0.5}, "best_epoch": 2}), {})
    'finished in 3.0 s, best epoch 2, dev sst 0.500'
    >>> format_event(Event("finished", "c0", {"scores": {"para": 0.7, "sst": 0.5}}), {"tasks": {"sst": {}, "para": {}}})
    'finished, dev sst 0.500 para 0.700'
    """
    facts = event.facts
    match event.what:
        case "started" | "resumed":
            parts = [f"{event.what} on {facts.get('device', 'an unknown device')}"]
            parts += [f"worker {facts['worker']}"] if facts.get("worker") else []
            parts += [f"attempt {facts['attempt']}"] if facts.get("attempt", 1) > 1 else []
            parts += [f"micro-batch {facts['micro_batch']}"] if facts.get("micro_batch") else []
            return ", ".join(parts)
        case "progress" | "epoch":
            return format_progress(facts, spec)
        case "stage" if facts.get("shared"):
            stages = max(len(spec.get("stages", ())), facts["index"] + 1)
            return f"stage {facts['index'] + 1} of {stages} taken over from another cell"
        case "log":
            return str(facts["message"])
        case "finished":
            parts = ["finished" if facts.get("seconds") is None else f"finished in {duration(facts['seconds'])}"]
            parts += [f"best epoch {facts['best_epoch']}"] if facts.get("best_epoch") is not None else []
            scores = facts.get("scores") or {}  # in the order of the spec, also those of the ledger
            ordered = {**{task: scores[task] for task in spec.get("tasks", ()) if task in scores}, **scores}
            parts += [f"dev {format_scores(ordered)}"] if scores else []
            return ", ".join(parts)
        case "failed" | "oom" | "lost" | "interrupted":
            return _format_end(event)
    return None


def format_progress(facts: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """A cell's progress and figures on one line; unknown ones are left out.

    >>> facts = {"stage": 1, "epoch": 2, "step": 5, "steps": 10, "scores": {"sst": 0.5}, "memory": 2**30}
    >>> format_progress(facts, {"stages": [{"epochs": 1}, {"epochs": 3}]})
    'stage 2/2 epoch 2/3 step 5/10  dev sst 0.500  1.0 GiB'
    """
    stages = [stage["epochs"] for stage in spec.get("stages", ())]
    where = [f"stage {facts['stage'] + 1}/{len(stages)}"] if len(stages) > 1 else []
    where.append(f"epoch {facts['epoch']}" + (f"/{stages[facts['stage']]}" if stages else ""))
    where += [f"step {facts['step']}/{facts['steps']}"] if facts.get("steps") else []
    parts = [" ".join(where)]
    parts += [f"loss {format_scores(facts['losses'])}"] if facts.get("losses") else []
    parts += [f"dev {format_scores(facts['scores'])}"] if facts.get("scores") else []
    parts += [f"{facts['rate']:.1f} steps/s"] if facts.get("rate") else []
    parts += [memory(facts["memory"])] if facts.get("memory") else []
    return "  ".join(parts)


def format_scores(scores: Mapping[str, float]) -> str:
    """Scores or losses by task, the overall one first, since a line may be cut; empty where there are none.

    >>> format_scores({"sst": 0.41249, "overall": 0.5})
    'overall 0.500 sst 0.412'
    """
    overall_first = sorted(scores.items(), key=lambda task_score: task_score[0] != "overall")
    return " ".join(f"{name} {score:.3f}" for name, score in overall_first)


def _format_end(event: Event) -> str:
    """Why an attempt ended, and whether this run tries the cell again (the fact ``again``)."""
    facts = event.facts
    if not facts.get("again"):
        return format_state(event.what, facts.get("reason"))
    text = f"{format_reason(event.what, facts.get('reason')) or event.what}; trying again"
    if event.what == "oom":
        size = facts.get("next_micro_batch")
        return f"{text} with {count(size, 'example')} at a time" if size else text
    text += f", attempt {facts['attempt']}" if "attempt" in facts else ""
    return text + (f" of {facts['attempts']}" if "attempts" in facts else "")


def format_state(status: str, reason: str | None = None, epochs: int | None = None) -> str:
    """A cell's state in words, from its status in the ledger; ``epochs`` is the number of finished ones, if known.

    >>> format_state("failed", "loss of task 'sst' is not finite"), format_state("interrupted", epochs=2)
    ("failed: loss of task 'sst' is not finite", 'interrupted after 2 epochs; continues when it is run again')
    """
    why = format_reason(status, reason)
    after = "" if epochs is None else f" after {count(epochs, 'epoch')}"
    match status:
        case "oom" | "finished":
            return why or status
        case "running":
            return f"not finished{after}"
        case "interrupted" if (why or "").startswith(PAUSED):
            return str(why)
        case "interrupted":
            return f"interrupted{after}{f' ({why})' if why else ''}; continues when it is run again"
        case "planned":
            return "not run yet"
    return f"{status}: {why or 'no reason given'}"


def format_reason(status: str, reason: str | None) -> str:
    """The reason for a state on one line; that of a cell that ran out of memory says so once.

    >>> format_reason("oom", "out of memory with 1 example at a time"), format_reason("oom", "MemoryError")
    ('out of memory with 1 example at a time', 'out of memory: MemoryError')
    """
    text = " ".join((reason or "").split())
    if status != "oom" or "out of memory" in text.lower():
        return text
    return f"out of memory: {text}" if text else "out of memory"


def duration(seconds: float) -> str:
    """Seconds in readable units.

    >>> duration(8.31), duration(75), duration(3 * 3600 + 120), duration(50 * 3600)
    ('8.3 s', '1 min 15 s', '3 h 2 min', '2 d 2 h')
    """
    if round(seconds, 1) < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def memory(size: float) -> str:
    """Bytes in readable units.

    >>> memory(5 * 2**10), memory(412.4 * 2**20), memory(1.5 * 2**30)
    ('5 KiB', '412 MiB', '1.5 GiB')
    """
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**20:.0f} MiB" if size < 1000 * 2**20 else f"{size / 2**30:.1f} GiB"


def file_size(size: float) -> str:
    """Bytes on a disk in readable units: powers of 1000, as file managers use.

    >>> file_size(90_868_376), file_size(1_200), file_size(12)
    ('90.9 MB', '1.2 kB', '12 B')
    """
    for unit in ("B", "kB", "MB"):
        if round(size, 1) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def named(rows: Sequence[str]) -> str:
    """Row labels in words: each once, in quotes, the first few by name.

    >>> named(["a", "b", "a"]), named(list("abcdef"))
    ("'a' and 'b'", "'a', 'b', 'c', 'd' and 2 more")
    """
    names = [repr(row) for row in dict.fromkeys(rows)]
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
