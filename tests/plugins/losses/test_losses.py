"""Losses: against torch's own, against numbers worked by hand, and in half precision."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taskloom.core import Labels, Prediction, TrainingError
from taskloom.plugins.losses import MSE, BinaryCrossEntropy, CosineEmbedding, CrossEntropy

seeds = st.integers(0, 10**6)
rows = st.integers(1, 9)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scored(score: Tensor) -> Prediction:
    return Prediction(score, torch.zeros(1, len(score), 1))


def seen(vectors: Tensor) -> Prediction:
    return Prediction(torch.zeros(vectors.shape[1]), vectors)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, count=rows, smoothing=st.sampled_from([0.0, 0.1, 0.5]))
def test_cross_entropy_is_torchs(seed: int, count: int, smoothing: float) -> None:
    score, target = draw(seed, count, 5), draw(seed + 1, count, 5).argmax(1)
    expected = nn.CrossEntropyLoss(label_smoothing=smoothing)(score, target)
    torch.testing.assert_close(CrossEntropy(label_smoothing=smoothing)(scored(score), target), expected)


def test_cross_entropy_by_hand() -> None:
    score, target = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([1])
    assert CrossEntropy()(scored(score), target).item() == pytest.approx(-math.log(3 / 4))
    smoothed = -(0.9 * math.log(3 / 4) + 0.1 * math.log(1 / 4))  # ε = 0.2 over two classes
    assert CrossEntropy(label_smoothing=0.2)(scored(score), target).item() == pytest.approx(smoothed)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, count=rows)
def test_binary_cross_entropy_is_torchs(seed: int, count: int) -> None:
    score, target = 5 * draw(seed, count), (draw(seed + 1, count) > 0).long()
    expected = nn.BCEWithLogitsLoss()(score, target.double())
    torch.testing.assert_close(BinaryCrossEntropy()(scored(score), target), expected)


def test_binary_cross_entropy_stays_finite_far_out() -> None:
    loss = BinaryCrossEntropy()(scored(torch.tensor([500.0, -500.0])), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(500.0)


def test_binary_cross_entropy_refuses_labels_beyond_one() -> None:
    loss = BinaryCrossEntropy()
    loss.prepare(labels=Labels.of_classes(2), rows=3)
    loss.prepare(labels=Labels.of_range(0, 1), rows=3)
    with pytest.raises(TrainingError, match=r"labels from 0 to 1\. Found 0 to 5; use 'mse'"):
        loss.prepare(labels=Labels.of_range(0, 5), rows=3)
    with pytest.raises(TrainingError, match="Found 0 to 4"):
        loss.prepare(labels=Labels.of_classes(5), rows=3)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, count=rows, low=st.integers(-3, 3), span=st.integers(1, 9))
def test_mse_is_torchs_on_the_raw_or_scaled_label(seed: int, count: int, low: int, span: int) -> None:
    score, place = draw(seed, count), draw(seed + 1, count).sigmoid()  # place of the label in its range
    target = low + span * place
    for mode, goal in (("raw", target), ("scaled", place)):
        loss = MSE(target=mode)  # type: ignore[arg-type]
        loss.prepare(labels=Labels.of_range(low, low + span), rows=count)
        torch.testing.assert_close(loss(scored(score), target), nn.MSELoss()(score, goal))


def test_mse_by_hand() -> None:
    loss, score, target = MSE(target="scaled"), torch.tensor([0.5, 1.0]), torch.tensor([5.0, 0.0])
    loss.prepare(labels=Labels.of_range(0, 5), rows=2)
    assert loss(scored(score), target).item() == pytest.approx((0.25 + 1.0) / 2)
    assert MSE()(scored(score), target).item() == pytest.approx((4.5**2 + 1.0) / 2)


def test_mse_takes_class_numbers() -> None:
    assert MSE()(scored(torch.tensor([1.5])), torch.tensor([1])).item() == pytest.approx(0.25)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, count=rows, margin=st.floats(-1, 1))
def test_cosine_embedding_is_torchs(seed: int, count: int, margin: float) -> None:
    vectors, target = draw(seed, 2, count, 5), (draw(seed + 1, count) > 0).long()
    expected = nn.CosineEmbeddingLoss(margin=margin)(vectors[0], vectors[1], 2 * target - 1)
    torch.testing.assert_close(CosineEmbedding(margin=margin)(seen(vectors), target), expected)


def test_cosine_embedding_counts_a_label_at_the_bound_as_positive() -> None:
    u, v = torch.tensor([[3.0, 4.0]] * 3), torch.tensor([[4.0, 3.0]] * 3)  # cosine 0.96
    target = torch.tensor([2.99, 3.0, 5.0])
    loss = CosineEmbedding(margin=0.5, positive_from=3)
    assert loss(seen(torch.stack([u, v])), target).item() == pytest.approx((0.46 + 0.04 + 0.04) / 3)


def test_cosine_embedding_leaves_pairs_inside_the_margin_alone() -> None:
    vectors = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], requires_grad=True)
    loss = CosineEmbedding(margin=0.1)(seen(vectors), torch.tensor([0]))
    loss.backward()
    assert loss.item() == 0
    assert vectors.grad is not None
    assert not vectors.grad.any()


@pytest.mark.parametrize("sequences", [1, 3])
def test_cosine_embedding_says_what_it_needs(sequences: int) -> None:
    with pytest.raises(
        TrainingError, match=rf"two vectors per example. Found {sequences}; use a head that reads pairs"
    ):
        CosineEmbedding()(seen(torch.ones(sequences, 2, 3)), torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [CrossEntropy(), BinaryCrossEntropy(), MSE(), CosineEmbedding()], ids=lambda x: x.name)
def test_half_precision_inputs_are_computed_in_float32(loss: nn.Module, dtype: torch.dtype) -> None:
    target = torch.tensor([0, 1, 1])
    score = draw(0, 3, 2) if isinstance(loss, CrossEntropy) else draw(0, 3)
    prediction = Prediction(score.to(dtype).requires_grad_(), draw(1, 2, 3, 4).to(dtype).requires_grad_())
    value = loss(prediction, target)
    exact = loss(Prediction(prediction.score.detach().double(), prediction.vectors.detach().double()), target)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=1e-5)
    value.backward()
    looked_at = prediction.vectors if isinstance(loss, CosineEmbedding) else prediction.score
    assert looked_at.grad is not None
    assert looked_at.grad.dtype == dtype
    assert looked_at.grad.isfinite().all()
