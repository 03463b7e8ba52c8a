"""Differences as a page shows them: in words, and packed for its script, which puts them in place.

A packed difference is ``delta,low,high,p`` and a letter. Numbers are as text outputs round them, in units of the last
digit shown; one that needs more digits to show its sign is written out (``0.0003``). ``p`` is in thousandths (1 if it
is left out; 49.9 is "<0.05"). The letter is the verdict's, a capital where the difference has a variance of its own;
``u`` is a difference without an interval (its second figure numbers the reason) and ``x`` the baseline itself::

    21,-4,46,120o  →  +0.021 [−0.004, +0.046], p 0.120, open
"""

from collections.abc import Iterable
from dataclasses import dataclass

from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.show.differences import difference_texts, format_p, format_verdict

NO_RESULT = "no result"
#: The letters of verdicts, in the order in which they are counted.
LETTERS = {"better": "b", "worse": "w", "equal": "e", "open": "o", "one seed": "s", "untrained": "n"}


@dataclass(frozen=True)
class Shown:
    """A difference as it is shown; ``digits`` are those of the table."""

    judged: Judged
    digits: int

    @property
    def verdict(self) -> str:
        """The verdict; without any seed, that there is no result."""
        return self.judged.verdict if self.judged.contrast.seeds else NO_RESULT

    @property
    def word(self) -> str:
        """The verdict as it is written, with the margin of what is equal."""
        return format_verdict(self.judged) if self.verdict == "equal" else self.verdict

    @property
    def why(self) -> str:
        """What makes an interval impossible."""
        return self.judged.contrast.why or ("" if self.judged.interval else "no interval")

    @property
    def numbers(self) -> str:
        """``+0.021 [−0.004, +0.046]``."""
        delta, *ends = [text.replace("-", "−") for text in difference_texts(self.judged, self.digits)] or [""]
        return f"{delta} [{ends[0]},\u00a0{ends[1]}]" if ends else delta  # on one line

    @property
    def chance(self) -> str:
        """``p 0.120``, or why there is none."""
        return self.why or f"p {format_p(self.judged.p)}{', own variance' * (self.judged.variance == 'own')}"

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """Low, middle and high as they are shown."""
        delta, *ends = map(float, difference_texts(self.judged, self.digits) or ["0"])
        return (ends[0], delta, ends[1]) if ends else None

    def packed(self, reasons: list[str]) -> str:
        """For the script; a new reason is added to the list."""
        texts = [self._in_units(text) for text in difference_texts(self.judged, self.digits)]
        if self.why:
            if self.why not in reasons:
                reasons.append(self.why)
            return f"{''.join(texts[:1])},{reasons.index(self.why)}u"
        chance = format_p(self.judged.p)
        p = {"<0.001": "0", "<0.05": "49.9"}.get(chance) or f"{round(1000 * float(chance))}"
        letter = LETTERS[self.verdict]
        fields = [*texts, *([p] if p != "1000" else [])]
        return ",".join(fields) + (letter.upper() if self.judged.variance == "own" else letter)

    def _in_units(self, text: str) -> str:
        """A number in units of the last digit; one with other digits as it is.

        A decimal point in the text of a whole number of units cannot be: those are integers.
        """
        value = round(float(text) * 10**self.digits)
        return str(value) if value or not float(text) else f"{float(text):.10f}".rstrip("0")


def shown(judged: Judged, digits: int) -> Shown:
    """A judged difference for the page."""
    return Shown(judged, digits)


def counted(differences: Iterable[Shown]) -> str:
    """How many there are of each verdict: ``2 better, 1 worse, 5 open``."""
    words = [difference.verdict for difference in differences]
    return ", ".join(f"{words.count(word)} {word}" for word in (*LETTERS, NO_RESULT) if word in words)
