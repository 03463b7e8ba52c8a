"""What flipped between two rows, what a row gets wrong, and the tests of both against outside witnesses."""

import csv
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import Row, rebind, record
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from statsmodels.stats.contingency_tables import mcnemar

from taskloom.core.errors import RegistryError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import ExampleSet, TaskFacts, find_scores, save_scores
from taskloom.runs.analysis.compare import McNemar, compare
from taskloom.runs.analysis.errors import class_scores, confusion_of, errors_of
from taskloom.runs.analysis.predictions import Predictions, Subject, in_units, texts_of
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import derive_overall
from taskloom.runs.grid.contents import read_split

NAMES = ["awful", "bad", "so-so", "good", "great"]
PAIRS = {"name": "generated", "task": "paraphrase", "dev_size": 150}
VALUES = {"name": "generated", "task": "similarity", "dev_size": 150}


def write_table(path: Path, texts: list[str]) -> dict[str, Any]:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [(f"id-{place}", text, NAMES[place % 5]) for place, text in enumerate(texts)]
        csv.writer(file).writerows([("id", "text", "label"), *rows])
    return {
        "name": "table",
        **{"train": str(path), "dev": str(path), "text": "text", "label": "label", "id": "id", "classes": NAMES},
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    texts = [f"text {'and more ' * (place % 7)}number {place}" for place in range(150)]
    data = {"sst": write_table(folder / "sst.csv", texts), "para": PAIRS, "sts": VALUES}
    rows = [Row("a"), Row("b", 1.05), Row("far", 1.8), Row("more")]
    return record(folder / "r", rows, data_sets=data, failed={("b", 2): "it broke"})


def row(folder: Path, label: str, seed: int | None = None) -> Subject:
    """A row of the grid, or one cell of it."""
    with Ledger.open(folder, create=False) as ledger:
        grid = ledger.grid("made")
    cells = [place for place in grid.cells if place.label == label and place.cell.status == "finished"]
    if seed is None:
        return Subject(f"row {label}", tuple(cells), grid)
    return Subject(f"cell {label} {seed}", tuple(place for place in cells if place.seed == seed))


def predicted(folder: Path, label: str, task: str) -> Predictions:
    return Predictions.load(folder, task, [place.cell for place in row(folder, label).cells])


def of_classes(predictions: Any, expected: Any, classes: int = 3) -> Predictions:
    """Predictions that were never stored."""
    predictions, expected = np.atleast_2d(predictions).astype(float), np.asarray(expected, float)
    examples = ExampleSet("", tuple(map(str, range(len(expected)))), expected, np.arange(len(expected))[:, None])
    return Predictions(
        "t", TaskFacts("", "accuracy", False, classes), examples, predictions, predictions, None, predictions
    )


# Tests


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 61), (0, 7), (400, 300)])
def test_mcnemars_test_is_that_of_statsmodels_and_scipy(a: int, b: int) -> None:
    test = McNemar(a, b, 1000)
    assert test.p == pytest.approx(mcnemar([[9, a], [b, 9]], exact=True).pvalue if a + b else 1.0)
    assert test.p == pytest.approx(binomtest(a, a + b, 0.5).pvalue if a + b else 1.0)
    low, high = test.interval(0.05)
    if a + b:
        exact = binomtest(b, a + b, 0.5).proportion_ci(0.95, method="exact")
        assert (low, high) == pytest.approx([(a + b) / 1000 * (2 * each - 1) for each in exact])
    assert low <= (b - a) / 1000 <= high
    assert (low > 0 or high < 0) == (test.p < 0.05)


def test_rows_of_a_grid_are_tested_as_the_table_tests_them(made: Path) -> None:
    found = compare(row(made, "a"), row(made, "far"), made)
    assert [task.of.task for task in found.tasks] == ["sst", "para", "sts"]
    with Ledger.open(made, create=False) as ledger:
        results = Results(ledger.grid("made"), made)
    for task in found.tasks:
        assert task.contrast == results.difference(task.of.task, "far", "a")
        assert task.mcnemar is None
        assert task.scores[1] - task.scores[0] == pytest.approx(task.contrast.delta)
    assert [judged.verdict for judged in found.judged] == ["better"] * 3


def test_two_models_on_classes_are_tested_by_mcnemars_test(made: Path) -> None:
    found = compare(row(made, "a", 0), row(made, "far", 1), made)
    assert found.seeds == ((0, 1),)
    tests = {task.of.task: task for task in found.tasks}
    assert tests["sts"].mcnemar is None
    assert tests["sts"].contrast.variance() == "examples"
    a, far = predicted(made, "a", "sst").right[0], predicted(made, "far", "sst").right[1]
    test = tests["sst"].mcnemar
    assert test is not None
    assert (test.only_a, test.only_b) == ((a & ~far).sum(), (far & ~a).sum())
    judged = found.judged[0]
    assert test.p <= judged.p <= 3 * test.p, "corrected for three tasks"
    assert judged.interval == test.interval(judged.alpha)


#: Metrics of somebody else's: a share of right predictions, and a correlation.
METRICS = """
from taskloom.core import hookimpl
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.plugins.metrics.pearson import Pearson
class Right(Accuracy):
    '''The share of right predictions.'''
    name = "right"
class Kendall(Pearson):
    '''A correlation.'''
    name = "kendall"
@hookimpl
def taskloom_components(): return [Right, Kendall]
"""


def test_metrics_of_plugins_say_what_they_are(made: Path, install: Callable[..., None]) -> None:
    task = compare(row(made, "a", 0), row(made, "far", 1), made).tasks[0]
    judged_by_plugin = replace(task, a=replace(task.a, facts=replace(task.a.facts, metric="right")))
    spec = {"overall": "normalised", "tasks": {"sst": {"metric": "right"}, "sts": {"metric": "kendall"}}}
    scores = {"sst": 0.5, "sts": 0.5}
    assert judged_by_plugin.mcnemar is None, "nobody knows what it counts"
    assert derive_overall(scores, scores, spec, 3)[0] is None, "nor whether it is a correlation"
    install("metrics", METRICS)
    assert replace(judged_by_plugin).mcnemar == task.mcnemar is not None
    assert derive_overall(scores, scores, spec, 3)[0] == (0.5 + 0.75) / 2


def test_examples_that_share_a_text_are_not_taken_as_apart(tmp_path: Path) -> None:
    data = {"sst": write_table(tmp_path / "sst.csv", [f"text {place // 2}" for place in range(60)])}
    folder = record(tmp_path / "r", [Row("a"), Row("b", 1.4)], seeds=(0,), data_sets=data)
    task = compare(row(folder, "a"), row(folder, "b"), folder).tasks[0]
    assert task.mcnemar is None
    predictions = Predictions.load(folder, "sst", [cell.cell for cell in row(folder, "b").cells])
    others = Predictions.load(folder, "sst", [cell.cell for cell in row(folder, "a").cells])
    moved = predictions.right[0].astype(float) - others.right[0]
    pairs = (moved - moved.mean()).reshape(30, 2).sum(1)  # those of one text
    alone = ((moved - moved.mean()) ** 2).sum()
    assert task.contrast.noises[0].common == pytest.approx(max((pairs**2).sum(), alone) / 60**2)


def test_what_is_exchanged_changes_only_its_sign(made: Path) -> None:
    a, far = row(made, "a"), row(made, "far")
    one, other = compare(a, far, made), compare(far, a, made)
    assert [each.p for each in one.judged] == pytest.approx([each.p for each in other.judged])
    for task, back in zip(one.tasks, other.tasks, strict=True):
        assert task.contrast.delta == pytest.approx(-back.contrast.delta)
        (number, examples), (same, others) = task.flipped(10), back.flipped(10, back=True)
        assert (number, [each.id for each in examples]) == (same, [each.id for each in others])
        for part, mirrored in zip(task.by_label + task.by_length, back.by_label + back.by_length, strict=True):
            assert (part.a, part.b) == (mirrored.b, mirrored.a)


# What flipped


def test_an_example_flipped_if_it_did_in_most_seeds(made: Path) -> None:
    a, far = predicted(made, "a", "sst"), predicted(made, "far", "sst")
    flips = (far.right & ~a.right).sum(0)
    task = compare(row(made, "a"), row(made, "far"), made).tasks[0]
    number, examples = task.flipped(1000)
    assert number == len(examples) == (flips >= 2).sum()
    place = {id: number for number, id in enumerate(a.examples.ids)}
    assert [each.seeds for each in examples] == sorted((flips[flips >= 2]).tolist(), reverse=True)
    gains = [(each.seeds, each.size) for each in examples]
    assert gains == sorted(gains, reverse=True), "the most extreme first"
    for each in examples:
        before, after = each.predicted
        assert before == tuple(a.predicted[:, place[each.id]])
        assert after == tuple(far.predicted[:, place[each.id]])
        assert each.label == a.expected[place[each.id]]
        assert each.texts is not None
        assert each.texts[0].endswith(f"number {place[each.id]}")
    assert task.flipped(2) == (number, examples[:2])


def test_a_value_flips_if_its_error_shrinks(made: Path) -> None:
    a, more = predicted(made, "a", "sts"), predicted(made, "more", "sts")
    task = compare(row(made, "a"), row(made, "more"), made).tasks[2]
    shrunk = np.abs(more.predicted - more.expected) < np.abs(a.predicted - a.expected)
    number, examples = task.flipped(1000)
    assert number == len(examples) == (shrunk.sum(0) >= 2).sum()
    assert number + task.flipped(0, back=True)[0] == len(a.expected)


def test_breakdowns_are_means_over_parts_that_make_up_the_whole(made: Path) -> None:
    a = predicted(made, "a", "sst")
    task = compare(row(made, "a"), row(made, "far"), made).tasks[0]
    for parts in (task.by_label, task.by_length):
        assert sum(part.examples for part in parts) == len(task.of.expected)
        assert sum(part.examples * part.a for part in parts) / len(task.of.expected) == pytest.approx(task.scores[0])
        for part in parts:
            assert part.b - part.a == pytest.approx(part.judged.contrast.delta)
    assert [part.a for part in task.by_label] == pytest.approx([a.right[:, a.expected == k].mean() for k in range(5)])
    ranges = [(part.low, part.high) for part in task.by_length]
    assert len(ranges) == 4
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    assert sum(part.examples for part in compare(row(made, "a"), row(made, "far"), made).tasks[2].by_label) == 150


def test_a_breakdown_into_one_part_is_the_whole_comparison(tmp_path: Path) -> None:
    data = {"sst": write_table(tmp_path / "sst.csv", [f"text {place}" for place in range(60)])}
    folder = record(tmp_path / "r", [Row("a"), Row("b", 1.4), Row("c", 0.9)], data_sets=data)
    task = compare(row(folder, "a"), row(folder, "b"), folder).tasks[0]
    (part,) = task.by_length
    assert part.judged.contrast.delta == pytest.approx(task.contrast.delta)
    for noise, whole in zip(part.judged.contrast.noises, task.contrast.noises, strict=True):
        for name in ("spread", "common", "freedom"):
            assert getattr(noise, name) == pytest.approx(getattr(whole, name))


def test_what_cannot_be_compared_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="same models"):
        compare(row(made, "a"), row(made, "a", 1), made)
    with pytest.raises(RegistryError, match="no finished seed in common"):
        compare(row(made, "b"), row(made, "a", 2), made)
    assert compare(row(made, "a"), row(made, "b"), made).seeds == ((0, 0), (1, 1))
    record(tmp_path / "r", [Row("a")], examples=40, name="made")
    few = row(tmp_path / "r", "a")
    record(tmp_path / "r", [Row("z")], examples=50, name="made")
    with pytest.raises(RegistryError, match="no task with the same examples"):
        compare(few, row(tmp_path / "r", "z"), tmp_path / "r")
    (tmp_path / "r" / "cells" / few.cells[1].cell.id / "scores-dev.safetensors").unlink()
    with pytest.raises(RegistryError, match=few.cells[1].cell.id[:12]):
        errors_of(few, tmp_path / "r")


# Errors


def test_scores_per_class_and_confusion_are_those_of_scikit_learn(made: Path) -> None:
    for subject in (row(made, "a"), row(made, "far", 1)):
        task = errors_of(subject, made)[0]
        of = Predictions.load(made, "sst", [place.cell for place in subject.cells])
        whole = [confusion_matrix(of.expected, each, labels=range(5)) for each in of.predicted]
        assert task.confusion.counts.tolist() == np.sum(whole, 0).tolist()
        found = np.mean([precision_recall_fscore_support(of.expected, each)[:3] for each in of.predicted], 0)
        ours = [[getattr(each, name) for each in task.by_class] for name in ("precision", "recall", "f1")]
        assert np.array(ours) == pytest.approx(found)
        assert [each.support for each in task.by_class] == [30] * 5
        assert task.confusion.names == tuple(NAMES)


def test_a_score_that_is_not_defined_is_not_given() -> None:
    never, only_called, both = class_scores(of_classes([1, 1, 2], [2, 2, 2]))
    assert (never.precision, never.recall, never.f1) == (None, None, None)
    assert (only_called.precision, only_called.recall, only_called.f1) == (0.0, None, 0.0)
    assert (both.precision, both.recall, both.support) == (1.0, pytest.approx(1 / 3), 3)


def test_the_worst_errors_are_those_of_most_seeds_then_the_surest(made: Path) -> None:
    of = predicted(made, "a", "sst")
    task = errors_of(row(made, "a"), made, limit=1000)[0]
    assert len(task.worst) == (~of.right).any(0).sum()
    order = [(each.seeds, each.confidence[0]) for each in task.worst]
    assert order == sorted(order, reverse=True)
    assert of.confidence is not None
    assert of.confidence == pytest.approx(of.probabilities.max(-1))
    assert of.probabilities.sum(-1) == pytest.approx(1)


def test_of_values_the_largest_errors_and_a_confusion_of_bins(made: Path) -> None:
    of = predicted(made, "a", "sts")
    task = errors_of(row(made, "a"), made)[2]
    error = np.abs(of.predicted - of.expected).mean(0)
    assert [each.size for each in task.worst] == pytest.approx(np.sort(error)[::-1][:10].tolist())
    counts = task.confusion.counts
    assert counts.shape == (5, 5)
    assert counts.sum(1).tolist() == (3 * np.histogram(of.expected, 5)[0]).tolist()
    assert task.by_class == ()
    perfect = replace(of, predicted=np.stack([of.expected, of.expected]))
    assert np.trace(confusion_of(perfect).counts) == 2 * len(of.expected)


def test_values_of_a_correlation_are_taken_to_the_scale_of_the_labels() -> None:
    expected = np.linspace(0, 5, 40)
    facts = TaskFacts("", "pearson", True, 0)
    assert in_units((expected / 10 + 0.4) * 0.1, expected, facts) == pytest.approx(expected)
    assert in_units(-expected, expected, facts) == pytest.approx(2.5), "what has learned the opposite knows nothing"
    assert in_units(np.ones(40), expected, facts) == pytest.approx(2.5)
    assert in_units(expected + 1, expected, replace(facts, correlation=False)) == pytest.approx(expected + 1)


@pytest.mark.parametrize(
    ("logit", "decided", "is_probability"),
    [
        (True, [0, 0, 1, 1], True),
        (False, [0, 0, 1, 1], False),
        (None, [0, 0, 1, 1], True),  # a file that does not say it: decided above 0
        (None, [0, 0, 0, 1], False),
    ],
)
def test_one_number_is_a_probability_only_if_it_is_a_logit(
    tmp_path: Path, logit: bool | None, decided: list[int], is_probability: bool
) -> None:
    folder = record(tmp_path / "r", [Row("a")], seeds=(0,), examples=4)
    cell = row(folder, "a").cells[0].cell
    stored = find_scores(folder, cell)
    assert stored is not None
    score = np.array([-2.0, 0.0, 0.3, 3.0])
    columns = {"para": {"score": score[:, None], "predicted": np.array(decided, float), "influence": score}}
    save_scores(folder / "cells" / cell.id, "dev", {"para": replace(stored.tasks["para"], logit=logit)}, columns)
    rebind(folder)
    found = Predictions.load(folder, "para", [row(folder, "a").cells[0].cell])
    assert (found.confidence is not None) == is_probability
    if found.confidence is not None:
        assert found.confidence[0] == pytest.approx(1 / (1 + np.exp(-np.abs(score))))
    else:
        assert found.wrongness[0] == pytest.approx(np.abs(score - found.expected))


# Texts


def test_texts_are_those_of_the_run_or_none(tmp_path: Path) -> None:
    path = tmp_path / "sst.csv"
    spec = write_table(path, [f"text {place}" for place in range(40)])
    folder = record(tmp_path / "r", [Row("a")], data_sets={"sst": spec})
    examples = predicted(folder, "a", "sst").examples
    found = texts_of("sst", spec, examples)
    assert (found.note, found.rows and found.rows[8]) == ("", ("text 8",))
    path.write_text(path.read_text().replace("id-7,text 7,so-so", "id-7,text 7,bad"))
    changed = texts_of("sst", spec, examples)
    assert changed.rows is None
    assert "changed" in changed.note
    path.unlink()
    gone = texts_of("sst", spec, examples)
    assert gone.rows is None
    assert "sst.csv" in gone.note
    task = errors_of(row(folder, "a"), folder)[0]
    assert task.worst[0].texts is None
    assert task.confusion.names == tuple(NAMES), "which no file is needed for"


def test_data_that_were_moved_are_found_in_the_folder_given(course_data: Path, tmp_path: Path) -> None:
    spec = {"name": "cs224n", "task": "sst", "dir": str(course_data)}
    folder = record(tmp_path / "r", [Row("a")], seeds=(0,), data_sets={"sst": spec})
    examples = predicted(folder, "a", "sst").examples
    moved = {**spec, "dir": str(tmp_path / "gone")}
    assert "--data" in texts_of("sst", moved, examples).note
    found = texts_of("sst", moved, examples, course_data.parent)
    assert found.note == ""
    assert found.rows is not None
    assert found.rows[0] == (read_split(spec, "dev").columns[0][0],)
