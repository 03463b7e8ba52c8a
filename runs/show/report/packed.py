"""Differences as a page shows them: rounded once, in words, and packed for its script, which puts them in place.

A packed difference is ``delta,half,p,up`` and a letter, in units of the last digit shown, ``p`` in thousandths: the
interval reaches ``half`` down and up, or ``up`` upwards if rounding made the two unequal; without ``p`` it is 1. The
letter is the verdict's first, a capital where the row has a variance of its own; ``u`` is a difference without an
interval (its second figure numbers the reason) and ``x`` the baseline itself::

    21,25,120o  →  +0.021 [−0.004, +0.046], p 0.120, open
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskloom.runs.analysis.contrasts import Judged


@dataclass(frozen=True)
class Shown:
    """A difference in units of the last digit shown; ``p`` in thousandths, 0 if it is less than one."""

    delta: int | None
    low: int
    high: int
    p: int
    verdict: str
    own: bool
    why: str
    digits: int

    @property
    def word(self) -> str:
        """The verdict, or that there is nothing to judge."""
        return "no result" if self.delta is None else self.verdict

    @property
    def numbers(self) -> str:
        """``+0.021 [−0.004, +0.046]``."""
        if self.delta is None:
            return ""
        delta = signed(self.delta, self.digits)
        if self.why:
            return delta
        return f"{delta} [{signed(self.low, self.digits)},\u00a0{signed(self.high, self.digits)}]"  # on one line

    @property
    def chance(self) -> str:
        """``p 0.120``, or why there is none."""
        if self.why:
            return self.why
        shown = "p <0.001" if self.p == 0 else f"p {self.p / 1000:.3f}"
        return f"{shown}, own variance" if self.own else shown

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """Low, middle and high as they are shown."""
        if self.delta is None or self.why:
            return None
        unit = 10.0**-self.digits
        return self.low * unit, self.delta * unit, self.high * unit

    def packed(self, reasons: list[str]) -> str:
        if self.why:
            if self.why not in reasons:
                reasons.append(self.why)
            return f"{'' if self.delta is None else self.delta},{reasons.index(self.why)}u"
        assert self.delta is not None
        down, up = self.delta - self.low, self.high - self.delta
        fields = [self.delta, down, *([self.p] if self.p != 1000 or up != down else []), *([up] if up != down else [])]
        letter = self.verdict[0]
        return ",".join(map(str, fields)) + (letter.upper() if self.own else letter)


def shown(judged: Judged, digits: int) -> Shown:
    """A judged difference, rounded."""
    contrast = judged.contrast
    delta = _units(contrast.delta, digits) if contrast.seeds else None
    low, high = (_units(end, digits) for end in judged.interval or (0.0, 0.0))
    p = 1.0 if judged.p is None else judged.p
    why = contrast.why or ("" if judged.interval else "no interval")
    return Shown(
        delta, low, high, 0 if p < 0.001 else round(1000 * p), judged.verdict, contrast.variance == "own", why, digits
    )


def _units(value: float, digits: int) -> int:
    """A number in units of its last digit, rounded as it is everywhere else."""
    return round(round(value, digits) * 10.0**digits)


def pack(found: Iterable[Judged | None], digits: int, reasons: list[str]) -> str:
    """Differences one after another; None is the baseline itself. New ``reasons`` are added to the list."""
    return "".join("x" if each is None else shown(each, digits).packed(reasons) for each in found)


def signed(value: int, digits: int) -> str:
    """A number in units of its last digit, with its sign.

    >>> signed(-4, 3), signed(21, 3), signed(0, 2)
    ('−0.004', '+0.021', '+0.00')
    """
    return f"{'−' if value < 0 else '+'}{abs(value) / 10**digits:.{digits}f}"


def counted(found: Sequence[Shown]) -> str:
    """How many there are of each verdict: ``2 better, 1 worse, 5 open``."""
    words = [each.word for each in found]
    parts = [f"{words.count(word)} {word}" for word in ("better", "worse", "equal", "open") if word in words]
    parts += [f"{words.count('no result')} without a result"] if "no result" in words else []
    return ", ".join(parts)
