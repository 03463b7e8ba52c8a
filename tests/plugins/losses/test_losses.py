"""Losses: against torch's and sentence-transformers', against numbers worked by hand, and what they refuse."""

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taskloom.core import Labels, Loss, Prediction, RequestError, TrainingError
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

BINARY, VALUES, NONE = Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 0)
seeds = st.integers(0, 10**6)
rows = st.integers(1, 9)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scored(score: Tensor) -> Prediction:
    return Prediction(score, torch.zeros(1, len(score), 1))


def seen(vectors: Tensor) -> Prediction:
    return Prediction(torch.zeros(vectors.shape[1]), vectors)


@settings(max_examples=60)
@given(
    seed=seeds,
    count=rows,
    low=st.integers(-3, 3),
    span=st.integers(1, 9),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    margin=st.floats(-1, 1),
)
def test_losses_of_each_example_by_itself_are_torchs(
    seed: int, count: int, low: int, span: int, smoothing: float, margin: float
) -> None:
    score, logits, vectors = 5 * draw(seed, count), draw(seed + 1, count, 5), draw(seed + 2, 2, count, 5)
    share = draw(seed + 3, count).sigmoid()  # how far a label lies from the lowest to the highest
    value, positive, number = low + span * share, (share > 0.5).long(), draw(seed + 4, count, 5).argmax(1)
    entropy, binary = nn.CrossEntropyLoss(label_smoothing=smoothing), nn.BCEWithLogitsLoss()
    apart = nn.CosineEmbeddingLoss(margin=margin)(vectors[0], vectors[1], 2 * positive - 1)
    cases: list[tuple[Loss, Prediction, Tensor, Tensor]] = [
        (CrossEntropy(label_smoothing=smoothing), scored(logits), number, entropy(logits, number)),
        (BinaryCrossEntropy(), scored(score), positive, binary(score, positive.double())),
        (BinaryCrossEntropy(target="scaled"), scored(score), value, binary(score, share)),
        (MSE(), scored(score), value, nn.MSELoss()(score, value)),
        (MSE(target="scaled"), scored(score), value, nn.MSELoss()(score, share)),
        (CosineEmbedding(margin=margin), seen(vectors), positive, apart),
    ]
    for loss, prediction, target, expected in cases:
        if getattr(loss, "target", None) == "scaled":
            loss.prepare(labels=Labels.of_range(low, low + span), rows=count)
        torch.testing.assert_close(loss(prediction, target), expected)


def test_cosine_embedding_counts_a_label_at_the_bound_as_positive() -> None:
    u, v = torch.tensor([[3.0, 4.0]] * 3), torch.tensor([[4.0, 3.0]] * 3)  # cosine 0.96
    target = torch.tensor([2.99, 3.0, 5.0])
    loss = CosineEmbedding(margin=0.5, positive_from=3)
    assert loss(seen(torch.stack([u, v])), target).item() == pytest.approx((0.46 + 0.04 + 0.04) / 3)


# Labels and vectors that do not fit


@pytest.mark.parametrize(
    ("target", "labels", "fits"),
    [
        ("raw", BINARY, True),
        ("raw", Labels.of_range(0, 1), True),
        ("raw", VALUES, False),
        ("raw", Labels.of_classes(5), False),
        ("scaled", VALUES, True),
        ("scaled", Labels.of_classes(5), False),
    ],
)
def test_binary_cross_entropy_refuses_labels_beyond_one(target: Any, labels: Labels, fits: bool) -> None:
    loss = BinaryCrossEntropy(target=target)
    if fits:
        loss.prepare(labels=labels, rows=3)
        return
    with pytest.raises(TrainingError, match=f"Found 0 to {labels.high:g}"):
        loss.prepare(labels=labels, rows=3)


@pytest.mark.parametrize("loss", [CosineEmbedding, DynamicMargin, MNR, MNRHinge])
def test_a_bound_that_no_label_reaches_is_refused(loss: Any) -> None:
    loss(positive_from=5).prepare(labels=VALUES, rows=3)
    with pytest.raises(TrainingError, match=r"labels that reach positive_from = 3\. Found labels from 0 to 1"):
        loss(positive_from=3).prepare(labels=BINARY, rows=3)
    if loss is not MNR:  # which takes all pairs of unlabelled data for positive ones
        with pytest.raises(TrainingError, match="Found labels from 0 to 0; lower it, or use labelled data"):
            loss().prepare(labels=NONE, rows=3)


# Ranking: mnr and mnr_hinge


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


def test_mnr_counts_a_label_at_the_bound_as_positive() -> None:
    vectors = draw(0, 2, 3, 4)
    at_three = MNR(positive_from=3)(seen(vectors), torch.tensor([2.9, 3.0, 5.0]))
    torch.testing.assert_close(at_three, MNR()(seen(vectors), torch.tensor([0, 1, 1])))


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


@given(seed=seeds, negatives=st.integers(1, 6), similarity=st.sampled_from(["dot", "cos"]))
def test_mnr_hinge_compares_the_anchor_with_negatives_as_the_text_of_the_paper_says(
    seed: int, negatives: int, similarity: Any
) -> None:
    """Pairs (a₊, b₊), (a₊, b₁) …: the first texts of negative pairs play no part."""
    a, b = draw(seed, 2, negatives + 1, 3)
    place = seed % (negatives + 1)
    anchored = torch.stack([a[[place] * (negatives + 1)], b])
    target = (torch.arange(negatives + 1) == place).long()
    expected = MNRHinge(similarity=similarity)(seen(anchored), target)
    found = MNRHinge(similarity=similarity, negatives="anchor")(seen(torch.stack([a, b])), target)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("negatives", ["pairs", "anchor"])
def test_several_positive_pairs_are_taken_one_by_one(negatives: Any) -> None:
    vectors, target = draw(3, 2, 6, 3), torch.tensor([1, 0, 1, 0, 0, 0])
    loss = MNRHinge(negatives=negatives)
    alone = [loss(seen(vectors[:, [place, 1, 3, 4, 5]]), torch.tensor([1, 0, 0, 0, 0])).item() for place in (0, 2)]
    assert loss(seen(vectors), target).item() == pytest.approx(statistics.fmean(alone))


# Weighted sums: total


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


def test_total_hands_on_what_its_parts_take_one_number_for() -> None:
    assert Total(losses=[MNR(), MSE()]).score_means == "value"
    assert Total(losses=[Total(losses=[BinaryCrossEntropy()]), MNR()]).score_means == "logit"
    assert Total(losses=[CrossEntropy(), MNR()]).score_means is None
    with pytest.raises(ValueError, match="Found 'binary_cross_entropy', which takes it for a logit, and 'mse'"):
        Total(losses=[MSE(), MNR(), BinaryCrossEntropy()])


def test_total_refuses_parts_that_need_different_scores_before_any_work() -> None:
    spec = {"name": "total", "losses": ["mnr", "mse", {"name": "cross_entropy"}]}
    with pytest.raises(RequestError, match="Found 'cross_entropy', which needs one logit per class, and 'mse'"):
        load_catalogue().make(Loss, spec)
    with pytest.raises(RequestError, match=r"one weight for each of 2 losses\. Found \[1.0\]"):
        load_catalogue().make(Loss, {"name": "total", "losses": ["mnr", "mse"], "weights": [1]})
    _, problems = load_catalogue().resolve("loss", {"name": "total", "losses": ["mrn", "mse"]}, "tasks.sts.loss")
    assert [problem.path for problem in problems] == ["tasks.sts.loss.losses.0"]
    assert "did you mean 'mnr'?" in problems[0].message
    assert load_catalogue().resolve("loss", {"name": "total", "losses": []})[1]


def test_total_passes_on_labels_rows_and_epochs() -> None:
    inner = DynamicMargin(step=0.1, per_sample=True)
    loss = Total(losses=[MSE(target="scaled"), inner])
    loss.prepare(labels=VALUES, rows=7)
    assert inner.margins.shape == (7,)
    prediction = Prediction(torch.tensor([0.5]), torch.tensor([[[1.0, 0.0]], [[0.5, 0.75**0.5]]]), torch.tensor([4]))
    assert loss(prediction, torch.tensor([5.0])).item() == pytest.approx(0.25 + 0.5)
    loss.epoch_ended(epoch=1, score=0.5, overall=0.0)
    assert inner.margins[4].item() == pytest.approx(-0.1)
    with pytest.raises(TrainingError, match="'binary_cross_entropy' should have labels"):
        Total(losses=[BinaryCrossEntropy()]).prepare(labels=VALUES, rows=7)
