"""Memory-efficient attention of padded batches, which CUDA has and the CPU has not."""

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from taskloom.core.testing.device.generator import seed_of

_ALIGNED = 8  # keys of a bias come in multiples of it
_libraries: list[Any] = []


def register() -> None:
    """Let ``scaled_dot_product_attention`` choose on the pretend device as it does on CUDA; once in a process."""
    make: Any = torch.library.Library
    _libraries.append(make("aten", "IMPL", "AutogradPrivateUse1"))
    _libraries[0].impl("scaled_dot_product_attention", _chosen)


def _chosen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The efficient kernel for what models are trained with; anything else written out."""
    aten: Any = torch.ops.aten
    if is_causal or enable_gqa or query.dim() != 4 or query.dtype == torch.float64:
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        return cast(Tensor, aten._scaled_dot_product_attention_math(*given, scale=scale, enable_gqa=enable_gqa)[0])
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), -math.inf)
        if over := -bias.shape[-1] % _ALIGNED:
            bias = pad(bias, (0, over))[..., :-over]
        bias = bias.expand(*query.shape[:3], key.shape[2])
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    out: Tensor
    out, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, learns, dropout_p, scale=scale)
    return out


def noise(scores: Tensor, p: float, draws: torch.Generator) -> Tensor | float:
    """What dropout multiplies the weights with."""
    return torch.rand(scores.shape, generator=draws).ge(p).float() / (1 - p) if p else 1.0


def slopes(
    upper: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, factor: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, the first two but for the scale; ``factor`` is dropout's."""
    inner = upper @ v.transpose(-2, -1) * factor * weights
    inner = inner - weights * inner.sum(-1, keepdim=True)
    return inner @ k, inner.transpose(-2, -1) @ q, (weights * factor).transpose(-2, -1) @ upper


def scale_of(query: Tensor, scale: float | None) -> float:
    """What scores are multiplied with."""
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def on_host(draw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Seed and offset of the draws: on the host, as CUDA's are outside of graphs."""
    return torch.tensor(draw[0]), torch.tensor(draw[1])


def _as_cuda_lays_out(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """[batch, heads, length, width] of which the heads of a token lie beside each other."""
    return heads.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def padded_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    draw: tuple[int, int],
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``aten::_scaled_dot_product_efficient_attention`` of [batch, heads, length, width]."""
    scores = _padded_scores(query, key, attn_bias, scale)
    factor = noise(scores, dropout_p, torch.Generator().manual_seed(seed_of(*draw)))
    out = _as_cuda_lays_out(scores.softmax(-1) * factor @ value.float(), query.dtype)
    return out, scores.logsumexp(-1) if compute_log_sumexp else torch.empty(0), *on_host(draw)


def padded_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """``aten::_scaled_dot_product_efficient_attention_backward``; a bias has no gradient here."""
    scores = _padded_scores(query, key, attn_bias, scale)
    factor = noise(scores, dropout_p, torch.Generator().manual_seed(seed_of(int(philox_seed), int(philox_offset))))
    upper, q, k, v = (one.float() for one in (grad_out_, query, key, value))
    found, by = slopes(upper, q, k, v, scores.softmax(-1), factor), scale_of(query, scale)
    return *(_as_cuda_lays_out(each, query.dtype) for each in (found[0] * by, found[1] * by, found[2])), None


def _padded_scores(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    scores = query.float() @ key.float().transpose(-2, -1) * scale_of(query, scale)
    return scores if bias is None else scores + bias.float()
