"""Heads: their scores against layers written out by hand, and what they decide."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear

from taskloom.core import Head, Labels, SharedModules, bind_generator
from taskloom.plugins.heads import Cosine, Linear
from taskloom.plugins.similarity import cosine_of

CLASSES, BINARY, VALUES = Labels.of_classes(5), Labels.of_classes(2), Labels.of_range(0, 5)


def built(head: Head, *, width: int = 6, outputs: int = 1, labels: Labels = VALUES, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    head.build(width=width, outputs=outputs, labels=labels, generator=generator, shared=SharedModules())
    return head.eval()


def vectors(sequences: int, rows: int = 4, width: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(sequences, rows, width, generator=torch.Generator().manual_seed(seed))


def test_linear_without_layers_is_one_linear_map() -> None:
    head, x = built(Linear(), outputs=5, labels=CLASSES), vectors(1)
    torch.testing.assert_close(head(x).score, linear(x[0], head.last.weight, head.last.bias))
    assert head(x).vectors is x


def test_linear_reads_a_pair_as_both_vectors_side_by_side() -> None:
    head, x = built(Linear(reads="pair"), outputs=3, labels=CLASSES), vectors(2)
    assert head.last.weight.shape == (3, 12)
    torch.testing.assert_close(head(x).score, linear(torch.cat([x[0], x[1]], 1), head.last.weight, head.last.bias))
    assert not torch.allclose(head(x).score, head(x.flip(0)).score)


@pytest.mark.parametrize("layers", [1, 3])
def test_linear_layers_are_linear_relu_dropout(layers: int) -> None:
    head, x = built(Linear(layers=layers, dropout=0.5)), vectors(1)
    parts = [type(part).__name__ for part in head.front]
    assert parts == ["Dropout", *["Linear", "ReLU", "Dropout"] * layers]
    h = x[0]
    for k in range(layers):
        h = linear(h, head.front[1 + 3 * k].weight, head.front[1 + 3 * k].bias).relu()
    torch.testing.assert_close(head(x).score, linear(h, head.last.weight, head.last.bias)[:, 0])


def test_one_number_has_no_second_dimension() -> None:
    assert built(Linear(reads="joint"))(vectors(1, rows=1)).score.shape == (1,)
    assert built(Linear(), outputs=5, labels=CLASSES)(vectors(1, rows=1)).score.shape == (1, 5)


def test_dropout_draws_from_the_bound_generator_in_training_only() -> None:
    head, x = built(Linear(dropout=0.5)), vectors(1)
    still = head(x).score
    assert head(x).score.equal(still)
    head.train()
    bind_generator(head, torch.Generator().manual_seed(7))
    first, second = head(x).score, head(x).score
    bind_generator(head, torch.Generator().manual_seed(7))
    assert head(x).score.equal(first)
    assert not first.equal(second)


def test_linear_decides_in_the_units_of_the_labels() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0]])
    assert built(Linear(), outputs=3, labels=Labels.of_classes(3)).decide(logits).tolist() == [1, 2]
    numbers = torch.tensor([-0.1, 0.0, 0.1, 1.6, 9.0])
    assert built(Linear(), labels=BINARY).decide(numbers).tolist() == [0, 0, 1, 1, 1]
    assert built(Linear(), labels=CLASSES).decide(numbers).tolist() == [0, 0, 0, 2, 4]
    assert built(Linear(), labels=VALUES).decide(numbers).equal(numbers)


def test_cosine_is_torchs_cosine_scaled() -> None:
    x = vectors(2)
    torch.testing.assert_close(built(Cosine())(x).score, 5 * cosine_similarity(x[0], x[1]))
    torch.testing.assert_close(built(Cosine(scale=2, relu=True))(x).score, 2 * cosine_similarity(x[0], x[1]).relu())


def test_cosine_by_hand() -> None:
    x = torch.tensor([[[3.0, 4.0]], [[4.0, 3.0]]])
    assert built(Cosine(), width=2)(x).score.item() == pytest.approx(5 * 24 / 25)


def test_cosine_of_a_zero_vector_is_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    cosine = cosine_of(x, torch.ones(3, 4))
    cosine.sum().backward()
    assert cosine.tolist() == [0, 0, 0]
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_cosine_layers_are_shared_by_both_texts_and_losses_see_their_output() -> None:
    head, x = built(Cosine(layers=2)), vectors(2)
    same = head(torch.stack([x[0], x[0]]))
    torch.testing.assert_close(same.score, torch.full((4,), 5.0))
    prediction = head(x)
    assert not torch.allclose(prediction.vectors, x)
    torch.testing.assert_close(prediction.score, 5 * cosine_of(prediction.vectors[0], prediction.vectors[1]))
    assert (prediction.score >= 0).all()


def test_cosine_losses_see_the_dropped_out_vectors() -> None:
    head, x = built(Cosine(dropout=0.5)), vectors(2)
    head.train()
    bind_generator(head, torch.Generator().manual_seed(0))
    prediction = head(x)
    assert (prediction.vectors == 0).any()
    torch.testing.assert_close(prediction.score, 5 * cosine_of(prediction.vectors[0], prediction.vectors[1]))


def test_cosine_decides_in_the_units_of_the_labels() -> None:
    score = torch.tensor([-5.0, 2.4, 2.5, 5.0])
    assert built(Cosine(), labels=BINARY).decide(score).tolist() == [0, 0, 1, 1]
    assert built(Cosine(threshold=0.9), labels=BINARY).decide(score).tolist() == [0, 0, 0, 1]
    assert built(Cosine(), labels=CLASSES).decide(score).tolist() == [0, 2, 2, 4]
    assert built(Cosine(), labels=VALUES).decide(score).equal(score)
