"""The model of a finished cell: what it gives for texts is what the run gave, however they come."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import generated, run_grid
from torch import Tensor

from taskloom.core import (
    Encoder,
    Head,
    Labels,
    Loss,
    Prediction,
    ScoreMeans,
    SharedModules,
    TaskloomError,
    new_linear,
)
from taskloom.plugins.datasets import Generated
from taskloom.plugins.metrics import Accuracy
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.task import Task
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import read_scores
from taskloom.runs.analysis.predictions import Predictions
from taskloom.runs.grid.contents import read_split
from taskloom.runs.predict.trained import TrainedModel, load_trained

PAIR = {"name": "linear", "reads": "pair"}
TASKS = {
    "sst": generated("sentiment", 48, 60, head={"name": "shared_layer", "head": "linear"}),
    "para": generated("paraphrase", 48, 60, head=PAIR, loss="binary_cross_entropy"),
    "same": generated("paraphrase", 48, 60, head={"name": "cosine", "scale": 1}, loss="mse"),
    "near": generated("paraphrase", 48, 60, head=PAIR, loss={"name": "smart", "loss": "mse"}),
    "sts": generated("similarity", 48, 60, head="cosine", loss="mse", metric="pearson"),
    "nli": generated("entailment", 48, 60, head={"name": "embedding", "reads": "triple"}, loss="simcse"),
}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
Ran = tuple[Path, TrainedModel]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    registry = tmp_path_factory.mktemp("trained") / "registry"
    stage = {"epochs": 2, "optimizer": {"lr": 0.01}}
    plan, outcome, _ = run_grid(registry, {"base": {"encoder": ENCODER, "tasks": TASKS, "stages": [stage]}})
    assert outcome.finished == 1
    with Ledger.open(registry, create=False) as ledger:
        cell = ledger.cell(plan.cells[0].id)
    return registry / "cells" / cell.id, load_trained(cell, load_catalogue(), registry)


def dev(trained: TrainedModel, task: str) -> list[tuple[str, ...]]:
    examples = read_split({**TASKS[task]["data"], "name": "generated"}, "dev")
    return list(zip(*examples.columns, strict=True))


@pytest.mark.parametrize("task", ["sst", "para", "same", "near", "sts"])
def test_dev_texts_give_the_stored_dev_predictions(ran: Ran, task: str) -> None:
    folder, trained = ran
    stored = read_scores(folder / "scores-dev.safetensors")
    found = trained.predict(task, dev(trained, task))
    assert found.values.tolist() == found.labels == stored.read(task, "predicted").tolist()
    assert {type(label) for label in found.labels} == {float if task == "sts" else int}
    if found.probabilities is not None:
        score = torch.from_numpy(stored.read(task, "score").copy())
        logits = torch.stack([torch.zeros_like(score), score], 1) if task == "para" else score
        np.testing.assert_allclose(found.probabilities, logits.softmax(1), atol=1e-6)
        assert len(np.unique(found.probabilities)) > 60


@pytest.mark.parametrize("task", ["sst", "para", "same", "near", "sts"])
def test_neither_batch_size_nor_order_nor_training_mode_changes_a_prediction(ran: Ran, task: str) -> None:
    trained, rows = ran[1], dev(ran[1], task)
    expected = trained.predict(task, rows)
    trained.train()
    backwards = trained.predict(task, rows[::-1], batch_size=7)
    one_by_one = trained.predict(task, (row for row in rows), batch_size=1)
    for found, order in ((backwards, slice(None, None, -1)), (one_by_one, slice(None))):
        np.testing.assert_allclose(found.values[order], expected.values, atol=1e-5)
        if expected.probabilities is not None:
            assert found.probabilities is not None
            np.testing.assert_allclose(found.probabilities[order], expected.probabilities, atol=1e-5)


def test_probabilities_are_of_classes_and_agree_with_what_is_decided(ran: Ran) -> None:
    for task, classes in (("sst", 5), ("para", 2)):
        found = ran[1].predict(task, dev(ran[1], task))
        assert found.probabilities is not None
        assert found.probabilities.shape == (60, classes)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, atol=1e-6)
        assert found.probabilities.argmax(1).tolist() == found.values.tolist()
    for task in ("same", "near", "sts"):  # a cosine, a value of two classes, values: no logit
        assert ran[1].predict(task, dev(ran[1], task)).probabilities is None


def test_two_classes_by_regression_are_the_nearest_of_their_numbers(ran: Ran) -> None:
    stored = read_scores(ran[0] / "scores-dev.safetensors")
    score = stored.read("near", "score")
    assert ((score > 0) & (score < 0.5)).any(), "some would count as the second class if they were logits"
    assert stored.read("near", "predicted").tolist() == (score > 0.5).tolist()


def test_an_analysis_knows_the_same_probabilities(ran: Ran) -> None:
    folder, trained = ran
    with Ledger.open(folder.parent.parent, create=False) as ledger:
        cell = ledger.cell(folder.name)
    for task in ("sst", "para", "same", "near", "sts"):
        of_texts = trained.predict(task, dev(trained, task)).probabilities
        of_analysis = Predictions.load(folder.parent.parent, task, [cell]).probabilities
        assert (of_texts is None) == (of_analysis is None)
        if of_texts is not None and of_analysis is not None:
            np.testing.assert_allclose(of_texts, of_analysis[0], atol=1e-6)


class Middle(Head):
    """A third party's head, which leaves the decision to the interface."""

    name = "middle"

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        self.layer = new_linear(width, outputs, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(self.layer(vectors[0])[:, 0], vectors)


class AbsoluteError(Loss):
    """A third party's loss, which compares one number with the label."""

    name = "absolute_error"
    expects = "score"
    score_means: ScoreMeans = "value"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score - target).abs().mean()


class Hinge(AbsoluteError):  # noqa: N818 - a loss
    """A third party's loss, which looks at the sign."""

    name = "hinge"
    score_means = "logit"


@pytest.mark.parametrize(("loss", "cut"), [(AbsoluteError(), 0.5), (Hinge(), 0.0)])
def test_a_third_partys_loss_says_where_two_classes_are_cut(loss: Loss, cut: float) -> None:
    encoder = load_catalogue().make(Encoder, ENCODER)
    head = Middle()
    task = Task("t", Generated(task="paraphrase"), head, loss, Accuracy())
    model = TrainedModel(encoder, {"t": task}, seed=0, precision="float32")
    texts = [row[0] for row in dev(model, "para")]
    vectors = model.encode(texts)
    with torch.no_grad():  # scores with a mean of 0.25 and a deviation of 1
        head.layer.weight /= head.layer(vectors).std()
        head.layer.bias -= head.layer(vectors).mean() - 0.25
        score = head.layer(vectors)[:, 0]
    found = model.predict("t", texts)
    assert found.labels == (score > cut).long().tolist()
    assert found.labels != (score > 0.5 - cut).long().tolist(), "the two cuts differ"
    assert (found.probabilities is not None) == (cut == 0)


def test_vectors_are_those_of_the_encoder(ran: Ran) -> None:
    trained, texts = ran[1], [text for (text,) in dev(ran[1], "sst")]
    vectors = trained.encode(texts)
    assert vectors.shape == (60, 16)
    torch.testing.assert_close(trained.encode(iter(texts[::-1]), batch_size=7).flip(0), vectors, rtol=0, atol=1e-5)
    first, second = zip(*dev(trained, "sts"), strict=True)
    cosine = torch.cosine_similarity(trained.encode(first), trained.encode(second))
    np.testing.assert_allclose(trained.predict("sts", zip(first, second, strict=True)).values, 5 * cosine, atol=1e-4)


def test_rows_are_taken_as_they_are_needed(ran: Ran) -> None:
    def rows() -> Iterator[str]:
        yield from ["a fine film"] * 8
        raise AssertionError("a ninth row was asked for before the first eight were done")

    with pytest.raises(AssertionError, match="ninth"):
        ran[1].predict("sst", rows(), batch_size=8)
    with pytest.raises(TaskloomError, match="batch_size should be at least 1"):
        ran[1].predict("sst", [], batch_size=0)


def test_no_texts_give_no_predictions(ran: Ran) -> None:
    found = ran[1].predict("sst", [])
    assert (found.labels, found.values.shape) == ([], (0,))
    assert found.probabilities is not None
    assert found.probabilities.shape == (0, 5)
    assert ran[1].predict("sts", []).labels == []
    assert ran[1].encode([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("task", "texts", "words"),
    [
        ("stst", [], "no task 'stst'; did you mean 'sts'?"),
        ("nli", [], "'nli' predicts nothing"),
        ("sst", "a fine film", "Found one string; put it into a list"),
        ("sst", [("a", "b")], "texts of task 'sst' should be strings"),
        ("sst", [3], "should be strings. Found '3'"),
        ("sts", ["ab"], "should be tuples of 2 strings, as head 'cosine' reads"),
        ("sts", [("a", None)], "should be tuples of 2 strings"),
    ],
)
def test_texts_that_do_not_fit(ran: Ran, task: str, texts: list[str], words: str) -> None:
    with pytest.raises(TaskloomError) as error:
        ran[1].predict(task, texts)
    assert words in str(error.value)
