"""One seed, one result on a GPU: nothing there adds to a place (or writes over it) twice in an order left to chance.

CUDA adds at repeated indices with atomics, in any order, and floating-point sums depend on theirs. While whole cells
train on a pretend device, every operator that writes by index is looked at with its indices. Not looked at is what
sorts first and so is deterministic by construction: ``index_put`` that accumulates, ``coalesce``, and
``embedding_dense_backward`` (which for few tokens has a kernel without atomics instead).
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ENCODER, generated, job_of
from torch import Tensor

from taskloom.core.testing.device import PretendGPU
from taskloom.runs.training.train import train

#: Operators with (self, dim, index, …) that CUDA also has in a deterministic form, for those who ask for it.
ALONG = {"index_add", "index_add_", "index_copy", "index_copy_"}
#: Operators with (self, dim, index, …) of an index per element, which it has not.
PER_ELEMENT = {"scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"}
WRITTEN = {"index_put", "index_put_", "_index_put_impl_"}
#: Splits the keys among blocks, whose shares of the queries' gradient are added with atomics.
SPLIT = {"_efficient_attention_backward", "_scaled_dot_product_efficient_attention_backward"}


def repeats(columns: Tensor) -> int:
    """How many of the places in [dimensions, places] are there already."""
    return columns.shape[1] - torch.unique(columns, dim=1).shape[1]


def left_to_chance(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many writes of an operator have an order that CUDA does not fix."""
    name, asked = func._schema.name.removeprefix("aten::"), torch.are_deterministic_algorithms_enabled()
    if name in PER_ELEMENT:
        index = args[2]
        others = [place for place, _ in enumerate(index.shape) if place != args[1] % max(1, index.dim())]
        lines = index.permute(*others, args[1]).reshape(-1, index.shape[args[1]]) if index.dim() else index.view(1, 1)
        return sum(repeats(one[None]) for one in lines)
    if asked:
        return 0
    if name in ALONG:
        return repeats(args[2].reshape(1, -1))
    if name in WRITTEN:
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        index = [one for one in args[1] if one is not None]
        if accumulates or any(one.dtype == torch.bool for one in index):
            return 0
        return repeats(torch.stack([one.flatten() for one in torch.broadcast_tensors(*index)]))
    if name in SPLIT:
        return 0 if kwargs.get("num_splits_key") == 1 else 1
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    sparse = [one for one in tensors if one.is_sparse and not one.is_coalesced()]
    made_dense = name == "_to_dense" or (name in ("add", "add_") and any(not one.is_sparse for one in tensors))
    return sum(repeats(one._indices()) for one in sparse) if made_dense else 0


class Watched:
    """A pretend device, and the lines whose writes are left to chance on it."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()
        self.looked_at: set[str] = set()
        self.gpu = PretendGPU(self._look)

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], line: str) -> None:
        self.looked_at.add(func._schema.name.removeprefix("aten::"))
        if count := left_to_chance(func, args, kwargs):
            self.found[line, func._schema.name] += count


def sparse(*rows: int) -> Tensor:
    values = torch.ones(len(rows), 2, device="cuda")
    return torch.sparse_coo_tensor(ids(*rows)[None], values, (5, 2), check_invariants=False)


def ids(*rows: int) -> Tensor:
    return torch.tensor(rows, device="cuda")


def table() -> Tensor:
    return torch.zeros(5, 2, device="cuda", requires_grad=True)


def ones(rows: int = 3) -> Tensor:
    return torch.ones(rows, 2, device="cuda")


SMALL: dict[str, tuple[Callable[[], Any], int]] = {
    "index_add": (lambda: ones(5).index_add_(0, ids(1, 3, 1), ones()), 1),
    "index_add of unique rows": (lambda: ones(5).index_add_(0, ids(1, 3, 2), ones()), 0),
    "the backward of index_select": (lambda: table().index_select(0, ids(4, 4, 4)).sum().backward(), 2),
    "the backward of an index sorts": (lambda: table()[ids(4, 4, 4)].sum().backward(), 0),
    "the backward of gather": (lambda: table().gather(0, ids(1, 1, 1, 0).view(2, 2)).sum().backward(), 1),
    "writing rows over each other": (lambda: ones(5).index_put_((ids(1, 1),), ones(2)), 1),
    "index_copy": (lambda: ones(5).index_copy_(0, ids(1, 1), ones(2)), 1),
    "a sparse gradient made dense": (lambda: sparse(1, 1, 2).to_dense(), 1),
    "a sparse gradient, coalesced first": (lambda: sparse(1, 1, 2).coalesce().to_dense(), 0),
    "a sparse gradient added": (lambda: ones(5).add_(sparse(1, 1, 1)), 2),
    "embeddings": (lambda: torch.nn.functional.embedding(ids(1, 1), table()).sum().backward(), 0),
}


@pytest.mark.parametrize("name", SMALL)
def test_repeated_indices_are_seen(name: str) -> None:
    program, count = SMALL[name]
    watched = Watched()
    with watched.gpu:
        program()
    assert watched.found.total() == count


PAIR = {"name": "linear", "reads": "pair"}
TASKS = {
    "class": generated("sentiment"),
    "pair": generated("paraphrase", head=PAIR, loss="binary_cross_entropy"),
    "ranked": generated("paraphrase", head="embedding", loss="mnr"),
}
CELLS: dict[str, dict[str, Any]] = {
    **{f"sum, {pooling}": {"pooling": pooling} for pooling in ("pooler", "cls", "mean", "max")},
    "pcgrad": {"combiner": "pcgrad"},
    "pcgrad, mean": {"combiner": "pcgrad", "pooling": "mean"},
    "gse": {"combiner": "gse"},
    "bfloat16": {"precision": "bfloat16"},
    "micro-batches": {"micro_batch": 3},
    "heads that the fused kernel does not take": {"width": 8},
}


@pytest.mark.parametrize("cell", CELLS)
def test_no_write_of_a_cell_is_left_to_chance(cell: str, tmp_path: Path) -> None:
    changes = dict(CELLS[cell])
    width = changes.pop("width", 16)
    encoder = {**ENCODER, "layers": 2, "width": width, "pooling": changes.pop("pooling", "pooler")}
    stage = {"combiner": changes.pop("combiner", "sum"), "epochs": 1, "micro_batch": changes.pop("micro_batch", None)}
    ends: list[str] = []
    watched = Watched()
    with watched.gpu:
        job = job_of(tmp_path, {"encoder": encoder, "tasks": TASKS, "stages": [stage], **changes})
        train(job, lambda event: ends.append(event.what))
    assert ends[-1] == "finished"
    assert watched.looked_at & (ALONG | PER_ELEMENT | WRITTEN | {"_to_dense", "embedding_dense_backward"})
    assert not watched.found, dict(watched.found)
