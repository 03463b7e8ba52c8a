"""What becomes of a cell after an attempt ended: done, failed, or tried again. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taskloom.core.engine import Event

#: How often a cell is tried whose worker is lost.
ATTEMPTS = 3
#: The batch of a task that a sampler's ``batch_size`` does not name.
UNNAMED = 8


@dataclass(frozen=True)
class Verdict:
    """``again`` with ``micro_batch`` is another attempt, from the last checkpoint; the others are ends.

    ``halt`` says that no other cell could do better now, because the disk is full.
    """

    how: Literal["finished", "failed", "oom", "interrupted", "again"]
    reason: str = ""
    micro_batch: int | None = None
    halt: bool = False


def judge(event: Event, past: Sequence[Event], spec: Mapping[str, Any], *, attempts: int = ATTEMPTS) -> Verdict:
    """What follows from the event that ended an attempt.

    ``past`` are the events that ended earlier attempts of this run, oldest first. A lost worker is replaced until
    there were ``attempts``; a cell that ran out of memory is tried with half the micro-batch until that is 1; what
    fails by itself would fail again.
    """
    reason = _reason(event)
    micro_batch = event.facts.get("micro_batch", past[-1].facts.get("micro_batch") if past else None)
    match event.what:
        case "finished":
            return Verdict("finished")
        case "interrupted":
            return Verdict("interrupted", event.facts.get("reason", ""), micro_batch)
        case "oom":
            smaller = half(micro_batch or largest_batch(spec))
            if smaller is None:
                where = reason.removeprefix("out of memory with 1 example of ").replace(" at a time", "", 1)
                return Verdict("oom", f"out of memory even with one example at a time: {where}")
            return Verdict("again", reason, smaller)
        case "lost":
            lost = [_reason(end) for end in (*past, event) if end.what == "lost"]
            if len(lost) < attempts:
                return Verdict("again", reason, micro_batch)
            times = f"{len(lost)} times" if len(lost) > 1 else "once"
            return Verdict("failed", f"lost its worker {times}: {'; '.join(dict.fromkeys(map(_cause, lost)))}")
    return Verdict("failed", reason, halt=bool(event.facts.get("disk_full")))


def _reason(event: Event) -> str:
    return str(event.facts.get("reason") or "no reason given")


def _cause(reason: str) -> str:
    """A reason without the number of the process, which is another each time.

    >>> _cause("worker process 71 was killed (SIGKILL)")
    'worker process was killed (SIGKILL)'
    """
    return re.sub(r"\bworker process \d+", "worker process", reason)


def half(micro_batch: int) -> int | None:
    """The next smaller micro-batch, or ``None`` below 1.

    >>> half(32), half(3), half(1)
    (16, 1, None)
    """
    return micro_batch // 2 if micro_batch > 1 else None


def next_micro_batch(how: str | None, micro_batch: int | None, spec: Mapping[str, Any]) -> int | None:
    """The micro-batch of a cell whose last attempt by another driver had one and ended so: as small as has to be.

    A cell that did not fit at all begins anew: somebody who tries it again has made room.
    """
    return half(micro_batch or largest_batch(spec)) if how == "oom" else micro_batch


def largest_batch(spec: Mapping[str, Any]) -> int:
    """The largest batch of one task that the stages of a run ask for; 1 where that is unknown."""
    sizes = [1]
    for stage in spec.get("stages", ()):
        limit = stage.get("micro_batch")
        asked = stage.get("sampler", {}).get("batch_size")
        others = isinstance(asked, Mapping) and set(stage.get("tasks") or spec.get("tasks", ())) - set(asked)
        numbers = [*_numbers(asked), *([UNNAMED] if others else [])]
        sizes += [min(size, limit) if limit else size for size in numbers]
    return max(sizes)


def _numbers(value: Any) -> list[int]:
    if isinstance(value, Mapping):
        return [number for each in value.values() for number in _numbers(each)]
    return [value] if isinstance(value, int) else []
