"""The papers' losses: against sentence-transformers and torch, against algorithms traced on paper, and their state."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taskloom.core import Event, Labels, Loss, Prediction, RequestError, TrainingError
from taskloom.plugins.losses import (
    MNR,
    MSE,
    BinaryCrossEntropy,
    CosineEmbedding,
    CrossEntropy,
    DynamicMargin,
    MNRHinge,
    Total,
)
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.training.checkpoint import load_folder, load_module_state, module_state, save_folder

BINARY, VALUES, NONE = Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 0)

seeds = st.integers(0, 10**6)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seen(vectors: Tensor, rows: list[int] | None = None) -> Prediction:
    return Prediction(torch.zeros(vectors.shape[1]), vectors, None if rows is None else torch.tensor(rows))


def at_cosines(*cosines: float) -> Tensor:
    """Pairs of unit vectors in the plane with these cosines, [2, B, 2]."""
    angles = torch.tensor([math.acos(c) for c in cosines], dtype=torch.float64)
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(cosines), 2)
    return torch.stack([first, torch.stack([angles.cos(), angles.sin()], 1)])


# --- dynamic_margin

SCORES = [0.5, 0.6, 0.6, 0.4, 0.7]  # better (than 0), better, equal, worse, better


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        # 0.25 − 0.2/1, − 0.2/2, + 0.2/3, + 0.2/4, − 0.2/5
        ("down", [0.05, -0.05, 0.05 / 3, 0.2 / 3, 0.08 / 3]),
        # 0.25 + 0.2/1, + 0.2/2, − 0.2/3, − 0.2/4, + 0.2/5
        ("up", [0.45, 0.55, 1.45 / 3, 1.3 / 3, 1.42 / 3]),
    ],
)
def test_dynamic_margin_follows_algorithm_1_for_five_epochs(direction: Any, expected: list[float]) -> None:
    loss = DynamicMargin(margin=0.25, step=0.2, direction=direction)
    loss.prepare(labels=BINARY, rows=3)
    margins, values = [], []
    for epoch, score in enumerate(SCORES, start=1):
        loss.epoch_ended(epoch=epoch, score=score)
        margins.append(loss.margin)
        values.append(loss(seen(at_cosines(0.9)), torch.tensor([0])).item())
    assert margins == pytest.approx(expected)
    assert values == pytest.approx([0.9 - margin for margin in expected])


def test_a_first_metric_below_zero_is_no_improvement() -> None:
    loss = DynamicMargin(step=0.1)
    loss.epoch_ended(epoch=1, score=-0.02)
    assert loss.margin == pytest.approx(0.1)
    loss.epoch_ended(epoch=2, score=-0.01)  # still below zero, but better than before
    assert loss.margin == pytest.approx(0.05)


@settings(max_examples=40)
@given(
    scores=st.lists(st.floats(-1, 1), max_size=12),
    margin=st.floats(-1, 1),
    step=st.floats(0, 0.5),
    direction=st.sampled_from(["down", "up"]),
)
def test_dynamic_margin_is_the_algorithm_of_the_paper(
    scores: list[float], margin: float, step: float, direction: Any
) -> None:
    loss = DynamicMargin(margin=margin, step=step, direction=direction)
    previous = 0.0
    for epoch, current in enumerate(scores, start=1):
        improvement = current - previous
        sign = 1 if direction == "down" else -1
        margin = margin - sign / epoch * step if improvement > 0 else margin + sign / epoch * step
        previous = current
        loss.epoch_ended(epoch=epoch, score=current)
    assert loss.margin == pytest.approx(margin, abs=1e-12)


@settings(max_examples=30)
@given(seed=seeds, count=st.integers(1, 9), margin=st.floats(-1, 1), per_sample=st.booleans())
def test_before_it_moves_dynamic_margin_is_torchs_cosine_embedding_loss(
    seed: int, count: int, margin: float, per_sample: bool
) -> None:
    vectors, target = draw(seed, 2, count, 5), (draw(seed + 1, count) > 0).long()
    loss = DynamicMargin(margin=margin, per_sample=per_sample)
    loss.prepare(labels=BINARY, rows=count)
    expected = nn.CosineEmbeddingLoss(margin=margin)(vectors[0], vectors[1], 2 * target - 1)
    torch.testing.assert_close(loss(seen(vectors, list(range(count))), target), expected)


def test_a_margin_per_pair_traced_by_hand() -> None:
    """Distances 1 − cos against the epoch before: larger lowers a pair's margin, not larger raises it."""
    loss = DynamicMargin(step=0.3, per_sample=True).train()
    loss.prepare(labels=BINARY, rows=4)  # row 3 is never seen
    negative = torch.tensor([0, 0, 0])

    loss(seen(at_cosines(1.0, 0.8, 0.5), [2, 0, 1]), negative)
    loss.epoch_ended(epoch=1, score=0.9)  # all but the equal texts of row 2 are farther apart than 0
    assert loss.margins.tolist() == pytest.approx([-0.3, -0.3, 0.3, 0])

    loss(seen(at_cosines(0.9, 0.9), [2, 0]), negative[:2])  # row 1 is not in this epoch
    loss.epoch_ended(epoch=2, score=0.1)  # row 0 from 0.2 to 0.1, row 2 from 0 to 0.1
    assert loss.margins.tolist() == pytest.approx([-0.15, -0.3, 0.15, 0])

    value = loss(seen(at_cosines(0.4, 0.6, 0.7), [0, 1, 2]), negative)
    assert value.item() == pytest.approx((0.4 + 0.15 + 0.6 + 0.3 + 0.7 - 0.15) / 3)
    loss.epoch_ended(epoch=3, score=0.5)  # row 0 from 0.1 to 0.6, row 1 from 0.5 to 0.4, row 2 from 0.1 to 0.3
    assert loss.margins.tolist() == pytest.approx([-0.25, -0.2, 0.05, 0])
    assert loss.margin == pytest.approx(statistics.fmean([-0.25, -0.2, 0.05, 0]))


def test_the_other_direction_mirrors_the_margins_of_pairs() -> None:
    down, up = (DynamicMargin(step=0.3, per_sample=True, direction=d) for d in ("down", "up"))  # type: ignore[arg-type]
    for loss in (down, up):
        loss.prepare(labels=BINARY, rows=2)
        for epoch, cosines in enumerate([(0.8, 0.5), (0.9, 0.1), (0.2, 0.3)], start=1):
            loss(seen(at_cosines(*cosines), [0, 1]), torch.tensor([0, 0]))
            loss.epoch_ended(epoch=epoch, score=0.0)
    torch.testing.assert_close(up.margins, -down.margins)
    assert down.margins.tolist() == pytest.approx([-0.3 + 0.15 - 0.1, -0.3 - 0.15 + 0.1])


@pytest.mark.parametrize("mode", ["evaluated", "scored"])
def test_only_training_steps_are_remembered(mode: str) -> None:
    loss = DynamicMargin(per_sample=True).train(mode == "evaluated")
    loss.prepare(labels=BINARY, rows=1)
    with torch.no_grad() if mode == "evaluated" else torch.enable_grad():
        loss(seen(at_cosines(0.5), [0]), torch.tensor([0]))
    loss.epoch_ended(epoch=1, score=0.5)
    assert loss.margins.tolist() == [0]


def test_a_margin_per_pair_needs_rows() -> None:
    loss = DynamicMargin(per_sample=True)
    loss.prepare(labels=BINARY, rows=1)
    with pytest.raises(TrainingError, match="should be told the rows"):
        loss(seen(at_cosines(0.5)), torch.tensor([0]))


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_margin_survives_a_checkpoint(tmp_path: Path, per_sample: bool) -> None:
    def made() -> Total:
        loss = Total(losses=[DynamicMargin(margin=0.5, step=0.1, per_sample=per_sample), MSE()])
        loss.prepare(labels=VALUES, rows=3)
        return loss

    def go_on(loss: Loss, epoch: int) -> float:
        value = loss(seen(at_cosines(0.9, 0.2 * epoch, 0.1), [2, 0, 1]), torch.tensor([0.0, 0.5, 5.0]))
        loss.epoch_ended(epoch=epoch, score=SCORES[epoch - 1])
        return float(value)

    first = made()
    for epoch in (1, 2):
        go_on(first, epoch)
    save_folder(tmp_path / "kept", module_state(first, "loss."), {})
    second = made()
    load_module_state(second, load_folder(tmp_path / "kept")[0], "loss.")
    assert [go_on(second, epoch) for epoch in (3, 4)] == [go_on(first, epoch) for epoch in (3, 4)]
    assert second.parts[0].margin == first.parts[0].margin != 0.5  # type: ignore[attr-defined]


def test_in_a_run_the_margin_follows_the_tasks_dev_metric(tmp_path: Path) -> None:
    base = {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
                "head": "cosine",
                "loss": {"name": "dynamic_margin", "margin": 0.25, "step": 0.2, "positive_from": 3},
                "metric": "pearson",
            }
        },
        "stages": [{"epochs": 4, "optimizer": {"lr": 0.01}}],
        "selection": "last",
    }
    (tmp_path / "grid.json").write_text(json.dumps({"base": base}))
    catalogue, events = load_catalogue(), list[Event]()
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        plan = make_plan(load_grid(str(tmp_path / "grid.json")), catalogue, ledger)
        assert run_plan(plan, catalogue, ledger, listen=events.append).failed == 0
    margin, previous = 0.25, 0.0
    scores = [event.facts["scores"]["sts"] for event in events if event.what == "epoch"]
    assert len(scores) == 4
    for epoch, score in enumerate(scores, start=1):
        margin += -0.2 / epoch if score > previous else 0.2 / epoch
        previous = score
    tensors, _ = load_folder(tmp_path / "r" / "cells" / plan.cells[0].id / "best")
    assert tensors["losses.sts.margins"].item() == pytest.approx(margin)


# --- mnr


@pytest.fixture(scope="module")
def peer() -> Any:
    """sentence-transformers' loss on vectors: peer(columns, …)."""
    losses = pytest.importorskip(
        "sentence_transformers.losses", reason="the peer of mnr: install sentence-transformers"
    )
    util = pytest.importorskip("sentence_transformers.util")

    def value(columns: list[Tensor], *, scale: float, similarity: str, **more: Any) -> Tensor:
        how = {"cos": util.cos_sim, "dot": util.dot_score}[similarity]
        loss = losses.MultipleNegativesRankingLoss(None, scale=scale, similarity_fct=how, **more)
        found: Tensor = loss.compute_loss_from_embeddings(columns, None)
        return found

    return value


SETTINGS: list[dict[str, Any]] = [
    {"scale": 20.0, "similarity": "cos"},
    {"scale": 1.0, "similarity": "dot"},
    {"scale": 7.0, "similarity": "cos"},
]


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("sequences", [2, 3])
def test_mnr_of_unlabelled_data_is_that_of_sentence_transformers(
    peer: Any, options: dict[str, Any], sequences: int
) -> None:
    for seed, count in ((0, 1), (1, 2), (2, 8)):
        vectors = draw(seed, sequences, count, 6)
        loss, both = MNR(**options), MNR(symmetric=True, **options)
        for one in (loss, both):
            one.prepare(labels=NONE, rows=count)
        expected = peer(list(vectors), **options)
        torch.testing.assert_close(loss(seen(vectors), torch.zeros(count)), expected, rtol=1e-6, atol=1e-6)
        ways = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
        expected = peer(list(vectors), **options, **ways)
        torch.testing.assert_close(both(seen(vectors), torch.zeros(count)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", SETTINGS)
def test_mnr_of_labelled_pairs_is_that_of_sentence_transformers_with_negatives(
    peer: Any, options: dict[str, Any]
) -> None:
    """Positive pairs are anchor and positive there; the second texts of the others are its negatives."""
    for seed in range(5):
        vectors, positive = draw(seed, 2, 8, 6), draw(seed + 99, 8) > 0
        (u, v), target = vectors, positive.long()
        forth = peer([u[positive], v[positive], v[~positive]], **options)
        back = peer([v[positive], u[positive], u[~positive]], **options)
        torch.testing.assert_close(MNR(**options)(seen(vectors), target), forth, rtol=1e-6, atol=1e-6)
        both = MNR(symmetric=True, **options)(seen(vectors), target)
        torch.testing.assert_close(both, (forth + back) / 2, rtol=1e-6, atol=1e-6)


def test_mnr_has_the_gradient_of_sentence_transformers(peer: Any) -> None:
    ours, theirs = draw(0, 2, 5, 6).requires_grad_(), draw(0, 2, 5, 6).requires_grad_()
    MNR()(seen(ours), torch.ones(5)).backward()
    peer([theirs[0], theirs[1]], scale=20.0, similarity="cos").backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


def test_mnr_by_hand() -> None:
    # Dot products u·v: [[1, 2], [0, 3]]; only the first pair is positive.
    vectors = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [2.0, 3.0]]])
    loss = MNR(scale=1, similarity="dot")
    first, second = math.log(1 + math.e), math.log(1 + math.exp(-3.0))
    assert loss(seen(vectors), torch.tensor([1, 0])).item() == pytest.approx(first)  # −1 + log(e + e²)
    assert loss(seen(vectors), torch.tensor([0, 1])).item() == pytest.approx(second)
    assert loss(seen(vectors), torch.tensor([1, 1])).item() == pytest.approx((first + second) / 2)
    back = math.log(1 + math.exp(-1.0))  # v₁ finds u₁ (1) before u₂ (0)
    both = MNR(scale=1, similarity="dot", symmetric=True)
    assert both(seen(vectors), torch.tensor([1, 0])).item() == pytest.approx((first + back) / 2)


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"similarity": "dot"}])
@pytest.mark.parametrize("loss", [MNR, MNRHinge])
def test_a_batch_without_a_positive_pair_costs_nothing_and_can_be_differentiated(
    loss: type[Loss], options: dict[str, Any]
) -> None:
    if loss is MNRHinge:
        options = {key: value for key, value in options.items() if key == "similarity"}
    vectors = draw(0, 2, 4, 3).requires_grad_()
    value = loss(**options)(seen(vectors), torch.zeros(4))
    value.backward()
    assert value.item() == 0
    assert vectors.grad is not None
    assert not vectors.grad.any()


@settings(max_examples=30)
@given(seed=seeds, count=st.integers(1, 8), factor=st.floats(0.1, 10), symmetric=st.booleans())
def test_mnr_laws(seed: int, count: int, factor: float, symmetric: bool) -> None:
    vectors, target = draw(seed, 2, count, 5), (draw(seed + 1, count) > 0).long()
    loss = MNR(symmetric=symmetric)
    value = loss(seen(vectors), target)
    assert value.item() >= 0
    torch.testing.assert_close(loss(seen(factor * vectors), target), value)  # a cosine knows no length
    turned = torch.linalg.qr(draw(seed + 2, 5, 5)).Q
    torch.testing.assert_close(loss(seen(vectors @ turned), target), value)
    if symmetric:
        torch.testing.assert_close(loss(seen(vectors.flip(0)), target), value)
    # A further candidate can only make it harder.
    more = torch.cat([vectors, draw(seed + 3, 2, 1, 5)], 1)
    assert loss(seen(more), torch.cat([target, torch.zeros(1, dtype=torch.long)])).item() >= value.item() - 1e-12


def test_mnr_counts_a_label_at_the_bound_as_positive() -> None:
    vectors = draw(0, 2, 3, 4)
    at_three = MNR(positive_from=3)(seen(vectors), torch.tensor([2.9, 3.0, 5.0]))
    torch.testing.assert_close(at_three, MNR()(seen(vectors), torch.tensor([0, 1, 1])))


def test_mnr_says_what_it_needs() -> None:
    with pytest.raises(TrainingError, match=r"two or three vectors per example\. Found 1; use a head that reads pairs"):
        MNR()(seen(draw(0, 1, 2, 3)), torch.tensor([0, 1]))


# --- mnr_hinge


def test_mnr_hinge_by_hand() -> None:
    # One positive pair with a·b = 0.5, four negative pairs with a·b = 0.2, −0.1, 0.4, 0.3: K = 5.
    products = [0.2, 0.5, -0.1, 0.4, 0.3]
    vectors = torch.stack([torch.ones(5, 1), torch.tensor(products)[:, None]])
    loss = MNRHinge()(seen(vectors), torch.tensor([0, 1, 0, 0, 0]))
    assert loss.item() == pytest.approx(((1 - 0.5) + (1 - 0.5 + 0.8)) / 5)
    far = MNRHinge()(seen(10 * vectors), torch.tensor([0, 1, 0, 0, 0]))  # a·b = 50 and 80 for the others
    assert far.item() == pytest.approx((0 + (1 - 50 + 80)) / 5)


@settings(max_examples=40)
@given(seed=seeds, negatives=st.integers(0, 8), similarity=st.sampled_from(["dot", "cos"]))
def test_mnr_hinge_is_the_formula_of_the_paper(seed: int, negatives: int, similarity: Any) -> None:
    a, b = draw(seed, 2, negatives + 1, 3)
    place = seed % (negatives + 1)
    products = [float(x @ y) for x, y in zip(a, b, strict=True)]
    if similarity == "cos":
        products = [p / float(x.norm() * y.norm()) for p, x, y in zip(products, a, b, strict=True)]
    own, others = products[place], sum(products) - products[place]
    expected = (max(0.0, 1 - own) + max(0.0, 1 - own + others)) / (negatives + 1)
    target = torch.arange(negatives + 1) == place
    value = MNRHinge(similarity=similarity)(seen(torch.stack([a, b])), target.long())
    assert value.item() == pytest.approx(expected, abs=1e-9)


def test_several_positive_pairs_are_taken_one_by_one() -> None:
    vectors, target = draw(3, 2, 6, 3), torch.tensor([1, 0, 1, 0, 0, 0])
    alone = [
        MNRHinge()(seen(vectors[:, [place, 1, 3, 4, 5]]), torch.tensor([1, 0, 0, 0, 0])).item() for place in (0, 2)
    ]
    assert MNRHinge()(seen(vectors), target).item() == pytest.approx(statistics.fmean(alone))


# --- total


@settings(max_examples=20)
@given(seed=seeds, weights=st.lists(st.floats(0, 10), min_size=3, max_size=3))
def test_total_is_the_weighted_sum_of_its_parts(seed: int, weights: list[float]) -> None:
    prediction = Prediction(draw(seed, 6), draw(seed + 1, 2, 6, 4))
    target = (draw(seed + 2, 6) > 0).long()
    parts: list[Loss] = [BinaryCrossEntropy(), MNR(), CosineEmbedding(margin=0.2)]
    values = [part(prediction, target) for part in parts]
    total = Total(losses=parts, weights=weights)(prediction, target)
    torch.testing.assert_close(total, sum(w * v for w, v in zip(weights, values, strict=True)))
    torch.testing.assert_close(Total(losses=parts)(prediction, target), torch.stack(values).sum())


@pytest.mark.parametrize(
    ("parts", "expects"),
    [
        ([MNR(), MNRHinge()], "vectors"),
        ([MNR(), MSE()], "score"),
        ([CrossEntropy(), MNR()], "classes"),
        ([Total(losses=[CrossEntropy()]), MNR()], "classes"),
    ],
)
def test_total_expects_what_its_parts_do(parts: list[Loss], expects: str) -> None:
    assert Total(losses=parts).expects == expects


def test_total_refuses_parts_that_need_different_scores_before_any_work() -> None:
    spec = {"name": "total", "losses": ["mnr", "mse", {"name": "cross_entropy"}]}
    with pytest.raises(RequestError, match="Found 'cross_entropy', which needs one logit per class, and 'mse'"):
        load_catalogue().make("loss", spec)
    with pytest.raises(RequestError, match=r"one weight for each of 2 losses\. Found \[1.0\]"):
        load_catalogue().make("loss", {"name": "total", "losses": ["mnr", "mse"], "weights": [1]})
    _, problems = load_catalogue().resolve("loss", {"name": "total", "losses": ["mrn", "mse"]}, "tasks.sts.loss")
    assert [problem.path for problem in problems] == ["tasks.sts.loss.losses.0"]
    assert "did you mean 'mnr'?" in problems[0].message
    assert load_catalogue().resolve("loss", {"name": "total", "losses": []})[1]


def test_total_passes_on_labels_rows_and_epochs() -> None:
    inner = DynamicMargin(step=0.1, per_sample=True)
    loss = Total(losses=[MSE(target="scaled"), inner])
    loss.prepare(labels=VALUES, rows=7)
    assert inner.margins.shape == (7,)
    prediction = Prediction(torch.tensor([0.5]), at_cosines(0.5), torch.tensor([4]))
    assert loss(prediction, torch.tensor([5.0])).item() == pytest.approx(0.25 + 0.5)
    loss.epoch_ended(epoch=1, score=0.5)
    assert inner.margins[4].item() == pytest.approx(-0.1)
    with pytest.raises(TrainingError, match="'binary_cross_entropy' should have labels"):
        Total(losses=[BinaryCrossEntropy()]).prepare(labels=VALUES, rows=7)


# --- what they have in common


@settings(max_examples=20)
@given(seed=seeds, count=st.integers(1, 9))
def test_binary_cross_entropy_takes_a_value_at_its_place_in_its_range(seed: int, count: int) -> None:
    score, place = draw(seed, count), draw(seed + 1, count).sigmoid()
    loss = BinaryCrossEntropy(target="scaled")
    loss.prepare(labels=VALUES, rows=count)
    expected = nn.BCEWithLogitsLoss()(score, place)
    torch.testing.assert_close(loss(Prediction(score, torch.zeros(1, count, 1)), 5 * place), expected)
    with pytest.raises(TrainingError, match="Found 0 to 4"):
        loss.prepare(labels=Labels.of_classes(5), rows=count)


@pytest.mark.parametrize("loss", [CosineEmbedding, DynamicMargin, MNR, MNRHinge])
def test_a_bound_that_no_label_reaches_is_refused(loss: Any) -> None:
    loss(positive_from=5).prepare(labels=VALUES, rows=3)
    with pytest.raises(TrainingError, match=r"labels that reach positive_from = 3\. Found labels from 0 to 1"):
        loss(positive_from=3).prepare(labels=BINARY, rows=3)
    if loss is not MNR:  # which takes all pairs of unlabelled data for positive ones
        with pytest.raises(TrainingError, match="Found labels from 0 to 0; lower it, or use labelled data"):
            loss().prepare(labels=NONE, rows=3)


@pytest.mark.parametrize("loss", [CosineEmbedding(), DynamicMargin(), MNRHinge()], ids=lambda loss: loss.name)
def test_losses_on_pairs_say_what_they_need(loss: Loss) -> None:
    with pytest.raises(TrainingError, match=rf"{loss.name}' should see two vectors per example. Found 3; use a head"):
        loss(seen(draw(0, 3, 2, 4)), torch.tensor([0, 1]))
