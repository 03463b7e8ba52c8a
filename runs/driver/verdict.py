"""Decides what follows an attempt: the cell is finished, failed, or tried again. Pure functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from taskloom.core.engine import Event

#: How often a cell is tried whose worker is lost.
ATTEMPTS = 3


@dataclass(frozen=True)
class Verdict:
    """``again`` with ``micro_batch`` is another attempt, from the last checkpoint; the others are ends.

    ``halt`` says that no other cell could do better now, because the disk is full.
    """

    how: Literal["finished", "failed", "oom", "interrupted", "paused", "again"]
    reason: str = ""
    micro_batch: int | None = None
    halt: bool = False


def judge(event: Event, past: Sequence[Event], *, attempts: int = ATTEMPTS) -> Verdict:
    """Decide what follows the event that ended an attempt.

    ``past`` are the events that ended earlier attempts of this run, oldest first. A lost worker is replaced until
    there were ``attempts``; a cell that ran out of memory is tried with half the micro-batch until that is 1, or,
    before its first step, like one whose worker is lost; an error in training would only occur again.
    """
    reason = _reason(event)
    micro_batch = event.facts.get("micro_batch", past[-1].facts.get("micro_batch") if past else None)
    match event.what:
        case "finished":
            return Verdict("finished")
        case "interrupted" if event.facts.get("paused"):
            return Verdict("paused")
        case "interrupted":
            return Verdict("interrupted", event.facts.get("reason", ""), micro_batch)
        case "oom" if micro_batch:
            smaller = half(micro_batch)
            if smaller is None:
                where = reason.removeprefix("out of memory with 1 example of ").replace(" at a time", "", 1)
                return Verdict("oom", f"out of memory even with one example at a time: {where}")
            return Verdict("again", reason, smaller)
        case "lost" | "oom":
            reasons = [_reason(end) for end in (*past, event) if _is_lost(end)]
            if len(reasons) < attempts:
                return Verdict("again", reason, micro_batch)
            times = f"{len(reasons)} times" if len(reasons) > 1 else "once"
            causes = "; ".join(dict.fromkeys(map(_cause, reasons)))
            if event.what == "oom":
                return Verdict("oom", f"out of memory before its first step, tried {times}: {causes}")
            return Verdict("failed", f"lost its worker {times}: {causes}")
    return Verdict("failed", reason, halt=bool(event.facts.get("disk_full")))


def _is_lost(end: Event) -> bool:
    """Whether another worker might help after an attempt, and a smaller micro-batch cannot."""
    return end.what == "lost" or (end.what == "oom" and not end.facts.get("micro_batch"))


def _reason(event: Event) -> str:
    return str(event.facts.get("reason") or "no reason given")


def _cause(reason: str) -> str:
    """A reason without the process number, which differs each time.

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


def next_micro_batch(how: str | None, micro_batch: int | None) -> int | None:
    """The micro-batch to resume with after an earlier driver's attempt; ``how`` it ended is in the ledger.

    A cell that did not fit at all starts without a limit: whoever tries it again has freed memory.
    """
    return half(micro_batch) if how == "oom" and micro_batch else micro_batch
