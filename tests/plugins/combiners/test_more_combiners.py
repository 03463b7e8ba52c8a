"""Combiners that weigh losses or take steps of their own, each against its definition worked by hand."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taskloom.core import Encoder, Event, GradientCombiner, RequestError, TrainingError, bind_generator
from taskloom.core.testing import Law, laws
from taskloom.plugins.combiners import (
    DWA,
    FAMO,
    GSE,
    AlignedMTL,
    CAGrad,
    GradVac,
    NashMTL,
    PCGrad,
    Uncertainty,
    Weighted,
    taskloom_components,
)
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.grid.build import make, make_task
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.training.model import Model

C = TypeVar("C", bound=GradientCombiner)
counts, seeds = st.integers(2, 5), st.integers(0, 10**6)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_jacobian(count: int, size: int, seed: int) -> Tensor:
    return torch.randn(count, size, generator=seeded(seed), dtype=torch.float64)


def weights(combiner: GradientCombiner, jacobian: Tensor) -> Tensor:
    return combiner.weights(jacobian @ jacobian.T)


class Linear:
    """A step whose gradients are given: task t's loss is jacobian[t]·θ + own[t]·hₜ + offsets[t]."""

    def __init__(self, jacobian: Tensor, own: Tensor | None = None, offsets: Sequence[float] | None = None) -> None:
        self.tasks: Sequence[str] = [f"t{k}" for k in range(len(jacobian))]
        self.jacobian, self.gradients = jacobian, jacobian if own is None else own
        self.offsets = offsets or [1.0] * len(jacobian)
        self.shared = [nn.Parameter(torch.zeros(jacobian.shape[1], dtype=jacobian.dtype))]
        self.heads = {t: nn.Parameter(torch.zeros_like(g)) for t, g in zip(self.tasks, self.gradients, strict=True)}
        self.applied: list[list[Tensor]] = []  # the gradients of θ and of each head

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.heads[task]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.evaluate(task)
        torch.autograd.backward(loss * scale)
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        row = self.tasks.index(task)
        return self.jacobian[row] @ self.shared[0] + self.gradients[row] @ self.heads[task] + self.offsets[row]

    def apply(self) -> None:
        parameters = [*self.shared, *self.heads.values()]
        self.applied.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        for parameter in parameters:
            parameter.grad = None


class Net(nn.Module):
    """A small net in float64: two shared layers, a head for each task, and fixed batches with positive losses."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        draws = seeded(11)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draws, dtype=torch.float64)

        self.shared = nn.ParameterList([draw(6, 5), draw(5, 4)])
        self.heads = nn.ParameterList([draw(4) for _ in range(count)])
        self.batches = [(draw(8, 6), 3 * draw(8)) for _ in range(count)]

    def losses(self) -> list[Tensor]:
        first, second = self.shared
        return [
            ((x @ first).tanh() @ second @ head - y).square().mean()
            for head, (x, y) in zip(self.heads, self.batches, strict=True)
        ]


class NetStep:
    """A step over :class:`Net` with a real optimizer."""

    def __init__(self, net: Net, optimizer: torch.optim.Optimizer, tasks: Sequence[str] | None = None) -> None:
        self.net, self.optimizer = net, optimizer
        self.every = [f"t{k}" for k in range(len(net.heads))]
        self.tasks: Sequence[str] = tasks or self.every
        self.shared = list(net.shared)

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.net.heads[self.every.index(task)]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.net.losses()[self.every.index(task)]
        torch.autograd.backward(loss * scale)
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        return self.net.losses()[self.every.index(task)].detach()

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def prepared(combiner: C) -> C:
    combiner.prepare(tasks=["t0", "t1", "t2"])
    bind_generator(combiner, seeded(3))
    return combiner


def trained(combiner: GradientCombiner, steps: int, tasks: Sequence[str] | None = None) -> Net:
    """The net after some updates by AdamW, the combiner's own parameters in the optimizer."""
    net = Net()
    optimizer = adamw([*net.parameters(), *combiner.parameters()])
    for _ in range(steps):
        combiner.update(NetStep(net, optimizer, tasks))
    return net


def adamw(parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.01)


def assert_same(net: Net, other: Net) -> None:
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


VARIANTS: list[tuple[type[GradientCombiner], dict[str, Any]]] = [
    (Weighted, {"weights": {"task0": 2.0}}),
    (PCGrad, {"scope": "all"}),
    (PCGrad, {"scope": "all", "reduction": "sum", "include_self": True}),
    (GSE, {"second": "fresh"}),
    (GSE, {"second": "kept"}),
    (GradVac, {"beta": 0.5, "reduction": "mean"}),
    (CAGrad, {"c": 0.9}),
    (NashMTL, {"max_norm": None}),
    (AlignedMTL, {"scale": "rmse"}),
    (FAMO, {"rule": "descent", "rate": 1.0}),
    (FAMO, {"rate": 0.5}),
    (Uncertainty, {"rate": 100.0}),
]


@pytest.mark.parametrize("law", laws("combiner"), ids=str)
@pytest.mark.parametrize(("combiner", "options"), VARIANTS, ids=lambda value: getattr(value, "name", str(value)))
def test_conformance(combiner: type[GradientCombiner], options: dict[str, Any], law: Law) -> None:
    law(combiner, **options)


@pytest.mark.parametrize("combiner", taskloom_components(), ids=lambda cls: cls.name)
def test_docstrings_say_all(combiner: type[GradientCombiner]) -> None:
    entry = load_catalogue().get("combiner", combiner.name)
    for section in ("Reads:", "Siblings:", "Reference:", "Example:"):
        assert section in entry.doc
    assert all(option.text for option in entry.options.values())
    example = json.loads(entry.doc.partition("Example:")[2])
    component = example["stages"][0]["combiner"]
    resolved, problems = load_catalogue().resolve("combiner", component)
    assert (resolved["name"], problems) == (combiner.name, [])


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"name": "weighted", "weights": {"sst": -1.0}}, "weights"),
        ({"name": "pcgrad", "scope": "heads"}, "scope"),
        ({"name": "gse", "second": "old"}, "second"),
        ({"name": "gradvac", "beta": 1.5}, "beta"),
        ({"name": "cagrad", "c": -0.1}, "c"),
        ({"name": "nash_mtl", "max_norm": 0.0}, "max_norm"),
        ({"name": "aligned_mtl", "scale": "max"}, "scale"),
        ({"name": "uncertainty", "rate": 0.0}, "rate"),
        ({"name": "dwa", "temperature": 0.0}, "temperature"),
        ({"name": "famo", "decay": -1.0}, "decay"),
        ({"name": "torchjd", "options": [1]}, "options"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_options_are_checked(wrong: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in load_catalogue().resolve("combiner", wrong)[1]] == [path]


def test_weighted_is_the_gradient_of_the_weighted_sum() -> None:
    jacobian = random_jacobian(3, 4, 0)
    combiner, step = Weighted(weights={"t0": 2.0, "t2": 0.0}), Linear(jacobian)
    combiner.prepare(tasks=step.tasks)
    combiner.update(step)
    shared, *heads = step.applied[0]
    torch.testing.assert_close(shared, 2 * jacobian[0] + jacobian[1])
    torch.testing.assert_close(torch.stack(heads), torch.tensor([[2.0], [1.0], [0.0]]) * jacobian)


def test_weighted_names_tasks_it_does_not_know() -> None:
    message = r"weights: no task 'stss'; did you mean 'sts'\? \(tasks of the stage: sst, sts\)"
    combiner = Weighted(weights={"stss": 2.0, "x": 1.0})
    with pytest.raises(RequestError, match=message) as caught:
        combiner.prepare(tasks=["sst", "sts"])
    assert caught.value.problems == combiner.problems(["sst", "sts"])
    assert len(caught.value.problems) == 2


def test_tasks_that_are_not_there_are_found_before_anything_runs() -> None:
    task = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
    krum = {"name": "torchjd", "aggregator": "Krum", "options": {"n_byzantine": 1}}
    stages = [{"combiner": {"name": "weighted", "weights": {"b": 2.0, "c": 1.0}}}, {"combiner": krum}]
    found = load_catalogue().resolve_run({"tasks": {"a": task, "b": task}, "stages": stages})[1]
    assert [problem.path for problem in found] == ["stages.0.combiner.weights", "stages.1.combiner.options"]


def naive_surgery(vectors: Tensor, generator: torch.Generator, include_self: bool = False) -> Tensor:
    """Algorithm 1 of Yu et al. on explicit vectors [T, n]; returns the projected ones."""
    projected = vectors.clone()
    for i in range(len(vectors)):
        for j in torch.randperm(len(vectors), generator=generator).tolist():
            inner = projected[i] @ vectors[j]
            if inner < 0 and (include_self or j != i):
                projected[i] -= inner / (vectors[j] @ vectors[j]) * vectors[j]
    return projected


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


def test_scope_decides_whether_heads_count() -> None:
    """g = (1, 0), (−1, 1) with own gradients 1 and 0: ‖g₁‖² is 1 or 2, so g₂ gives up all or half of its conflict."""
    jacobian = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    own = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    found = {}
    for scope in ("shared", "all"):
        step = Linear(jacobian, own)
        PCGrad(reduction="sum", scope=scope).update(step)  # type: ignore[arg-type]
        found[scope] = [gradient.tolist() for gradient in step.applied[0]]
    assert found["shared"] == [[0.5, 1.5], [1.0], [0.0]]
    assert found["all"] == [[0.0, 1.5], [1.5], [0.0]]


@settings(max_examples=40)
@given(count=counts, seed=seeds)
def test_include_self_is_the_algorithm_with_itself(count: int, seed: int) -> None:
    jacobian = random_jacobian(count, 2, seed)
    combiner = PCGrad(reduction="sum", include_self=True)
    combiner.generator = seeded(seed)
    expected = naive_surgery(jacobian, seeded(seed), include_self=True).sum(0)
    torch.testing.assert_close(weights(combiner, jacobian) @ jacobian, expected)


def test_include_self_matters_from_three_tasks_on() -> None:
    differs = dict.fromkeys((2, 3), 0)
    for count in differs:
        for seed in range(200):
            jacobian = random_jacobian(count, 2, seed)
            one, other = (naive_surgery(jacobian, seeded(seed), include).sum(0) for include in (False, True))
            differs[count] += int(not torch.allclose(one, other))
    assert differs[2] == 0
    assert differs[3] > 0


@pytest.mark.parametrize("second", ["fresh", "kept"])
def test_gse_is_two_plain_optimizer_steps(second: Any) -> None:
    """By hand: autograd, the algorithm on flat vectors, two steps of torch's AdamW."""
    net, generator = Net(), seeded(3)
    optimizer = adamw(list(net.parameters()))
    conflicts = 0
    for _ in range(4):
        flat = []
        for loss, head in zip(net.losses(), net.heads, strict=True):
            *shared, head.grad = torch.autograd.grad(loss, [*net.shared, head])
            flat.append(torch.cat([g.reshape(-1) for g in shared]))
        vectors = torch.stack(flat)
        conflicts += int((vectors @ vectors.T < 0).any())
        own = [head.grad for head in net.heads]
        projected = naive_surgery(vectors, generator)
        _set(net, projected.mean(0))
        optimizer.step()
        if second == "fresh":
            optimizer.zero_grad()
            torch.stack(net.losses()).sum().backward()
        else:
            _set(net, vectors.sum(0))
            for head, gradient in zip(net.heads, own, strict=True):
                head.grad = gradient
        optimizer.step()
    assert conflicts
    assert_same(trained(prepared(GSE(second=second)), 4), net)


def _set(net: Net, flat: Tensor) -> None:
    parts = flat.split([p.numel() for p in net.shared])
    for parameter, part in zip(net.shared, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()


def test_gradvac_remembers_by_task_in_steps_with_fewer_tasks() -> None:
    combiner = prepared(GradVac(beta=0.5))
    trained(combiner, 1, tasks=["t2", "t0"])
    assert (combiner.targets != 0).nonzero().tolist() == [[0, 2], [2, 0]]
    again = prepared(GradVac(beta=0.5))
    again.load_state_dict(combiner.state_dict())
    assert again.targets.equal(combiner.targets)


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_uncertainty_is_the_gradient_of_kendalls_loss(rate: float) -> None:
    net, logs = Net(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = adamw([*net.parameters(), logs])
    for _ in range(5):
        optimizer.zero_grad()
        s = rate * logs
        (0.5 * (-s).exp() * torch.stack(net.losses()) + 0.5 * s).sum().backward()
        optimizer.step()
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


def test_dwa_weighs_gradients_and_sums_to_the_number_of_tasks() -> None:
    combiner, jacobian = DWA(temperature=0.1), random_jacobian(3, 4, 0)
    step = Linear(jacobian)
    combiner.prepare(tasks=step.tasks)
    for epoch, losses in ((1, [1.0, 1.0, 0.0]), (2, [0.5, 0.6, 0.0])):
        combiner.epoch_ended(epoch=epoch, losses=dict(zip(step.tasks, losses, strict=True)))
    combiner.update(step)
    factors = torch.tensor(combiner.factors(step.tasks), dtype=torch.float64)
    assert factors.sum().item() == pytest.approx(3)
    assert factors[0] < factors[1] < factors[2]
    torch.testing.assert_close(step.applied[0][0], factors @ jacobian)


@pytest.mark.parametrize("rule", ["adam", "descent"])
def test_famo_is_its_algorithm(rule: Any) -> None:
    """By hand: autograd through Σ z log L, and torch's own Adam or SGD with weight decay for ξ."""
    net, logits = Net(), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = adamw(list(net.parameters()))
    kinds = {"adam": torch.optim.Adam, "descent": torch.optim.SGD}
    slow = kinds[rule]([logits], lr=0.3, weight_decay=0.05)
    for _ in range(5):
        before = torch.stack(net.losses())
        z = torch.softmax(logits, 0)
        common = 1 / (z / before).sum().detach()
        optimizer.zero_grad()
        (common * (z.detach() * before.log()).sum()).backward()
        optimizer.step()
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


def test_own_parameters_are_those_that_no_other_task_has() -> None:
    catalogue = load_catalogue()
    task = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
    resolved, problems = catalogue.resolve_run({"encoder": TINY, "tasks": {"a": task, "b": task}})
    assert problems == []
    tasks = {name: make_task(catalogue, name, spec) for name, spec in resolved["tasks"].items()}
    model = Model(make(catalogue, Encoder, resolved["encoder"]), tasks, seed=0)
    model.shared["layer"] = nn.Linear(4, 4)
    model.heads["a"].layer = model.shared["layer"]  # as heads hold what they share
    parts = [{id(p) for p in part} for part in (model.shared_parameters(), *map(model.own_parameters, "ab"))]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(dict(model.trained_parameters(("a", "b"))))


TINY = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}


def test_every_combiner_trains_in_a_run(tmp_path: Path) -> None:
    sst = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
    sts = {"data": {"name": "generated", "task": "similarity", "size": 16, "dev_size": 8}}
    sts |= {"head": "cosine", "loss": "mse", "metric": "pearson"}
    stage = {"epochs": 2, "optimizer": {"lr": 0.001}, "clip": 1.0}
    values = [cls.name for cls in taskloom_components()]
    more: list[Any] = [{"name": "gse", "second": "kept"}, {"name": "pcgrad", "scope": "all"}]
    more += [{"name": "torchjd", "aggregator": "GradDrop"}, {"name": "weighted", "weights": {"sts": 0.5}}]
    grid = {
        "base": {"encoder": TINY, "tasks": {"sst": sst, "sts": sts}, "stages": [stage]},
        "axes": {"stages.0.combiner": [*values, *more]},
    }
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    events: list[Event] = []
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        plan = make_plan(load_grid(str(tmp_path / "grid.json")), load_catalogue(), ledger)
        outcome = run_plan(plan, load_catalogue(), ledger, listen=events.append)
    assert [event for event in events if event.what == "failed"] == []
    assert outcome.finished == len(values) + len(more)
