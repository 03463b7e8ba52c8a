"""Heads that break a law."""

from collections.abc import Sequence
from typing import Any

import torch
from mutants.base import OneLayer, mutant, then
from torch import Tensor

from taskloom.core import Prediction


def scored(change: Any) -> Any:
    """A forward pass whose score is changed."""
    return then(OneLayer.forward, lambda self, made, _: Prediction(change(self, made.score), made.vectors))


def shown(change: Any) -> Any:
    """A forward pass whose vectors are changed first."""
    return lambda self, vectors: OneLayer.forward(self, change(self, vectors))


def built(more: Any) -> Any:
    """A build that does something more."""
    return then(OneLayer.build, lambda self, _, width, outputs, labels, generator, shared: more(self, generator))


class Centred(OneLayer):
    """Takes away the mean of what it saw in training."""

    name = "centred"

    def build(self, **given: Any) -> None:  # type: ignore[override]
        super().build(**given)
        self.steps = 0
        self.register_buffer("mean", torch.zeros(given["width"]))

    def forward(self, vectors: Tensor) -> Prediction:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * self.seen(vectors).mean((0, 1))
        return super().forward(vectors - self.mean)

    def seen(self, vectors: Tensor) -> Tensor:
        return vectors.detach()


class Told(OneLayer):
    """Says in a few lines what it does."""

    name = "told"

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        score = 'score = F.linear(vectors[0], w["layer.weight"], w["layer.bias"])'
        if self.layer.out_features > 1:
            return [*layer, score, "predicted = score.argmax(1)"]
        cut = 0.5 if self.score_means == "value" else 0.0
        decided = f"predicted = (score > {cut}).long()" if self.labels.classes else "predicted = score"
        return [*layer, score + "[:, 0]", decided]


def told(change: Any) -> Any:
    """A snippet whose lines are changed."""
    return then(Told.snippet, lambda self, lines, *_: change(lines))


def first_is_one(self: Any, vectors: Tensor) -> Tensor:
    vectors = vectors.clone() if vectors.requires_grad else vectors
    vectors[..., 0] = 1.0
    return vectors


def counting(self: Any, vectors: Tensor) -> Tensor:
    self.steps = getattr(self, "steps", 0) + self.training
    return vectors * (1 + 0.1 * self.steps)


def numpy_has_no_bfloat16(self: Any, vectors: Tensor) -> Tensor:
    vectors.detach().cpu().numpy()
    return vectors


SOUND: list[tuple[type, dict[str, Any]]] = [(OneLayer, {}), (Centred, {}), (Told, {})]
MUTANTS = {
    "it gives one finite score and its vectors per example": [
        mutant(OneLayer, "gives what nobody knows", gives="logits"),
        mutant(OneLayer, "divides by a length", forward=shown(lambda self, x: x / x.norm(dim=-1, keepdim=True))),
        mutant(OneLayer, "leaves a column", forward=scored(lambda self, score: score.view(len(score), -1))),
        mutant(
            OneLayer,
            "squeezes a batch of one",
            forward=scored(lambda self, score: score.squeeze() if self.training else score),
        ),
    ],
    "each example is scored by itself": [
        mutant(OneLayer, "centres the batch", forward=scored(lambda self, score: score - score.mean(0))),
        mutant(OneLayer, "writes to its vectors", forward=shown(first_is_one)),
    ],
    "it decides in the units of the labels": [
        mutant(OneLayer, "decides for a value", decide=lambda self, score: score.view(len(score), -1)[:, 0]),
        mutant(
            OneLayer,
            "takes every number for a logit",
            decide=lambda self, score: (score > 0).long() if self.labels.classes == 2 else OneLayer.decide(self, score),
        ),
        mutant(
            OneLayer,
            "is sure of the wrong class",
            probabilities=lambda self, score: OneLayer.probabilities(self, -score),
        ),
        mutant(OneLayer, "decides in a column", decide=lambda self, score: OneLayer.decide(self, score)[:, None]),
    ],
    "its snippet does what it does": [
        mutant(
            Told,
            "forgets its bias",
            snippet=told(lambda lines: [lines[0].replace('w["layer.bias"]', "None"), *lines[1:]]),
        ),
        mutant(Told, "leaves no prediction", snippet=told(lambda lines: lines[:-1])),
        mutant(Told, "predicts no class", snippet=told(lambda lines: [*lines, "predicted = predicted - 1"])),
    ],
    "its gradients are those of finite differences": [
        mutant(OneLayer, "detaches its input", forward=shown(lambda self, vectors: vectors.detach())),
        mutant(
            OneLayer,
            "rounds and passes the gradient on",
            forward=scored(lambda self, score: score + (score.round() - score).detach()),
        ),
        mutant(
            OneLayer,
            "has a parameter that it does not use",
            build=built(lambda self, _: self.register_parameter("more", torch.nn.Parameter(torch.ones(1)))),
        ),
    ],
    "it works in half precision": [mutant(OneLayer, "goes through numpy", forward=shown(numpy_has_no_bfloat16))],
    "it works on a gpu": [
        mutant(
            OneLayer,
            "keeps a tensor out of its buffers",
            build=built(lambda self, _: setattr(self, "ones", torch.ones(1))),
            forward=scored(lambda self, score: score * self.ones),
        ),
        mutant(
            OneLayer,
            "decides with numpy",
            decide=lambda self, score: torch.from_numpy(OneLayer.decide(self, score).numpy()),
        ),
    ],
    "its randomness comes from its generator": [
        mutant(OneLayer, "draws its weights", build=built(lambda self, _: self.layer.reset_parameters())),
    ],
    "its state survives saving": [
        mutant(
            OneLayer,
            "keeps a tensor out of its state",
            build=built(lambda self, generator: setattr(self, "more", torch.randn((), generator=generator))),
            forward=scored(lambda self, score: score + self.more),
        ),
        mutant(OneLayer, "counts its steps in a plain number", forward=shown(counting)),
        mutant(Centred, "keeps the graph with the mean", seen=lambda self, vectors: vectors),
    ],
}
