"""Claims of a grid, answered: holds, contradicted, equal or open."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from taskloom.runs.analysis.contrasts import Judged, judge
from taskloom.runs.analysis.results import OVERALL, Results

Answer = Literal["holds", "contradicted", "equal", "open"]


@dataclass(frozen=True)
class Claim:
    """A statement about two rows, as a grid makes it, and its answer.

    ``within`` makes it a claim that the two are equal. ``reported`` is the difference of the figures published for the
    two rows, if there are any. ``before`` says whether it was written down before any of the cells that it is about had
    started; None if nobody knows.
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


def claims_of(results: Results, written: Mapping[str, str], margin: float | None = None) -> list[Claim]:
    """The claims of a grid, judged as one family.

    ``written`` is when each claim was first seen in the registry, by :func:`claim_key`. ``margin`` is what the grid
    calls equal; a claim may have a margin of its own. A claim is about the rows of its grid's file; where only changed
    ones were run, about those that were changed alike.
    """
    claims = list(results.grid.spec.get("claims") or ())
    named = [results.alike(_row(claim), str(claim.get("than") or claim.get("to"))) for claim in claims]
    rows = [(row, other, claim.get("on", OVERALL)) for (row, other), claim in zip(named, claims, strict=True)]
    contrasts = [results.difference(column, row, other) for row, other, column in rows]
    judged = judge(contrasts, [claim.get("within") or margin for claim in claims])
    published = {place.label: place.reported for place in results.grid.cells}
    return [
        Claim(
            claim.get("says") or _sentence(claim, row, other, column),
            row,
            other,
            column,
            claim.get("within"),
            _reported(published.get(row, {}), published.get(other, {}), column),
            each,
            _answer("equal" in claim, claim.get("within"), each),
            _before(results, (row, other), written.get(claim_key(claim, margin))),
        )
        for claim, (row, other, column), each in zip(claims, rows, judged, strict=True)
    ]


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


def _answer(equality: bool, within: float | None, judged: Judged) -> Answer:
    if not equality:
        answers: dict[str, Answer] = {"better": "holds", "worse": "contradicted", "equal": "equal", "open": "open"}
        return answers[judged.verdict]
    if judged.verdict == "equal":
        return "holds"
    low, high = judged.interval or (0.0, 0.0)
    return "contradicted" if within is not None and (low > within or high < -within) else "open"


def _before(results: Results, rows: tuple[str, str], written: str | None) -> bool | None:
    """Whether a claim was written down before any cell of its rows had started."""
    started = [place.cell.started for place in results.grid.cells if place.label in rows and place.cell.started]
    if written is None or not started:
        return None if started else True
    return written <= min(started)
