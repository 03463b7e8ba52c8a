"""Heads: their scores worked out layer by layer, where they drop, what they decide, and symmetry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, gelu, linear

from taskloom.core import Dropout, Head, Labels, RequestError, SharedModules, SpecialTokens, arrange, bind_generator
from taskloom.core.tokens import SEQUENCES
from taskloom.plugins.datasets import Generated
from taskloom.plugins.heads import BothOrders, Cosine, CosineFeatures, CosineSigmoid, Embedding, Linear, SharedLayer
from taskloom.plugins.losses import MSE
from taskloom.plugins.metrics import Pearson
from taskloom.plugins.similarity import cosine_of
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.task import Task

CLASSES, BINARY, VALUES = Labels.of_classes(5), Labels.of_classes(2), Labels.of_range(0, 5)
PH, DPH, DPHA = {}, {"difference": True}, {"difference": True, "activation": "tanh"}  # type: ignore[var-annotated]


def built(head: Head, *, outputs: int = 1, labels: Labels = VALUES, seed: int = 0, width: int = 6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    head.build(width=width, outputs=outputs, labels=labels, generator=generator, shared=SharedModules())
    return head.eval()


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_cosine(u: Any, v: Any) -> float:
    return float(np.dot(u, v) / max(np.linalg.norm(u) * np.linalg.norm(v), 1e-8))


def numbers(layer: Any) -> tuple[Any, Any]:
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


# Scores


@pytest.mark.parametrize(
    ("reads", "outputs", "layers", "options", "named"),
    [
        ("single", 5, 0, {}, "ReLU"),
        ("pair", 3, 0, {}, "ReLU"),
        ("single", 1, 1, {}, "ReLU"),
        ("joint", 1, 3, {}, "ReLU"),
        ("single", 5, 1, {"activation": "tanh"}, "Tanh"),  # a dense layer of one task alone
        ("single", 5, 2, {"activation": "gelu"}, "GELU"),
        ("pair", 1, 1, {"activation": "none"}, "Identity"),
        ("pair", 1, 0, {"last_activation": "tanh"}, "ReLU"),
    ],
)
def test_linear_is_layers_with_activation_and_dropout_and_a_linear_map(
    reads: Any, outputs: int, layers: int, options: Any, named: str
) -> None:
    head = built(Linear(reads=reads, layers=layers, **options), outputs=outputs, labels=CLASSES)
    x = draw(SEQUENCES[reads], 4, 6)
    assert [type(part).__name__ for part in head.front] == ["Dropout", *["Linear", named, "Dropout"] * layers]
    act = {"ReLU": torch.relu, "Tanh": torch.tanh, "GELU": gelu, "Identity": lambda h: h}[named]
    h = torch.cat(tuple(x), 1)  # both vectors of a pair side by side
    for k in range(layers):
        h = act(linear(h, head.front[1 + 3 * k].weight, head.front[1 + 3 * k].bias))
    expected = linear(h, head.last.weight, head.last.bias)
    if "last_activation" in options:
        expected = expected.tanh()
    torch.testing.assert_close(head(x).score, expected if outputs > 1 else expected[:, 0])
    assert head(x).vectors is x


def test_cosine_is_torchs_cosine_scaled() -> None:
    x = draw(2, 4, 6)
    torch.testing.assert_close(built(Cosine())(x).score, 5 * cosine_similarity(x[0], x[1]))
    torch.testing.assert_close(built(Cosine(scale=2, relu=True))(x).score, 2 * cosine_similarity(x[0], x[1]).relu())
    by_hand = torch.tensor([[[3.0, 4.0]], [[4.0, 3.0]]])
    assert built(Cosine(), width=2)(by_hand).score.item() == pytest.approx(5 * 24 / 25)


def test_cosine_layers_are_shared_by_both_texts_and_losses_see_their_output() -> None:
    head, x = built(Cosine(layers=2)), draw(2, 4, 6)
    same = head(torch.stack([x[0], x[0]]))
    torch.testing.assert_close(same.score, torch.full((4,), 5.0))
    prediction = head(x)
    assert not torch.allclose(prediction.vectors, x)
    torch.testing.assert_close(prediction.score, 5 * cosine_of(prediction.vectors[0], prediction.vectors[1]))
    assert (prediction.score >= 0).all()


@pytest.mark.parametrize("options", [{}, {"steepness": 3.0, "scale": 2.0}])
def test_cosine_sigmoid_is_its_formula(options: dict[str, Any]) -> None:
    head, x = built(CosineSigmoid(**options)), draw(2, 4, 6)
    w, b = numbers(head.front[1])
    for row, found in enumerate(head(x).score.tolist()):
        u, v = (w @ side[row].double().numpy() + b for side in x)
        cosine = naive_cosine(u, v)
        expected = options.get("scale", 5.0) / (1 + np.exp(-options.get("steepness", 20.0) * cosine))
        assert found == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(head(x).vectors, torch.stack([head.front(x[0]), head.front(x[1])]))


@pytest.mark.parametrize("outputs", [1, 3])
def test_cosine_features_is_linear_in_both_vectors_and_their_cosine(outputs: int) -> None:
    head, x = built(CosineFeatures(), outputs=outputs, labels=Labels.of_classes(3)), draw(2, 4, 6)
    w, b = numbers(head.last)
    assert w.shape == (outputs, 2 * 6 + 1)
    prediction = head(x)
    for row, found in enumerate(prediction.score.reshape(4, outputs).tolist()):
        u, v = x[0, row].double().numpy(), x[1, row].double().numpy()
        features = np.concatenate([u, v, [naive_cosine(u, v)]])
        assert found == pytest.approx((w @ features + b).tolist(), abs=1e-6)
    assert prediction.vectors is x
    assert prediction.score.shape == ((4,) if outputs == 1 else (4, 3))


@pytest.mark.parametrize("options", [PH, DPH, DPHA], ids=["PH", "DPH", "DPHA"])
def test_both_orders_is_a_logit_per_view_and_a_layer_over_them(options: dict[str, Any]) -> None:
    head, x = built(BothOrders(**options)), draw(2, 4, 6)
    weights = [numbers(view) for view in head.views]
    last, bias = numbers(head.last)
    assert len(weights) == last.shape[1] == (3 if options else 2)
    prediction = head(x)
    for row, found in enumerate(prediction.score.tolist()):
        p, q = x[0, row].double().numpy(), x[1, row].double().numpy()
        logits = [float((w @ view + b)[0]) for (w, b), view in zip(weights, (p, q, p - q), strict=False)]
        if "activation" in options:
            logits = [float(np.tanh(logit)) for logit in logits]
        assert found == pytest.approx(float(last[0] @ logits + bias[0]), abs=1e-6)
    assert prediction.vectors.equal(x)


@pytest.mark.parametrize("reads", ["single", "pair", "triple"])
def test_embedding_passes_vectors_on_and_has_no_weights(reads: Any) -> None:
    head, x = built(Embedding(reads=reads)).train(), draw(SEQUENCES[reads], 4, 6)
    prediction = head(x)
    assert prediction.vectors is x
    assert not list(head.parameters())
    pairs = [0.0] * 4 if reads == "single" else [naive_cosine(u, v) for u, v in zip(*x[:2].numpy(), strict=True)]
    assert prediction.score.tolist() == pytest.approx(pairs)


def test_embedding_is_refused_by_a_loss_that_needs_a_score() -> None:
    task = Task("sts", Generated(task="similarity"), Embedding(), MSE(), Pearson())
    ((part, why),) = task.problems()
    assert part == "loss"
    assert "head 'embedding' gives only vectors" in why


# How a pair is laid out, how vectors are pooled

CLS, SEP = 101, 102
BERT = SpecialTokens(start=(CLS,), middle=(SEP,), end=(SEP,))
LAYOUTS: list[tuple[dict[str, Any], list[int], list[int]]] = [  # options, ids and segments of the pair 7 8, 9
    ({}, [CLS, 7, 8, SEP, 9, SEP], [0, 0, 0, 0, 1, 1]),
    ({"segments": False}, [CLS, 7, 8, SEP, 9, SEP], [0] * 6),
    ({"layout": "concatenated"}, [CLS, 7, 8, SEP, CLS, 9, SEP], [0] * 7),
    ({"layout": "concatenated", "segments": True}, [CLS, 7, 8, SEP, CLS, 9, SEP], [0, 0, 0, 0, 1, 1, 1]),
]


@pytest.mark.parametrize(("options", "ids", "segments"), LAYOUTS)
def test_a_joined_pair_is_laid_out_as_the_head_says(options: Any, ids: list[int], segments: list[int]) -> None:
    a, b = np.array([7, 8], np.int32), np.array([9], np.int32)
    for head in (Linear(reads="joint", **options), BothOrders(**options)):
        for outer in (head, SharedLayer(head=head)):
            laid = arrange([[a], [b]], "joint", outer.frame(BERT), 512)
            assert (laid.ids.tolist(), laid.types.tolist()) == (ids, segments)
            cut = arrange([[a.repeat(9)], [b.repeat(9)]], "joint", outer.frame(BERT), 16)
            assert cut.lengths.tolist() == [16]


def test_concatenated_is_what_the_texts_are_by_themselves() -> None:
    """As if the ids of two sequences were put one after the other."""
    columns = [[np.array([7, 8], np.int32)], [np.array([9], np.int32)]]
    joined = arrange(columns, "joint", Linear(reads="joint", layout="concatenated").frame(BERT), 512)
    assert joined.ids.tolist() == arrange(columns, "pair", BERT, 512).ids.tolist()


@pytest.mark.parametrize("options", [{"layout": "concatenated"}, {"segments": False}, {"segments": True}])
def test_a_layout_without_a_joined_pair_is_refused(options: Any) -> None:
    with pytest.raises(
        RequestError, match=rf"{next(iter(options))} of head 'linear' .* reads 'joint'.*Found reads 'pair'"
    ):
        load_catalogue().make(Head, {"name": "linear", "reads": "pair", **options})


@pytest.mark.parametrize("name", ["linear", "cosine", "cosine_sigmoid", "cosine_features", "both_orders", "embedding"])
def test_every_head_may_ask_for_a_pooling(name: str) -> None:
    for asked in (None, "pooler", "cls", "mean", "max"):
        spec = {"name": name, "pooling": asked}
        for each in (spec, {"name": "shared_layer", "head": spec}):
            assert load_catalogue().make(Head, each).pooling == asked
    with pytest.raises(RequestError, match="pooling"):
        load_catalogue().make(Head, {"name": name, "pooling": "median"})


# Where vectors are dropped


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


def dropping_orders(head: Any, drop: Dropout, x: Tensor) -> Tensor:
    p, q = drop(x)
    return head.last(joined(*(view(y) for view, y in zip(head.views, (p, q, p - q), strict=True))))[:, 0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (Linear(dropout=0.5), lambda head, drop, x: head.last(drop(x[0]))[:, 0]),
        (Cosine(dropout=0.5), lambda head, drop, x: 5 * cosine_of(*drop(x))),
        (CosineSigmoid(dropout=0.5), lambda head, drop, x: 5 * (20 * cosine_of(*head.front[1](drop(x)))).sigmoid()),
        (
            CosineFeatures(dropout=0.5),  # the cosine is that of the whole vectors
            lambda head, drop, x: head.last(drop(joined(x[0], x[1], cosine_of(*x)[:, None])))[:, 0],
        ),
        (BothOrders(dropout=0.5, difference=True), dropping_orders),
        (
            SharedLayer(head=Embedding(), dropout=0.5),
            lambda head, drop, x: cosine_of(*head.layer.linear(drop(x)).tanh()),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_vectors_are_dropped_where_the_head_says(head: Head, expected: Callable[..., Tensor]) -> None:
    x, drop = draw(SEQUENCES[head.reads], 4, 6), Dropout(0.5)
    built(head).train()
    for module in (head, drop):
        bind_generator(module, torch.Generator().manual_seed(3))
    score = head(x).score
    torch.testing.assert_close(score, expected(head, drop, x))
    assert not torch.allclose(score, head.eval()(x).score)


def test_the_gradient_to_the_encoder_is_not_all_but_cut_by_the_last_layer() -> None:
    """Over many draws, the weights over the logits are as large as those of torch's own linear layers."""
    drawn = torch.cat([built(BothOrders(difference=True), seed=seed).last.weight.flatten() for seed in range(200)])
    assert drawn.std().item() == pytest.approx(1 / 3, rel=0.1)  # U(±1/√3) has a deviation of 1/3


# Decisions


@pytest.mark.parametrize(
    ("head", "bound"),
    [
        (Linear(), 0.0),
        (Cosine(), 2.5),
        (Cosine(threshold=0.9), 4.5),
        (CosineSigmoid(), 2.5),
        (CosineSigmoid(scale=1.0), 0.5),
        (CosineFeatures(), 0.0),
        (BothOrders(), 0.0),
        (Embedding(), 0.5),
        (SharedLayer(head=Cosine()), 2.5),
    ],
)
def test_one_number_is_decided_in_the_units_of_the_labels(head: Head, bound: float) -> None:
    score = torch.tensor([bound - 0.1, bound + 0.1])
    assert built(head, labels=BINARY).decide(score).tolist() == [0, 1]
    assert built(head, labels=VALUES).decide(score).equal(score)
    assert built(head, labels=CLASSES).decide(torch.tensor([-3.0, 1.2, 2.9, 9.0])).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("head", [Linear(), CosineFeatures()], ids=lambda head: head.name)
def test_logits_are_decided_for_the_largest(head: Head) -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0]])
    assert built(head, outputs=3, labels=Labels.of_classes(3)).decide(logits).tolist() == [1, 2]


HEADS = [Linear, BothOrders, CosineFeatures, lambda: SharedLayer(head=BothOrders())]


@pytest.mark.parametrize("make", HEADS)
def test_two_classes_are_cut_where_the_loss_draws_them_apart(make: Callable[[], Head]) -> None:
    """A value is nearer to 0 or to 1, a logit below or above 0; only a logit is a probability."""
    score = torch.tensor([-0.1, 0.02, 0.45, 0.55, 0.98, 1.7])
    for score_means, classes in (("value", [0, 0, 0, 1, 1, 1]), ("logit", [0, 1, 1, 1, 1, 1])):
        head = make()
        head.score_means = score_means  # type: ignore[assignment]
        built(head, labels=BINARY)
        assert head.decide(score).tolist() == classes
        lines: dict[str, Any] = {"score": score}
        exec(head.snippet()[-1], lines)  # noqa: S102 - what the head itself gives
        assert lines["predicted"].tolist() == classes
        probabilities = head.probabilities(score)
        assert (probabilities is not None) == (score_means == "logit")
        if probabilities is not None:
            torch.testing.assert_close(probabilities[:, 1], score.sigmoid())


@pytest.mark.parametrize("head", [Cosine(), CosineSigmoid(), SharedLayer(head=Cosine())], ids=lambda head: head.name)
def test_a_head_with_a_cut_of_its_own_gives_no_probability(head: Head) -> None:
    head.score_means = "logit"
    assert built(head, labels=BINARY).probabilities(torch.tensor([1.0, 3.0])) is None
