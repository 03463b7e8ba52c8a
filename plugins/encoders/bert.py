"""BERT's parts on packed rows: embeddings, layers and pooler (Devlin et al. 2019)."""

from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear

from taskloom.core import Dropout, Tokens
from taskloom.plugins.encoders.attention import Layout, attend, attend_first

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


def empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer, not yet filled: ``nn.Linear(…)`` would draw from torch's global generator."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call,no-any-return]


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
        # A batch touches few rows of the word table, so its gradient is those rows and not a table of zeros.
        x = embedding(tokens.ids, self.word, sparse=True)  # [N, d]
        x = x + embedding(tokens.positions, self.position) + embedding(tokens.types, self.segment)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Self-attention, add and norm, feed-forward, add and norm; one projection makes queries, keys and values."""

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

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """States [N, d] in the layout's order → the next states, [N, d]."""
        return self._finish(x, attend(self.qkv(x), layout, self.heads, self.attention_dropout))

    def first(self, x: Tensor, layout: Layout) -> Tensor:
        """The same for the first token of each sequence alone, [N, d] → [S, d], at a sixth of the work."""
        width = x.shape[1]
        weights = torch.split(self.qkv.weight, [width, 2 * width])
        biases = torch.split(self.qkv.bias, [width, 2 * width])
        first = x.index_select(0, layout.firsts)  # [S, d]
        q, kv = linear(first, weights[0], biases[0]), linear(x, weights[1], biases[1])
        return self._finish(first, attend_first(q, kv, layout, self.heads, self.attention_dropout))

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self.attention_norm(self._add(x, self.out(mixed)))
        return self.output_norm(self._add(x, self.down(gelu(self.up(x)))))  # type: ignore[no-any-return]

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        """x + dropout(change), in one pass over memory."""
        if not self.dropout.active:
            return x + change
        return torch.addcmul(x, change, self.dropout.noise(change))
