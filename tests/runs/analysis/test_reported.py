"""Published figures beside ours: differences, and overall scores that do not follow from their parts."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import Table, TableRow, derive_overall
from taskloom.runs.analysis.tables import table_of as table_of_results
from taskloom.runs.api.grid import Grid, unrun
from taskloom.runs.show.render import FORMATS, as_json, render

PAPERS = ("margin-for-error", "cosine-surgery", "finetuning-techniques", "losing-to-win", "robust-embeddings")
METRICS = {"sst": "accuracy", "para": "accuracy", "sts": "pearson"}


def table_of(record: GridRecord) -> Table:
    return table_of_results(Results(record, Path("nowhere")))


def spec_of(rule: str, metrics: dict[str, str] = METRICS) -> dict[str, Any]:
    return {"overall": rule, "tasks": {task: {"metric": {"name": metric}} for task, metric in metrics.items()}}


# Whether an overall score follows


def test_the_rules_and_what_rounding_explains_worked_by_hand() -> None:
    figures = {"sst": 0.5, "para": 0.8, "sts": 0.2}
    value, slack = derive_overall(figures, METRICS, spec_of("mean"), digits=3)
    assert value == pytest.approx(0.5)
    assert slack == pytest.approx(0.0005 + 3 * 0.0005 / 3)
    value, slack = derive_overall(figures, METRICS, spec_of("normalised"), digits=3)
    assert value == pytest.approx((0.5 + 0.8 + 0.6) / 3)
    assert slack == pytest.approx(0.0005 + 0.0005 / 3 + 0.0005 / 3 + 0.0005 / 6)


def test_a_weighted_overall_follows_by_its_weights() -> None:
    figures = {"sst": 0.5, "para": 0.8, "sts": 0.2}
    how = {**spec_of("mean"), "overall": {"name": "mean", "weights": {"sst": 2.0, "para": 0.0}}}
    value, slack = derive_overall(figures, METRICS, how, digits=3)
    assert value == pytest.approx((2 * 0.5 + 0.2) / 3)
    assert slack == pytest.approx(0.0005 + 0.0005)
    assert derive_overall({"sst": 0.5, "sts": 0.2}, METRICS, how, digits=3)[0] == value, "what does not count may lack"
    listed = {**how, "tasks": {task: {"metric": [metric, "macro_f1"]} for task, metric in METRICS.items()}}
    assert derive_overall(figures, METRICS, listed, digits=3)[0] == value


SCORE = st.floats(-1, 1)


@given(SCORE, SCORE, SCORE, st.sampled_from(["mean", "normalised"]), st.integers(1, 6), st.floats(-1, 1))
def test_honest_rounding_is_never_marked_and_a_larger_slip_always(
    sst: float, para: float, sts: float, rule: str, digits: int, slip: float
) -> None:
    true = (sst + para + ((sts + 1) / 2 if rule == "normalised" else sts)) / 3
    printed = {task: round(x, digits) for task, x in zip(METRICS, (sst, para, sts), strict=True)}
    derived, slack = derive_overall(printed, METRICS, spec_of(rule), digits)

    def follows(overall: float) -> bool | None:
        row = TableRow("row", (0,), 0, {}, {**printed, "overall": overall}, (), derived=derived, slack=slack)
        return row.follows

    assert follows(round(true, digits))
    if abs(slip) > 2 * slack + 1e-6:
        assert not follows(round(true, digits) + slip)


def test_what_cannot_be_said_is_not_said() -> None:
    assert derive_overall({"sst": 0.5, "para": 0.5}, METRICS, spec_of("mean"), 3)[0] is None, "a part is missing"
    assert derive_overall({}, METRICS, {}, 3)[0] is None
    strange = {**METRICS, "sts": "kendall"}
    figures = dict.fromkeys(METRICS, 0.5)
    assert derive_overall(figures, METRICS, spec_of("normalised", strange), 3)[0] is None, "a correlation or not?"
    assert derive_overall(figures, METRICS, spec_of("mean", strange), 3)[0] is not None, "here it makes no difference"


# The packaged grids


def papers() -> dict[str, GridRecord]:
    return {name: unrun(Grid(name)) for name in PAPERS}


def marked(records: dict[str, GridRecord]) -> list[tuple[str, str]]:
    return [
        (name, row.label) for name, record in records.items() for row in table_of(record).rows if row.follows is False
    ]


def changed(record: GridRecord, label: str, **figures: float) -> GridRecord:
    def change(cell: GridCell) -> GridCell:
        return replace(cell, reported={**cell.reported, **figures}) if cell.label == label else cell

    return replace(record, cells=tuple(change(cell) for cell in record.cells))


SLIP = ("cosine-surgery", "2-surgery-layers: 2 LL in all heads")


def test_exactly_one_reported_overall_does_not_follow_from_its_parts() -> None:
    records = papers()
    assert marked(records) == [SLIP]
    rows = [row for record in records.values() for row in table_of(record).rows]
    assert sum(row.follows is not None for row in rows) == sum("overall" in row.reported for row in rows) == 53


def test_the_mark_comes_from_the_figures_and_from_no_list() -> None:
    records = papers()
    name, label = SLIP
    # With 0.864 for 0.764 the three parts have the mean 0.739 that the paper prints.
    assert marked({name: changed(records[name], label, sts=0.864)}) == []
    for name, record in records.items():
        for cell in record.cells:
            if "overall" in cell.reported and (name, cell.label) != SLIP:
                other = changed(record, cell.label, overall=cell.reported["overall"] + 0.003)
                assert (name, cell.label) in marked({name: other})


@pytest.mark.parametrize("form", FORMATS)
def test_a_grid_that_was_never_run_shows_the_published_figures_alone(form: str) -> None:
    text = render(table_of(unrun(Grid("cosine-surgery"))), form, reported=True)
    assert text.count("0.864") >= 3
    if form == "json":
        assert [row["label"] for row in json.loads(text)["rows"] if row["follows"] is False] == [SLIP[1]]
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["label"] for row in rows if row["follows"] == "no"] == [SLIP[1]]
        assert {row["overall difference"] for row in rows} == {""}
    else:
        assert text.count({"latex": r"$\dagger$"}.get(form, "†")) == 2, "in its cell and in its note"
        assert "not run yet" in text


# After a run


RAW: dict[str, Any] = {
    "notes": ["Read this first."],
    "overrides": ["stages.*.epochs = 1"],
    "cells": [
        {"label": "mine", "reported": {"sst": 0.5, "sts": 0.25, "overall": 0.4}, "note": "A slip in the source."},
        {"label": "theirs", "reported": {"sst": 0.5, "sts": 0.25, "overall": 0.375}, "split": "test"},
        {"label": "silent"},
    ],
}


@pytest.fixture
def table() -> Table:
    spec = spec_of("mean", {"sst": "accuracy", "sts": "pearson"})
    scores, test = {"sst": 0.625, "sts": 0.125, "overall": 0.375}, {"sst": 0.75, "sts": 0.25, "overall": 0.5}
    done = CellRecord("aa", spec, "finished", seconds=2.0, scores=scores, test=test)
    cells = tuple(GridCell(row["label"], 0, row.get("reported", {}), done) for row in RAW["cells"])
    return table_of(GridRecord("grid", RAW, "", "", cells))


def test_differences_are_ours_less_theirs_on_the_same_split(table: Table) -> None:
    mine, theirs, silent = as_json(table)["rows"]
    assert mine["difference"] == {"sst": 0.125, "sts": -0.125, "overall": pytest.approx(-0.025)}
    assert (mine["split"], mine["follows"], mine["derived"]) == ("dev", False, 0.375)
    assert mine["note"] == "A slip in the source."
    assert theirs["difference"] == {"sst": 0.25, "sts": 0.0, "overall": 0.125}, "our test score less theirs"
    assert (theirs["split"], theirs["follows"]) == ("test", True)
    assert (silent["reported"], silent["difference"], silent["follows"]) == ({}, {}, None)


def test_text_says_what_a_reader_should_know(table: Table) -> None:
    text = render(table, "plain", reported=True)
    lines = text.splitlines()
    parts = [word for column in ("sst", "sts", "overall") for word in (column, "reported", "diff")]
    assert lines[0].split() == ["seeds", *parts, "seconds"]
    figures = "0.625 0.500 +0.125 0.125 0.250 -0.125 0.375 0.400† -0.025 2.0"
    assert lines[2].split()[2:] == figures.split()
    assert lines[3].split()[3:6] == ["0.750", "0.500", "+0.250"], "a test figure is beside our test score"
    assert any(line.startswith("† mine: ") and "0.400" in line and "0.375" in line for line in lines)
    assert any(line.endswith(": theirs") for line in lines)
    for line in ("mine: A slip in the source.", "Read this first.", "Run with stages.*.epochs = 1."):
        assert line in lines


def test_csv_has_all_of_it_in_columns(table: Table) -> None:
    mine, theirs, silent = csv.DictReader(io.StringIO(render(table, "csv", reported=True)))
    assert [mine[f"sst {part}"] for part in ("mean", "reported", "difference")] == ["0.625", "0.5", "0.125"]
    assert (mine["follows"], theirs["follows"], silent["follows"]) == ("no", "yes", "")
    assert (theirs["split"], theirs["sst reported"], theirs["sst difference"]) == ("test", "0.5", "0.25")
    assert "sst reported" not in render(table, "csv")
