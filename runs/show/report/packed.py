"""Differences as a page shows them: rounded once, in words, and packed for its script, which puts them in place.

A packed difference is ``delta,low,high,p`` and a letter, in units of the last digit shown, ``p`` in thousandths (1
if it is left out). The letter is the verdict's first, a capital where the row has a variance of its own; ``u`` is a
difference without an interval (its second figure numbers the reason) and ``x`` the baseline itself::

    21,-4,46,120o  →  +0.021 [−0.004, +0.046], p 0.120, open
"""

from collections.abc import Iterable
from dataclasses import dataclass

from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.show.differences import format_p

NO_RESULT = "no result"


@dataclass(frozen=True)
class Shown:
    """A difference in units of the last digit shown; ``p`` in thousandths, 0 if it is less than one.

    ``why`` says what makes an interval impossible; without any seed the verdict is that there is no result.
    """

    delta: int
    low: int
    high: int
    p: int
    verdict: str
    own: bool
    why: str
    digits: int

    @property
    def numbers(self) -> str:
        """``+0.021 [−0.004, +0.046]``."""
        if self.verdict == NO_RESULT:
            return ""
        delta, low, high = (signed(each, self.digits) for each in (self.delta, self.low, self.high))
        return delta if self.why else f"{delta} [{low},\u00a0{high}]"  # on one line

    @property
    def chance(self) -> str:
        """``p 0.120``, or why there is none."""
        return self.why or f"p {format_p(self.p / 1000)}{', own variance' * self.own}"

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """Low, middle and high as they are shown."""
        unit = 10.0**-self.digits
        return None if self.why else (self.low * unit, self.delta * unit, self.high * unit)

    def packed(self, reasons: list[str]) -> str:
        """For the script; a new reason is added to the list."""
        if self.why:
            if self.why not in reasons:
                reasons.append(self.why)
            return f"{'' if self.verdict == NO_RESULT else self.delta},{reasons.index(self.why)}u"
        fields = [self.delta, self.low, self.high, *([self.p] if self.p != 1000 else [])]
        letter = self.verdict[0]
        return ",".join(map(str, fields)) + (letter.upper() if self.own else letter)


def shown(judged: Judged, digits: int) -> Shown:
    """A judged difference, rounded."""
    contrast = judged.contrast
    values = (contrast.delta if contrast.seeds else 0.0, *(judged.interval or (0.0, 0.0)))
    delta, low, high = (round(round(value, digits) * 10.0**digits) for value in values)  # as it is everywhere else
    p = 1000 if judged.p is None else 0 if judged.p < 0.001 else round(1000 * judged.p)
    why = contrast.why or ("" if judged.interval else "no interval")
    verdict = judged.verdict if contrast.seeds else NO_RESULT
    return Shown(delta, low, high, p, verdict, contrast.variance == "own", why, digits)


def signed(value: int, digits: int) -> str:
    """A number in units of its last digit, with its sign.

    >>> signed(-4, 3), signed(21, 3), signed(0, 2)
    ('−0.004', '+0.021', '+0.00')
    """
    return f"{'−' if value < 0 else '+'}{abs(value) / 10**digits:.{digits}f}"


def counted(found: Iterable[Shown]) -> str:
    """How many there are of each verdict: ``2 better, 1 worse, 5 open``."""
    words = [each.verdict for each in found]
    return ", ".join(
        f"{words.count(word)} {word}" for word in ("better", "worse", "equal", "open", NO_RESULT) if word in words
    )
