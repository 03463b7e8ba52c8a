"""Scores of a recorded grid: what the ledger says, and the noise of the examples that cells share."""

import json
from pathlib import Path

import numpy as np
import pytest
from recorded import METRICS, Row, examples_of, rebind, record, results_of

from taskloom.core import Examples
from taskloom.core.errors import RegistryError
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import find_scores, load_examples, number_texts, save_examples
from taskloom.runs.analysis.claims import Claim, claims_of
from taskloom.runs.analysis.contrasts import UNKNOWN, judge
from taskloom.runs.analysis.effects import effects_of
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import table_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [Row("a"), Row("same"), Row("better", 1.5), Row("worse", 0.6)]
    return record(tmp_path_factory.mktemp("made") / "r", rows, baseline="a", failed={("same", 2): "it broke"})


def test_scores_are_the_ledgers_and_their_covariances_follow_from_the_stored_predictions(made):
    results = results_of(made)
    for column in ("sst", "sts", "overall"):
        scores = results.scores(column)
        for (label, seed), cell in results.finished.items():
            assert scores.values[results.rows.index(label), seed] == cell.scores[column]
        assert np.isnan(scores.values[1, 2])
    variance = {}
    stored = results.stored(results.finished["a", 0].id)
    for task in METRICS:
        examples = results.examples(stored.tasks[task].examples)
        influence = METRICS[task].influence(stored.read(task, "predicted"), examples.expected)
        variance[task] = (influence**2).sum() / len(influence) ** 2
        assert results.scores(task).independent[0, 0, 0, 0] == pytest.approx(variance[task])
    assert results.scores("overall").independent[0, 0, 0, 0] == pytest.approx(sum(variance.values()) / 9)


def test_what_differs_is_found_and_what_does_not_is_open(made):
    results = results_of(made)
    judged = judge([results.difference("overall", label, "a") for label in ("same", "better", "worse")])
    assert [each.verdict for each in judged] == ["open", "better", "worse"]
    assert judged[0].contrast.seeds == 2


def test_the_texts_of_examples_are_numbered(tmp_path):
    one = examples_of("sst", 30)
    twice = Examples((one.columns[0] * 2,), np.tile(one.labels, 2), (*one.ids, *(f"{id}b" for id in one.ids)))
    found = load_examples(tmp_path, save_examples(Artifacts(tmp_path), twice).key)
    assert found.ids == twice.ids
    assert found.texts[:, 0].tolist() == [*range(30)] * 2
    columns = ("a", "b", "A  "), ("x", "a", "y")
    assert number_texts(columns).tolist() == [[0, 2], [1, 0], [0, 3]]
    pairs = save_examples(Artifacts(tmp_path), Examples(columns, np.zeros(3), ("1", "2", "3")))
    assert load_examples(tmp_path, pairs.key).texts.tolist() == [[0, 2], [1, 0], [0, 3]], "the file has the same order"


def test_predictions_that_are_gone_or_damaged_are_never_guessed(tmp_path):
    folder = record(tmp_path / "r", [Row("a"), Row("b")], seeds=(0, 1))
    results = results_of(folder)
    file = folder / "cells" / results.finished["a", 0].id / "scores-dev.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RegistryError, match="does not belong to it"):
        find_scores(folder, results.finished["a", 0])
    assert [*results_of(folder).finished] == [("a", 1), ("b", 0), ("b", 1)], "a hole, and not the whole table"
    file.unlink()
    with pytest.raises(RegistryError, match="is missing"):
        find_scores(folder, results.finished["a", 0])
    rebind(folder)  # as in a registry of a version that kept none
    assert results_of(folder).difference("overall", "b", "a").why == UNKNOWN


def test_a_grid_scored_on_other_examples_is_not_compared(tmp_path):
    record(tmp_path / "r", [Row("a")], examples=100, name="one")
    record(tmp_path / "r", [Row("b")], examples=120, name="two")
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        one, two = ledger.grid("one"), ledger.grid("two")
    both = Results(type(one)("both", {}, "", "", (*one.cells, *two.cells)), tmp_path / "r")
    assert both.difference("sst", "a", "b").why


def test_effects_are_means_over_matched_pairs(tmp_path):
    rows = [
        Row(
            f"{combiner}, {lr}",
            1.0 + 0.5 * (combiner == "pcgrad"),
            set={"stages.0.combiner": {"name": combiner}, "stages.0.optimizer.lr": lr},
        )
        for combiner in ("sum", "pcgrad")
        for lr in (0.1, 0.2)
    ]
    folder = record(tmp_path / "r", rows, failed={("sum, 0.2", 0): "no", ("sum, 0.2", 1): "no", ("sum, 0.2", 2): "no"})
    results = results_of(folder)
    found = effects_of(results)
    combiner, lr = found.main
    assert (combiner.factor.paths, combiner.before, combiner.after) == (("stages.0.combiner",), "sum", "pcgrad")
    assert (combiner.pairs, combiner.used) == (2, 1)
    assert "no" in combiner.missing[0]
    means = results.scores("overall").values.mean(1)
    assert combiner.judged.contrast.delta == pytest.approx(means[2] - means[0])
    assert combiner.judged.verdict == "better"
    assert lr.judged.contrast.delta == pytest.approx(means[3] - means[2])
    (interaction,) = found.interactions
    assert (interaction.pairs, interaction.used, interaction.judged) == (1, 0, None)


def test_paths_that_move_together_are_one_factor(tmp_path):
    both = {"stages.0.optimizer.lr": 0.5, "overall": "normalised"}
    folder = record(tmp_path / "r", [Row("base"), Row("both", set=both)])
    found = effects_of(results_of(folder))
    assert [factor.paths for factor in found.factors] == [("stages.0.optimizer.lr", "overall")]
    assert "cannot be told apart" in found.notes[0]


def answers(folder: Path, written: dict[str, str]) -> list[Claim]:
    return claims_of(results := results_of(folder), table_of(results), written)


def test_claims_are_answered(tmp_path):
    claims = [
        {"says": "better wins", "better": "better", "than": "a"},
        {"says": "a wins", "better": "a", "than": "better"},
        {"says": "b is as good", "equal": "b", "to": "a", "within": 0.5},
        {"better": "b", "than": "a", "on": "sst"},
    ]
    folder = record(tmp_path / "r", [Row("a"), Row("b"), Row("better", 1.8)], claims=claims)
    found = answers(folder, {})
    assert [claim.answer for claim in found] == ["holds", "contradicted", "holds", "open"]
    assert found[3].says == "'b' is better than 'a' on sst"
    first = json.dumps({"margin": None, **claims[0]}, sort_keys=True)
    assert answers(folder, {first: "1999-01-01"})[0].before is True
    assert answers(folder, {first: "2999-01-01"})[0].before is False


PAIRED = [Row("a"), Row("b"), Row("c", 1.5), Row("d", 1.3)]


def test_a_claim_about_several_pairs_is_about_the_mean_of_their_differences(tmp_path):
    claims = [
        {"better": ["c", "d"], "than": ["a", "b"], "on": "sst"},
        {"better": "c", "than": "a", "on": "sst"},
        {"better": ["c"], "than": ["a"], "on": "sst"},
        {"equal": ["c", "a"], "to": ["a", "c"], "within": 0.1},
        {"better": ["c", "a"], "than": ["a", "b"], "on": "sst"},
    ]
    folder = record(tmp_path / "r", PAIRED, claims=claims)
    several, plain, listed, nothing, chain = answers(folder, {})
    scores = results_of(folder).scores("sst")
    a, b, c, d = scores.values
    by_hand = scores.contrast(np.array([-0.5, -0.5, 0.5, 0.5]))
    assert several.judged.contrast.delta == pytest.approx(((c - a) + (d - b)).mean() / 2)
    assert several.judged.contrast.delta == by_hand.delta
    assert several.judged.contrast.noises == by_hand.noises
    assert several.pairs == (("c", "a"), ("d", "b"))
    assert several.says == "'c', 'd' are on average better than 'a', 'b' on sst"
    assert listed.pairs == plain.pairs, "a list of one row is the row"
    assert listed.judged.contrast.noises == plain.judged.contrast.noises
    assert nothing.judged.contrast.why, "a difference and its opposite come to nothing"
    assert chain.judged.contrast.delta == pytest.approx((c - b).mean() / 2)


def test_a_claim_about_several_pairs_has_the_mean_of_their_published_differences(tmp_path):
    figures = {"a": 0.5, "b": 0.4, "c": 0.6, "d": 0.7}
    rows = [Row(row.label, row.skill, reported={"sst": figures[row.label]}) for row in PAIRED]
    claims = [{"better": ["c", "d"], "than": ["a", "b"], "on": column} for column in ("sst", "para")]
    folder = record(tmp_path / "r", rows, claims=claims, baseline="a")
    published, unpublished = answers(folder, {})
    assert published.reported == pytest.approx(0.2)
    assert unpublished.reported is None
    assert published.in_table is None, "the table has no such difference"
    key = json.dumps({"margin": None, **claims[0]}, sort_keys=True)
    assert answers(folder, {key: "1999-01-01"})[0].before is True
