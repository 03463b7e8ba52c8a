"""What a step is measured against: the same tasks on ``transformers.BertModel``, and the machine's matrix rate."""

import copy
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import torch
from steps import Turn
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence

from taskloom.core import Group, Tokens, arrange
from taskloom.core.tokens import SEQUENCES
from taskloom.plugins.encoders.folders import find_folder
from taskloom.runs.training.cell import Run

#: By task: what it reads, and the labels.
Batch = dict[str, tuple[Tokens, Tensor]]
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sst": lambda score, target: cross_entropy(score, target.long()),
    "para": lambda score, target: binary_cross_entropy_with_logits(score[:, 0], target),
    "sts": lambda score, target: mse_loss(score[:, 0], target),
}

#: Matrix products that are timed, [n, k] × [k, m].
SHAPES = ((690, 384, 1536), (690, 1536, 384), (1024, 1024, 1024))
REPEATS = 4  # a single product is over before it can be timed well


def batches_of(run: Run, groups: Iterable[Group]) -> list[Batch]:
    """The texts of our batches, tokenized beforehand as ours are."""
    encoder, train = run.model.encoder, {name: task.data.load("train") for name, task in run.tasks.items()}
    found: list[Batch] = []
    for group in groups:
        batch: Batch = {}
        for part in group:
            examples, rows = train[part.task], part.rows.tolist()
            columns = [encoder.tokenize([column[row] for row in rows]) for column in examples.columns]
            reads = run.tasks[part.task].head.reads
            tokens = arrange(columns, reads, encoder.special_tokens, encoder.max_length)
            labels = examples.labels
            target = torch.zeros(len(rows)) if labels is None else torch.tensor(labels[part.rows], dtype=torch.float32)
            batch[part.task] = (tokens, target)
        found.append(batch)
    return found


def lengths_of(tokens: Tokens) -> list[int]:
    return [int(length) for length in tokens.lengths]


def padded(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments and mask, each [S, L]."""
    lengths = lengths_of(tokens)
    ids, types = (pad_sequence(rows.split(lengths), batch_first=True) for rows in (tokens.ids, tokens.types))
    return ids, types, (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()


class Padded(nn.Module):
    """``transformers.BertModel`` as its users run it: sequences padded to the longest of the batch, and a mask."""

    def __init__(self, weights: str, pooling: str) -> None:
        from transformers import BertModel
        from transformers.utils import logging

        super().__init__()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.mean = pooling == "mean"
        self.bert = BertModel.from_pretrained(find_folder(weights), add_pooling_layer=not self.mean)

    def forward(self, tokens: Tokens) -> Tensor:
        """One vector per sequence, [S, d]."""
        ids, types, mask = padded(tokens)
        output = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types)
        if not self.mean:
            return output.pooler_output  # type: ignore[no-any-return]
        return (output.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Tasks(nn.Module):
    """An encoder with the heads of a run, in plain PyTorch."""

    def __init__(self, run: Run, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder.train()
        self.heads = nn.ModuleDict({name: copy.deepcopy(run.model.head(name).last) for name in run.tasks})
        self.dropout = nn.Dropout(0.3)
        self.sequences = {name: SEQUENCES[task.head.reads] for name, task in run.tasks.items()}
        # The learning rate plays no part in the time.
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-5, fused=True)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """The vectors of each task, [S·B, d]."""
        return {task: self.encoder(tokens) for task, (tokens, _) in batch.items()}

    def loss(self, task: str, vectors: Tensor, target: Tensor) -> Tensor:
        joined = torch.cat(vectors.chunk(self.sequences[task]), 1)  # [B, S·d]
        return LOSSES[task](self.heads[task](self.dropout(joined)), target)

    def losses(self, batch: Batch) -> list[Tensor]:
        return [self.loss(task, vectors, batch[task][1]) for task, vectors in self.features(batch).items()]

    def step(self, batch: Batch) -> None:
        """One step on the sum of the losses, a task's activations alive at a time."""
        for task, (tokens, target) in batch.items():
            self.loss(task, self.encoder(tokens), target).backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def forward_flops(
    lengths: Sequence[int], *, layers: int, width: int, feed_forward: int, first: bool, pooler: bool
) -> int:
    """Operations of the matrix products that vectors of sequences without padding need.

    ``first``: only the first token of each sequence is read at the end, so the last layer is computed for it alone;
    ``pooler``: a linear layer over it follows. A backward pass takes twice as many again.
    """
    tokens, squares, sequences = sum(lengths), sum(length**2 for length in lengths), len(lengths)
    one = 2 * (2 * width**2 + 2 * width * feed_forward)  # queries, output and feed-forward part, per token
    keys = 2 * 2 * width**2  # keys and values, per token
    whole = tokens * (one + keys) + 4 * squares * width
    last = tokens * keys + sequences * one + 4 * tokens * width if first else whole
    return (layers - 1) * whole + last + pooler * sequences * 2 * width**2


def products() -> dict[str, Callable[[Turn], object]]:
    """Two sides for each shape: torch's own kernel, and oneDNN's on weights laid out for it."""

    def side(one: Tensor, other: Tensor) -> Callable[[Turn], object]:
        return lambda turn: [one @ other for _ in range(REPEATS)]

    def laid_out(one: Tensor, other: Tensor) -> Callable[[Turn], object]:
        weight = torch.ops.mkldnn._reorder_linear_weight(other.T.contiguous(), len(one))
        multiply = torch.ops.mkldnn._linear_pointwise

        @torch.inference_mode()
        def call(turn: Turn) -> object:
            return [multiply(one, weight, None, "none", [], "") for _ in range(REPEATS)]

        return call

    sides = {}
    for n, k, m in SHAPES:
        matrices = torch.randn(n, k), torch.randn(k, m)
        sides[f"{n} {k} {m}"], sides[f"{n} {k} {m} oneDNN"] = side(*matrices), laid_out(*matrices)
    return sides


def best_rate(times: dict[str, list[float]]) -> list[float]:
    """Operations per second in each turn, of the shape and kernel that are fastest on the whole."""
    rates = [
        [REPEATS * 2 * n * k * m / taken for taken in times[f"{n} {k} {m}{kernel}"]]
        for n, k, m in SHAPES
        for kernel in ("", " oneDNN")
    ]
    return max(rates, key=median)
