"""Claims, effects and seeds in words and as JSON."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taskloom.core.errors import count
from taskloom.runs.analysis.claims import Claim
from taskloom.runs.analysis.contrasts import MOST_SEEDS, Judged
from taskloom.runs.analysis.effects import Effect, Effects
from taskloom.runs.show.differences import format_difference, format_p, format_verdict, judged_json
from taskloom.runs.show.parts import Listing, Part

#: Verdicts and answers that more seeds may settle, and all that are not settled.
OPEN = ("open", "one seed")
UNSETTLED = (*OPEN, "untrained")
#: The most seeds that are advised, unless nothing is settled with fewer: tiny differences take hundreds.
AFFORDABLE = 20


@dataclass(frozen=True)
class NamedContrast:
    """A judged difference in a column, with a name."""

    name: str
    column: str
    judged: Judged


def format_seeds(judged: Judged) -> str:
    """Say how many more seeds would settle an open comparison, or why none would; "" for a settled one."""
    contrast = judged.contrast
    if judged.verdict == "untrained":
        return "training: no better than a constant prediction"
    if judged.verdict not in OPEN:
        return ""
    if contrast.why:
        return contrast.why
    if contrast.identical:
        return "the two are the same in every example"
    number = more_seeds(judged)
    if number is not None:
        return count(number, "more seed")
    smallest = contrast.smallest(judged.alpha)
    if abs(contrast.delta) < smallest:
        return f"no number of seeds: these examples show no difference below {smallest:.3f}"
    return f"more than {MOST_SEEDS} seeds"


def claims_parts(claims: Sequence[Claim]) -> Iterator[Part]:
    """List the claims: answer, difference with its interval, and what would settle them.

    Claims about rows that cannot be compared yet are counted below, by the reason.
    """
    answered = [claim for claim in claims if not claim.judged.contrast.why]
    columns: dict[str, list[object]] = {
        "answer": [claim.answer for claim in answered],
        "claim": [claim.says for claim in answered],
        "on": [claim.column for claim in answered],
        "reported": ["" if claim.reported is None else f"{claim.reported:+.3f}" for claim in answered],
        "difference": [format_difference(claim.judged) for claim in answered],
        "p": [format_p(claim.judged.p) for claim in answered],
        "seeds": [claim.judged.contrast.seeds for claim in answered],
        "to settle it": [format_seeds(claim.judged) if claim.answer in UNSETTLED else "" for claim in answered],
        "written": [{True: "before the run", False: "afterwards", None: ""}[claim.before] for claim in answered],
    }
    if not any(columns["reported"]):
        del columns["reported"]
    waiting = Counter(claim.judged.contrast.why for claim in claims if claim.judged.contrast.why)
    if answered:
        yield Listing(list(zip(*columns.values(), strict=True)), list(columns), labels=(1,))
    lines = [
        f"Not answered: {count(number, 'claim')} about rows that cannot be compared; {why}."
        for why, number in waiting.items()
    ]
    if len(answered) > 1:
        lines.append(f"Intervals and p are corrected for {len(answered)} claims (Holm).")
    lines += [f"{claim.says}: {claim.beside}." for claim in answered if claim.beside]
    yield "\n".join(lines)
    yield from _one_seed(claim.judged for claim in claims)


def claims_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Return an object per claim; ``in_table`` is the verdict of the table on the same two rows.

    ``row`` and ``other`` are labels, or lists of labels where a claim is about several pairs of rows.
    """
    return [
        {
            "says": claim.says,
            "row": _label_or_labels(row for row, _ in claim.pairs),
            "other": _label_or_labels(other for _, other in claim.pairs),
            "on": claim.column,
            "within": claim.within,
            "reported": claim.reported,
            "answer": claim.answer,
            **judged_json(claim.judged),
            "more_seeds": more_seeds(claim.judged) if claim.answer in OPEN else None,
            "written_before_the_run": claim.before,
            "in_table": claim.in_table and claim.in_table.verdict,
        }
        for claim in claims
    ]


def _label_or_labels(rows: Iterable[str]) -> str | list[str]:
    labels = list(rows)
    return labels[0] if len(labels) == 1 else labels


def more_seeds(judged: Judged) -> int | None:
    """Return how many more seeds would settle an open comparison; None if no number would."""
    needed = judged.seeds_needed if judged.verdict in OPEN else None
    return None if needed is None else max(needed - judged.contrast.seeds, 1)


def advised_seeds(judged: Sequence[Judged]) -> int:
    """Return how many seeds to add: enough to settle every comparison that ``AFFORDABLE`` seeds can settle.

    0 if nothing is left to settle.
    """
    needed = sorted(number for difference in judged if (number := more_seeds(difference)))
    return max([number for number in needed if number <= AFFORDABLE] or needed[:1], default=0)


def seeds_settle(judged: Sequence[Judged], number: int) -> str:
    """Say how many of the open comparisons ``number`` further seeds should settle."""
    settled = sum((more_seeds(difference) or number + 1) <= number for difference in judged)
    left = count(sum(difference.verdict in OPEN for difference in judged), "open comparison")
    return f"would settle, with a power of 80 % each, {settled} of {left}"


def seeds_parts(comparisons: Sequence[NamedContrast]) -> Iterator[Part]:
    """List the comparisons: verdict, and what would settle them."""
    rows = [
        (
            comparison.name,
            comparison.column,
            format_difference(comparison.judged),
            format_p(comparison.judged.p),
            comparison.judged.contrast.seeds,
            format_verdict(comparison.judged),
            format_seeds(comparison.judged),
        )
        for comparison in comparisons
    ]
    yield Listing(rows, ("comparison", "on", "difference", "p", "seeds", "verdict", "to settle it"))
    yield from _one_seed(comparison.judged for comparison in comparisons)


def seeds_json(comparisons: Sequence[NamedContrast]) -> list[dict[str, Any]]:
    return [
        {
            "comparison": comparison.name,
            "on": comparison.column,
            **judged_json(comparison.judged),
            "more_seeds": more_seeds(comparison.judged),
            "says": format_seeds(comparison.judged),
        }
        for comparison in comparisons
    ]


def effects_parts(effects: Effects) -> Iterator[Part]:
    """List main effects, interactions and simple effects, and name those that cannot be estimated."""
    for title, kind_effects in (
        (f"Main effects on {effects.column}", effects.main),
        ("Interactions: how the first change differs with the second", effects.interactions),
        ("Simple effects: each change where the other factor is fixed", effects.simple),
    ):
        if kind_effects:
            yield title
            yield _listed(kind_effects)
    yield "\n".join(effects.notes)
    if not (effects.main or effects.interactions or effects.simple or effects.notes):
        yield "no two rows differ in exactly one setting, so no effect can be estimated"
    yield "Intervals and p are corrected over the changes of each axis, or pair of axes (Holm)."
    yield from _one_seed(effect.judged for effect in effects.main if effect.judged)


def _listed(effects: Sequence[Effect]) -> Listing:
    at = any(effect.other for effect in effects)
    rows = []
    for effect in effects:
        where = [f"{effect.other.name}: {effect.at}" if effect.other else ""] if at else []
        judged = effect.judged
        rows.append(
            (
                effect.factor.name,
                f"{effect.before} → {effect.after}",
                *where,
                format_pairs(effect),
                "—" if judged is None else format_difference(judged),
                "" if judged is None else format_p(judged.p),
                "" if judged is None else judged.contrast.why or format_verdict(judged),
            )
        )
    headers = ("axis", "change", *(["with"] if at else []), "over", "effect", "p", "verdict")
    return Listing(rows, headers, labels=(1, 2) if at else (1,))


def _one_seed(judged: Iterable[Judged]) -> Iterator[str]:
    if any(difference.contrast.seeds == 1 for difference in judged):
        yield "Where there is one seed, this is about these models, not about their methods: add seeds."


def format_pairs(effect: Effect) -> str:
    """Format the pairs of rows that an effect was estimated from: ``2 of 3 pairs; missing: …``."""
    blocks = "block" if effect.other and "→" in effect.at else "pair"
    if effect.used == effect.pairs:
        return count(effect.pairs, blocks)
    return f"{effect.used} of {count(effect.pairs, blocks)}; missing: {'; '.join(effect.missing)}"


def effects_json(effects: Effects) -> dict[str, Any]:
    kinds = {"main": effects.main, "interactions": effects.interactions, "simple": effects.simple}
    return {
        "column": effects.column,
        "factors": [{"paths": list(factor.paths), "levels": list(factor.levels)} for factor in effects.factors],
        **{kind: [_effect_json(effect) for effect in kind_effects] for kind, kind_effects in kinds.items()},
        "notes": list(effects.notes),
    }


def _effect_json(effect: Effect) -> dict[str, Any]:
    return {
        "paths": list(effect.factor.paths),
        "from": effect.before,
        "to": effect.after,
        **({"with": list(effect.other.paths), "at": effect.at} if effect.other else {}),
        "pairs": effect.pairs,
        "used": effect.used,
        "missing": list(effect.missing),
        **(judged_json(effect.judged) if effect.judged else {}),
    }
