"""Claims of a grid, answered: holds, contradicted, equal, not that large, or open."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from taskloom.core.errors import count
from taskloom.runs.analysis.contrasts import Judged, Verdict, judge
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.analysis.tables import Table

ClaimAnswer = Literal["holds", "contradicted", "equal", "not that large", "open", "one seed", "untrained"]


@dataclass(frozen=True)
class Claim:
    """A statement about two rows, as a grid makes it, and its answer.

    ``pairs`` are rows and the rows that they are compared with; a claim about several pairs is about the mean of their
    differences. ``within`` makes it a claim of equality. ``reported`` is the difference of the figures published for
    the rows, if there are any. ``before`` says whether it was written down before any of the cells that it is about had
    started; None if that is unknown. ``in_table`` is the table's judgement of the same difference, if it has it: it is
    corrected in another family, so the verdicts may differ.
    """

    says: str
    pairs: tuple[tuple[str, str], ...]
    column: str
    within: float | None
    reported: float | None
    judged: Judged
    answer: ClaimAnswer
    before: bool | None
    in_table: Judged | None = None

    @property
    def beside(self) -> str:
        """Why the table's verdict on the same two rows differs; "" if it does not."""
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

    ``written`` maps :func:`claim_key` to the time at which the claim was first recorded. Differences within the grid's
    margin count as equal; a claim may have a margin of its own.
    """
    claims = list(results.grid.spec.get("claims") or ())
    margin = table.margin
    pairs = [_pairs(claim) for claim in claims]
    columns = [claim.get("on", OVERALL) for claim in claims]
    contrasts = list(map(results.mean_difference, columns, pairs))
    family = judge(contrasts, [claim.get("within") or margin for claim in claims])
    published = {cell.label: cell.reported for cell in results.grid.cells}
    answered = []
    for claim, compared, column, judged in zip(claims, pairs, columns, family, strict=True):
        reported = _reported(published, compared, column)
        answered.append(
            Claim(
                claim.get("says") or _sentence(claim, compared, column),
                compared,
                column,
                claim.get("within"),
                reported,
                judged,
                _answer("equal" in claim, claim.get("within"), reported, judged),
                _before(results, compared, written.get(claim_key(claim, margin))),
                _in_table(table, *compared[0], column) if len(compared) == 1 else None,
            )
        )
    return answered


def _pairs(claim: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pairs of rows that a claim compares."""
    stated = claim.get("better") or claim["equal"], claim.get("than") or claim["to"]
    rows, others = ([labels] if isinstance(labels, str) else labels for labels in stated)
    return tuple(zip(rows, others, strict=True))


def _in_table(table: Table, row: str, other: str, column: str) -> Judged | None:
    """The table's judgement of a claim's difference, with the sign turned if the claim subtracts the other way."""
    if other == table.baseline:
        return table.differences.get((row, column))
    judged = table.differences.get((other, column)) if row == table.baseline else None
    turned: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    return None if judged is None else replace(judged, verdict=turned.get(judged.verdict, judged.verdict))


def claim_key(claim: Mapping[str, Any], margin: float | None) -> str:
    """A key that does not depend on the layout of a claim's JSON; a different margin makes a different claim."""
    return json.dumps({"margin": margin, **claim}, sort_keys=True)


def _reported(
    published: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]], column: str
) -> float | None:
    """The mean of the published differences; None unless there are figures for all rows."""
    figures = [[published.get(label, {}).get(column) for label in pair] for pair in pairs]
    differences = [row - other for row, other in figures if row is not None and other is not None]
    return sum(differences) / len(pairs) if len(differences) == len(pairs) else None


def _sentence(claim: Mapping[str, Any], pairs: Sequence[tuple[str, str]], column: str) -> str:
    """The default wording of a claim."""
    row, other = (", ".join(map(repr, labels)) for labels in zip(*pairs, strict=True))
    equals, better = ("equals", "is better") if len(pairs) == 1 else ("on average equal", "are on average better")
    if "equal" in claim:
        return f"{row} {equals} {other} on {column}, within {claim['within']:g}"
    return f"{row} {better} than {other} on {column}"


def _answer(equality: bool, within: float | None, reported: float | None, judged: Judged) -> ClaimAnswer:
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


def _before(results: Results, pairs: Sequence[tuple[str, str]], written: str | None) -> bool | None:
    """Whether a claim was recorded before any cell of its rows started; None if unknown."""
    rows = {row for pair in pairs for row in pair}
    started = [cell.cell.started for cell in results.grid.cells if cell.label in rows and cell.cell.started]
    if written is None or not started:
        return None if started else True
    return written <= min(started)
