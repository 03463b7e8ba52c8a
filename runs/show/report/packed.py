"""Differences as a page shows them: in words, and packed for its script, which inserts them.

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
class ShownDifference:
    """A judged difference with the texts that a page shows of it, rounded to the table's ``digits``."""

    judged: Judged
    digits: int

    @property
    def verdict(self) -> str:
        """The verdict, or ``NO_RESULT`` if no seed has finished."""
        return self.judged.verdict if self.judged.contrast.seeds else NO_RESULT

    @property
    def word(self) -> str:
        """The verdict in words, *equal* with its margin."""
        return format_verdict(self.judged) if self.verdict == "equal" else self.verdict

    @property
    def why(self) -> str:
        """The reason for a missing interval, else ""."""
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
        """Low end, difference and high end, rounded as in the texts."""
        delta, *ends = map(float, difference_texts(self.judged, self.digits) or ["0"])
        return (ends[0], delta, ends[1]) if ends else None

    def packed(self, reasons: list[str]) -> str:
        """Pack the difference for the script; a new reason is appended to ``reasons``."""
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
        """Convert a number to units of the last digit; one that rounds to 0 but is not is written out.

        The script tells them apart by the decimal point, which whole units do not have.
        """
        units = round(float(text) * 10**self.digits)
        return str(units) if units or not float(text) else f"{float(text):.10f}".rstrip("0")


def counted(differences: Iterable[ShownDifference]) -> str:
    """Count the verdicts: ``2 better, 1 worse, 5 open``."""
    words = [difference.verdict for difference in differences]
    return ", ".join(f"{words.count(word)} {word}" for word in (*LETTERS, NO_RESULT) if word in words)
