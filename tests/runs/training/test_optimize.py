"""AdamW and its schedules against the definition, worked in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taskloom.runs.training.stage import make_optimizer, rate_factor


def reference(
    start: list[float], gradients: list[list[float]], lr: float, b1: float, b2: float, eps: float, decay: float
) -> list[float]:
    """Loshchilov & Hutter's Algorithm 2, one number at a time."""
    out = []
    for place, theta in enumerate(start):
        m = v = 0.0
        for t, row in enumerate(gradients, start=1):
            g = row[place]
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            theta -= lr * ((m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps) + decay * theta)
        out.append(theta)
    return out


@given(
    gradients=st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=1, max_size=20),
    decay=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_adamw_follows_its_definition(gradients: list[list[float]], decay: float) -> None:
    start = [0.4, -1.3, 0.02]
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    options = {"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": decay}
    optimizer = make_optimizer([parameter], options)
    for row in gradients:
        parameter.grad = torch.tensor(row, dtype=torch.float64)
        optimizer.step()
    expected = reference(start, gradients, 0.01, 0.9, 0.99, 1e-6, decay)
    assert parameter.tolist() == pytest.approx(expected, abs=1e-9)


@given(
    name=st.sampled_from(["constant", "linear", "cosine"]),
    warmup=st.one_of(st.floats(0, 0.9), st.integers(1, 60)),
    steps=st.integers(1, 200),
)
def test_a_rate_rises_then_never_rises_again(name: str, warmup: float, steps: int) -> None:
    factors = [rate_factor(step, steps, {"name": name, "warmup": warmup}) for step in range(steps)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


def test_schedules_worked_by_hand() -> None:
    linear = [rate_factor(step, 6, {"name": "linear", "warmup": 2}) for step in range(6)]
    assert linear == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = [rate_factor(step, 4, {"name": "cosine", "warmup": 0}) for step in range(4)]
    assert cosine == pytest.approx([1.0, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2])
    assert rate_factor(0, 100, {"name": "linear", "warmup": 0.1}) == 0.1
    assert rate_factor(3, 10, {"name": "constant", "warmup": 0}) == 1.0
