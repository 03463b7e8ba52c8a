"""The best score by the number of trials, as a table and as JSON."""

from collections.abc import Iterator, Sequence

from taskloom.runs.analysis.budget import Budget, RowBudget
from taskloom.runs.show.parts import Listing, Part

#: The most numbers of trials that a table has columns for; its JSON has all.
MOST_COLUMNS = 5


def budget_parts(budget: Budget) -> Iterator[Part]:
    """List the rows with what they are expected to score at best with few, some and all trials."""
    means = ", the mean over seeds" if budget.per == "seed" else ""
    yield f"Expected best {budget.column} by the number of trials{means}; eight of ten searches end between [ ]."
    yield budget_listing(budget)


def budget_listing(budget: Budget) -> Listing:
    """The rows with their curves at some numbers of trials, and where they are ahead of the baseline."""
    shown = shown_trials(max(len(row.curve) for row in budget.rows))
    headers = ["row", *(f"{number} trial{'s' * (number > 1)}" for number in shown)]
    rows = [[row.row, *(format_best(row, number) for number in shown)] for row in budget.rows]
    if len(rows) > 1:
        headers.append(f"ahead of {budget.baseline} with")
        for cells, row in zip(rows, budget.rows, strict=True):
            cells.append("" if row.row == budget.baseline else ranges(row.ahead) or "none")
    return Listing(rows, headers)


def shown_trials(most: int) -> list[int]:
    """Numbers of trials from 1 to ``most``, each about as many times the one before.

    >>> shown_trials(12), shown_trials(2)
    ([1, 2, 3, 6, 12], [1, 2])
    """
    return sorted({round(most ** (index / (MOST_COLUMNS - 1))) for index in range(MOST_COLUMNS)})


def format_best(row: RowBudget, trials: int) -> str:
    """The expected best score with so many trials, with its range; "" if the row had fewer."""
    if trials > len(row.curve):
        return ""
    best = row.curve[trials - 1]
    return f"{best.expected:.3f} [{best.low:.3f}, {best.high:.3f}]"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as a range.

    >>> ranges([1, 2, 3, 7])
    '1–3, 7'
    """
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(f"{start}–{end}" if start < end else str(start) for start, end in zip(starts, ends, strict=True))
