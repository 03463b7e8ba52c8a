"""Each combiner against its definition worked by hand or naively, and against TorchJD's."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import run_grid
from torch import Tensor, nn
from torchjd import aggregation as peer

from taskloom.core import GradientCombiner, Step, TrainingError, bind_generator
from taskloom.plugins.combiners import (
    DWA,
    FAMO,
    GSE,
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    GradVac,
    Mean,
    NashMTL,
    PCGrad,
    Sum,
    Uncertainty,
    Weighted,
)
from taskloom.registry.installed.catalogue import load_catalogue

C = TypeVar("C", bound=GradientCombiner)
counts, seeds = st.integers(2, 5), st.integers(0, 10**6)
reductions = st.sampled_from(["sum", "mean"])
TINY = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_jacobian(count: int, size: int, seed: int) -> Tensor:
    return torch.randn(count, size, generator=seeded(seed), dtype=torch.float64)


def weights(combiner: GradientCombiner, jacobian: Tensor) -> Tensor:
    return combiner.weights(jacobian @ jacobian.T)


class Linear(Step):
    """A step whose gradients are given: task t's loss is jacobian[t]·θ + own[t]·hₜ + offsets[t]."""

    def __init__(self, jacobian: Tensor, own: Tensor | None = None, offsets: Sequence[float] | None = None) -> None:
        self.tasks: Sequence[str] = [f"t{k}" for k in range(len(jacobian))]
        self.jacobian, self.slopes = jacobian, jacobian if own is None else own
        self.offsets = offsets or [1.0] * len(jacobian)
        self.shared = [nn.Parameter(torch.zeros(jacobian.shape[1], dtype=jacobian.dtype))]
        self.heads = {t: nn.Parameter(torch.zeros_like(g)) for t, g in zip(self.tasks, self.slopes, strict=True)}
        self.applied: list[list[Tensor]] = []  # the gradients of θ and of each head

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.heads[task]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.evaluate(task)
        torch.autograd.backward(loss * scale)
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        row = self.tasks.index(task)
        return self.jacobian[row] @ self.shared[0] + self.slopes[row] @ self.heads[task] + self.offsets[row]

    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        pass

    def apply(self) -> None:
        parameters = [*self.shared, *self.heads.values()]
        self.applied.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        for parameter in parameters:
            parameter.grad = None


class Net(Step, nn.Module):
    """A small net in float64 with an optimizer step: two shared layers, a head for each task, fixed batches."""

    def __init__(self, combiner: GradientCombiner | None = None) -> None:
        super().__init__()
        draws = seeded(11)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draws, dtype=torch.float64)

        self.tasks: Sequence[str] = ["t0", "t1", "t2"]
        self.shared = nn.ParameterList([draw(6, 5), draw(5, 4)])
        self.heads = nn.ParameterList([draw(4) for _ in self.tasks])
        self.batches = [(draw(8, 6), 3 * draw(8)) for _ in self.tasks]
        self.optimizer = adamw([*self.parameters(), *(combiner.parameters() if combiner else ())])

    def losses(self) -> list[Tensor]:
        """Positive, one for each task."""
        first, second = self.shared
        return [
            ((x @ first).tanh() @ second @ head - y).square().mean()
            for head, (x, y) in zip(self.heads, self.batches, strict=True)
        ]

    def jacobian(self) -> Tensor:
        """The gradients of the shared parameters as rows, [T, n]; the heads' own are set."""
        rows = []
        for loss, head in zip(self.losses(), self.heads, strict=True):
            *shared, head.grad = torch.autograd.grad(loss, [*self.shared, head])
            rows.append(torch.cat([gradient.reshape(-1) for gradient in shared]))
        return torch.stack(rows)

    def set_shared(self, flat: Tensor) -> None:
        parts = flat.split([parameter.numel() for parameter in self.shared])
        for parameter, part in zip(self.shared, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.heads[int(task[1])]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.losses()[int(task[1])]
        torch.autograd.backward(loss * scale)
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        return self.losses()[int(task[1])].detach()

    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        pass

    def apply(self) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.optimizer.zero_grad()


def prepared(combiner: C) -> C:
    combiner.prepare(tasks=["t0", "t1", "t2"])
    bind_generator(combiner, seeded(3))
    return combiner


def trained(combiner: GradientCombiner, steps: int, tasks: Sequence[str] = ("t0", "t1", "t2")) -> Net:
    """The net after some updates by AdamW, the combiner's own parameters in the optimizer."""
    net = Net(combiner)
    net.tasks = tasks
    for _ in range(steps):
        combiner.update(net)  # type: ignore[arg-type]
    return net


def adamw(parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.01)


def assert_same(net: Net, other: Net) -> None:
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


def combined(combiner: GradientCombiner, jacobian: Tensor, seed: int = 0) -> Tensor:
    """The gradient of the shared parameters that reaches the optimizer."""
    combiner.generator = seeded(seed)
    step = Linear(jacobian)
    combiner.update(step)
    return step.applied[0][0]


def peers(aggregator: Any, jacobian: Tensor, seed: int = 0) -> Tensor:
    """What TorchJD makes of a Jacobian, its global draws seeded."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its solvers complain about how it uses them
        torch.manual_seed(seed)
        update: Tensor = aggregator(jacobian)
    return update


# Fixed weights


def test_weighted_is_the_gradient_of_the_weighted_sum() -> None:
    jacobian = random_jacobian(3, 4, 0)
    combiner, step = Weighted(weights={"t0": 2.0, "t2": 0.0}), Linear(jacobian)
    combiner.prepare(tasks=step.tasks)
    combiner.update(step)
    shared, *heads = step.applied[0]
    torch.testing.assert_close(shared, 2 * jacobian[0] + jacobian[1])
    torch.testing.assert_close(torch.stack(heads), torch.tensor([[2.0], [1.0], [0.0]]) * jacobian)


def test_tasks_that_are_not_there_are_found_before_anything_runs() -> None:
    task = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
    krum = {"name": "torchjd", "aggregator": "Krum", "options": {"n_byzantine": 1}}
    stages = [{"combiner": {"name": "weighted", "weights": {"b": 2.0, "c": 1.0}}}, {"combiner": krum}]
    found = load_catalogue().resolve_run({"tasks": {"a": task, "b": task}, "stages": stages})[1]
    assert [problem.path for problem in found] == ["stages.0.combiner.weights", "stages.1.combiner.options"]


# PCGrad, GSE and GradVac


def naive_surgery(vectors: Tensor, generator: torch.Generator, include_self: bool = False) -> Tensor:
    """Algorithm 1 of Yu et al. on explicit vectors [T, n]; returns the projected ones."""
    projected = vectors.clone()
    for i in range(len(vectors)):
        for j in torch.randperm(len(vectors), generator=generator).tolist():
            inner = projected[i] @ vectors[j]
            if inner < 0 and (include_self or j != i):
                projected[i] -= inner / (vectors[j] @ vectors[j]) * vectors[j]
    return projected


@settings(max_examples=60)
@given(count=counts, seed=seeds, reduction=reductions, include_self=st.booleans())
def test_pcgrad_is_the_algorithm_on_explicit_vectors(count: int, seed: int, reduction: Any, include_self: bool) -> None:
    jacobian = random_jacobian(count, 4, seed)
    total = naive_surgery(jacobian, seeded(seed), include_self).sum(0)
    found = combined(PCGrad(reduction=reduction, include_self=include_self), jacobian, seed)
    torch.testing.assert_close(found, total / count if reduction == "mean" else total)
    if count == 2:  # no conflict is left
        assert (jacobian @ found >= -1e-12).all()
    agreeing = jacobian.abs()
    plain = combined(Mean() if reduction == "mean" else Sum(), agreeing)
    torch.testing.assert_close(combined(PCGrad(reduction=reduction), agreeing, seed), plain)


def test_two_conflicting_gradients_by_hand() -> None:
    """g₁ = (1, 0), g₂ = (−1, 1): g₁ → (½, ½), g₂ → (0, 1), their sum is (½, 3/2)."""
    jacobian = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert combined(PCGrad(), jacobian).tolist() == [0.5, 1.5]
    assert combined(PCGrad(reduction="mean"), jacobian).tolist() == [0.25, 0.75]
    assert combined(Sum(), jacobian).tolist() == [0.0, 1.0]
    assert combined(Mean(), jacobian).tolist() == [0.0, 0.5]


@settings(max_examples=40)
@given(count=st.integers(1, 5), seed=seeds, include_self=st.booleans(), reduction=st.sampled_from(["sum", "mean"]))
def test_scope_all_projects_the_whole_model(count: int, seed: int, include_self: bool, reduction: Any) -> None:
    jacobian, own = random_jacobian(count, 3, seed), random_jacobian(count, 2, seed + 1)
    combiner, step = PCGrad(reduction=reduction, scope="all", include_self=include_self), Linear(jacobian, own)
    combiner.generator = seeded(seed)
    combiner.update(step)
    whole = torch.cat([jacobian, torch.block_diag(*own)], 1)  # [T, n + 2T]
    total = naive_surgery(whole, seeded(seed), include_self).sum(0)
    shared = total[:3] / count if reduction == "mean" else total[:3]
    torch.testing.assert_close(torch.cat(step.applied[0]), torch.cat([shared, total[3:]]))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("second", ["fresh", "kept"])
def test_gse_is_two_plain_optimizer_steps(second: Any, reduction: Any) -> None:
    """By hand: autograd, the algorithm on flat vectors, two steps of torch's AdamW."""
    net, generator = Net(), seeded(3)
    for _ in range(4):
        vectors = net.jacobian()
        own = [head.grad for head in net.heads]
        projected = naive_surgery(vectors, generator)
        net.set_shared(projected.mean(0) if reduction == "mean" else projected.sum(0))
        net.apply()
        if second == "fresh":
            torch.stack(net.losses()).sum().backward()
        else:
            net.set_shared(vectors.sum(0))
            for head, gradient in zip(net.heads, own, strict=True):
                head.grad = gradient
        net.apply()
    assert_same(trained(prepared(GSE(reduction=reduction, second=second)), 4), net)


def test_gradvac_remembers_by_task_in_steps_with_fewer_tasks() -> None:
    combiner = prepared(GradVac(beta=0.5))
    trained(combiner, 1, tasks=["t2", "t0"])
    assert (combiner.targets != 0).nonzero().tolist() == [[0, 2], [2, 0]]
    again = prepared(GradVac(beta=0.5))
    again.load_state_dict(combiner.state_dict())
    assert again.targets.equal(combiner.targets)


@settings(max_examples=20)
@given(count=counts, seed=seeds, beta=st.sampled_from([0.01, 0.5, 0.9]))
def test_gradvac_is_torchjds_over_many_steps(count: int, seed: int, beta: float) -> None:
    ours, theirs = GradVac(beta=beta), peer.GradVac(beta=beta, eps=0.0)
    ours.prepare(tasks=[f"t{k}" for k in range(count)])
    for place in range(4):
        jacobian = random_jacobian(count, 5, seed + place) + 0.5
        ours.generator = seeded(place)
        torch.testing.assert_close(weights(ours, jacobian) @ jacobian, peers(theirs, jacobian, place))


# Weights from the Gramian

#: Ours, theirs for a number of tasks, and how near their solver comes.
PEERS: list[tuple[GradientCombiner, Any, float]] = [
    (PCGrad(reduction="sum"), lambda count: peer.PCGrad(), 1e-9),
    *(
        (CAGrad(c=c, reduction="mean"), lambda count, c=c: peer.CAGrad(c=c, norm_eps=1e-8), 1e-3)
        for c in (0.1, 0.5, 1.5)
    ),
    (MGDA(), lambda count: peer.MGDA(epsilon=1e-6, max_iters=2000), 0.02),
    (IMTLG(), lambda count: peer.IMTLG(), 1e-6),
    (NashMTL(), lambda count: peer.NashMTL(n_tasks=count, optim_niter=100), 0.02),
    *(
        (AlignedMTL(scale=s, reduction="mean"), lambda count, s=s: peer.AlignedMTL(scale_mode=s), 1e-7)
        for s in ("min", "median", "rmse")
    ),
]


@pytest.mark.parametrize(("combiner", "theirs", "near"), PEERS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("count", [2, 3, 4])
def test_it_is_torchjds(combiner: GradientCombiner, theirs: Any, near: float, count: int) -> None:
    for seed in range(3):
        jacobian = random_jacobian(count, 20, seed)
        found, expected = combined(combiner, jacobian, seed), peers(theirs(count), jacobian, seed)
        torch.testing.assert_close(found, expected, rtol=near, atol=near)


@settings(max_examples=60)
@given(count=counts, size=st.sampled_from([1, 2, 3, 30]), seed=seeds)
def test_mgda_is_the_point_of_least_norm(count: int, size: int, seed: int) -> None:
    """d is the nearest point to 0 of a convex set if and only if gᵢ·d ≥ ‖d‖² for all i: it conflicts with none."""
    jacobian = random_jacobian(count, size, seed)
    found = weights(MGDA(), jacobian)
    update = found @ jacobian
    assert found.sum().item() == pytest.approx(1)
    assert (found >= 0).all()
    assert (jacobian @ update).min().item() >= update.square().sum().item() - 1e-9


def test_mgda_by_hand() -> None:
    """(2, 0) and (0, 1): the line between them is nearest to 0 at (0.4, 0.8), where w = (1/5, 4/5)."""
    jacobian = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(weights(MGDA(), jacobian), torch.tensor([0.2, 0.8], dtype=torch.float64))


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


# Weights from the losses


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_uncertainty_is_the_gradient_of_kendalls_loss(rate: float) -> None:
    net, logs = Net(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
    net.optimizer.add_param_group({"params": [logs]})
    for _ in range(5):
        s = rate * logs
        (0.5 * (-s).exp() * torch.stack(net.losses()) + 0.5 * s).sum().backward()
        net.apply()
    combiner = prepared(Uncertainty(rate=rate)).double()
    assert_same(trained(combiner, 5), net)
    found = torch.stack([p.detach() for p in combiner.log_variances])
    torch.testing.assert_close(found, logs.detach())
    assert found.abs().min() > 0.01


def test_uncertainty_leaves_tasks_outside_a_step_alone() -> None:
    combiner = prepared(Uncertainty())
    trained(combiner, 2, tasks=["t1"])
    assert [p.item() != 0 for p in combiner.log_variances] == [False, True, False]


def test_dwa_by_hand() -> None:
    """Losses 1 → 0.5 and 2 → 2: r = (½, 1), so λ = 2·softmax(¼, ½)."""
    combiner = DWA()
    combiner.prepare(tasks=["a", "b"])
    for epoch, losses in ((1, {"a": 1.0, "b": 2.0}), (2, {"a": 0.5, "b": 2.0})):
        assert combiner.factors(["a", "b"]) == [1.0, 1.0]
        combiner.epoch_ended(epoch=epoch, losses=losses)
    low = 2 / (1 + math.exp(0.25))
    assert combiner.factors(["b", "a"]) == pytest.approx([2 - low, low])
    copied = DWA()
    copied.prepare(tasks=["a", "b"])
    copied.load_state_dict(combiner.state_dict())
    assert copied.factors(["b", "a"]) == combiner.factors(["b", "a"])
    combiner.epoch_ended(epoch=3, losses={"a": 0.25})  # b was not in this epoch: its ratio stays
    assert combiner.factors(["b"]) == pytest.approx([2 - low])


@pytest.mark.parametrize("rule", ["adam", "descent"])
def test_famo_is_its_algorithm(rule: Any) -> None:
    """By hand: autograd through Σ z log L, and torch's own Adam or SGD with weight decay for ξ."""
    net, logits = Net(), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    kinds = {"adam": torch.optim.Adam, "descent": torch.optim.SGD}
    slow = kinds[rule]([logits], lr=0.3, weight_decay=0.05)
    for _ in range(5):
        before = torch.stack(net.losses())
        z = torch.softmax(logits, 0)
        common = 1 / (z / before).sum().detach()
        (common * (z.detach() * before.log()).sum()).backward()
        net.apply()
        fall = before.detach().log() - torch.stack(net.losses()).detach().log()
        (logits.grad,) = torch.autograd.grad(z, logits, fall)
        slow.step()
    combiner = prepared(FAMO(rule=rule, rate=0.3, decay=0.05))
    after = trained(combiner, 5)
    torch.testing.assert_close(combiner.logits, logits.detach(), rtol=1e-5, atol=1e-8)
    assert combiner.logits.abs().min() > 1e-3
    for one, other in zip(after.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_famo_weighs_by_the_inverse_of_the_loss() -> None:
    """Losses 1 and 3 with equal z: w = (¾, ¼), for the heads too; a task without loss is left out."""
    jacobian = random_jacobian(3, 4, 0)
    step, combiner = Linear(jacobian, offsets=[1.0, 3.0, 0.0]), FAMO()
    combiner.prepare(tasks=step.tasks)
    combiner.update(step)
    shared, *heads = step.applied[0]
    expected = torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64)
    torch.testing.assert_close(shared, expected @ jacobian)
    torch.testing.assert_close(torch.stack(heads), expected[:, None] * jacobian)


def test_famo_refuses_negative_losses() -> None:
    step, combiner = Linear(random_jacobian(2, 4, 0), offsets=[1.0, -0.5]), FAMO()
    combiner.prepare(tasks=step.tasks)
    with pytest.raises(TrainingError, match=r"loss of task 't1' is -0\.5; combiner 'famo' needs losses of at least 0"):
        combiner.update(step)


def test_every_combiner_trains_in_a_run(tmp_path: Path) -> None:
    sst = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
    sts = {"data": {"name": "generated", "task": "similarity", "size": 16, "dev_size": 8}}
    sts |= {"head": "cosine", "loss": "mse", "metric": "pearson"}
    stage = {"epochs": 2, "optimizer": {"lr": 0.001}, "clip": 1.0}
    values = load_catalogue().names("combiner")
    more: list[Any] = [{"name": "gse", "second": "kept"}, {"name": "pcgrad", "scope": "all"}]
    more += [{"name": "torchjd", "aggregator": "GradDrop"}, {"name": "weighted", "weights": {"sts": 0.5}}]
    grid = {
        "base": {"encoder": TINY, "tasks": {"sst": sst, "sts": sts}, "stages": [stage]},
        "axes": {"stages.0.combiner": [*values, *more]},
    }
    _, outcome, events = run_grid(tmp_path / "r", grid)
    assert [event for event in events if event.what == "failed"] == []
    assert outcome.finished == len(values) + len(more)
