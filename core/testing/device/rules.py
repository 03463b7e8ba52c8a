"""What operators do on CUDA that the CPU does not show: which launch nothing, which make the host wait."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from taskloom.core.testing.device.attention import padded_backward, padded_forward
from taskloom.core.testing.device.packed import packed_backward, packed_forward
from taskloom.core.testing.device.tensor import GPUTensor

#: What runs in the place of CUDA's kernels, by name; those that may drop something are given a ``draw``.
EMULATED: dict[str, Callable[..., Any]] = {
    "_efficient_attention_forward": packed_forward,
    "_efficient_attention_backward": packed_backward,
    "_scaled_dot_product_efficient_attention": padded_forward,
    "_scaled_dot_product_efficient_attention_backward": padded_backward,
}
#: Operators that launch no kernel, beside views.
_FREE = """
    _coalesced_ _dimI _dimV _has_compatible_shallow_copy_type _indices _local_scalar_dense _nnz _reshape_alias
    _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _unsafe_view _values
    alias dense_dim detach empty empty_like empty_strided indices is_coalesced is_pinned is_same_size lift_fresh
    new_empty new_empty_strided resize_ set_ sparse_coo_tensor sparse_dim values
"""
FREE = frozenset(_FREE.split())
#: Operators with a list of indices as their second argument.
INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
#: Operators that take a number from the host beside those of single elements.
_MIXED = {"_fused_adamw_", "fill", "fill_", "masked_fill", "masked_fill_"}
MIXED = INDEXED | EMULATED.keys() | _MIXED
#: Operators whose result has a form that the host has to know, or which is a Python value.
_WAITS = {
    "_coalesce": "coalesce",
    "_linalg_check_errors": "check of a decomposition",
    "_local_scalar_dense": "item, float or bool",
    "_unique": "unique",
    "_unique2": "unique",
    "bincount": "bincount",
    "equal": "equal",
    "masked_select": "masked_select",
    "nonzero": "nonzero",
    "unique_consecutive": "unique",
    "unique_dim": "unique",
}


def pin(tensor: Tensor, device: Any = None) -> Tensor:
    """A copy in memory that counts as pinned, which is known by its storage."""
    copy = tensor.clone()
    copy.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return copy


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Whether a tensor lies in such memory."""
    return hasattr(tensor.untyped_storage(), "pinned")


def waits_of(name: str, args: Any, kwargs: Any, place: str) -> Iterator[str]:
    """Why the host waits at an operator."""
    if name in _WAITS:
        yield _WAITS[name]
    elif name == "isin" and not kwargs.get("assume_unique"):
        yield "isin without assume_unique"
    elif name == "repeat_interleave" and kwargs.get("output_size") is None:
        yield "repeat_interleave without output_size"
    elif name in INDEXED:
        for index in args[1]:
            if index is not None and not isinstance(index, GPUTensor):
                yield "index from the host"
            elif index is not None and index.dtype in (torch.bool, torch.uint8):
                yield "mask as an index"
    elif name in ("copy_", "_to_copy"):
        yield from _of_copy(name, args, kwargs, place)


def _of_copy(name: str, args: Any, kwargs: Any, place: str) -> Iterator[str]:
    """A copy between devices is waited for unless it is told not to block and the host's side is pinned."""
    source = args[1] if name == "copy_" else args[0]
    begin = "gpu" if isinstance(source, GPUTensor) else "cpu"
    if begin == place:
        return
    free = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
    host = source if begin == "cpu" else args[0] if name == "copy_" else None  # None: torch pins what it makes
    if not free or (host is not None and not is_pinned(host)):
        yield f"copy {begin} to {place}"
