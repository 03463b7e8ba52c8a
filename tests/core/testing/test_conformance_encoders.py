"""For every law of encoders, one that breaks it and is caught."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taskloom.core import Component, Tokens
from taskloom.core.testing import general, laws
from taskloom.plugins.encoders import MinBert

TINY = {"layers": 1, "width": 8, "heads": 2, "vocabulary": 50}
LAWS = {law.name: law for law in laws("encoder")}
MUTANTS: list[tuple[type[Component], str]] = []


def breaks(*names: str) -> Callable[[type[Component]], type[Component]]:
    def mark(mutant: type[Component]) -> type[Component]:
        MUTANTS.extend((mutant, name) for name in names)
        return mutant

    return mark


class _Extra:
    """Saves an object."""

    def get_extra_state(self) -> Any:
        return {1, 2}

    def set_extra_state(self, state: Any) -> None:
        pass


@breaks("tokens become one vector per sequence")
class Shortcut(MinBert):
    """Has a short cut that leads elsewhere."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded, tokens) * 1.01


@breaks("tokens become one vector per sequence")
class Padded(MinBert):
    """Gives states for padding too."""

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        states = super().encode(embedded, tokens)
        return torch.cat([states, states[:1]])


@breaks("it works on a packed batch of one")
class LosesTheBatch(MinBert):
    """Squeezes a batch of one away."""

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        return super().pool(states, tokens).squeeze(0)


@breaks("very different lengths go into one batch")
class OfOneLength(MinBert):
    """Scales by the longest sequence of the batch."""

    def embed(self, tokens: Tokens) -> Tensor:
        return super().embed(tokens) + 0.1 * (tokens.longest > 40)


@breaks("a long text is cut at max_length alone")
class Cuts(MinBert):
    """Cuts a text to what it has places for."""

    def tokenize(self, texts: Any) -> Any:
        return [ids[:510] for ids in super().tokenize(texts)]


@breaks("a long text is cut at max_length alone")
class NoRoom(MinBert):
    """Has room for its special tokens, and for no text."""

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.max_length = 3


@breaks("a sequence does not depend on its batch")
class Crosstalk(MinBert):
    """Lets a sequence's vector depend on its batch."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        vectors = super().vectors(embedded, tokens)
        return vectors - vectors.mean(0)


@breaks("the order of sequences is that of their vectors")
class Sorts(MinBert):
    """Gives vectors in the order of their lengths."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded, tokens)[tokens.lengths.argsort()]


@breaks("tokenizing is stable")
class Shouts(MinBert):
    """Tokenizes the first text of a batch in another way."""

    def tokenize(self, texts: Any) -> Any:
        return super().tokenize([texts[0] + " !", *texts[1:]])


@breaks("a new process gives the same encoder")
class Hashes(MinBert):
    """Turns words into ids with ``hash``, which every process does in its own way."""

    def tokenize(self, texts: Any) -> Any:
        return [[5 + hash(word) % 50 for word in text.split()] for text in texts]


@breaks("the vocabulary key follows the ids")
class OneKey(MinBert):
    """Keeps ids under a key that does not say how many there are."""

    def vocabulary_key(self) -> str:
        return "words"


@breaks("one seed gives one encoder and one pass")
class Moody(MinBert):
    """Counts how many were made."""

    made = 0

    def build(self, **given: Any) -> None:
        super().build(**given)
        Moody.made += 1
        next(self.parameters()).data.add_(Moody.made)


@breaks("it touches no global random state")
class DrawsGlobally(MinBert):
    """Drops out with torch's global state."""

    def embed(self, tokens: Tokens) -> Tensor:
        return nn.functional.dropout(super().embed(tokens), 0.1, self.training)


@breaks("gradients reach its embeddings and parameters")
class CutsOff(MinBert):
    """Cuts the gradient to its embeddings."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded.detach(), tokens)


@breaks("its gradients are those of finite differences")
class HalfGradient(MinBert):
    """Passes half of the gradient on."""

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().encode((embedded + embedded.detach()) / 2, tokens)

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return self.pool(self.encode(embedded, tokens), tokens)


@breaks("it leaves tokens and embeddings as they are")
class WritesBack(MinBert):
    """Writes into the embeddings it was given."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        embedded.mul_(2)
        return super().vectors(embedded, tokens)


@breaks("it works in bfloat16")
class NoHalf(MinBert):
    """Is another one in half precision."""

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded, tokens) * (2 if torch.is_autocast_enabled("cpu") else 1)


@breaks("its state survives saving")
class Keeps(MinBert):
    """Keeps a tensor out of its state."""

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.shift = torch.randn(self.width, generator=given["generator"])

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded, tokens) + self.shift


@breaks("its state survives saving")
class CountsPasses(MinBert):
    """Keeps the number of its steps where no checkpoint finds it."""

    steps = 0

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        self.steps += self.training
        return super().vectors(embedded, tokens) * (1 + 0.1 * self.steps)


@breaks("its state is tensors")
class PickledEncoder(_Extra, MinBert):
    """An encoder that saves an object."""


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_mutant_is_caught(mutant: type[Component], law: str) -> None:
    options = {key: value for key, value in TINY.items() if key != "vocabulary"} if mutant is OneKey else TINY
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[law](mutant, **options)


def test_every_law_has_a_mutant() -> None:
    own = {name for name, law in LAWS.items() if law.holds not in general.LAWS}
    assert own == {law for _, law in MUTANTS}
