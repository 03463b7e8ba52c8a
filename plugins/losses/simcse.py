"""SimCSE: contrastive learning of sentence vectors."""

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import cross_entropy

from taskloom.core import Labels, Loss, Prediction, TrainingError
from taskloom.plugins.similarity import cosine_matrix


class SimCSE(Loss):
    """Pulls each sentence's vector towards its partner's and pushes it from those of the rest of the batch.

    L = −1/B Σᵢ log [exp(cos(uᵢ, vᵢ)/τ) / Σⱼ exp(cos(uᵢ, vⱼ)/τ)], j over the B partners and, for triples, the B
    contradictions w as well. Which form it is follows from what the head reads:
    one text – unsupervised, v is the same sentence encoded again under other dropout;
    two texts – v is the second one, and every pair counts as a positive;
    three texts – supervised: premise u, entailment v, contradiction w, all w being negatives for every premise.

    Reads: one, two or three vectors per example; the score and the label are not used. Two equal texts in one
    batch count as negatives of each other: the batch composition ``no_duplicates`` keeps them apart.

    Options:
        temperature: τ; the smaller, the more the hardest negatives count

    Siblings: ``mnr`` for pairs whose labels say which are positive.

    Reference: Gao, Yao, Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021.

    Example:
        {"tasks": {"nli": {"data": {"name": "snli", "task": "triples", "dir": "$DATA/snli"},
        "head": {"name": "embedding", "reads": "triple"}, "loss": "simcse"}}}
    """

    name = "simcse"
    expects = "vectors"
    replays = True

    def __init__(self, *, temperature: PositiveFloat = 0.05) -> None:
        super().__init__()
        self.temperature = temperature
        self.labels = Labels.of_range(0, 0)

    def prepare(self, *, labels: Labels, rows: int) -> None:
        self.labels = labels

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        vectors = prediction.vectors  # [S, B, d]
        anchors = vectors[0]
        if len(vectors) > 1 and self.labels.high > self.labels.low:
            raise TrainingError(
                f"loss {self.name!r} takes every pair for a positive one, so the data should have no labels. "
                f"Found labels from {self.labels.low:g} to {self.labels.high:g}; use 'mnr', or a head that reads "
                "one text."
            )
        if len(vectors) == 1:
            assert prediction.replay is not None, "a run's predictions can be replayed"
            candidates = prediction.replay().vectors[0]  # the same sentences under new dropout, [B, d]
        else:
            candidates = vectors[1:].flatten(0, 1)  # [B or 2B, d]
        similarity = cosine_matrix(anchors, candidates) / self.temperature  # [B, B or 2B]
        return cross_entropy(similarity, torch.arange(len(anchors), device=anchors.device))
