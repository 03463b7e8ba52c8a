"""Combiners that are functions of the Gramian: laws first, then TorchJD, then definitions worked naively."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torchjd import aggregation as peer

from taskloom.core import GradientCombiner
from taskloom.plugins.combiners import IMTLG, MGDA, AlignedMTL, CAGrad, GradVac, NashMTL

Make = Callable[[], GradientCombiner]
#: Weights from the Gramian alone, without state.
PURE: dict[str, Make] = {
    "cagrad": CAGrad,
    "cagrad far": lambda: CAGrad(c=2.0),
    "mgda": MGDA,
    "imtl_g": IMTLG,
    "nash_mtl": NashMTL,
    "nash_mtl long": lambda: NashMTL(max_norm=None),
    "aligned_mtl": AlignedMTL,
    "aligned_mtl median": lambda: AlignedMTL(scale="median"),
    "aligned_mtl rmse": lambda: AlignedMTL(scale="rmse"),
}
over_pure = pytest.mark.parametrize("make_one", PURE.values(), ids=PURE.keys())
counts, seeds = st.integers(2, 5), st.integers(0, 10**6)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_jacobian(count: int, size: int, seed: int) -> Tensor:
    return torch.randn(count, size, generator=seeded(seed), dtype=torch.float64)


def weights(combiner: GradientCombiner, jacobian: Tensor) -> Tensor:
    return combiner.weights(jacobian @ jacobian.T)


@over_pure
@settings(max_examples=20)
@given(count=st.integers(1, 5), seed=seeds, factor=st.sampled_from([1e-3, 0.5, 1e3]))
def test_scaling_every_gradient_scales_the_update(make_one: Make, count: int, seed: int, factor: float) -> None:
    """Except for the bargain, whose update has a length of its own."""
    jacobian = random_jacobian(count, 6, seed)
    before = weights(make_one(), jacobian)
    after = weights(make_one(), factor * jacobian)
    expected = before / factor if isinstance(make_one(), NashMTL) else before
    torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-9)


@over_pure
@settings(max_examples=20)
@given(count=counts, seed=seeds, data=st.data())
def test_permuting_tasks_permutes_weights(make_one: Make, count: int, seed: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(count)))
    jacobian = random_jacobian(count, 6, seed)
    moved = weights(make_one(), jacobian[order])
    torch.testing.assert_close(moved, weights(make_one(), jacobian)[order], rtol=1e-5, atol=1e-8)


@over_pure
def test_one_task_gives_its_own_gradient(make_one: Make) -> None:
    jacobian = random_jacobian(1, 7, 0)
    expected = 1.0
    if isinstance(make_one(), NashMTL):
        expected = 1 / jacobian.norm().item()
    if isinstance(make_one(), CAGrad):  # the longest step in the ball around the mean gradient
        expected = 1 + make_one().c  # type: ignore[operator]
    assert weights(make_one(), jacobian).tolist() == pytest.approx([expected])


@over_pure
@pytest.mark.parametrize("rows", [[[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0], [-1.0]]])
def test_degenerate_gradients_give_finite_weights(make_one: Make, rows: list[list[float]]) -> None:
    jacobian = torch.tensor(rows, dtype=torch.float64)
    found = weights(make_one(), jacobian)
    assert found.isfinite().all()
    assert (found @ jacobian).norm() <= 3 * jacobian.norm()


def peers(aggregator: Any, jacobian: Tensor, seed: int = 0) -> Tensor:
    """What TorchJD makes of a Jacobian, its global draws seeded."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its solvers complain about how it uses them
        torch.manual_seed(seed)
        update: Tensor = aggregator(jacobian)
    return update


@settings(max_examples=20)
@given(count=counts, seed=seeds, beta=st.sampled_from([0.01, 0.5, 0.9]))
def test_gradvac_is_torchjds_over_many_steps(count: int, seed: int, beta: float) -> None:
    ours, theirs = GradVac(beta=beta), peer.GradVac(beta=beta, eps=0.0)
    ours.prepare(tasks=[f"t{k}" for k in range(count)])
    for place in range(4):
        jacobian = random_jacobian(count, 5, seed + place) + 0.5
        ours.generator = seeded(place)
        torch.testing.assert_close(weights(ours, jacobian) @ jacobian, peers(theirs, jacobian, place))


@settings(max_examples=40)
@given(seed=seeds, target=st.floats(-0.9, 0.9))
def test_gradvac_brings_two_tasks_to_their_target(seed: int, target: float) -> None:
    combiner, jacobian = GradVac(beta=0.0), random_jacobian(2, 4, seed)
    combiner.prepare(tasks=["a", "b"])
    combiner.targets[0, 1], combiner.targets[1, 0] = target, -1.0  # only the first gradient moves
    moved = weights(combiner, jacobian) @ jacobian - jacobian[1]
    cosine = torch.cosine_similarity(jacobian[0], jacobian[1], 0).item()
    found = torch.cosine_similarity(moved, jacobian[1], 0).item()
    assert found == pytest.approx(max(cosine, target), abs=1e-9)


def gains(jacobian: Tensor, update: Tensor) -> float:
    return (jacobian @ update).min().item()


@settings(max_examples=30)
@given(count=counts, size=st.sampled_from([2, 20]), seed=seeds, c=st.sampled_from([0.1, 0.4, 0.9]))
def test_cagrad_does_the_most_for_the_worst_task_in_its_ball(count: int, size: int, seed: int, c: float) -> None:
    jacobian = random_jacobian(count, size, seed)
    mean = jacobian.mean(0)
    update = weights(CAGrad(c=c), jacobian) @ jacobian
    assert (update - mean).norm() <= c * mean.norm() * (1 + 1e-6)
    # Weak duality: no update in the ball gains more than the dual objective at any w; SciPy looks for the least.
    gramian = (jacobian @ jacobian.T).numpy()
    inner, radius = gramian.mean(1), c * mean.norm().item()

    def dual(w: Any) -> float:
        return float(inner @ w + radius * np.sqrt(max(w @ gramian @ w, 0.0)))

    start = np.full(count, 1 / count)
    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    bound = minimize(dual, start, bounds=[(0, 1)] * count, constraints=simplex, method="SLSQP").fun
    assert gains(jacobian, update) == pytest.approx(bound, abs=2e-3 * mean.norm().item() * jacobian.norm().item())
    assert gains(jacobian, update) >= gains(jacobian, mean) - 1e-9


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("c", [0.1, 0.5, 1.5])
def test_cagrad_is_torchjds(count: int, c: float) -> None:
    for seed in range(5):
        jacobian = random_jacobian(count, 20, seed)
        theirs = peers(peer.CAGrad(c=c, norm_eps=1e-8), jacobian)
        torch.testing.assert_close(weights(CAGrad(c=c), jacobian) @ jacobian, theirs, rtol=1e-3, atol=1e-3)


def test_cagrad_lies_between_mean_and_mgda() -> None:
    jacobian = random_jacobian(3, 6, 1)
    torch.testing.assert_close(weights(CAGrad(c=0.0), jacobian), torch.full((3,), 1 / 3).double())
    far, least = weights(CAGrad(c=1e4), jacobian) @ jacobian, weights(MGDA(), jacobian) @ jacobian
    assert torch.cosine_similarity(far, least, 0) > 1 - 1e-6


@settings(max_examples=60)
@given(count=counts, size=st.sampled_from([1, 2, 3, 30]), seed=seeds)
def test_mgda_is_the_point_of_least_norm(count: int, size: int, seed: int) -> None:
    """d is the nearest point to 0 of a convex set if and only if gᵢ·d ≥ ‖d‖² for all i: it conflicts with none."""
    jacobian = random_jacobian(count, size, seed)
    found = weights(MGDA(), jacobian)
    update = found @ jacobian
    assert found.sum().item() == pytest.approx(1)
    assert (found >= 0).all()
    assert gains(jacobian, update) >= update.square().sum().item() - 1e-9
    gramian = (jacobian @ jacobian.T).numpy()
    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    start = np.full(count, 1 / count)
    least = minimize(lambda w: w @ gramian @ w, start, bounds=[(0, 1)] * count, constraints=simplex).fun
    assert update.square().sum().item() <= least + 1e-9
    assert least == pytest.approx(update.square().sum().item(), abs=1e-4)


def test_mgda_is_torchjds_and_by_hand() -> None:
    """(2, 0) and (0, 1): the line between them is nearest to 0 at (0.4, 0.8), where w = (1/5, 4/5)."""
    jacobian = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(weights(MGDA(), jacobian), torch.tensor([0.2, 0.8], dtype=torch.float64))
    for seed in range(4):
        jacobian = random_jacobian(3, 12, seed)
        ours, theirs = weights(MGDA(), jacobian) @ jacobian, peers(peer.MGDA(epsilon=1e-6, max_iters=2000), jacobian)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)  # theirs is on its way there
        assert ours.norm() <= theirs.norm()


@settings(max_examples=40)
@given(count=counts, seed=seeds)
def test_imtl_g_projects_alike_on_every_task(count: int, seed: int) -> None:
    jacobian = random_jacobian(count, 12, seed) * torch.logspace(-3, 3, count, dtype=torch.float64)[:, None]
    found = weights(IMTLG(), jacobian)
    projections = (jacobian @ (found @ jacobian)) / jacobian.norm(dim=1)
    torch.testing.assert_close(projections, projections[:1].expand(count), rtol=1e-6, atol=0)
    assert found.sum().item() == pytest.approx(1)


@settings(max_examples=20)
@given(count=counts, seed=seeds)
def test_imtl_g_is_torchjds_and_the_papers_formula(count: int, seed: int) -> None:
    jacobian = random_jacobian(count, 12, seed)
    update = weights(IMTLG(), jacobian) @ jacobian
    torch.testing.assert_close(update, peers(peer.IMTLG(), jacobian), rtol=1e-6, atol=1e-8)
    units = jacobian / jacobian.norm(dim=1, keepdim=True)
    d, u = jacobian[0] - jacobian[1:], units[0] - units[1:]
    rest = jacobian[0] @ u.T @ torch.linalg.inv(d @ u.T)
    alpha = torch.cat([1 - rest.sum()[None], rest])
    torch.testing.assert_close(update, alpha @ jacobian, rtol=1e-6, atol=1e-8)


@settings(max_examples=40)
@given(count=st.integers(1, 5), seed=seeds)
def test_nash_mtl_solves_the_bargain(count: int, seed: int) -> None:
    """gᵢ·d = 1/αᵢ, whatever the scale of each gradient, which changes nothing in d."""
    jacobian = random_jacobian(count, 12, seed)
    alpha = weights(NashMTL(max_norm=None), jacobian)
    update = alpha @ jacobian
    torch.testing.assert_close(jacobian @ update, 1 / alpha, rtol=1e-4, atol=0)
    assert update.norm().item() == pytest.approx(math.sqrt(count), rel=1e-4)
    scaled = jacobian * torch.logspace(-4, 4, count, dtype=torch.float64)[:, None]
    torch.testing.assert_close(weights(NashMTL(max_norm=None), scaled) @ scaled, update, rtol=1e-6, atol=1e-8)
    assert (weights(NashMTL(max_norm=0.5), jacobian) @ jacobian).norm().item() == pytest.approx(0.5)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_nash_mtl_is_torchjds(count: int) -> None:
    for seed in range(3):
        jacobian = random_jacobian(count, 20, seed)
        theirs = peers(peer.NashMTL(n_tasks=count, optim_niter=100), jacobian)
        torch.testing.assert_close(weights(NashMTL(), jacobian) @ jacobian, theirs, rtol=0.02, atol=0.01)


@settings(max_examples=20)
@given(count=counts, seed=seeds, scale=st.sampled_from(["min", "median", "rmse"]))
def test_aligned_mtl_is_torchjds(count: int, seed: int, scale: Any) -> None:
    jacobian = random_jacobian(count, 12, seed)
    update = weights(AlignedMTL(scale=scale), jacobian) @ jacobian
    torch.testing.assert_close(update, peers(peer.AlignedMTL(scale_mode=scale), jacobian))


@settings(max_examples=30)
@given(count=counts, seed=seeds)
def test_aligned_gradients_are_orthogonal_and_equally_long(count: int, seed: int) -> None:
    """Their mean then has the length σ/√T, with σ the least singular value of the gradients."""
    jacobian = random_jacobian(count, 12, seed)
    update = weights(AlignedMTL(), jacobian) @ jacobian
    least = torch.linalg.svdvals(jacobian)[-1].item()
    assert update.norm().item() == pytest.approx(least / math.sqrt(count), rel=1e-6)
