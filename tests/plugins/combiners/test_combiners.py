"""Gradient combiners: laws that hold for all of them, then PCGrad against its definition and against TorchJD's."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchjd.aggregation import PCGrad as PeerPCGrad

from taskloom.core import GradientCombiner, TrainingError, combine_gradients, gramian_of, take_gradients
from taskloom.plugins.combiners import Mean, PCGrad, Sum

MAKERS: dict[str, Callable[[], GradientCombiner]] = {
    "sum": Sum,
    "mean": Mean,
    "pcgrad mean": PCGrad,
    "pcgrad sum": lambda: PCGrad(reduction="sum"),
}
over_all = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


class Quadratic:
    """A step over a real small model: a shared table and layer, one head per task, plain gradient descent.

    With ``jacobian`` [T, n] the shared parameter is one vector θ and task t's loss is jacobian[t]·θ instead, so
    that its gradient is known.
    """

    def __init__(self, count: int, jacobian: Tensor | None = None, sparse: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)
        self.tasks: Sequence[str] = [f"t{k}" for k in range(count)]
        self.jacobian = jacobian
        self.sparse = sparse
        if jacobian is None:
            table = torch.randn(100, 4, generator=generator)  # tall enough to be kept as rows
            self.shared = [nn.Parameter(table), nn.Parameter(torch.randn(4, 4, generator=generator))]
        else:
            self.shared = [nn.Parameter(torch.zeros(jacobian.shape[1], dtype=jacobian.dtype))]
        self.heads = {t: nn.Parameter(torch.randn(4, generator=generator)) for t in self.tasks}
        self.ids = {t: torch.randint(100, (6,), generator=generator) for t in self.tasks}
        self.applied: list[list[Tensor]] = []

    def loss(self, task: str) -> Tensor:
        if self.jacobian is not None:
            return self.jacobian[self.tasks.index(task)] @ self.shared[0] + 0 * self.heads[task].sum()
        table, layer = self.shared
        vectors = nn.functional.embedding(self.ids[task], table, sparse=self.sparse)  # [6, 4]
        return ((vectors @ layer).tanh() @ self.heads[task]).sin().sum()

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.loss(task)
        (loss * scale).backward()
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        with torch.no_grad():
            return self.loss(task)

    def apply(self) -> None:
        self.applied.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.shared])
        with torch.no_grad():
            for parameter in [*self.shared, *self.heads.values()]:
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                parameter.grad = None


def combined(combiner: GradientCombiner, jacobian: Tensor, seed: int = 0) -> Tensor:
    """The gradient that reaches the optimizer."""
    combiner.generator = torch.Generator().manual_seed(seed)
    step = Quadratic(len(jacobian), jacobian)
    combiner.update(step)
    return step.applied[0][0]


def random_jacobian(count: int, size: int, seed: int) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive_pcgrad(jacobian: Tensor, seed: int, reduction: str) -> Tensor:
    """Algorithm 1 of Yu et al. on explicit vectors."""
    generator = torch.Generator().manual_seed(seed)
    projected = []
    for i in range(len(jacobian)):
        g = jacobian[i].clone()
        for j in torch.randperm(len(jacobian), generator=generator).tolist():
            if j != i and g @ jacobian[j] < 0:
                g -= (g @ jacobian[j]) / (jacobian[j] @ jacobian[j]) * jacobian[j]
        projected.append(g)
    total = torch.stack(projected).sum(0)
    return total / len(jacobian) if reduction == "mean" else total


@over_all
def test_one_task_gives_its_own_gradient(make: Callable[[], GradientCombiner]) -> None:
    jacobian = random_jacobian(1, 7, 0)
    torch.testing.assert_close(combined(make(), jacobian), jacobian[0])


@over_all
@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5), seed=st.integers(0, 10**6), factor=st.sampled_from([1e-6, 0.5, 3.0, 1e6]))
def test_scaling_every_gradient_scales_the_update(
    make: Callable[[], GradientCombiner], count: int, seed: int, factor: float
) -> None:
    jacobian = random_jacobian(count, 6, seed)
    expected = factor * combined(make(), jacobian, seed)
    torch.testing.assert_close(combined(make(), factor * jacobian, seed), expected, rtol=1e-9, atol=0)


@over_all
@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_agreeing_gradients_are_left_alone(make: Callable[[], GradientCombiner], count: int, seed: int) -> None:
    jacobian = random_jacobian(count, 6, seed).abs()
    divisor = count if isinstance(make(), Mean) or make().__dict__.get("reduction") == "mean" else 1
    expected = jacobian.sum(0) / divisor
    torch.testing.assert_close(combined(make(), jacobian, seed), expected)


@over_all
def test_orthogonal_gradients_are_left_alone(make: Callable[[], GradientCombiner]) -> None:
    share = combined(make(), torch.eye(3, dtype=torch.float64))
    assert share.tolist() in ([1.0] * 3, pytest.approx([1 / 3] * 3))


@pytest.mark.parametrize("make", [Sum, Mean], ids=["sum", "mean"])
def test_the_order_of_tasks_does_not_matter_with_fixed_weights(make: Callable[[], GradientCombiner]) -> None:
    jacobian = random_jacobian(4, 6, 3)
    torch.testing.assert_close(combined(make(), jacobian[[2, 0, 3, 1]]), combined(make(), jacobian))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(2, 5), seed=st.integers(0, 10**6), data=st.data())
def test_pcgrad_permuting_tasks_permutes_weights(count: int, seed: int, data: st.DataObject) -> None:
    """With the orders of j renamed alike, task π(k) plays the part that task k played."""
    order = data.draw(st.permutations(range(count)))
    jacobian = random_jacobian(count, 4, seed)
    draws = [torch.randperm(count, generator=torch.Generator().manual_seed(seed + k)).tolist() for k in range(count)]

    class Ordered(PCGrad):
        def __init__(self, orders: list[list[int]]) -> None:
            super().__init__()
            self.orders = iter(orders)

        def _order(self, count: int) -> list[int]:
            return next(self.orders)

    plain = Ordered(draws).weights(jacobian @ jacobian.T)
    moved = jacobian[order]  # row k of `moved` is row order[k]
    renamed = [[order.index(j) for j in draws[order[k]]] for k in range(count)]
    torch.testing.assert_close(Ordered(renamed).weights(moved @ moved.T), plain[order])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), reduction=st.sampled_from(["sum", "mean"]))
def test_pcgrad_leaves_no_conflict_between_two_tasks(seed: int, reduction: str) -> None:
    jacobian = random_jacobian(2, 3, seed)
    update = combined(PCGrad(reduction=reduction), jacobian, seed)  # type: ignore[arg-type]
    assert (jacobian @ update >= -1e-12).all()


@settings(max_examples=60, deadline=None)
@given(count=st.integers(2, 6), seed=st.integers(0, 10**6), reduction=st.sampled_from(["sum", "mean"]))
def test_pcgrad_is_the_algorithm_on_explicit_vectors(count: int, seed: int, reduction: str) -> None:
    jacobian = random_jacobian(count, 4, seed)
    ours = combined(PCGrad(reduction=reduction), jacobian, seed)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, naive_pcgrad(jacobian, seed, reduction))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("size", [2, 50])
def test_pcgrad_is_torchjds_in_the_same_order(count: int, size: int) -> None:
    for seed in range(5):
        jacobian = random_jacobian(count, size, seed)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        theirs = PeerPCGrad()(jacobian)
        torch.set_rng_state(state)
        torch.testing.assert_close(combined(PCGrad(reduction="sum"), jacobian, seed), theirs)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_pcgrad_on_a_model_is_torchjds_on_its_jacobian(sparse: bool) -> None:
    for seed in range(4):
        step = Quadratic(4, sparse=sparse)
        rows = []
        for task in step.tasks:
            model = Quadratic(4)
            model.backward(task)
            rows.append(torch.cat([p.grad.reshape(-1) for p in model.shared if p.grad is not None]))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        theirs = PeerPCGrad()(torch.stack(rows))
        torch.set_rng_state(state)
        combiner = PCGrad(reduction="sum")
        combiner.generator = torch.Generator().manual_seed(seed)
        combiner.update(step)
        torch.testing.assert_close(torch.cat([g.reshape(-1) for g in step.applied[0]]), theirs)


def test_two_conflicting_gradients_by_hand() -> None:
    """g₁ = (1, 0), g₂ = (−1, 1): g₁ → (½, ½), g₂ → (0, 1), their sum is (½, 3/2)."""
    jacobian = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert combined(PCGrad(reduction="sum"), jacobian).tolist() == [0.5, 1.5]
    assert combined(PCGrad(), jacobian).tolist() == [0.25, 0.75]
    assert combined(Sum(), jacobian).tolist() == [0.0, 1.0]
    assert combined(Mean(), jacobian).tolist() == [0.0, 0.5]


def test_pcgrad_passes_over_a_task_without_gradient() -> None:
    jacobian = torch.tensor([[1.0, -2.0], [0.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert combined(PCGrad(reduction="sum"), jacobian).isfinite().all()
    underflow = torch.tensor([[1.0, -1e-300], [-1e-300, 0.0]], dtype=torch.float64)
    assert PCGrad().weights(underflow).tolist() == [0.5, 0.5]


def test_pcgrad_draws_from_its_own_generator_only() -> None:
    state = torch.get_rng_state()
    jacobian = random_jacobian(5, 3, 1)
    first = combined(PCGrad(), jacobian, 3)
    assert combined(PCGrad(), jacobian, 3).equal(first)
    assert torch.get_rng_state().equal(state)


@over_all
def test_sparse_gradients_of_a_table_give_the_same_update(make: Callable[[], GradientCombiner]) -> None:
    updates = []
    for sparse in (False, True):
        combiner, step = make(), Quadratic(3, sparse=sparse)
        combiner.generator = torch.Generator().manual_seed(0)
        combiner.update(step)
        updates.append(step.applied[0])
        assert not any(gradient.is_sparse for gradient in step.applied[0])
    torch.testing.assert_close(updates[0], updates[1])


@over_all
def test_a_gradient_that_is_not_finite_names_its_task(make: Callable[[], GradientCombiner]) -> None:
    jacobian = torch.ones(3, 4)
    jacobian[1, 2] = float("inf")

    class Broken(Quadratic):
        def loss(self, task: str) -> Tensor:
            return (self.jacobian[self.tasks.index(task)] * self.shared[0].exp()).sum()  # type: ignore[index]

        def backward(self, task: str, scale: float = 1.0) -> Tensor:
            super().backward(task, scale)
            return torch.zeros(())  # the loss itself looks well

    step = Broken(3, jacobian)
    with pytest.raises(TrainingError, match="gradient of task 't1' is not finite"):
        make().update(step)
    assert not step.applied


@over_all
def test_a_step_returns_the_unscaled_losses(make: Callable[[], GradientCombiner]) -> None:
    step = Quadratic(3)
    expected = {task: step.evaluate(task) for task in step.tasks}
    assert make().update(step) == expected


@pytest.mark.parametrize("layout", ["dense", "sparse", "mixed"])
def test_gramian_and_combination_are_those_of_flat_vectors(layout: str) -> None:
    """Tables as rows, tables in full, parameters that a task does not reach: all as if written out flat."""
    steps = [Quadratic(3, sparse=layout == "sparse" or (layout == "mixed" and k == 1)) for k in range(3)]
    taken, flat = [], []
    for k, step in enumerate(steps):
        step.backward(f"t{k}")
        full = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone() for p in step.shared]
        if k == 2:
            step.shared[1].grad, full[1] = None, torch.zeros(4, 4)
        flat.append(torch.cat([g.reshape(-1) for g in full]))
        taken.append(take_gradients(step.shared))
        if layout == "mixed" and k == 0:
            taken[0][0] = taken[0][0].to_dense()  # type: ignore[union-attr]
        assert all(p.grad is None for p in step.shared)
    jacobian = torch.stack(flat)
    torch.testing.assert_close(gramian_of(taken, ["a", "b", "c"]), (jacobian @ jacobian.T).double())
    weights = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
    combine_gradients(taken, weights, steps[0].shared)
    result = torch.cat([p.grad.reshape(-1) for p in steps[0].shared if p.grad is not None])
    torch.testing.assert_close(result, weights.float() @ jacobian)
    assert all(gradient is None for row in taken for gradient in row)


def test_a_table_is_kept_as_the_rows_a_batch_touched() -> None:
    step = Quadratic(1)
    step.backward("t0")
    table, layer = take_gradients(step.shared)
    assert table is not None
    assert table.is_sparse
    assert table.indices()[0].tolist() == sorted(set(step.ids["t0"].tolist()))
    assert layer is not None
    assert not layer.is_sparse
