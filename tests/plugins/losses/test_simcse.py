"""SimCSE: its matrix, its three forms, and a first stage of training that does what it is for."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_runs import run_grid
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from taskloom.core import (
    Labels,
    Prediction,
    Replay,
    Tokens,
    TrainingError,
    arrange,
    bind_generator,
    derive_generator,
    predict,
)
from taskloom.plugins.datasets.generated import Generated
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.plugins.heads.embedding import Embedding
from taskloom.plugins.losses.simcse import SimCSE
from taskloom.plugins.similarity import cosine_of

NOTHING = torch.zeros(2)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seen(vectors: Tensor) -> Prediction:
    return Prediction(torch.zeros(vectors.shape[1]), vectors)


def replayed(first: Tensor, second: Tensor) -> Prediction:
    """A prediction for single texts whose replay has other vectors."""
    return Prediction(torch.zeros(len(first)), first[None], None, Replay(first, lambda _: seen(second[None])))


# The matrix


def test_triples_by_hand() -> None:
    # Premises along the axes; the first entailment at cosine 0.6 and 0.8 to them, and so on.
    premises = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    entailments = torch.tensor([[0.6, 0.8], [0.0, 3.0]])
    contradictions = torch.tensor([[-1.0, 0.0], [4.0, 0.0]])
    cosines = [[0.6, 0.0, -1.0, 1.0], [0.8, 1.0, 0.0, 0.0]]  # to e₁, e₂, c₁, c₂
    tau = 0.5
    expected = 0.0
    for own, row in enumerate(cosines):
        weights = [math.exp(cosine / tau) for cosine in row]
        expected -= math.log(weights[own] / sum(weights)) / 2
    found = SimCSE(temperature=tau)(seen(torch.stack([premises, entailments, contradictions])), NOTHING)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(0.9675314, abs=1e-6)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    sequences=st.integers(1, 3),
    tau=st.sampled_from([0.05, 0.3, 2.0]),
)
def test_it_is_cross_entropy_over_the_written_out_matrix(seed: int, rows: int, sequences: int, tau: float) -> None:
    vectors = draw(seed, max(sequences, 2), rows, 5)
    unit = normalize(vectors, dim=-1)
    columns = [*unit[1], *(unit[2] if sequences == 3 else [])]
    matrix = torch.stack([torch.stack([anchor.dot(other) / tau for other in columns]) for anchor in unit[0]])
    expected = cross_entropy(matrix, torch.arange(rows))
    prediction = replayed(vectors[0], vectors[1]) if sequences == 1 else seen(vectors)
    torch.testing.assert_close(SimCSE(temperature=tau)(prediction, NOTHING), expected)


# The three forms


def test_unsupervised_compares_two_different_dropouts_and_learns_from_both() -> None:
    encoder, head = MinBert(layers=1, width=8, heads=2, vocabulary=30, dropout=0.2), Embedding(reads="single")
    encoder.build(generator=derive_generator(0))
    bind_generator(encoder, derive_generator(2))
    texts = [[1, 7, 8, 2], [1, 9, 2], [1, 5, 6, 7, 2], [1, 8, 11, 2], [1, 12, 2], [1, 14, 13, 2]]
    prediction = predict(encoder, head, Tokens.pack(texts))
    assert prediction.replay is not None
    passes: list[Tensor] = [prediction.vectors]

    def noting(embedded: Tensor | None) -> Prediction:
        again = prediction.replay(embedded)  # type: ignore[misc]
        passes.append(again.vectors)
        return again

    replay = Replay(prediction.replay.embedded, noting)
    value = SimCSE()(Prediction(prediction.score, prediction.vectors, None, replay), NOTHING)
    first, second = passes
    assert not first.allclose(second)  # two dropouts
    similarity = normalize(first[0], dim=-1) @ normalize(second[0], dim=-1).T / 0.05
    torch.testing.assert_close(value, cross_entropy(similarity, torch.arange(6)))
    gradients = torch.autograd.grad(value, [first, second], retain_graph=True)
    assert all(gradient.any() for gradient in gradients)
    value.backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_pairs_with_labels_are_refused_with_a_way_out() -> None:
    loss = SimCSE()
    loss.prepare(labels=Labels.of_classes(2), rows=9)
    with pytest.raises(TrainingError, match=r"should have no labels\. Found labels from 0 to 1; use 'mnr'"):
        loss(seen(draw(0, 2, 2, 3)), NOTHING)
    assert loss(replayed(draw(0, 2, 3), draw(1, 2, 3)), NOTHING).isfinite()  # single texts: their labels do not matter


# A first stage of training

NLI: dict[str, Any] = {
    "data": {"name": "generated", "task": "entailment", "size": 256, "dev_size": 32},
    "head": {"name": "embedding", "reads": "triple"},
    "loss": "simcse",
}
STS: dict[str, Any] = {
    "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 64},
    "head": {"name": "cosine", "dropout": 0.0},
    "loss": "mse",
    "metric": "pearson",
}


def told_apart(encoder: MinBert) -> float:
    """The share of dev triples whose premise is nearer to the entailment than to the contradiction."""
    examples = Generated(task="entailment", size=256, dev_size=100).load("dev")
    columns = [encoder.tokenize(column) for column in examples.columns]
    with torch.no_grad():
        vectors = encoder.eval()(arrange(columns, "triple", encoder.special_tokens, encoder.max_length)).view(
            3, 100, -1
        )
    premise, entailment, contradiction = vectors
    return float((cosine_of(premise, entailment) > cosine_of(premise, contradiction)).double().mean())


def test_a_first_stage_on_triples_teaches_the_encoder_and_is_shared(tmp_path: Path) -> None:
    options: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 2048, "pooling": "mean"}
    first = {"tasks": ["nli"], "epochs": 4, "optimizer": {"lr": 0.005}}
    stages = [first, {"tasks": ["sts"], "epochs": 0}]
    base = {"encoder": {"name": "minbert", **options}, "tasks": {"nli": NLI, "sts": STS}, "stages": stages}
    cells = [
        {"label": "untrained", "set": {"stages.0.epochs": 0}},
        {"label": "pretrained"},
        {"label": "tuned", "set": {"stages.1.epochs": 1, "stages.1.optimizer.lr": 0.001}},
    ]
    plan, outcome, events = run_grid(tmp_path / "r", {"base": base, "cells": cells})
    assert (outcome.finished, outcome.failed) == (3, 0)
    ids = {cell.label: cell.id for cell in plan.cells}

    shares = {}
    for label, cell in ids.items():
        encoder = MinBert(**options)
        encoder.build(generator=derive_generator(0))
        tensors = load_file(tmp_path / "r" / "cells" / cell / "best" / "tensors.safetensors")
        own = {name.removeprefix("encoder."): t for name, t in tensors.items() if name.startswith("encoder.")}
        encoder.load_state_dict(own)
        shares[label] = told_apart(encoder)
    assert shares["pretrained"] > shares["untrained"] + 0.15
    assert shares["tuned"] > shares["untrained"] + 0.1

    told = [e.facts for e in events if e.what == "epoch" and e.cell == ids["pretrained"] and e.facts["stage"] == 0]
    losses = [facts["losses"]["nli"] for facts in told]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.3
    assert all(facts["scores"] == {} for facts in told)  # triples have no labels, so no score
    shared = [e.facts["shared"] for e in events if e.what == "stage" and e.cell == ids["tuned"]]
    assert shared == [True, False]
