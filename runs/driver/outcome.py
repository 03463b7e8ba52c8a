"""What became of a plan's cells."""

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """How many cells were trained now, failed (for want of memory too), were stopped, or were there already.

    ``elsewhere`` counts those that another driver finished meanwhile. ``reasons`` are those of the failed cells.
    ``halted`` says why no further cell was begun, if not for somebody's asking.
    """

    finished: int = 0
    failed: int = 0
    cached: int = 0
    elsewhere: int = 0
    interrupted: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    halted: str = ""

    def fail(self, cell: str, reason: str) -> None:
        """Count a cell that did not succeed."""
        self.failed += 1
        self.reasons[cell] = reason
