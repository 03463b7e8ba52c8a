"""Any text encoder of transformers, run by the library on padded batches."""

import hashlib
import inspect
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.core import Encoder, Ids, Tokens, WeightsError
from taskloom.plugins.encoders.folders import fingerprint_of, weight_files
from taskloom.plugins.encoders.poolings import POOLINGS, pool_states
from taskloom.plugins.encoders.pretrained import load_model, load_tokenizer, save_model, special_tokens_of
from taskloom.plugins.encoders.vocabulary import ids_of

_ONE_AT_A_TIME = threading.Lock()


class Padded(Encoder):
    """The part of ``huggingface`` that runs weights which ``minbert`` cannot; not a component by itself.

    ``embed`` looks words up; everything after that, including positions and dropout, is in ``encode``.
    """

    poolings = POOLINGS
    pooling: str
    model: Any

    def __init__(
        self,
        folder: Path,
        *,
        max_length: int | None,
        stated_max_length: int | None,
        dropout: dict[str, float],
        pooling: str | None,
        trainable: bool,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.max_length_option, self.stated_max_length = max_length, stated_max_length
        self.dropout = dropout
        self.pooling_option = pooling
        self.trainable = trainable
        self.generator: torch.Generator | None = None  # the run's

    def check(self) -> None:
        self.build(generator=torch.Generator())

    def build(self, *, generator: torch.Generator) -> None:
        with _drawing_from(generator):  # the library initializes missing weights
            model, missing = load_model(self.folder, self.dropout)
        pooler = {name for name in missing if name.startswith("pooler.")}
        self._require_all(missing - pooler)
        has_pooler = getattr(model, "pooler", None) is not None and not pooler
        self.pooling = self.pooling_option or ("pooler" if has_pooler else "cls")
        needs_pooler = "pooler" in (self.pooling, *self.requested_poolings)
        if needs_pooler and not has_pooler:
            raise WeightsError(
                f"{self.folder} has no pooler; pooling should be 'cls', 'mean' or 'max'. Found 'pooler'."
            )
        if not needs_pooler and hasattr(model, "pooler"):
            model.pooler = None
        self.special_tokens = special_tokens_of(self.folder, self._tokenizer)
        arguments = inspect.signature(model.forward).parameters
        if missing := {"inputs_embeds", "attention_mask"} - set(arguments):
            raise WeightsError(f"{self.folder}: {type(model).__name__} does not take {' and '.join(sorted(missing))}")
        self._typed = "token_type_ids" in arguments
        self.model = model
        self.width = self._probe()
        self.max_length = self._max_length()
        self.requires_grad_(self.trainable)

    def vocabulary_key(self) -> str:
        return f"tokenizer {hashlib.sha256(self._tokenizer.backend_tokenizer.to_str().encode()).hexdigest()}"

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return ids_of(self._tokenizer.backend_tokenizer, texts)

    def embed(self, tokens: Tokens) -> Tensor:
        words: Tensor = self.model.get_input_embeddings()(tokens.ids)
        return words  # [N, e]

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        inputs = {"inputs_embeds": tokens.pad(embedded), "attention_mask": tokens.mask.long()}
        if self._typed:
            inputs["token_type_ids"] = tokens.pad(tokens.types)
        with _drawing_from(self.generator if self.training and embedded.device.type == "cpu" else None):
            states = self.model(**inputs)[0]  # [S, L, d]
        return tokens.unpad(states)

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        return pool_states(states, tokens, self.pooling, self._pooler)

    def export(self, folder: Path, texts: Iterable[str]) -> list[str]:
        save_model(folder, self.model, load_tokenizer(self.folder), self.max_length)
        return []

    def fingerprint(self) -> str:
        files = fingerprint_of([*weight_files(self.folder), self.folder / "config.json"])
        return hashlib.sha256(f"{files}\n{self.vocabulary_key()}".encode()).hexdigest()

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.folder)

    def _pooler(self, first: Tensor) -> Tensor:
        """States of first tokens → vectors, [S, d]."""
        if isinstance(self.model.pooler, nn.Linear):  # ALBERT's
            return self.model.pooler_activation(self.model.pooler(first))  # type: ignore[no-any-return]
        return self.model.pooler(first[:, None])  # type: ignore[no-any-return]

    def _require_all(self, missing: set[str]) -> None:
        if missing:
            names, more = sorted(missing), f" and {len(missing) - 4} more" if len(missing) > 4 else ""
            path = weight_files(self.folder)[0]
            raise WeightsError(f"{path}: weights do not fit the architecture: {', '.join(names[:4])}{more} missing")

    def _probe(self) -> int:
        """The width of the states, from a forward pass over two empty texts."""
        special = self.special_tokens
        first, second = [*special.start, *special.middle], [*special.second_start, *special.end]
        tokens = Tokens.pack([[*first, *second]], [[0] * len(first) + [special.second_type] * len(second)])
        words, rows = len(self._tokenizer), self.model.get_input_embeddings().weight.shape[0]
        if words > rows:
            raise WeightsError(
                f"{self.folder}: weights do not fit the architecture: the vocabulary has {words} tokens, "
                f"the word table {rows} rows"
            )
        self.eval()
        try:
            with torch.no_grad():
                states = self.encode(self.embed(tokens), tokens)
        except Exception as error:
            raise WeightsError(f"{self.folder} cannot be run as an encoder of texts: {error}") from None
        finally:
            self.train()
        return states.shape[1]

    def _max_length(self) -> int:
        """The most tokens of a sequence: the option, else the smallest limit that the folder states."""
        tables = [module for name, module in self.model.named_modules() if name.endswith("position_embeddings")]
        # In a table with a row for padding, positions start behind that row.
        table_limits = [
            table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
            for table in tables
            if isinstance(table, nn.Embedding)
        ]
        option = self.max_length_option
        if option is not None and option > min(table_limits, default=option):
            raise WeightsError(
                f"{self.folder}: weights do not fit the architecture that was given: max_length {option} (the weights "
                f"have {min(table_limits)}); leave it out to take that of the weights"
            )
        stated = (
            self.stated_max_length,
            self._tokenizer.model_max_length,
            getattr(self.model.config, "max_position_embeddings", 0),
        )
        limits = [*table_limits, *(int(limit) for limit in stated if limit and 0 < limit < 1e6)]  # larger: no limit
        return option or min(limits, default=512)


@contextmanager
def _drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Make torch's global generator draw from ``generator`` inside the block, and restore it afterwards.

    The global generator is shared by all threads, so only one block runs at a time.
    """
    if generator is None:
        yield
        return
    with _ONE_AT_A_TIME:
        before = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)
