"""A table as text: plain, github, latex, html, csv or json.

A mean that is significantly better than every other of its column is bold where the format has bold; in plain text it
is bold on a terminal and marked with ``*`` elsewhere. The text formats end with notes: how differences were judged,
what the checks of the figures showed, why figures are missing.
Published figures are shown on request, beside ours and with the difference; ``†`` marks an overall score that does not
follow from its parts, ``‡`` a figure that is no better than a constant prediction.
"""

import csv
import html
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import count, shortened
from taskloom.core.work import LOG
from taskloom.registry.results.records import GridRecord
from taskloom.registry.results.wording import format_state, named
from taskloom.runs.show.differences import format_difference, format_p, format_verdict, judged_json
from taskloom.runs.show.visible import one_line, visible

if TYPE_CHECKING:  # which imports numpy
    from taskloom.runs.analysis.contrasts import Judged
    from taskloom.runs.analysis.tables import Table, TableRow

FORMATS = ("plain", "github", "latex", "html", "csv", "json")
#: More reasons than this are counted; ``taskloom cells`` and the json format have them all.
MOST_NOTES = 12
#: Rows that are named for one reason; further ones are counted.
MOST_ROWS = 4
OVERALL = "overall"
#: The colours of verdicts on a terminal: green, red, blue.
COLORS = {"better": "32", "worse": "31", "equal": "34"}
#: Columns that stay beside the one before.
FOLLOWERS = ("reported", "difference", "p", "verdict")
#: Spaces between two columns.
GAP = 2
_ANSI = re.compile(r"\x1b\[\d*m")

_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "—": "---",
        "Δ": r"$\Delta$",
        "†": r"$\dagger$",
        "‡": r"$\ddagger$",
    }
)


def _github(text: str) -> str:
    # An underscore inside a word is no emphasis there, and names are full of them.
    return re.sub(r"[\\|*`<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


#: How each format writes a table: tabulate's name for it, how it escapes text, what is bold, and a note.
_STYLES: dict[str, tuple[str, Callable[[str], str], str, str]] = {
    "plain": ("simple", str, "*{}", "{}"),
    "terminal": ("simple", str, "\x1b[1m{}\x1b[0m", "{}"),
    "github": ("pipe", _github, "**{}**", "- {}"),
    "latex": ("latex_raw", lambda text: text.translate(_LATEX), r"\textbf{{{}}}", r"\par{{\footnotesize {}}}"),
    "html": ("unsafehtml", html.escape, "<b>{}</b>", "<p><small>{}</small></p>"),
}


def render(table: "Table", form: str, *, colors: bool = False, width: int | None = None, reported: bool = False) -> str:
    """Render a table in one of ``FORMATS``; ``reported`` shows published figures beside ours.

    Plain text may have ``colors`` and bold type, and a ``width``: columns that do not fit in it are in further tables
    below, beside the same labels.
    """
    from tabulate import tabulate  # which takes long to import

    if form == "json":
        return visible(json.dumps(as_json(table), indent=2, allow_nan=False))
    if form == "csv":
        return visible(_csv(flat_rows(table, reported)))
    width = width if form == "plain" else None
    form = "terminal" if form == "plain" and colors else form
    (layout, escape, bold, note_form), parts = _STYLES[form], _parts(table, reported)
    marked, mixed, body = False, len(table.splits) > 1, []
    for row in table.rows:
        label = shortened(row.label)
        body.append([escape(one_line(f"{label} ({row.split})" if row.split != "dev" and mixed else label))])
        for part, column in parts:
            text = escape(_text(table, row, part, column))
            if part == "figure" and table.best.get(column) == row.label:
                text, marked = bold.format(text), True
            elif part == "verdict" and form == "terminal":
                text = _colored(text)
            body[-1].append(text)
    if any(constant.task in table.columns for constant in table.constants) and not reported:
        scores = {constant.task: number(constant.task, constant.score, table.digits) for constant in table.constants}
        shown = [scores.get(column, "") if part == "figure" else "" for part, column in parts]
        body.append([escape("constant prediction"), *map(escape, shown)])
    headers = ["", *(escape(_title(part, column, begun=table.begun)) for part, column in parts)]
    text = "\n\n".join(
        tabulate(
            [[row[column] for column in columns] for row in body],
            headers=[headers[column] for column in columns],
            tablefmt=layout,
            disable_numparse=True,
            colalign=["left", *["right"] * (len(columns) - 1)],
        )
        for columns in _fitting([headers, *body], ["", *(part for part, _ in parts)], width)
    )
    if form == "latex":
        text = _booktabs(text)
    missing = [(row.label, missing.seed, missing.why) for row in table.rows for missing in row.missing]
    reasons = _reasons(missing, {row.label: len(row.seeds) for row in table.rows})
    notes = _short_list([f"— {line}" for line in reasons], table.name)
    notes += ["* better than every other of its column"] if marked and form == "plain" else []
    notes += _reported_notes(table) if reported else [*_difference_notes(table), *_constant_notes(table), *table.checks]
    notes = [*_split_notes(table), *notes, *table.settings]
    lines = [note_form.format(escape(one_line(note))) for note in notes]
    return "\n".join([text, "", *lines] if lines else [text])


def _fitting(
    lines: Sequence[Sequence[str]], parts: Sequence[str], width: int | None, labels: Sequence[int] = (0,)
) -> list[list[int]]:
    """Group columns into tables that fit in ``width``; those that name a row, the ``labels``, are in every table.

    The ``parts`` of the columns say which stay beside the one before.

    >>> _fitting([["", "seeds", "sst", "p"], ["sum", "3", "0.820", "0.767"]], ["", "seeds", "figure", "p"], 21)
    [[0, 1], [0, 2, 3]]
    """
    lines = [[f"{head}{' ' * GAP}" for head in lines[0]], *lines[1:]]  # tabulate leaves room beside a header
    sizes = [GAP + max(len(_ANSI.sub("", text)) for text in column) for column in zip(*lines, strict=True)]
    whole = inf if width is None else width + GAP
    room = whole - sum(sizes[label] for label in labels)
    groups = [[*range(max(labels) + 1)]]
    for column in range(len(groups[0]), len(sizes)):
        unit = sizes[column]
        if parts[column] not in FOLLOWERS:
            unit += sum(
                sizes[other]
                for other in itertools.takewhile(lambda other: parts[other] in FOLLOWERS, range(column + 1, len(parts)))
            )
        needed = sum(sizes[other] for other in groups[-1]) + (unit if unit <= room else sizes[column])
        if len(groups[-1]) > len(labels) and needed > whole:
            groups.append([*labels])
        groups[-1].append(column)
    return groups


def _colored(verdict: str) -> str:
    color = next((code for word, code in COLORS.items() if verdict.startswith(word)), "")
    return f"\x1b[{color}m{verdict}\x1b[0m" if color else verdict


def _parts(table: "Table", reported: bool) -> list[tuple[str, str]]:
    """List what stands beside the labels as (part, column), such as our figure of a column or the published one.

    Before a run there are published figures only.
    """
    if not reported:
        compared = table.differences or (table.baseline is not None and not table.begun)
        judged = [(part, table.primary) for part in ("delta", "p", "verdict")] if compared else []
        scores = [("figure", column) for column in table.scores]
        costs = [("figure", column) for column in table.columns if column not in table.scores]
        return [("seeds", ""), *scores, *judged, *costs]
    if not table.begun:
        return [("reported", column) for column in table.columns if column in table.reported]
    both = dict.fromkeys(table.reported, ("figure", "reported", "difference"))
    shown = [(part, column) for column in table.columns for part in both.get(column, ("figure",))]
    return [("seeds", ""), *shown]


def _title(part: str, column: str, *, begun: bool) -> str:
    column = "memory (MiB)" if column == "memory" else column
    reported = "reported" if begun else f"{column} reported"
    return {"figure": column, "reported": reported, "difference": "diff", "delta": f"Δ {column}"}.get(part, part)


def _text(table: "Table", row: "TableRow", part: str, column: str) -> str:
    match part:
        case "seeds":
            return str(row.n) if row.complete else f"{row.n}/{len(row.seeds)}"
        case "reported":
            mark = "†" if column == "overall" and row.follows is False else ""
            mark += "‡" if column in table.no_better(row) else ""
            return _shown(table, column, row.reported.get(column)) + mark
        case "difference":
            return _shown(table, column, row.difference(column), sign="+")
        case "delta" if row.label == table.baseline:
            return "baseline"
        case "p" | "verdict" | "delta" if (row.label, column) not in table.differences:
            return "—" if part == "delta" else ""
        case "delta":
            return format_difference(table.differences[row.label, column], table.digits)
        case "p":
            return format_p(table.differences[row.label, column].p)
        case "verdict":
            return format_verdict(table.differences[row.label, column])
    sd = _shown(table, column, row.figures[column].sd)
    return (_shown(table, column, row.figures[column].mean) or "—") + (sd and f" ± {sd}")


def _shown(table: "Table", column: str, value: float | None, *, sign: str = "") -> str:
    return "" if value is None else number(column, value, table.digits, sign=sign)


def listing(
    rows: Iterable[Sequence[object]],
    headers: Sequence[str],
    width: int | None = None,
    labels: Sequence[int] = (0,),
) -> str:
    """Render rows under headers as text, one line per row.

    Columns that do not fit in a ``width`` are in further tables below, beside those that name a row, the ``labels``.
    """
    from tabulate import tabulate

    if not headers:
        return ""
    heads = [visible(head) for head in headers]
    cells = [[one_line(str("" if cell is None else cell)) for cell in row] for row in rows]
    return "\n\n".join(
        tabulate(
            [[row[column] for column in columns] for row in cells],
            headers=[heads[column] for column in columns],
            tablefmt="simple",
            disable_numparse=True,
        )
        for columns in _fitting([heads, *cells], heads, width, labels)
    )


def number(column: str, value: float, digits: int, *, sign: str = "") -> str:
    """Format a figure: scores with ``digits`` decimals, seconds with one, counts and memory (in MiB) with none.

    >>> number("sst", 0.51249, 3), number("seconds", 12.345, 3), number("memory", 3 * 2**20, 3)
    ('0.512', '12.3', '3')
    """
    if column == "memory":
        value, digits = value / 2**20, 0
    elif column in ("examples", "backwards"):
        digits = 0
    elif column == "seconds":
        digits = 1
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def _reasons(missing: Iterable[tuple[str, int, str]], seeds: Mapping[str, int]) -> list[str]:
    """Group missing cells (label, seed, reason) into a line per reason; ``seeds`` is how many seeds each row has."""
    by_reason: dict[str, dict[str, list[int]]] = {}  # reason → row → its seeds
    for label, seed, why in missing:
        by_reason.setdefault(why, {}).setdefault(label, []).append(seed)
    lines = []
    for why, rows in by_reason.items():
        names = []
        for label, row_seeds in rows.items():
            name = repr(label) if set(",;:") & set(label) else label
            seed_word = "" if 1 < len(row_seeds) == seeds[label] else f", seed{'s'[: len(row_seeds) > 1]} "
            names.append(name + (seed_word and seed_word + ", ".join(map(str, row_seeds))))
        every = len(seeds) > MOST_ROWS and sum(map(len, rows.values())) == sum(seeds.values())
        lines.append(f"{'every row' if every else _first_few(names)}: {why}")
    return lines


def _first_few(texts: Sequence[str]) -> str:
    rest = [f"and {len(texts) - MOST_ROWS} more"] if len(texts) > MOST_ROWS else []
    return "; ".join([*texts[:MOST_ROWS], *rest])


def _short_list(lines: list[str], grid: str) -> list[str]:
    more = len(lines) - MOST_NOTES
    return lines if more <= 0 else [*lines[:MOST_NOTES], f"— and {more} more: `taskloom cells {grid}` lists them all"]


def failures_summary(grid: GridRecord, registry: Path, chosen: Collection[str]) -> str:
    """Summarize the chosen cells of a grid that failed: reasons, logs and what to do; "" if none failed."""
    failed = [
        grid_cell
        for grid_cell in grid.cells
        if grid_cell.cell.id in chosen and grid_cell.cell.status in ("failed", "oom")
    ]
    if not failed:
        return ""
    ids = list(dict.fromkeys(grid_cell.cell.id for grid_cell in failed))
    logs = [path for id in ids if (path := registry / "cells" / id / LOG).is_file()]
    missing = [
        (grid_cell.label, grid_cell.seed, format_state(grid_cell.cell.status, grid_cell.cell.reason))
        for grid_cell in failed
    ]
    lines = [
        *_reasons(missing, Counter(grid_cell.label for grid_cell in grid.cells)),
        *(f"log: {path}" for path in logs[:MOST_ROWS]),
    ]
    return "\n".join(
        [
            f"{len(ids)} of {count(len(chosen), 'cell')} did not succeed:",
            *(f"  {line}" for line in _short_list(lines, grid.name)),
            "Fix the cause, then run the same command again; finished cells are kept.",
        ]
    )


def _difference_notes(table: "Table") -> list[str]:
    """Explain how the differences of a table were judged, and name those outside its primary column."""
    primary = {row: difference for (row, column), difference in table.differences.items() if column == table.primary}
    judged = {row: difference for row, difference in primary.items() if difference.interval is not None}
    apart: dict[str, list[str]] = {}
    begun = {row.label for row in table.rows if row.n}  # for the others, the notes say why figures are missing
    for row, difference in primary.items():
        if difference.interval is None and row in begun:
            apart.setdefault(difference.contrast.why, []).append(row)
    notes = [f"Not compared with {table.baseline!r}: {named(rows)}; {why}." for why, rows in apart.items()]
    if not judged:
        return notes
    shown = f"Δ {table.primary}: difference to {table.baseline!r} and its 95 % interval"
    family = [
        difference for key, difference in table.differences.items() if (key[1] == OVERALL) == (table.primary == OVERALL)
    ]
    comparisons = sum(difference.interval is not None for difference in family)
    if comparisons > 1:
        shown += f"; intervals and p are corrected for {comparisons} comparisons (Holm)"
    notes.append(f"{shown}.")
    notes += _seed_notes(table, judged)
    verdicts = {difference.verdict for (_, column), difference in table.differences.items() if column in table.scores}
    if "equal" in verdicts:
        notes.append(
            f"equal ±{table.margin:g}: within the grid's margin of {table.baseline!r}, by two one-sided tests at 5 %, "
            "corrected alike; it takes precedence over better and worse."
        )
    if "untrained" in verdicts:
        notes.append("untrained: no better than a constant prediction, so that there is nothing to compare.")
    return [*notes, *_other_columns(table)]


def _split_notes(table: "Table") -> list[str]:
    """State the split that was scored, unless it is dev."""
    if table.splits in ((), ("dev",)):
        return []
    if len(table.splits) > 1:
        return [f"Scores are on {' and '.join(table.splits)}, as the rows say."]
    sample = ", of a sample, after the best epoch" if table.splits == ("train",) else ""
    return [f"Scores are on {table.splits[0]}{sample}."]


def _seed_notes(table: "Table", judged: Mapping[str, "Judged"]) -> list[str]:
    """State the noise that differences were measured against, and rows that share few seeds with the baseline."""
    kinds: dict[str | None, list[str]] = {}
    for row, difference in judged.items():
        kinds.setdefault(difference.variance, []).append(row)
    notes = []
    if kinds.keys() & {"pooled", "own"}:
        noise = (
            "Two kinds of noise count: that of the scored examples, and that of the seeds. The latter is taken from "
        )
        own = [row for row in kinds.get("own", ()) if not judged[row].contrast.identical]
        pooled = "all rows"
        if own and "pooled" in kinds:
            pooled = f"all rows or, where that leaves less open, from the difference alone ({named(own)})"
        elif own:
            pooled = "each difference alone, which leaves less open than all rows together"
        notes.append(f"{noise}{pooled}.")
    if "examples" in kinds:
        notes.append(
            f"{named(kinds['examples'])}: one seed in common with {table.baseline!r}. That compares these models, not "
            "these methods: only the noise of the scored examples is known, not that of the seeds."
        )
    fewer: dict[int, list[str]] = {}
    planned = {row.label: len(row.seeds) for row in table.rows}
    for row, difference in judged.items():
        if 1 < difference.contrast.seeds < planned[row]:
            fewer.setdefault(difference.contrast.seeds, []).append(row)
    notes += [
        f"{named(rows)}: Δ is over the {seeds} seeds in common with {table.baseline!r}."
        for seeds, rows in fewer.items()
    ]
    return notes


def _other_columns(table: "Table") -> list[str]:
    """List the differences to the baseline in score columns other than the primary one."""
    others = {
        key: judged for key, judged in table.differences.items() if key[1] != OVERALL and judged.interval is not None
    }
    compared = {column for _, column in others}
    columns = [column for column in table.scores if column != table.primary and column in compared]
    if not columns:
        return []
    notes = []
    for column in columns:
        verdicts = [
            f"{row!r} is {judged.verdict}, {format_difference(judged, table.digits)}, p {format_p(judged.p)}"
            for (row, of), judged in others.items()
            if of == column and judged.verdict in ("better", "worse")
        ]
        notes += [f"Δ {column}: {_first_few(verdicts)}."] if verdicts else []
    column_names = " and ".join(filter(None, [", ".join(columns[:-1]), columns[-1]]))
    rest = "nothing else there" if notes else "nothing there"
    family = f"{column_names}: intervals and p corrected together for {count(len(others), 'comparison')}"
    return [*notes, f"{family}; {rest} is better or worse by the test."]


def _constant_notes(table: "Table") -> list[str]:
    """Explain the row of constant predictions."""
    says = [f"{constant.says} ({constant.task})" for constant in table.constants if constant.task in table.columns]
    return [f"constant prediction, without looking at the text: {', '.join(says)}."] if says else []


def _booktabs(text: str) -> str:
    """Replace LaTeX's horizontal lines by the rules of the package booktabs."""
    for rule in ("top", "mid"):
        text = text.replace("\\hline", f"\\{rule}rule", 1)
    return text.replace("\\hline", "\\bottomrule")


def _reported_notes(table: "Table") -> list[str]:
    """Comment on the published figures: what ``†`` and ``‡`` mark, on which split they are, the authors' notes."""
    notes = []
    for row in table.rows:
        if row.follows is False and row.derived is not None:
            printed = number("overall", row.reported["overall"], table.digits)
            derived = number("overall", row.derived, table.digits)
            notes.append(
                f"† {row.label}: the reported overall {printed} does not follow from the figures beside it; they give "
                f"{derived}, and rounding explains at most {row.slack:.2g}"
            )
    marked = dict.fromkeys(task for row in table.rows for task in table.no_better(row) if task in table.columns)
    if marked:
        floors = [f"{table.floors[task].says} ({task}, {table.floors[task].score:.{table.digits}f})" for task in marked]
        notes.append(f"‡ no better than a constant prediction on the examples scored here: {', '.join(floors)}")
    test = [row.label for row in table.rows if row.split == row.reported_on != "dev" and row.reported]
    if test:
        notes.append(f"reported on test, and ours too: {'; '.join(test)}")
    apart = [row.label for row in table.rows if row.split != row.reported_on and row.reported]
    if apart:
        notes.append(f"not compared, since ours are on another split than what was reported: {named(apart)}")
    return [*notes, *(f"{row.label}: {row.note}" for row in table.rows if row.note), *table.notes]


def as_json(table: "Table") -> dict[str, Any]:
    """Return the table as JSON values, with an object per row under ``rows``.

    ``checks`` are computed from the figures, ``notes`` are the grid author's. A row's ``metrics`` have mean, sd
    and n of each column, and for scores the difference to the baseline: delta, interval ([low, high]) and p, both
    corrected, verdict, p_equal of equality within margin, and variance ("pooled", "own" or, of one seed, "examples").
    ``difference`` is ours less the reported figure, ``derived`` the overall score that follows from the reported
    parts, and ``follows`` whether the reported one does; ``no_better`` has the columns in which the reported figure is
    no better than a constant prediction.
    """
    same = ("label", "n", "seeds", "reported", "reported_train", "split", "reported_on", "derived", "follows", "note")
    rows = []
    for row in table.rows:
        metrics: dict[str, dict[str, Any]] = {}
        for column, figure in row.figures.items():
            metrics[column] = {"mean": figure.mean, "sd": figure.sd, "n": len(figure.values)}
            if table.baseline is not None and column in table.scores:
                judged = table.differences.get((row.label, column))
                metrics[column] |= _NOT_COMPARED if judged is None else judged_json(judged)
        rows.append(
            {
                **{key: getattr(row, key) for key in same},
                "baseline": row.label == table.baseline,
                "no_better": table.no_better(row),
                "metrics": metrics,
                "difference": {column: row.difference(column) for column in row.figures if column in row.reported},
                "missing": [vars(missing) for missing in row.missing],
            }
        )
    return {
        "grid": table.name,
        "baseline": table.baseline,
        "primary": table.primary,
        "margin": table.margin,
        "best": dict(table.best),
        "constants": [vars(constant) for constant in table.constants],
        "checks": list(table.checks),
        "notes": list(table.notes),
        "overrides": list(table.settings),
        **({"tuned": dict(table.tuned)} if table.tuned else {}),
        "rows": rows,
    }


#: The fields of a difference that does not exist, such as that of the baseline to itself.
_NOT_COMPARED: dict[str, Any] = dict.fromkeys(
    ("delta", "interval", "p", "verdict", "margin", "p_equal", "variance", "seeds", "corrected_for")
)
_CSV_FACTS = ("delta", "low", "high", "p", "verdict", "variance")


def flat_rows(table: "Table", reported: bool) -> list[dict[str, Any]]:
    """Return an unformatted record per row, with mean and sd in columns of their own and memory in bytes."""
    rows = []
    for row, facts in zip(table.rows, as_json(table)["rows"], strict=True):
        record: dict[str, Any] = {"label": row.label, "n": row.n, "seeds": len(row.seeds)}
        for column, metric in facts["metrics"].items():
            record |= {f"{column} mean": metric["mean"], f"{column} sd": metric["sd"]}
            if "verdict" in metric:
                low, high = metric["interval"] or (None, None)
                figures = {**metric, "low": low, "high": high}
                record |= {f"{column} {name}": figures[name] for name in _CSV_FACTS}
            if reported and column in table.reported:
                record[f"{column} reported"] = row.reported.get(column)
                record[f"{column} difference"] = row.difference(column)
        if reported:
            record |= {"split": row.split, "follows": {True: "yes", False: "no", None: ""}[row.follows]}
        rows.append({**record, "missing": "; ".join(f"seed {missing.seed}: {missing.why}" for missing in row.missing)})
    return rows


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")
