"""Interface 1 of 5: text → vectors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.errors import TaskloomError
from taskloom.core.tokens import Ids, SpecialTokens, Tokens


class Encoder(nn.Module, Component, ABC):
    """Turns packed tokens into one vector per sequence.

    The forward pass is split where methods need to step in: :meth:`embed` gives the input embeddings that SMART
    perturbs, :meth:`encode` turns them into states, :meth:`pool` into one vector per sequence. ``forward`` is
    all three. Parameters are created in :meth:`build`, so that constructing an encoder costs nothing and randomness
    has one source.

    After ``build``: ``width`` is d, ``max_length`` the most tokens a sequence may have,
    ``special_tokens`` the tokens around its texts. If :meth:`check` sets the last two already, ``plan`` tells how many
    texts are longer.
    """

    kind: ClassVar[str] = "encoder"
    width: int
    max_length: int
    special_tokens: SpecialTokens
    #: Whether it accepts per-task copies of its parameters – a stack [T, …] in place of […], one copy for each of the T
    #: ``parts`` of the tokens – so that one backward pass gives per-task gradients. Either all parameters are stacks or
    #: none; those of linear layers may have another precision.
    takes_copies: bool = False
    #: Whether several threads may run passes without gradients at once, as scoring does on a CPU: its methods store
    #: nothing on ``self``.
    parallel: bool = False
    #: The poolings that a head may request: ``tokens.poolings`` says how to pool each of the ``parts`` of a batch
    #: (None: its default). ``requested_poolings`` are those of a run's heads, set before ``check`` and ``build``.
    poolings: ClassVar[tuple[str, ...]] = ()
    requested_poolings: frozenset[str] = frozenset()
    #: Its default pooling, for a head that requests none.
    pooling: str | None = None
    #: Whether vectors of its default pooling are divided by their length; those that a head requests never are.
    normalized: bool = False
    #: False keeps the encoder's weights as they are (the papers' "pretrain" mode): only heads learn.
    trainable: bool = True
    #: Whether one thread trains it as fast as several, because dividing so little work costs more than it gains; a run
    #: then uses one.
    small: bool = False

    @classmethod
    def smoke_options(cls) -> dict[str, Any] | None:
        """Options that make it tiny and untrained, for smoke runs; None: those use the default encoder instead.

        ``pooling`` and ``trainable`` are kept from the grid.
        """
        return None

    @abstractmethod
    def check(self) -> None:
        """Raise ``WeightsError`` if files that the options name are missing or do not fit; build nothing."""

    @abstractmethod
    def build(self, *, generator: torch.Generator) -> None:
        """Make or load the parameters."""

    @abstractmethod
    def vocabulary_key(self) -> str:
        """A string that changes whenever :meth:`tokenize` would give other ids; needs no ``build``."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, without special tokens and not truncated; needs no ``build``."""

    @abstractmethod
    def embed(self, tokens: Tokens) -> Tensor:
        """Input embeddings, [N, e]; e may differ from d, the width of :meth:`encode`."""

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
        """Write the built encoder into a folder in the format of ``transformers``.

        Afterwards ``AutoModel.from_pretrained(folder)`` gives its states and ``AutoTokenizer`` its tokens, without
        custom code; the states become vectors as :attr:`pooling` and :attr:`normalized` say. ``texts`` are those that
        it was trained and scored on, for an encoder that has no vocabulary of its own; others leave them unread.
        Returns sentences for the user of the folder.
        """
        raise TaskloomError(f"encoder {self.name!r} cannot be exported: it has no method export()")

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        """Input embeddings [N, e] → one vector per sequence, [S, d]: :meth:`encode`, then :meth:`pool`.

        An encoder may override it to leave out states that its pooling does not read.
        """
        return self.pool(self.encode(embedded, tokens), tokens)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens → one vector per sequence, [S, d]."""
        return self.vectors(self.embed(tokens), tokens)
