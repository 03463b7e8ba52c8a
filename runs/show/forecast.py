"""How long a plan still takes: what each cell should need, dealt out to the workers. Pure functions."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class AtWork:
    """A cell that runs: seconds it should take in all (``None``: nobody knows), and how far it is.

    ``share`` is how much of it was done ``since`` seconds ago, when it last said so; of that it had ``before``
    already when its time was taken first (from a checkpoint), ``elapsed`` seconds ago.
    """

    expected: float | None
    share: float = 0.0
    elapsed: float = 0.0
    since: float = 0.0
    before: float = 0.0

    @property
    def whole(self) -> float | None:
        """Seconds that the whole cell takes: what its like took, and the more by its own pace the further it is."""
        gained, took = self.share - self.before, self.elapsed - self.since
        if gained <= 0 or took <= 0:
            return self.expected
        pace = took / gained
        return pace if self.expected is None else gained * pace + (1.0 - gained) * self.expected

    def left(self, whole: float) -> float:
        """Seconds until it is done, if all of it takes ``whole``."""
        return max(0.0, whole * (1.0 - min(1.0, self.share)) - self.since)


def seconds_left(running: Iterable[AtWork], waiting: Iterable[float | None], workers: int) -> float | None:
    """Seconds until the last cell is done, or ``None`` while nothing is known of any.

    Running cells keep their workers until they are done; every waiting cell, given by the seconds that it should
    take, the longest first, goes to the worker that is free first. Cells of which nothing is known count as the mean
    of the others.

    >>> seconds_left([AtWork(10.0, share=0.5, elapsed=5.0)], [10.0, 10.0, 10.0], workers=2)
    20.0
    >>> seconds_left([AtWork(None)], [None], workers=1)
    """
    running, waiting = list(running), list(waiting)
    if not running and not waiting:
        return 0.0
    known = [seconds for seconds in (*(cell.whole for cell in running), *waiting) if seconds is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    free = [cell.left(mean if cell.whole is None else cell.whole) for cell in running]
    free += [0.0] * (workers - len(free))
    heapq.heapify(free)
    for seconds in sorted((mean if seconds is None else seconds for seconds in waiting), reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
