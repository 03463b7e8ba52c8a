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

from taskloom.runs.export.vectors import Way, ways
from taskloom.runs.predict.trained import TrainedModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VECTOR, STATES = "sentence_embedding", "token_embeddings"


def output_name(way: Way) -> str:
    """What the graph calls vectors that a head asks for; those of the model's own way are ``VECTOR``."""
    return f"{way.pooling}_embedding"


class Pooled(nn.Module):
    """A model of transformers and the poolings behind it, on a padded batch of B sequences of L tokens."""

    def __init__(self, model: nn.Module, needed: list[Way]) -> None:
        super().__init__()
        self.model, self.ways = model, needed

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(INPUTS, inputs, strict=False))
        out = self.model(**given)
        states, mask = out.last_hidden_state, given["attention_mask"][..., None]  # [B, L, d], [B, L, 1]
        return *(self._pool(way, states, mask, out) for way in self.ways), states

    def _pool(self, way: Way, states: Tensor, mask: Tensor, out: Any) -> Tensor:
        if way.pooling == "mean":
            found = (states * mask).sum(1) / mask.sum(1)
        elif way.pooling == "max":
            found = states.masked_fill(mask == 0, -torch.inf).amax(1)
        else:
            found = states[:, 0] if way.pooling == "cls" else out.pooler_output
        return normalize(found) if way.normalized else found


def write_graph(folder: Path, model: TrainedModel) -> None:
    """Replace the weights in ``folder`` by ``model.onnx``, made of them; batch and length may be any."""
    from transformers import AutoModel

    needed = ways(model)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=model.encoder.max_length)}
    with _quiet(), torch.no_grad():
        loaded = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        takes = inspect.signature(loaded.forward).parameters
        inputs = [name for name in INPUTS if name in takes]
        example = {name: torch.ones(2, 8, dtype=torch.int64) for name in inputs}
        torch.onnx.export(
            Pooled(loaded, needed),
            tuple(example.values()),
            folder / "model.onnx",
            input_names=inputs,
            output_names=[VECTOR, *map(output_name, needed[1:]), STATES],
            dynamic_shapes=(tuple(axes for _ in inputs),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    for path in folder.glob("model*.safetensors*"):
        path.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Both libraries talk a lot, about themselves: an error is what they raise."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
