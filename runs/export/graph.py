"""The encoder as one ONNX graph: token ids of a padded batch in, one vector per sequence out."""

import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from taskloom.runs.export.vectors import SentencePooling, all_poolings
from taskloom.runs.predict.trained import TrainedModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VECTOR, STATES = "sentence_embedding", "token_embeddings"


def output_name(pooling: SentencePooling) -> str:
    """Return the graph's name for the vectors of a head's pooling; those of the model's own are ``VECTOR``."""
    return f"{pooling.method}_embedding"


class Pooled(nn.Module):
    """A model of transformers followed by poolings, on a padded batch of B sequences of L tokens."""

    def __init__(self, model: nn.Module, poolings: list[SentencePooling]) -> None:
        super().__init__()
        self.model, self.poolings = model, poolings

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named_inputs = dict(zip(INPUTS, inputs, strict=False))
        out = self.model(**named_inputs)
        states, mask = out.last_hidden_state, named_inputs["attention_mask"][..., None]  # [B, L, d], [B, L, 1]
        return *(self._pool(pooling, states, mask, out) for pooling in self.poolings), states

    def _pool(self, pooling: SentencePooling, states: Tensor, mask: Tensor, out: Any) -> Tensor:
        if pooling.method == "mean":
            vectors = (states * mask).sum(1) / mask.sum(1)
        elif pooling.method == "max":
            vectors = states.masked_fill(mask == 0, -torch.inf).amax(1)
        else:
            vectors = states[:, 0] if pooling.method == "cls" else out.pooler_output
        return normalize(vectors) if pooling.normalized else vectors  # [B, d]


def write_graph(folder: Path, model: TrainedModel) -> None:
    """Convert the weights in ``folder`` to ``model.onnx`` with dynamic batch size and length, and remove them."""
    from transformers import AutoModel

    poolings = all_poolings(model)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=model.encoder.max_length)}
    with _quiet(), torch.no_grad():
        loaded = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        takes = inspect.signature(loaded.forward).parameters
        inputs = [name for name in INPUTS if name in takes]
        example = {name: torch.ones(2, 8, dtype=torch.int64) for name in inputs}
        torch.onnx.export(
            Pooled(loaded, poolings),
            tuple(example.values()),
            folder / "model.onnx",
            input_names=inputs,
            output_names=[VECTOR, *map(output_name, poolings[1:]), STATES],
            dynamic_shapes=(tuple(axes for _ in inputs),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    for path in folder.glob("model*.safetensors*"):
        path.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the output of transformers and torch.onnx; their errors are raised."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
