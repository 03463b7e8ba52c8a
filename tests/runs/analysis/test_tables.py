"""Tables: figures that can be recomputed, holes that say why, formats that parse back."""

import csv
import html
import io
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import Table
from taskloom.runs.analysis.tables import table_of as table_of_results
from taskloom.runs.show.render import MOST_NOTES, as_json, number, render

TASKS = {"sst": {}, "sts": {}}


def cell(
    id: str, status: str = "finished", *, reason: str | None = None, tasks: Any = None, **scores: float
) -> CellRecord:
    spec = {"tasks": TASKS if tasks is None else tasks}
    return CellRecord(id, spec, status, reason, seconds=12.34, peak_memory=3 * 2**20, epochs=2, scores=scores)


def grid(*rows: tuple[str, list[CellRecord]], **spec: Any) -> GridRecord:
    cells = [GridCell(label, seed, {}, one) for label, row in rows for seed, one in enumerate(row)]
    return GridRecord("grid", spec, "", "", tuple(cells))


def table_of(record: GridRecord) -> Table:
    """The table of cells whose predictions nobody stored."""
    return table_of_results(Results(record, Path("nowhere")))


SUM = ("sum", [cell("a0", sst=0.5, sts=0.2, overall=0.35), cell("a1", sst=0.7, sts=0.4, overall=0.55)])
PCGRAD = ("pcgrad", [cell("b0", sst=0.6, sts=0.5, overall=0.55), cell("b1", sst=0.6, sts=0.6, overall=0.6)])


def body(table: Table, form: str = "plain") -> list[list[str]]:
    """The cells of the plain table's lines."""
    lines = render(table, form).split("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines if not line.startswith("--")]


def test_means_and_sds_worked_by_hand() -> None:
    # sst of sum: mean 0.6, deviations ±0.1, sample variance (0.01 + 0.01)/1, sd √0.02 = 0.1414…
    head, first, second = body(table_of(grid(SUM, PCGRAD)))
    assert head == ["seeds", "sst", "sts", "overall", "seconds"]
    assert first == ["sum", "2", "0.600 ± 0.141", "0.300 ± 0.141", "0.450 ± 0.141", "12.3 ± 0.0"]
    assert second == ["pcgrad", "2", "0.600 ± 0.000", "0.550 ± 0.071", "0.575 ± 0.035", "12.3 ± 0.0"]


def test_columns_and_digits_are_the_grids() -> None:
    columns = ["overall", "sts", "seconds", "memory"]
    head, first, _ = body(table_of(grid(SUM, PCGRAD, table={"columns": columns, "digits": 1})))
    assert head == ["seeds", "overall", "sts", "seconds", "memory (MiB)"]
    assert first[2:] == ["0.5 ± 0.1", "0.3 ± 0.1", "12.3 ± 0.0", "3 ± 0"]


def test_holes_say_why() -> None:
    failed = cell("b1", "failed", reason="loss of task 'sts' is not finite\n at step 12")
    half = ("pcgrad", [cell("b0", sst=0.9, sts=0.9, overall=0.9), failed])
    never = ("later", [cell("c0", "planned"), cell("c1", "planned")])
    broken_off = ("slow", [cell("d0", "running"), cell("d1", sst=0.1, sts=math.nan, overall=0.1)])
    alone = ("alone", [cell("c", tasks={"sst": {}}, sst=0.5, overall=0.5)])
    table = table_of(grid(SUM, half, never, broken_off, alone))
    text = render(table, "plain")
    rows = {row[0]: row[1:] for row in body(table)[1:]}
    assert rows["pcgrad"] == ["1/2", "0.900", "0.900", "0.900", "12.3"]
    assert rows["later"] == ["0/2", "—", "—", "—", "—"]
    assert rows["slow"] == ["1/2", "0.100", "—", "0.100", "12.3"]
    assert rows["alone"] == ["1", "0.500", "—", "0.500", "12.3"], "one seed has no sd"
    notes = [line.split(": ")[0] for line in text.split("\n\n")[1].splitlines()]
    assert notes == ["— pcgrad, seed 1", "— later", "— slow, seed 0", "— slow, seed 1", "— alone, seed 0"]
    assert "has no task 'sts'" in text
    rows_json = json.loads(render(table, "json"))["rows"]
    assert rows_json[1]["missing"] == [
        {"seed": 1, "status": "failed", "why": "failed: loss of task 'sts' is not finite at step 12"}
    ]
    assert rows_json[3]["metrics"]["sts"] == {"mean": None, "sd": None, "n": 0}


def test_a_pretraining_task_without_scores_has_no_column() -> None:
    tasks = {"nli": {}, "sst": {}}
    done = ("done", [cell("a", tasks=tasks, sst=0.5, overall=0.5)])
    planned = ("planned", [cell("b", "planned", tasks=tasks)])
    assert table_of(grid(done, planned)).columns == ("sst", "overall", "seconds")
    assert table_of(grid(planned)).columns == ("nli", "sst", "overall", "seconds")


def test_many_holes_are_counted() -> None:
    rows = [(f"row {i}", [cell(f"{i}", "failed", reason=f"at step {i}")]) for i in range(40)]
    notes = render(table_of(grid(*rows)), "plain").split("\n\n")[1].splitlines()
    assert len(notes) == MOST_NOTES + 1
    assert f" {40 - MOST_NOTES} more" in notes[-1]


def test_rows_with_the_same_hole_share_a_line() -> None:
    never = [(f"row {i}", [cell(f"{i}", "planned"), cell(f"x{i}", "planned")]) for i in range(7)]
    assert render(table_of(grid(*never)), "plain").split("\n\n")[1] == "— every row: not run yet"
    some = render(table_of(grid(SUM, *never)), "plain").split("\n\n")[1]
    assert some == "— row 0; row 1; row 2; row 3; and 3 more: not run yet"


def test_without_stored_predictions_there_is_a_difference_and_no_verdict() -> None:
    table = table_of(grid(SUM, PCGRAD, baseline="sum"))
    head, first, second = body(table)
    assert head[-4:] == ["Δ overall", "p", "verdict", "seconds"]
    assert (first[-2], second[-3:-1]) == ("baseline", ["+0.125", "—"])
    assert "Not compared with 'sum': 'pcgrad'; their predictions are not in the registry or cannot be read." in render(
        table, "plain"
    )
    rows = as_json(table)["rows"]
    assert [row["baseline"] for row in rows] == [True, False]
    assert rows[1]["metrics"]["sts"]["delta"] == pytest.approx(0.25)
    assert rows[1]["metrics"]["sts"]["interval"] is rows[1]["metrics"]["sts"]["p"] is None
    assert rows[0]["metrics"]["sts"]["delta"] is rows[0]["metrics"]["sts"]["verdict"] is None
    assert "delta" not in rows[1]["metrics"]["seconds"]


def test_bold_where_the_format_has_it() -> None:
    table = replace(table_of(grid(SUM, PCGRAD)), best={"sts": "pcgrad"})
    assert "  *0.550 ± 0.071" in render(table, "plain")
    assert "**0.550 ± 0.071**" in render(table, "github")
    assert r"\textbf{0.550 $\pm$ 0.071}" in render(table, "latex")
    assert "<b>0.550 ± 0.071</b>" in render(table, "html")
    terminal = render(table, "plain", colors=True)
    assert "\x1b[1m0.550 ± 0.071\x1b[0m" in terminal
    assert "*" not in terminal
    plain = re.sub(r"\x1b\[\d+m", "", terminal).splitlines()
    assert len({len(line) for line in plain}) == 1, "columns stay aligned"


# What parses back

LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
SCORES = st.floats(-1, 1) | st.just(math.nan)


@st.composite
def grids(draw: st.DrawFn) -> GridRecord:
    labels = draw(st.lists(LABELS, min_size=1, max_size=4, unique=True))
    rows = []
    for label in labels:
        row = []
        for seed in range(draw(st.integers(1, 4))):
            status = draw(st.sampled_from([*["finished"] * 5, "planned", "failed", "running", "oom", "interrupted"]))
            scores = {task: draw(SCORES) for task in (*TASKS, "overall")} if status == "finished" else {}
            row.append(cell(f"{label}{seed}", status, **scores))
        rows.append((label, row))
    return grid(*rows, baseline=draw(st.none() | st.sampled_from(labels)))


@given(grids())
def test_the_json_table_equals_means_and_sds_computed_independently(record: GridRecord) -> None:
    rows = {row["label"]: row for row in json.loads(render(table_of(record), "json"))["rows"]}
    assert list(rows) == list(dict.fromkeys(place.label for place in record.cells)), "in grid order"
    for label, row in rows.items():
        places = [place for place in record.cells if place.label == label]
        done = [place.cell for place in places if place.cell.status == "finished"]
        assert (row["n"], len(row["seeds"])) == (len(done), len(places))
        assert {hole["seed"] for hole in row["missing"]} >= {p.seed for p in places if p.cell not in done}
        for column in (*TASKS, "overall"):
            values = [one.scores[column] for one in done if not math.isnan(one.scores[column])]
            expected = {
                "mean": statistics.mean(values) if values else None,
                "sd": statistics.stdev(values) if len(values) > 1 else None,
            }
            assert {key: row["metrics"][column][key] for key in expected} == expected


@given(grids())
def test_the_csv_table_parses_back_to_the_same_figures(record: GridRecord) -> None:
    table = table_of(record)
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    for text, row in zip(rows, table.rows, strict=True):
        assert (text["label"], int(text["n"]), int(text["seeds"])) == (row.label, row.n, len(row.seeds))
        for column, figure in row.figures.items():
            for part, value in (("mean", figure.mean), ("sd", figure.sd)):
                found = text[f"{column} {part}"]
                assert (float(found) if found else None) == value


@given(grids())
def test_every_text_format_has_every_row_and_column_and_no_markup_of_a_label(record: GridRecord) -> None:
    table = table_of(record)
    text = render(table, "html").split("</table>")[0]
    labels = [html.unescape(label).strip() for label in re.findall(r"<tr><td>(.*?)</td>", text)]
    assert labels == [row.label for row in table.rows]
    assert set(re.findall(r"<(\w+)", text)) <= {"table", "thead", "tbody", "tr", "th", "td", "b"}
    width = 2 + len(table.columns) + 3 * bool(table.differences or (table.baseline and not table.begun))
    latex = render(table, "latex").split(r"\end{tabular}")[0].splitlines()
    assert [line for line in latex if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    lines = [line for line in latex if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines] == [width] * (1 + len(table.rows))
    github = [line for line in render(table, "github").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) for line in github} == {width + 1}


def test_latex_and_github_escape_what_is_theirs() -> None:
    table = table_of(grid((r"a_b & 50% {x} #1 ~^\$", [cell("a", overall=1.0)])))
    expected = r"a\_b \& 50\% \{x\} \#1 \textasciitilde{}\textasciicircum{}\textbackslash{}\$"
    assert expected in render(table, "latex")
    assert r"a\|b \*x\* \_y z_z" in render(table_of(grid(("a|b *x* _y z_z", [cell("a")]))), "github")


def test_minus_nothing_is_nothing() -> None:
    assert number("sst", -0.0001, 3) == "0.000"
    assert number("overall", -0.0001, 3, sign="+") == "+0.000"
    assert number("overall", -0.25, 1, sign="+") == "-0.2"
