"""Forest plots: rows against the baseline, claims and effects as differences with intervals, one per line."""

from collections.abc import Sequence
from dataclasses import dataclass

from taskloom.core.errors import count
from taskloom.runs.analysis.effects import Effect
from taskloom.runs.show.findings import format_pairs, format_seeds
from taskloom.runs.show.report.markup import Markup, element, joined
from taskloom.runs.show.report.svg import Scale, span_of, strip, strip_axis
from taskloom.runs.show.report.view import (
    Section,
    ShownDifference,
    View,
    make_list,
    make_table,
    verdict_class,
    verdict_word,
)

ONE_SEED = "One seed: the intervals have the noise of the examples only, and are about these models, not these methods."


@dataclass(frozen=True)
class ForestLine:
    """A line of a forest plot: heading, difference, further notes, a word instead of the verdict, index of its row."""

    head: Markup
    difference: ShownDifference | None
    notes: Sequence[str] = ()
    word: str = ""
    row_index: int | None = None


def forest_section(view: View) -> Section | None:
    """Show the differences of all rows to the baseline in the primary column."""
    overview, differences = view.overview, view.overview.differences[view.primary]
    if not differences:
        return None
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
    table = _forest(caption, "row", "verdict", _row_lines(view), margin=overview.margin, id="forest-table")
    one_seed = any(difference.variance == "examples" for difference in differences.values())
    notes = [element("p", ONE_SEED)] if one_seed else []
    return "forest", "Differences to the baseline", [table, *notes]


def forest_cells(view: View) -> tuple[Markup, list[Markup]]:
    """Draw the axis of the rows' forest plot, and the content of the cells beside the rows' names, line by line."""
    axis, cells = _cells(_row_lines(view), view.overview.margin)
    return axis, [content for line_cells in cells for content in line_cells]


def _row_lines(view: View) -> list[ForestLine]:
    overview, differences = view.overview, view.differences[view.primary]
    beside: dict[str, list[str]] = {}  # claims about the same rows with another answer
    for claim in overview.claims if view.baseline == overview.table.baseline else ():
        if claim.beside and claim.column == view.primary:
            ((row, other),) = claim.pairs
            label = other if row == view.baseline else row
            family = overview.differences[view.primary][label].family
            beside.setdefault(label, []).append(
                f"claim “{claim.says}”: {claim.answer}, as that is corrected for {claim.judged.family} claims, "
                f"this for {family} comparisons"
                if claim.judged.margin == overview.margin
                else f"claim “{claim.says}”: {claim.answer}, as it has a margin of its own"
            )
    return [
        ForestLine(
            view.link(label),
            differences.get(label),
            beside.get(label, ()),
            "" if label in differences else "baseline",
            row_index,
        )
        for label, row_index in view.row_indices.items()
    ]


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
        lines.append(ForestLine(head, ShownDifference.of(claim.judged, view.digits), notes, claim.answer))
    caption = "Each claim as a difference; they are judged together (Holm)."
    return "claims", "Claims", [_forest(caption, "claim", "answer", lines)]


def effects_section(view: View) -> Section | None:
    effects = view.overview.effects
    kinds = (
        ("Main effects: the mean over pairs of rows that differ in nothing else", effects.main),
        ("Interactions: how the first change differs with the second", effects.interactions),
        ("Simple effects: a change where the other axis is fixed", effects.simple),
    )
    parts = [
        _forest(f"{title}, {effects.column}.", "change", "effect", [_effect(view, effect) for effect in kind_effects])
        for title, kind_effects in kinds
        if kind_effects
    ]
    parts += [make_list(effects.notes)] if effects.notes else []
    return ("effects", "Effects", parts) if parts else None


def _effect(view: View, effect: Effect) -> ForestLine:
    at = f", {effect.other.name}: {effect.at}" if effect.other else ""
    about = element("small", f"{effect.factor.name}{at}")
    head = joined([element("strong", f"{effect.before} → {effect.after}"), element("br"), about])
    difference = ShownDifference.of(effect.judged, view.digits) if effect.judged else None
    return ForestLine(head, difference, [f"over {format_pairs(effect)}"], "" if difference else "not estimated")


def _forest(
    caption: object,
    head: str,
    verdict: str,
    lines: Sequence[ForestLine],
    margin: float | None = None,
    id: str | None = None,
) -> Markup:
    """Build a forest plot as a table: heading, interval, verdict with the numbers."""
    axis, cells = _cells(lines, margin)
    rows = []
    for line, contents in zip(lines, cells, strict=True):
        heading, columns = element("th", line.head, scope="row"), [element("td", content) for content in contents]
        rows.append(element("tr", heading, *columns, data_r=line.row_index))
    return make_table(caption, (head, axis, verdict), rows, class_="forest", id=id)


def _cells(lines: Sequence[ForestLine], margin: float | None) -> tuple[Markup, list[tuple[Markup, Markup]]]:
    """Draw the axis of a forest plot, and for each line its interval and its verdict with the numbers."""
    intervals = [line.difference.interval for line in lines if line.difference and line.difference.interval]
    scale = Scale(*span_of(intervals), 2.0, 98.0)
    cells = []
    for line in lines:
        difference = line.difference or ShownDifference(line.word, line.word, "", "", None)
        notes = "; ".join(note for note in (difference.chance, *line.notes) if note)
        numbers = f" {difference.numbers}" if difference.numbers else ""
        verdict = joined([verdict_word(line.word or difference.word), numbers, element("small", notes)])
        cells.append((strip(difference.interval, scale, verdict_class(difference.verdict), margin), verdict))
    axis = joined([element("span", "difference with its interval", class_="unseen"), strip_axis(scale)])
    return axis, cells
