"""BERT's parts on packed rows: embeddings, layers and pooler (Devlin et al. 2019)."""

from typing import Annotated, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor, nn

from taskloom.core import Dropout, Tokens
from taskloom.plugins.encoders.attention import attend
from taskloom.plugins.encoders.copies import Parts, layer_norm, linear, lookup
from taskloom.plugins.encoders.layers import empty_linear

Share = Annotated[float, Field(ge=0, lt=1)]


class Architecture(BaseModel):
    """The sizes of a BERT and its dropout, by our names or by those of ``config.json``."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    vocabulary: PositiveInt = Field(alias="vocab_size")
    layers: PositiveInt = Field(alias="num_hidden_layers")
    width: PositiveInt = Field(alias="hidden_size")
    heads: PositiveInt = Field(alias="num_attention_heads")
    feed_forward: PositiveInt = Field(alias="intermediate_size")
    max_length: PositiveInt = Field(alias="max_position_embeddings")
    types: PositiveInt = Field(2, alias="type_vocab_size")
    eps: Share = Field(1e-12, alias="layer_norm_eps")
    dropout: Share = Field(0.1, alias="hidden_dropout_prob")
    attention_dropout: Share = Field(0.1, alias="attention_probs_dropout_prob")


class Embeddings(nn.Module):
    """Word + position + segment → LayerNorm → dropout."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.word = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width))
        self.position = nn.Parameter(torch.empty(sizes.max_length, sizes.width))
        self.segment = nn.Parameter(torch.empty(sizes.types, sizes.width))
        self.norm = nn.LayerNorm(sizes.width, sizes.eps)
        self.dropout = Dropout(sizes.dropout)

    def forward(self, tokens: Tokens) -> Tensor:
        # A batch touches few rows of the word table, so on a CPU its gradient is sparse. On a GPU a dense gradient
        # costs less than counting those rows.
        sparse, parts = tokens.ids.device.type == "cpu", tokens.rows
        x = lookup(self.word, tokens.ids, parts, sparse=sparse)  # [N, d]
        x = x + lookup(self.position, tokens.positions, parts) + lookup(self.segment, tokens.types, parts)
        return self.dropout(layer_norm(x, self.norm, parts))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Self-attention, add and norm, feed-forward, add and norm; one projection gives queries, keys and values."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = empty_linear(sizes.width, 3 * sizes.width)
        self.out = empty_linear(sizes.width, sizes.width)
        self.attention_norm = nn.LayerNorm(sizes.width, sizes.eps)
        self.up = empty_linear(sizes.width, sizes.feed_forward)
        self.down = empty_linear(sizes.feed_forward, sizes.width)
        self.output_norm = nn.LayerNorm(sizes.width, sizes.eps)
        self.dropout = Dropout(sizes.dropout)
        self.attention_dropout = Dropout(sizes.attention_dropout)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """States [N, d] → the next states, [N, d]."""
        parts = tokens.rows
        mixed = attend(self.qkv(x, parts), tokens, self.heads, self.attention_dropout)
        return self._finish(x, mixed, parts)

    def first(self, x: Tensor, tokens: Tokens) -> Tensor:
        """``forward`` for the first token of each sequence only, [N, d] → [S, d], at a sixth of the work."""
        width = x.shape[1]
        weights = torch.split(self.qkv.weight, [width, 2 * width], dim=-2)
        biases = torch.split(self.qkv.bias, [width, 2 * width], dim=-1)
        first = x.index_select(0, tokens.starts)  # [S, d]
        q = linear(first, weights[0], biases[0], tokens.parts)
        kv = linear(x, weights[1], biases[1], tokens.rows)
        mixed = attend(kv, tokens, self.heads, self.attention_dropout, first=q)
        return self._finish(first, mixed, tokens.parts)

    def _finish(self, x: Tensor, mixed: Tensor, parts: Parts) -> Tensor:
        x = layer_norm(self._add(x, self.out(mixed, parts)), self.attention_norm, parts)
        inner = self.up(x, parts, activate=True)
        return layer_norm(self._add(x, self.down(inner, parts)), self.output_norm, parts)

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        """x + dropout(change); on a CPU in one pass over memory."""
        if self.dropout.active and change.device.type == "cpu":
            return torch.addcmul(x, change, self.dropout.noise(change))
        return x + cast(Tensor, self.dropout(change))
