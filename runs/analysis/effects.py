"""The effects of a grid's axes: main effects, interactions and simple effects over matched rows.

The effect of a → b on an axis is the mean over the pairs of rows that differ in nothing else; an interaction is a
difference of differences over complete 2 × 2 blocks. Both are contrasts. Axes that always move together are one factor:
their effects cannot be separated.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from taskloom.registry.results.wording import format_state
from taskloom.runs.analysis.contrasts import ALPHA, Contrast, Judged, judge
from taskloom.runs.analysis.factors import Factor, factors_of
from taskloom.runs.analysis.results import OVERALL, Results


@dataclass(frozen=True)
class Effect:
    """A change of level ``before`` → ``after`` of a factor; ``used`` of its matched ``pairs`` of rows count.

    ``missing`` says why pairs are left out. ``at`` is the level of the ``other`` factor at which a simple effect is
    estimated, or for an interaction the change of level of that factor. ``judged`` is None where no pair is left.
    """

    factor: Factor
    before: str
    after: str
    pairs: int
    used: int
    missing: tuple[str, ...]
    judged: Judged | None
    other: Factor | None = None
    at: str = ""


@dataclass(frozen=True)
class Effects:
    """All effects of a grid on one column; ``notes`` say what cannot be estimated and why."""

    column: str
    factors: tuple[Factor, ...]
    main: tuple[Effect, ...]
    interactions: tuple[Effect, ...]
    simple: tuple[Effect, ...]
    notes: tuple[str, ...]


def effects_of(results: Results, column: str = OVERALL) -> Effects:
    """The effects of every factor of a grid on a column."""
    factors = factors_of(results.grid)
    main = [effect for factor in factors for effect in _family(results, column, _changes(factor), factors)]
    notes = [
        f"{' and '.join(factor.paths)} always move together: their effects cannot be told apart"
        for factor in factors
        if len(factor.paths) > 1
    ]
    notes += [
        f"{factor.name}: no two rows differ in it alone, so its effect cannot be told from others'"
        for factor in factors
        if not any(effect.pairs for effect in main if effect.factor is factor)
    ]
    interactions: list[Effect] = []
    simple: list[Effect] = []
    for factor_a, factor_b in itertools.combinations(factors, 2):
        crossings = _family(results, column, _crossings(factor_a, factor_b), factors)
        interactions += crossings
        if any(effect.judged and effect.judged.p is not None and effect.judged.p < ALPHA for effect in crossings):
            for factor, at in ((factor_a, factor_b), (factor_b, factor_a)):
                simple += _family(results, column, _simple_changes(factor, at), factors)
    return Effects(
        column,
        tuple(factors),
        tuple(effect for effect in main if effect.pairs),
        tuple(effect for effect in interactions if effect.pairs),
        tuple(effect for effect in simple if effect.pairs),
        tuple(notes),
    )


@dataclass(frozen=True)
class _Change:
    """A change of levels to estimate: of one factor, or at a level of another, or a difference of such changes."""

    factor: Factor
    before: int
    after: int
    other: Factor | None = None
    at: tuple[int, ...] = ()  # one level of the other factor, or two

    @property
    def levels(self) -> list[tuple[tuple[int, ...], float]]:
        """The levels of the rows of a block, of the factor and the other one, with their signs in the contrast."""
        changes = [(self.after, 1.0), (self.before, -1.0)]
        if self.other is None:
            return [((level,), sign) for level, sign in changes]
        signs = [1.0] if len(self.at) == 1 else [-1.0, 1.0]
        return [
            ((level, at), sign * other) for at, other in zip(self.at, signs, strict=True) for level, sign in changes
        ]


def _changes(factor: Factor) -> list[_Change]:
    return [_Change(factor, 0, level) for level in range(1, len(factor.levels))]


def _simple_changes(factor: Factor, other: Factor) -> list[_Change]:
    levels = itertools.product(range(len(other.levels)), range(1, len(factor.levels)))
    return [_Change(factor, 0, level, other, (at,)) for at, level in levels]


def _crossings(factor: Factor, other: Factor) -> list[_Change]:
    levels = itertools.product(range(1, len(factor.levels)), range(1, len(other.levels)))
    return [_Change(factor, 0, level, other, (0, at)) for level, at in levels]


def _family(results: Results, column: str, changes: Iterable[_Change], factors: Sequence[Factor]) -> list[Effect]:
    """Estimate the effects of changes and judge them as one family."""
    estimated = [(change, *_estimate(results, column, change, factors)) for change in changes]
    judged = iter(judge([contrast for *_, contrast in estimated if contrast is not None], results.margin))
    effects = []
    for change, pairs, used, missing, contrast in estimated:
        factor, other = change.factor, change.other
        effects.append(
            Effect(
                factor,
                factor.levels[change.before],
                factor.levels[change.after],
                pairs,
                used,
                missing,
                next(judged) if contrast is not None else None,
                other,
                " → ".join(other.levels[level] for level in change.at) if other else "",
            )
        )
    return effects


def _estimate(
    results: Results, column: str, change: _Change, factors: Sequence[Factor]
) -> tuple[int, int, tuple[str, ...], Contrast | None]:
    """Matched blocks, complete blocks, why others are incomplete, and the mean contrast over the complete ones."""
    scores = results.scores(column)
    blocks = list(_blocks(results.rows, change, factors))
    finished = np.isfinite(scores.values).sum(1)
    seeds = {row: int(finished[results.row_index[row]]) for block in blocks for row in block}
    most = max(seeds.values(), default=0)
    whole = [block for block in blocks if all(seeds[row] == most for row in block)] if most else []
    reasons = dict.fromkeys(
        _why(results, row, seeds[row]) for block in blocks for row in block if seeds[row] < most or not most
    )
    if not whole:
        return len(blocks), 0, tuple(reasons), None
    signs = [sign for _, sign in change.levels]
    weights = sum(sign * results.row(row) for block in whole for row, sign in zip(block, signs, strict=True))
    assert isinstance(weights, np.ndarray)
    return len(blocks), len(whole), tuple(reasons), scores.contrast(weights / len(whole))


def _blocks(rows: Sequence[str], change: _Change, factors: Sequence[Factor]) -> Iterator[list[str]]:
    """The rows that take part in a change, in blocks whose rows differ in nothing else."""
    fixed = [factor for factor in factors if factor is not change.factor and factor is not change.other]
    changed = [change.factor, *([change.other] if change.other else [])]
    by_levels: dict[tuple[int, ...], dict[tuple[int, ...], str]] = {}
    for row in rows:
        block = by_levels.setdefault(tuple(factor.of_row[row] for factor in fixed), {})
        block.setdefault(tuple(factor.of_row[row] for factor in changed), row)
    for block in by_levels.values():
        if all(levels in block for levels, _ in change.levels):
            yield [block[levels] for levels, _ in change.levels]


def _why(results: Results, row: str, seeds: int) -> str:
    """Why a row has fewer seeds than others."""
    cells = [row_cell.cell for row_cell in results.grid.cells if row_cell.label == row]
    unfinished = [cell for cell in cells if cell.status != "finished"]
    state = format_state(unfinished[0].status, unfinished[0].reason, unfinished[0].epochs) if unfinished else ""
    return f"{row}: {state or f'{seeds} seeds'}"
