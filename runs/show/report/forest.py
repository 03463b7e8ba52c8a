"""Forest plots: rows against the baseline, claims and effects as differences with intervals, one per line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskloom.core.errors import count
from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.effects import Effect
from taskloom.runs.show.findings import format_pairs, format_seeds
from taskloom.runs.show.report.markup import Markup, element, joined
from taskloom.runs.show.report.packed import ShownDifference
from taskloom.runs.show.report.svg import Scale, span_of, strip, strip_axis
from taskloom.runs.show.report.view import Section, View, make_list, make_table

ONE_SEED = "One seed: the intervals have the noise of the examples only, and are about these models, not these methods."


@dataclass(frozen=True)
class ForestLine:
    """A line of a forest plot.

    It has a heading, the difference, further notes, a word instead of the verdict, and the index of its row.
    """

    head: Markup
    judged: Judged | None
    notes: Sequence[str] = ()
    word: str = ""
    row_index: int | None = None


def forest_section(view: View) -> Section | None:
    """Show the differences of all rows to the baseline in the primary column."""
    overview, differences = view.overview, view.overview.differences[view.primary]
    if not differences:
        return None
    beside: dict[str, list[str]] = {}  # claims about the same rows with another answer
    for claim in overview.claims:
        if claim.beside and claim.column == view.primary and overview.baseline == overview.table.baseline:
            ((row, other),) = claim.pairs
            label = other if row == overview.baseline else row
            families = f"{claim.judged.family} claims, this for {differences[label].family} comparisons"
            beside.setdefault(label, []).append(
                f"claim “{claim.says}”: {claim.answer}, as that is corrected for {families}"
                if claim.judged.margin == overview.margin
                else f"claim “{claim.says}”: {claim.answer}, as it has a margin of its own"
            )
    lines = [
        ForestLine(
            view.link(label),
            differences.get(label),
            beside.get(label, ()),
            "" if label in differences else "baseline",
            row_index,
        )
        for label, row_index in view.row_indices.items()
    ]
    equal = f"; what two tests put within ± {overview.margin:g} (shaded) is equal" if overview.margin else ""
    caption = joined(
        [
            "Each row less ",
            view.base(),
            f", {view.primary} on {view.splits}. Lines are 95\u00a0% intervals with the noise of seeds and examples, "
            "corrected for the number of rows (Holm); one that leaves out zero is better or worse"
            f"{equal}. All else is open: these results do not tell. The noise of seeds is that of all rows or, where "
            "that leaves less open, of the difference alone (own variance).",
        ]
    )
    table = _forest(view, caption, "row", "verdict", lines, margin=overview.margin, id="forest-table")
    one_seed = any(difference.variance == "examples" for difference in differences.values())
    notes = [element("p", ONE_SEED)] if one_seed else []
    return "forest", "Differences to the baseline", [table, *notes]


def claims_section(view: View) -> Section | None:
    if not view.overview.claims:
        return None
    lines = []
    for claim in view.overview.claims:
        pairs = [joined([view.link(row), " against ", view.link(other)]) for row, other in claim.pairs]
        about = element("small", joined(pairs, "; "), f" on {claim.column}")
        head = joined([element("strong", claim.says), element("br"), about])
        settle = format_seeds(claim.judged) if claim.answer == "open" else ""
        notes = [
            "" if claim.within is None else f"equal within ± {claim.within:g}",
            count(claim.judged.contrast.seeds, "seed"),
            settle and f"to settle it: {settle}",
            "" if claim.reported is None else f"published {claim.reported:+.3f}",
            claim.beside,
            {True: "written before the run", False: "written afterwards", None: ""}[claim.before],
        ]
        lines.append(ForestLine(head, claim.judged, notes, claim.answer))
    caption = "Each claim as a difference; they are judged together (Holm)."
    return "claims", "Claims", [_forest(view, caption, "claim", "answer", lines)]


def effects_section(view: View) -> Section | None:
    effects = view.overview.effects
    kinds = (
        ("Main effects: the mean over pairs of rows that differ in nothing else", effects.main),
        ("Interactions: how the first change differs with the second", effects.interactions),
        ("Simple effects: a change where the other axis is fixed", effects.simple),
    )
    parts = [
        _forest(view, f"{title}, {effects.column}.", "change", "effect", [_effect(effect) for effect in kind_effects])
        for title, kind_effects in kinds
        if kind_effects
    ]
    parts += [make_list(effects.notes)] if effects.notes else []
    return ("effects", "Effects", parts) if parts else None


def _effect(effect: Effect) -> ForestLine:
    at = f", {effect.other.name}: {effect.at}" if effect.other else ""
    about = element("small", f"{effect.factor.name}{at}")
    head = joined([element("strong", f"{effect.before} → {effect.after}"), element("br"), about])
    return ForestLine(head, effect.judged, [f"over {format_pairs(effect)}"], "" if effect.judged else "not estimated")


def scale_of(differences: Iterable[ShownDifference]) -> Scale:
    """Return the scale of a forest plot of these differences, in percent of its width."""
    intervals = [difference.interval for difference in differences]
    return Scale(*span_of([interval for interval in intervals if interval]), 2.0, 98.0)


def _forest(
    view: View,
    caption: object,
    head: str,
    verdict: str,
    lines: Sequence[ForestLine],
    margin: float | None = None,
    id: str | None = None,
) -> Markup:
    """Build a forest plot as a table: heading, interval, verdict with the numbers."""
    differences = [ShownDifference(line.judged, view.digits) if line.judged else None for line in lines]
    scale = scale_of(filter(None, differences))
    rows = []
    for line, difference in zip(lines, differences, strict=True):
        interval, kind = (difference.interval, difference.verdict) if difference else (None, line.word)
        mark = strip(interval, scale, kind, margin)
        word = verdict_word(line.word or (difference.word if difference else ""))
        notes = "; ".join(note for note in (difference.chance if difference else "", *line.notes) if note)
        numbers = f" {difference.numbers}" if difference and difference.numbers else ""
        cells = [
            element("th", line.head, scope="row"),
            element("td", mark),
            element("td", word, numbers, element("small", notes)),
        ]
        rows.append(element("tr", *cells, data_r=line.row_index))
    axis = joined([element("span", "difference with its interval", class_="unseen"), strip_axis(scale)])
    return make_table(caption, (head, axis, verdict), rows, class_="forest", id=id)


def verdict_word(word: str) -> Markup:
    """Mark up a verdict or an answer in its colour."""
    colour = {"holds": "better", "contradicted": "worse"}.get(word, word.partition(" ±")[0].replace(" ", "-"))
    return element("b", word, class_=colour)
