"""Encoders that break a law."""

from collections.abc import Sequence
from itertools import count
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
from mutants.base import mutant, then
from pydantic import Field
from torch import Tensor, nn

from taskloom.core import Encoder, SpecialTokens, Tokens
from taskloom.core.random import new_linear

_COUNT = count()


class Words(Encoder):
    """The mean of a text's word vectors, after one layer.

    Options:
        vocabulary: how many words are told apart
        lower: whether capitals are ignored
        trainable: whether it learns
    """

    name = "words"

    def __init__(
        self, *, vocabulary: Annotated[int, Field(ge=10)] = 50, lower: bool = True, trainable: bool = True
    ) -> None:
        super().__init__()
        self.vocabulary, self.lower, self.trainable = vocabulary, lower, trainable
        self.steps = 0

    def check(self) -> None: ...

    def build(self, *, generator: torch.Generator) -> None:
        self.width, self.max_length, self.special_tokens = 8, 30, SpecialTokens((0,), (1,), (1,))
        self.words = nn.Parameter(torch.randn(self.vocabulary + 2, self.width, generator=generator))
        self.layer = new_linear(self.width, self.width, generator)
        self.requires_grad_(self.trainable)

    def vocabulary_key(self) -> str:
        return f"{self.vocabulary} words, lower {self.lower}"

    def id_of(self, word: str) -> int:
        return crc32((word.lower() if self.lower else word).encode())

    def tokenize(self, texts: Sequence[str]) -> list[Any]:
        return [np.array([2 + self.id_of(w) % self.vocabulary for w in text.split()], dtype=np.int64) for text in texts]

    def embed(self, tokens: Tokens) -> Tensor:
        return self.words[tokens.ids]

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return embedded + self.layer(embedded).tanh()  # type: ignore[no-any-return]

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        return torch.stack([part.mean(0) for part in torch.split(states, tokens.lengths.tolist())])


class HashesWords(Words):
    """Turns words into ids with ``hash``, which differs from process to process."""

    name = "hashes_words"

    def id_of(self, word: str) -> int:
        return hash(word.lower() if self.lower else word)


def built(more: Any) -> Any:
    """A build that does something more."""
    return then(Words.build, lambda self, _, generator: more(self, generator))


def pooled(change: Any) -> Any:
    """A pool whose vectors are changed."""
    return then(Words.pool, lambda self, vectors, _, tokens: change(self, vectors, tokens))


def counting(self: Any, vectors: Tensor, tokens: Tokens) -> Tensor:
    self.steps += self.training
    return vectors * (1 + 0.1 * self.steps)


def in_place(self: Any, embedded: Tensor, tokens: Tokens) -> Tensor:
    if not embedded.requires_grad:
        embedded[:, 0] = embedded[:, 0].round(decimals=1)
    return Words.encode(self, embedded, tokens)


SOUND: list[tuple[type, dict[str, Any]]] = [(Words, {}), (Words, {"trainable": False})]
MUTANTS = {
    "tokens become one vector per sequence": [
        mutant(Words, "writes to the embeddings", encode=in_place),
        mutant(
            Words,
            "has a short cut that leads elsewhere",
            vectors=lambda self, embedded, tokens: 1.01 * Encoder.vectors(self, embedded, tokens),
        ),
    ],
    "a sequence does not depend on its batch": [
        mutant(Words, "centres the batch", pool=pooled(lambda self, vectors, _: vectors - vectors.mean(0))),
        mutant(Words, "sorts by length", pool=pooled(lambda self, vectors, tokens: vectors[tokens.lengths.argsort()])),
        mutant(Words, "averages over padding", pool=lambda self, states, tokens: tokens.pad(states).mean(1)),
        mutant(
            Words,
            "adds the token before, whatever sequence that is of",
            encode=lambda self, embedded, tokens: Words.encode(self, embedded + embedded.roll(2, 0), tokens),
        ),
        mutant(
            Words,
            "counts positions through the whole batch",
            embed=lambda self, tokens: (
                Words.embed(self, tokens) + torch.arange(len(tokens.ids), device=tokens.ids.device).sin()[:, None]
            ),
        ),
    ],
    "each part of a batch is pooled as it asks": [
        mutant(Words, "names poolings that it does not have", poolings=("mean", "sum")),
        mutant(
            Words,
            "pools the whole batch as its first part asks",
            poolings=("mean", "sum"),
            pool=pooled(lambda self, vectors, tokens: vectors * (1 + (tokens.poolings[0] == "sum"))),
        ),
    ],
    "copies of its parameters get the gradients of their parts": [
        mutant(Words, "has promised to take copies", takes_copies=True),
        mutant(
            Words,
            "gives every copy the mean of all",
            takes_copies=True,
            embed=lambda self, tokens: (
                self.words.mean(0)[tokens.ids] if self.words.dim() > 2 else self.words[tokens.ids]
            ),
            encode=lambda self, embedded, tokens: embedded,
        ),
    ],
    "a long text is truncated at max length only": [
        mutant(Words, "truncates", tokenize=lambda self, texts: [ids[:510] for ids in Words.tokenize(self, texts)]),
        mutant(
            Words,
            "has room for special tokens only",
            build=built(lambda self, _: setattr(self, "max_length", 3)),
            pool=pooled(lambda self, vectors, _: vectors + self.words[5]),
        ),
    ],
    "the vocabulary key follows the ids": [
        mutant(Words, "has one key for all vocabularies", vocabulary_key=lambda self: "words"),
    ],
    "its randomness comes from its generator": [
        mutant(
            Words,
            "draws in a pass",
            embed=lambda self, tokens: Words.embed(self, tokens) + 0 * torch.rand(()),
        ),
    ],
    "it gives the same again and in a new process": [
        mutant(Words, "has a key of its own", vocabulary_key=lambda self: str(next(_COUNT))),
        HashesWords,
    ],
    "its gradients are those of finite differences": [
        mutant(
            Words,
            "detaches its embeddings",
            encode=lambda self, embedded, tokens: Words.encode(self, embedded.detach(), tokens),
        ),
        mutant(
            Words,
            "passes half of the gradient on",
            encode=lambda self, embedded, tokens: Words.encode(self, (embedded + embedded.detach()) / 2, tokens),
        ),
        mutant(Words, "says it is not trainable", build=built(lambda self, _: setattr(self, "trainable", False))),
    ],
    "it works in half precision": [
        mutant(
            Words,
            "is another one in half precision",
            pool=pooled(lambda self, vectors, _: vectors * (2 if torch.is_autocast_enabled("cpu") else 1)),
        ),
    ],
    "it works on a gpu": [
        mutant(
            Words,
            "adds positions that are made on the host",
            embed=lambda self, tokens: Words.embed(self, tokens) + tokens.positions.cpu().sin()[:, None],
        ),
    ],
    "its state survives saving": [
        mutant(
            Words,
            "keeps a tensor out of its state",
            build=built(lambda self, generator: setattr(self, "shift", torch.randn((), generator=generator))),
            pool=pooled(lambda self, vectors, _: vectors + self.shift),
        ),
        mutant(Words, "counts its steps in a plain number", pool=pooled(counting)),
    ],
}
