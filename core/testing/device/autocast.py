"""``torch.autocast("gpu")``: torch knows the name, and leaves it to a backend to say which operators it casts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

# As torch casts on CUDA: to the lower precision, to float32, and to float32 inside of the kernel (by its dtype).
_LOWER = """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d einsum linalg_multi_dot linear matmul mm mv
    prelu scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist erfinv exp expm1
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 logsumexp
    margin_ranking_loss mse_loss multi_margin_loss native_layer_norm nll_loss norm pow reciprocal renorm rsqrt sinh
    smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss
"""
_FLOAT32_INSIDE = "cumprod cumsum linalg_vector_norm log_softmax prod softmax sum"
_HALVES = (torch.bfloat16, torch.float16)
_cache: dict[int, tuple[Tensor, Tensor]] = {}  # casts of weights by the weight's id, which the weight keeps taken
_libraries: list[Any] = []


_forget = torch.clear_autocast_cache


def forget_casts() -> None:
    """Drop the casts of weights where the outermost autocast ends, as torch does with its own."""
    _cache.clear()
    _forget()


def register() -> None:
    """Tell torch, once in a process, what autocast does on the pretend device."""
    make: Any = torch.library.Library
    others, library = (make(name, "IMPL", "AutocastPrivateUse1") for name in ("_", "aten"))
    _libraries.extend((others, library))  # what they register goes with them
    others.fallback(torch.library.fallthrough_kernel)
    for names, rule in ((_LOWER, _to_lower), (_FLOAT32, _to_float32), (_FLOAT32_INSIDE, _by_dtype)):
        for name in names.split():
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if not overload.endswith("out"):
                    library.impl(f"{name}.{overload}".removesuffix(".default"), rule(getattr(packet, overload)))


def _below(op: Any, args: Any, kwargs: Any) -> Any:
    """The operator as it is without autocast."""
    keys: Any = torch._C.DispatchKey
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(keys.AutocastPrivateUse1)):
        return op(*args, **kwargs)


def _to_lower(op: Any) -> Callable[..., Any]:
    def lowered(*args: Any, **kwargs: Any) -> Any:
        return _below(op, *tree_map_only(Tensor, _lower, (args, kwargs)))

    return lowered


def _lower(one: Tensor) -> Tensor:
    dtype = torch.get_autocast_dtype("gpu")
    if one.device.type != "gpu" or one.dtype not in (torch.float32, *_HALVES) or one.dtype == dtype:
        return one
    if not (one.requires_grad and one.is_leaf and torch.is_autocast_cache_enabled()):
        return one.to(dtype)
    if id(one) not in _cache:
        _cache[id(one)] = (one, one.to(dtype))
    return _cache[id(one)][1]


def _to_float32(op: Any) -> Callable[..., Any]:
    def raised(*args: Any, **kwargs: Any) -> Any:
        return _below(op, *tree_map_only(Tensor, lambda one: one.float() if _half(one) else one, (args, kwargs)))

    return raised


def _by_dtype(op: Any) -> Callable[..., Any]:
    place = next((place for place, one in enumerate(op._schema.arguments) if one.name == "dtype"), None)

    def raised(*args: Any, **kwargs: Any) -> Any:
        if place is not None and len(args) <= place and kwargs.get("dtype") is None and _half(args[0]):
            kwargs["dtype"] = torch.float32
        return _below(op, args, kwargs)

    return raised


def _half(one: Tensor) -> bool:
    return one.device.type == "gpu" and one.dtype in _HALVES
