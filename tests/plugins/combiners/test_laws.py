"""Laws of all combiners: the kit's, with options too, and what single tasks and degenerate gradients must give."""

from typing import Any

import pytest
import torch
from torch import Tensor

from taskloom.core import GradientCombiner, bind_generator
from taskloom.core.testing import Law, laws
from taskloom.core.testing.combiners import SmallStep
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
from taskloom.plugins.combiners.torchjd import TorchJD

Made = tuple[type[GradientCombiner], dict[str, Any]]
#: Options beside the defaults, under which the kit tries every built-in.
VARIANTS: list[Made] = [
    (Weighted, {"weights": {"task0": 2.0}}),
    (PCGrad, {"scope": "all"}),
    (PCGrad, {"scope": "all", "reduction": "mean", "include_self": True}),
    (GSE, {"reduction": "mean"}),
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


class ScaledStep(SmallStep):
    """A step whose gradients are a multiple of a plain step's; they move the parameters as far as the plain ones."""

    def __init__(self, count: int, factor: float) -> None:
        super().__init__(count)
        self.factor = factor

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        return super().backward(task, scale * self.factor)

    def apply(self) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.factor
        super().apply()


SCALING: list[Made] = [
    *((combiner, {}) for combiner in (Sum, Mean, Weighted, PCGrad, GSE, GradVac, CAGrad, IMTLG, MGDA, AlignedMTL)),
    *((combiner, options) for combiner, options in VARIANTS if combiner not in (NashMTL, FAMO, Uncertainty)),
]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("combiner", "options"), SCALING, ids=lambda value: getattr(value, "name", str(value)))
def test_larger_gradients_make_an_equally_larger_update(
    combiner: type[GradientCombiner], options: dict[str, Any], count: int
) -> None:
    updated = []
    for step in (SmallStep(count), ScaledStep(count, 0.125), ScaledStep(count, 8.0)):
        prepared = combiner(**options)
        prepared.prepare(tasks=step.tasks)
        bind_generator(prepared, torch.Generator().manual_seed(3))
        prepared.update(step)
        updated.append(step.values())
    for parameters in updated[1:]:
        torch.testing.assert_close(parameters, updated[0], rtol=0.0, atol=1e-4 * float(updated[0].abs().max()))


#: Weights from the Gramian alone, without state.
PURE: list[Made] = [
    (PCGrad, {}),
    (PCGrad, {"reduction": "mean"}),
    (CAGrad, {}),
    (CAGrad, {"c": 2.0, "reduction": "mean"}),
    (MGDA, {}),
    (IMTLG, {}),
    (NashMTL, {}),
    (NashMTL, {"max_norm": None}),
    (AlignedMTL, {}),
    (AlignedMTL, {"scale": "median"}),
    (AlignedMTL, {"scale": "rmse"}),
]
over_pure = pytest.mark.parametrize(("combiner", "options"), PURE, ids=lambda value: getattr(value, "name", str(value)))


def weights(combiner: GradientCombiner, jacobian: Tensor) -> Tensor:
    return combiner.weights(jacobian @ jacobian.T)


@over_pure
def test_one_task_gives_its_own_gradient(combiner: type[GradientCombiner], options: dict[str, Any]) -> None:
    jacobian = torch.tensor([[3.0, -4.0]], dtype=torch.float64)
    made, expected = combiner(**options), 1.0
    if isinstance(made, NashMTL):  # the bargain has a length of its own
        expected = 1 / 5
    if isinstance(made, CAGrad):  # the longest step in the ball around the mean gradient
        expected = 1 + made.c
    assert weights(made, jacobian).tolist() == pytest.approx([expected])


@over_pure
@pytest.mark.parametrize(
    "rows", [[[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0], [-1.0]]], ids=str
)
def test_degenerate_gradients_give_a_small_update(
    combiner: type[GradientCombiner], options: dict[str, Any], rows: list[list[float]]
) -> None:
    jacobian = torch.tensor(rows, dtype=torch.float64)
    found = weights(combiner(**options), jacobian)
    assert found.isfinite().all()
    assert (found @ jacobian).norm() <= 3 * jacobian.norm()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "made", [PCGrad(), PCGrad(include_self=True), GradVac(), CAGrad(c=0.0), AlignedMTL()], ids=lambda made: made.name
)
def test_without_conflicts_a_combiner_compares_like_with_like_with_the_default(
    made: GradientCombiner, count: int
) -> None:
    """Orthogonal gradients, equally long: nothing to take out or to balance, so each weighs 1, as in ``sum``."""
    made.prepare(tasks=[f"t{place}" for place in range(count)])
    jacobian = 2 * torch.eye(count, 7, dtype=torch.float64)
    torch.testing.assert_close(weights(made, jacobian), torch.tensor(Sum().factors(["t"] * count), dtype=torch.float64))


class Observed(SmallStep):
    """Remembers the Gramian and the weights of a step, and the update that was applied first."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.found: list[tuple[Tensor, Tensor]] = []
        self.updates: list[Tensor] = []

    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        self.found.append((gramian, weights))

    def apply(self) -> None:
        self.updates.append(torch.cat([p.grad.flatten() for p in self.shared if p.grad is not None]).double())
        super().apply()


OBSERVED: list[Made] = [
    *((cls, {}) for cls in (PCGrad, GSE, GradVac, CAGrad, MGDA, IMTLG, NashMTL, AlignedMTL)),
    (PCGrad, {"scope": "all"}),
    (GSE, {"second": "kept"}),
    (TorchJD, {"aggregator": "UPGrad"}),
    (TorchJD, {"aggregator": "ConFIG"}),  # which is not a function of the Gramian
]


@pytest.mark.parametrize(("combiner", "options"), OBSERVED, ids=lambda value: getattr(value, "name", str(value)))
def test_what_a_run_takes_down_is_what_moves_the_parameters(
    combiner: type[GradientCombiner], options: dict[str, Any]
) -> None:
    step = Observed(3)
    jacobian = torch.stack(
        [
            torch.cat([gradient.to_dense().flatten() for gradient in torch.autograd.grad(step.loss(task), step.shared)])
            for task in step.tasks
        ]
    ).double()  # [T, n]
    made = combiner(**options)
    made.prepare(tasks=step.tasks)
    made.generator = torch.Generator().manual_seed(1)
    made.update(step)
    ((gramian, weights),) = step.found
    between = gramian - gramian.diagonal().diag()  # a norm may count the head's gradient too
    expected = jacobian @ jacobian.T
    torch.testing.assert_close(between, expected - expected.diagonal().diag(), rtol=1e-4, atol=1e-4)
    assert float(torch.cosine_similarity(weights @ jacobian, step.updates[0], dim=0)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("combiner", [FAMO, DWA, Uncertainty])
def test_weights_that_move_are_reported(combiner: type[GradientCombiner]) -> None:
    step = SmallStep(2)
    made = combiner()
    made.prepare(tasks=step.tasks)
    first = made.metrics()
    assert set(first) == set(step.tasks)
    assert len(set(first.values())) == 1, "equal at first"
    for epoch in (1, 2, 3):
        made.update(step)
        made.epoch_ended(epoch=epoch, losses={"task0": 1.0 / epoch, "task1": 1.0})
        for parameter in made.parameters():  # of which a run's optimizer has charge
            parameter.data.sub_(parameter.grad if parameter.grad is not None else torch.ones(()))
    assert made.metrics()["task0"] != made.metrics()["task1"]
    if combiner is DWA:
        assert made.metrics()["task0"] < made.metrics()["task1"], "it fell faster"
