"""Interface 1 of 5: text → vectors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.errors import TaskloomError
from taskloom.core.tokens import Ids, SpecialTokens, Tokens


class Encoder(nn.Module, Component, ABC):
    """Turns packed tokens into one vector per sequence.

    The forward pass is split where methods need to step in: :meth:`embed` gives the input embeddings that SMART
    perturbs, :meth:`encode` turns them into states, :meth:`pool` into one vector per sequence. ``forward`` is
    the three in a row. Parameters come into being in :meth:`build`, so that making an encoder costs nothing and
    randomness has one source.

    After ``build``: ``width`` is d, ``max_length`` the most tokens a sequence may have,
    ``special_tokens`` the tokens around its texts.
    """

    kind: ClassVar[str] = "encoder"
    width: int
    max_length: int
    special_tokens: SpecialTokens
    #: Whether it takes, in the place of a parameter […], a stack [T, …] of copies, one for each of the T ``parts`` of
    #: the tokens, and gives each copy the gradient of its part: then the gradients of several tasks come from one pass.
    #: All parameters are copies or none; those of linear layers may be of another precision.
    takes_copies: bool = False
    #: Whether several threads may run passes without gradients at once, as scoring does on a CPU: it keeps nothing on
    #: ``self`` from one of its methods to the next.
    parallel: bool = False
    #: The poolings that it knows by name, if a head may ask for one: ``tokens.poolings`` says how to pool each of the
    #: ``parts`` of a batch, None being its own way. ``asked`` are those that heads of the run ask for, known before
    #: ``check`` and ``build``.
    poolings: ClassVar[tuple[str, ...]] = ()
    asked: frozenset[str] = frozenset()
    #: The one of them that is its own way: what it does for a head that asks for none.
    pooling: str | None = None
    #: Whether vectors that are made in its own way are divided by their length; those that a head asks for never are.
    normalized: bool = False
    #: False keeps the encoder's weights as they are (the papers' "pretrain" mode): only heads learn.
    trainable: bool = True

    @abstractmethod
    def check(self) -> None:
        """Raise ``WeightsError`` if what the options name is missing or does not fit; build nothing."""

    @abstractmethod
    def build(self, *, generator: torch.Generator) -> None:
        """Make or load the parameters."""

    @abstractmethod
    def vocabulary_key(self) -> str:
        """A string that changes whenever :meth:`tokenize` would give other ids; needs no ``build``."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, without special tokens and not cut; needs no ``build``."""

    @abstractmethod
    def embed(self, tokens: Tokens) -> Tensor:
        """Input embeddings, [N, e]; e may be another size than d, which :meth:`encode` gives."""

    @abstractmethod
    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        """Input embeddings [N, e] → states [N, d]."""

    @abstractmethod
    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        """States [N, d] → one vector per sequence, [S, d]."""

    def fingerprint(self) -> str:
        """A fingerprint of the weights that will be loaded ("" when drawn from the seed); part of identity."""
        return ""

    def export(self, folder: Path, texts: Iterable[str]) -> list[str]:
        """Write the built encoder into a folder as ``transformers`` keeps models.

        Afterwards ``AutoModel.from_pretrained(folder)`` gives its states and ``AutoTokenizer`` its tokens, without
        anybody's own code; the states become vectors as :attr:`pooling` and :attr:`normalized` say. ``texts`` are
        those that it was trained and scored on, for an encoder that has no list of its words; others leave them
        unread. Returns what whoever uses the folder should know, in sentences.
        """
        raise TaskloomError(f"encoder {self.name!r} cannot be exported: it has no method export()")

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        """Input embeddings [N, e] → one vector per sequence, [S, d]: :meth:`encode` and :meth:`pool` in a row.

        An encoder may override it to leave out states that its pooling does not read.
        """
        return self.pool(self.encode(embedded, tokens), tokens)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens → one vector per sequence, [S, d]."""
        return self.vectors(self.embed(tokens), tokens)
