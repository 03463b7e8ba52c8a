"""What a table says of its own accord: each pitfall is found where it is, and nothing is said where there is none."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import METRICS, Row, examples_of, rebind, record

from taskloom.core import Examples
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.binding import bind
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, EpochRecord
from taskloom.registry.results.scores import find_scores, load_examples, save_examples, save_scores
from taskloom.runs import Grid
from taskloom.runs.analysis.checks import checks_of, constants_of
from taskloom.runs.analysis.metrics import metric_named
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import table_of
from taskloom.runs.show.render import as_json, render

TWO = [Row("a"), Row("b", set={"stages.0.combiner": {"name": "pcgrad"}})]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return record(tmp_path / "r", TWO)


def results_of(folder: Path, change: Callable[[str, CellRecord], CellRecord] = lambda label, cell: cell) -> Results:
    """The results of the recorded grid, its cells changed."""
    with Ledger.open(folder, create=False) as ledger:
        grid = ledger.grid("made")

    def changed(label: str, cell: CellRecord) -> CellRecord:
        cell = change(label, cell)
        return replace(cell, digests=bind(folder / "cells" / cell.id, "dev", cell.scores))

    cells = [replace(row, cell=changed(row.label, row.cell)) for row in grid.cells]
    return Results(replace(grid, cells=tuple(cells)), folder)


def rewrite(results: Results, label: str, task: str, predicted: Any = None, **facts: Any) -> None:
    """Let the cells of a row have predicted something else, or know something else of their examples."""
    for (row, _), cell in results.finished.items():
        if row == label:
            stored = find_scores(results.registry, cell)
            assert stored is not None
            columns = {each: {"predicted": stored.read(each, "predicted")} for each in stored.tasks}
            for each, column in columns.items():
                column["influence"] = stored.read(each, "influence")
                column["score"] = stored.read(each, "score")
            if predicted is not None:
                columns[task]["predicted"] = np.full(len(columns[task]["predicted"]), float(predicted))
            tasks = {**stored.tasks, task: replace(stored.tasks[task], **facts)}
            save_scores(stored.path.parent, "dev", tasks, columns)
    rebind(results.registry)


def histories(results: Results, **given: Callable[[int, int], Mapping[str, Any]]) -> Callable[[str], list[EpochRecord]]:
    """Three epochs of every cell; what is ``given`` for a row is told the seed and the epoch."""
    places = {cell.id: place for place, cell in results.finished.items()}

    def epochs(id: str) -> list[EpochRecord]:
        label, seed = places[id]
        number = list(results.rows).index(label)
        found = []
        for epoch in (1, 2, 3):
            losses = {"sst": 1 / (epoch + seed + 10 * number)}
            found.append(EpochRecord(0, epoch, None, None, losses, {"sst": 0.1 * epoch}, {}))
            if label in given:
                found[-1] = replace(found[-1], **given[label](seed, epoch))
        return found

    return epochs


def test_a_sound_grid_has_nothing_to_say(made: Path) -> None:
    assert constants_of(results_of(made)) == []


def said(results: Results, **given: Any) -> str:
    (line,) = checks_of(replace(results, epochs=histories(results, **given)))
    return line


def test_identical_trajectories(made: Path) -> None:
    same = lambda seed, epoch: {"losses": {"sst": epoch + seed}, "scores": {"sst": 0.5}}  # noqa: E731
    results = results_of(made, lambda label, cell: replace(cell, scores={"sst": 0.5}))
    assert said(results, a=same, b=same).endswith("whatever they differ in did nothing: 'a' and 'b'.")
    assert checks_of(replace(results, epochs=histories(results, a=same))) == []


@pytest.mark.parametrize("path", ["", "stages.0.epochs", "axes"])
def test_one_run_in_two_rows_is_said_where_the_grid_sets_them_apart(made: Path, path: str) -> None:
    results = results_of(made)
    first = {place.seed: place.cell for place in results.grid.cells if place.label == "a"}
    cells = tuple(replace(place, cell=first[place.seed]) for place in results.grid.cells if place.label in "ab")
    stated = [{"label": "a", "set": {"stages.0.clip": 1}}, {"label": "b", "set": {path or "stages.0.clip": 1}}]
    spec = {**results.grid.spec, "cells": [] if path == "axes" else stated}
    found = checks_of(replace(results, grid=replace(results.grid, cells=cells, spec=spec), epochs=histories(results)))
    line = "One run under several labels, whose settings were overridden or change nothing: 'a' and 'b'."
    assert found == ([line] if path else []), "two labels of one setting are what the grid wants"


def losses(seed: int, epoch: int) -> Mapping[str, Any]:
    return {"losses": {"sst": 1.5}}


def gradients(removed: float, conflicts: float) -> Callable[[int, int], Mapping[str, Any]]:
    return lambda seed, epoch: {"diagnostics": {"removed": removed, "pairs": {"sst+sts": {"conflicts": conflicts}}}}


def margin(step: float) -> Callable[[int, int], Mapping[str, Any]]:
    return lambda seed, epoch: {"metrics": {"sts": {"margin": 0.1 + step * epoch}}}


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ({}, []),
        ({"b": losses}, ["Training changed nothing in 'b': the losses of all epochs are the same."]),
        (
            {"b": gradients(0.0, 0.0)},  # a sum keeps no gradients apart and records nothing of them
            ["The combiner of 'b' met no conflict between tasks and did only what a sum does."],
        ),
        ({"b": gradients(0.0, 0.5)}, ["The combiner of 'b' did only what a sum does."]),
        ({"b": gradients(0.1, 0.5)}, []),
        ({"a": margin(0.0), "b": margin(0.1)}, ["The margin of 'a' never moved."]),
    ],
)
def test_training_without_effect_is_named_and_nothing_else(made: Path, rows: dict[str, Any], lines: list[str]) -> None:
    results = results_of(made)
    assert checks_of(replace(results, epochs=histories(results, **rows))) == lines


def test_constant_predictions_and_scores_below_the_majority_class(made: Path) -> None:
    results = results_of(made)
    rewrite(results, "b", "para", predicted=1)
    results = results_of(made)
    lines = checks_of(replace(results, epochs=histories(results)))
    assert lines[0] == "'b': every prediction for para is the same, in one seed at least."
    assert lines[1].startswith("'b': untrained on para, no better than always class ")
    assert [results.untrained("b", column) for column in ("para", "sst", "overall")] == [True, False, False]

    def poor(label: str, cell: CellRecord) -> CellRecord:
        return replace(cell, scores={**cell.scores, "para": 0.4}) if label == "b" else cell

    results = results_of(made, poor)
    stored = results.stored(results.finished["a", 0].id)
    assert stored is not None
    expected = results.examples(stored.tasks["para"].examples).expected
    share = max(expected.mean(), 1 - expected.mean())
    (constant,) = constants_of(results)
    assert (constant.task, constant.score) == ("para", pytest.approx(share))
    lines = checks_of(replace(results, epochs=histories(results)))
    assert lines[1] == f"'b': untrained on para, no better than {constant.says} ({share:.3f})."


@pytest.mark.parametrize("task", METRICS)
def test_the_constant_prediction_scores_what_its_metric_gives_it(tmp_path: Path, task: str) -> None:
    results = results_of(record(tmp_path / "r", [Row("a", skill=0.0, noise=0.0)]))
    constant = {each.task: each for each in constants_of(results)}[task]
    stored = results.stored(results.finished["a", 0].id)
    assert stored is not None
    expected = results.examples(stored.tasks[task].examples).expected
    best = max(METRICS[task](np.full(len(expected), each), expected) for each in np.unique(expected))
    assert constant.score == pytest.approx(best)


def test_examples_that_share_texts_and_texts_seen_in_training(made: Path) -> None:
    results = results_of(made)
    key = results.stored(results.finished["a", 0].id).tasks["sst"].examples  # type: ignore[union-attr]
    labels = load_examples(made, key).expected
    texts = tuple(f"text {number // 2 if number < 10 else number}" for number in range(200))
    doubled = save_examples(Artifacts(made), Examples((texts,), labels, tuple(map(str, range(200))))).key
    for label in ("a", "b"):
        rewrite(results, label, "sst", examples=doubled, seen=7)
    results = results_of(made)
    shared, seen = checks_of(replace(results, epochs=histories(results)))
    independent = "Examples that share a text with another are not counted as independent"
    assert shared == f"{independent}: 10 of 200 in sst (up to 2 with one text)."
    assert seen == "Scored examples whose texts are also in the training data: 7 of 200 in sst."


GPU = "cuda (NVIDIA T4)"


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        ({"a": ("cpu", "2"), "b": (GPU, "9")}, f"'a' on cpu with 2 threads; 'b' on {GPU}."),
        ({"a": ("cpu", "2"), "b": ("cpu", "1")}, "'b' on cpu with 1 thread."),
        ({"a": ("cpu", "2"), "b": ("cpu", "2, then 1")}, "'b' on cpu with 2, then 1 threads."),
        ({"a": (f"{GPU}, then cuda", "2"), "b": (f"{GPU}, then cuda", "2")}, f"'a' and 'b' on {GPU}, then cuda."),
        ({"a": ("cuda", "1"), "b": ("cuda", "2")}, ""),  # threads make no difference on a GPU
        ({"a": ("cpu", "2"), "b": ("cpu", "2")}, ""),
        ({"a": ("cpu", "2"), "b": ("cpu", None)}, ""),
    ],
)
def test_devices_and_threads(made: Path, machines: dict[str, tuple[str, str | None]], words: str) -> None:
    def move(label: str, cell: CellRecord) -> CellRecord:
        device, threads = machines[label]
        return replace(cell, device=device, versions={"threads": threads} if threads else {})

    results = results_of(made, move)
    lines = checks_of(replace(results, epochs=histories(results)))
    assert len(lines) == bool(words)
    assert words in "".join(lines)


def test_more_epochs_to_choose_from(tmp_path: Path) -> None:
    rows = [Row("short"), Row("long", set={"stages.0.epochs": 9})]
    assert "'long' had 9, others as few as 3" in said(results_of(record(tmp_path / "r", rows)))
    rows = [Row(row.label, set={**row.set, "selection": "last"}) for row in rows]
    results = results_of(record(tmp_path / "last", rows))
    assert checks_of(replace(results, epochs=histories(results))) == [], "the last epoch is not chosen"


def test_a_published_figure_is_marked_exactly_where_the_best_constant_does_as_well(tmp_path: Path) -> None:
    labels = examples_of("para", 200).labels
    assert labels is not None
    share = float(np.bincount(labels.astype(int)).max() / len(labels))
    figures = {"below": share - 0.01, "at": share, "above": share + 0.01}
    folder = record(tmp_path / "r", [Row(name, reported={"para": figure}) for name, figure in figures.items()])
    table = table_of(results_of(folder))
    assert {row.label: table.no_better(row) for row in table.rows} == {"below": ["para"], "at": ["para"], "above": []}
    assert table.constants == (), "our own scores are far from it"
    text = render(table, "plain", reported=True)
    assert text.count("‡") == 3, "two figures and the note"
    assert f"(para, {share:.3f})" in text
    assert "‡" not in render(table, "plain"), "only beside published figures"
    assert r"$\ddagger$" in render(table, "latex", reported=True)
    assert [row["no_better"] for row in as_json(table)["rows"]] == [["para"], ["para"], []]
    assert table_of(replace(results_of(folder), metric=metric_named("macro_f1"))).floors == {}


def test_a_row_with_another_metric_is_compared_with_the_constant_of_that_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"data": {"name": "generated", "task": "similarity", "size": 16, "dev_size": 16}, "head": "cosine"}
    encoder = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64}
    base = {"encoder": encoder, "tasks": {"sts": {**task, "loss": "mse"}}, "stages": [{"epochs": 1}]}
    axes = {"tasks.sts.metric": ["pearson", "mae"]}
    (tmp_path / "two.json").write_text(json.dumps({"base": base, "axes": axes}))
    monkeypatch.chdir(tmp_path)
    grid = Grid("two.json", registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    (line,) = [line for line in grid.table().checks if line.startswith("'mae': untrained on sts")]
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        results = Results(ledger.grid("two"), tmp_path / "registry")
    (facts,) = {facts.metric: facts for *_, facts in results.facts if facts.metric == "mae"}.values()
    assert facts.floor is not None
    assert line.endswith(f"no better than always the same value ({facts.floor:.3f}).")
    assert facts.floor < -0.5
