"""Dropout with a generator of its own: rate, scale, independence, gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Dropout, bind_generator
from taskloom.core.random import dropout_noise


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_rate_and_scale(p: float) -> None:
    dropout = Dropout(p).train()
    bind_generator(dropout, torch.Generator().manual_seed(1))
    noise = dropout(torch.ones(400, 500))  # [n] = 200,000
    kept = noise != 0
    deviation = (p * (1 - p) / noise.numel()) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) < 5 * deviation
    torch.testing.assert_close(noise[kept], torch.full_like(noise[kept], 1 / (1 - p)), rtol=1e-4, atol=0)
    # Neighbours are cut from one random number; they must not know of each other.
    for lag in (1, 2, 3, 4):
        flat = kept.flatten().float() - (1 - p)
        correlation = (flat[lag:] * flat[:-lag]).mean() / (p * (1 - p))
        assert abs(correlation.item()) < 5 / noise.numel() ** 0.5


def test_dropout_passes_its_own_noise_to_the_gradient() -> None:
    dropout = Dropout(0.4).train()
    bind_generator(dropout, torch.Generator().manual_seed(1))
    x = torch.full((3, 7), 2.0, requires_grad=True)
    out = dropout(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad * 2, out)
    assert dropout.eval()(x) is x


@given(st.lists(st.integers(0, 7), max_size=3), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_noise_has_the_form_it_was_asked_for(shape: list[int], dtype: torch.dtype) -> None:
    noise = dropout_noise(torch.empty(shape, dtype=dtype), 0.5, torch.Generator().manual_seed(0))
    assert noise.shape == torch.Size(shape)
    assert noise.dtype == dtype
    assert set(noise.flatten().tolist()) <= {0.0, 2.0}


def test_noise_comes_from_the_generator_alone() -> None:
    like, before = torch.empty(1001), torch.random.get_rng_state()
    one, same, other = (dropout_noise(like, 0.3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
