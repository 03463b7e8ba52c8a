"""Claims of a grid, answered: holds, contradicted, equal, not that large, or open."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from taskloom.core.errors import count
from taskloom.runs.analysis.contrasts import Judged, Verdict, judge
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.analysis.tables import Table

Answer = Literal["holds", "contradicted", "equal", "not that large", "open", "one seed", "untrained"]


@dataclass(frozen=True)
class Claim:
    """A statement about two rows, as a grid makes it, and its answer.

    ``within`` makes it a claim that the two are equal. ``reported`` is the difference of the figures published for the
    two rows, if there are any. ``before`` says whether it was written down before any of the cells that it is about had
    started; None if nobody knows. ``in_table`` is how the table judges the same difference, if it has it: in another
    family, so that the verdicts may differ.
    """

    says: str
    row: str
    other: str
    column: str
    within: float | None
    reported: float | None
    judged: Judged
    answer: Answer
    before: bool | None
    in_table: Judged | None = None

    @property
    def beside(self) -> str:
        """Why the table says something else of the same two rows; "" if it does not."""
        table = self.in_table
        if table is None or table.verdict == self.judged.verdict:
            return ""
        if table.margin != self.judged.margin:
            margins = [f"± {margin:g}" if margin else "none" for margin in (table.margin, self.judged.margin)]
            return f"{table.verdict} in the table, where the margin is {margins[0]} and not {margins[1]}"
        families = f"{count(table.family, 'comparison')}, the claim for {self.judged.family}"
        return f"{table.verdict} in the table, which is corrected for {families}"


def claims_of(results: Results, table: Table, written: Mapping[str, str]) -> list[Claim]:
    """The claims of a grid, judged as one family.

    ``written`` is when each claim was first seen in the registry, by :func:`claim_key`. The grid's margin is what it
    calls equal; a claim may have a margin of its own. A claim is about the rows of its grid's file; where only changed
    ones were run, about those that were changed alike.
    """
    claims = list(results.grid.spec.get("claims") or ())
    margin = table.margin
    named = [results.alike(_row(claim), str(claim.get("than") or claim.get("to"))) for claim in claims]
    rows = [(row, other, claim.get("on", OVERALL)) for (row, other), claim in zip(named, claims, strict=True)]
    contrasts = [results.difference(column, row, other) for row, other, column in rows]
    family = judge(contrasts, [claim.get("within") or margin for claim in claims])
    published = {cell.label: cell.reported for cell in results.grid.cells}
    answered = []
    for claim, (row, other, column), judged in zip(claims, rows, family, strict=True):
        reported = _reported(published.get(row, {}), published.get(other, {}), column)
        answered.append(
            Claim(
                claim.get("says") or _sentence(claim, row, other, column),
                row,
                other,
                column,
                claim.get("within"),
                reported,
                judged,
                _answer("equal" in claim, claim.get("within"), reported, judged),
                _before(results, (row, other), written.get(claim_key(claim, margin))),
                _in_table(table, row, other, column),
            )
        )
    return answered


def _in_table(table: Table, row: str, other: str, column: str) -> Judged | None:
    """How the table judges the difference that a claim is about; the claim may have it the other way round."""
    if other == table.baseline:
        return table.differences.get((row, column))
    judged = table.differences.get((other, column)) if row == table.baseline else None
    turned: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    return None if judged is None else replace(judged, verdict=turned.get(judged.verdict, judged.verdict))


def claim_key(claim: Mapping[str, Any], margin: float | None) -> str:
    """What is the same for a claim however its JSON is laid out; another margin makes it another claim."""
    return json.dumps({"margin": margin, **claim}, sort_keys=True)


def _reported(row: Mapping[str, float], other: Mapping[str, float], column: str) -> float | None:
    return row[column] - other[column] if column in row and column in other else None


def _row(claim: Mapping[str, Any]) -> str:
    return str(claim.get("better") or claim.get("equal"))


def _sentence(claim: Mapping[str, Any], row: str, other: str, column: str) -> str:
    """A claim that does not say itself what it says."""
    if "equal" in claim:
        return f"{row!r} equals {other!r} on {column}, within {claim['within']:g}"
    return f"{row!r} is better than {other!r} on {column}"


def _answer(equality: bool, within: float | None, reported: float | None, judged: Judged) -> Answer:
    low, high = judged.interval or (-math.inf, math.inf)
    match judged.verdict:
        case "one seed" | "untrained" as answer:
            return answer
        case "equal":
            return "holds" if equality else "equal"
        case "better" | "worse" if not equality:
            return "holds" if judged.verdict == "better" else "contradicted"
    if equality and within is not None and (low > within or high < -within):
        return "contradicted"
    if not equality and reported is not None and not low <= reported <= high:
        return "not that large"
    return "open"


def _before(results: Results, rows: tuple[str, str], written: str | None) -> bool | None:
    """Whether a claim was written down before any cell of its rows had started."""
    started = [place.cell.started for place in results.grid.cells if place.label in rows and place.cell.started]
    if written is None or not started:
        return None if started else True
    return written <= min(started)
