"""Differences with their intervals, one under another: rows against the baseline, claims, effects."""

from collections.abc import Sequence
from dataclasses import dataclass

from taskloom.core.errors import count
from taskloom.runs.analysis.claims import Claim
from taskloom.runs.analysis.effects import Effect
from taskloom.runs.show.findings import format_pairs, format_seeds
from taskloom.runs.show.report.markup import Markup, element, joined
from taskloom.runs.show.report.packed import Shown, shown
from taskloom.runs.show.report.svg import Scale, span_of, strip, strip_axis
from taskloom.runs.show.report.view import Section, View, make_list, make_table, wide

ONE_SEED = "One seed: the intervals have the noise of the examples only, and are about these models, not these methods."


@dataclass(frozen=True)
class Line:
    """A line of a forest plot: its heading, the difference, the verdict in a word, a note, and which row it is."""

    head: Markup
    difference: Shown | None
    word: str
    note: str
    place: int | None = None


def forest_section(view: View) -> Section | None:
    """All rows against the baseline, in the primary column."""
    overview, found = view.overview, view.differences[view.primary]
    if not found:
        return None
    lines = []
    for label, place in view.places.items():
        each = found.get(label)
        word, note = (each.verdict, each.chance) if each else ("baseline", "")
        lines.append(Line(view.link(label), each, word, note, place))
    equal = f", one within ± {overview.margin:g} (shaded) is equal" if overview.margin else ""
    caption = joined(
        [
            "Each row less ",
            view.base(),
            f", {view.primary} on {view.splits}. Lines are 95\u00a0% intervals with the noise of seeds and examples, "
            "corrected for the number of rows (Holm); one that leaves out zero is better or worse"
            f"{equal}. All else is open: these results do not tell. The noise of seeds is pooled over the rows; a row "
            "that is noisier is judged by its own variance.",
        ]
    )
    table = wide(_forest(caption, "row", "verdict", lines, margin=overview.margin, id="forest-table"))
    judged = overview.differences[view.primary].values()
    one = [element("p", ONE_SEED)] if any(each.contrast.variance == "examples" for each in judged) else []
    return "forest", "Differences to the baseline", [table, *one]


def claims_section(view: View) -> Section | None:
    if not view.overview.claims:
        return None
    lines = []
    for claim in view.overview.claims:
        each = shown(claim.judged, view.digits)
        about = element("small", view.link(claim.row), " against ", view.link(claim.other), f" on {claim.column}")
        head = joined([element("strong", claim.says), element("br"), about])
        lines.append(Line(head, each, claim.answer, _claim_note(claim, each)))
    table = _forest("Each claim as a difference; they are judged together (Holm).", "claim", "answer", lines)
    return "claims", "Claims", [wide(table)]


def _claim_note(claim: Claim, each: Shown) -> str:
    written = {True: "written before the run", False: "written afterwards", None: ""}[claim.before]
    settle = format_seeds(claim.judged) if claim.answer == "open" else ""
    parts = [
        each.chance,
        "" if claim.within is None else f"equal within ± {claim.within:g}",
        count(claim.judged.contrast.seeds, "seed"),
        settle and f"to settle it: {settle}",
        written,
    ]
    return "; ".join(part for part in parts if part)


def effects_section(view: View) -> Section | None:
    effects = view.overview.effects
    kinds = (
        ("Main effects: the mean over pairs of rows that differ in nothing else", effects.main),
        ("Interactions: how the first change differs with the second", effects.interactions),
        ("Simple effects: a change where the other axis is fixed", effects.simple),
    )
    parts = [
        wide(_forest(f"{title}, {effects.column}.", "change", "effect", [_effect(view, each) for each in found]))
        for title, found in kinds
        if found
    ]
    parts += [make_list(effects.notes)] if effects.notes else []
    return ("effects", "Effects", parts) if parts else None


def _effect(view: View, effect: Effect) -> Line:
    at = f", {effect.other.name}: {effect.at}" if effect.other else ""
    about = element("small", f"{effect.factor.name}{at}")
    head = joined([element("strong", f"{effect.before} → {effect.after}"), element("br"), about])
    over = f"over {format_pairs(effect)}"
    if effect.judged is None:
        return Line(head, None, "not estimated", over)
    each = shown(effect.judged, view.digits)
    return Line(head, each, each.verdict, f"{each.chance}; {over}")


def _forest(
    caption: object, head: str, verdict: str, lines: Sequence[Line], margin: float | None = None, id: str | None = None
) -> Markup:
    """Differences as a table: heading, interval, verdict with the numbers."""
    intervals = [found for line in lines if line.difference and (found := line.difference.interval) is not None]
    scale = Scale(*span_of(intervals), 2.0, 98.0)
    rows = []
    for line in lines:
        each = line.difference
        mark = strip(each.interval if each else None, scale, each.verdict if each else "", margin)
        cells = [
            element("th", line.head, scope="row"),
            element("td", mark),
            element(
                "td",
                verdict_word(line.word),
                each.numbers and f" {each.numbers}" if each else "",
                element("small", line.note),
            ),
        ]
        rows.append(element("tr", *cells, data_r=line.place))
    axis = joined([element("span", "difference with its interval", class_="unseen"), strip_axis(scale)])
    return make_table(caption, (head, axis, verdict), rows, class_="forest", id=id)


def verdict_word(word: str) -> Markup:
    """A verdict or an answer in its colour."""
    colour = {"holds": "better", "contradicted": "worse"}.get(word, word.replace(" ", "-"))
    return element("b", word, class_=colour)
