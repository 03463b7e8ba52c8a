"""Laws of all combiners: the kit's, with options too, and what single tasks and degenerate gradients must give."""

from typing import Any

import pytest
import torch
from torch import Tensor

from taskloom.core import GradientCombiner
from taskloom.core.testing import Law, laws
from taskloom.plugins.combiners import (
    FAMO,
    GSE,
    IMTLG,
    MGDA,
    AlignedMTL,
    CAGrad,
    GradVac,
    NashMTL,
    PCGrad,
    Uncertainty,
    Weighted,
)

Made = tuple[type[GradientCombiner], dict[str, Any]]
#: Options beside the defaults, under which the kit tries every built-in.
VARIANTS: list[Made] = [
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


#: Weights from the Gramian alone, without state.
PURE: list[Made] = [
    (PCGrad, {}),
    (PCGrad, {"reduction": "sum"}),
    (CAGrad, {}),
    (CAGrad, {"c": 2.0}),
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
