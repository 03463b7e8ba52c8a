"""The conformance kit catches samplers, combiners, metrics and data sets that break a law."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taskloom.core import Component, DataSet, Examples, Labels, Metric, Split, Step
from taskloom.core.testing import check
from taskloom.plugins.combiners import PCGrad, Sum
from taskloom.plugins.samplers import RoundRobin


class OutOfRange(RoundRobin):
    """Asks for one row too far."""

    name = "out_of_range"

    def group(self, step: int) -> Any:
        group = super().group(step)
        for batch in group:
            batch.rows[...] += 1
        return group


class ShortEpoch(RoundRobin):
    """Says one step more than it gives."""

    name = "short_epoch"

    def epoch(self) -> Any:
        groups = list(super().epoch())
        yield from groups[:-1]


class LateState(RoundRobin):
    """Counts a group only when the next one is asked for."""

    name = "late_state"

    def epoch(self) -> Any:
        while self._step < self.steps:
            yield self.group(self._step)
            self._step += 1
        self._step = 0


class Restless(RoundRobin):
    """Draws its seed from the global state."""

    name = "restless"

    def prepare(self, pools: Any, *, generator: torch.Generator) -> None:
        super().prepare(pools, generator=torch.default_generator)


class WrongShape(PCGrad):
    """Gives the whole matrix of coefficients."""

    name = "wrong_shape"

    def weights(self, gramian: Tensor) -> Tensor:
        return super().weights(gramian)[:, None]


class Divides(PCGrad):
    """Divides by the norm of a gradient that may be zero."""

    name = "divides"

    def weights(self, gramian: Tensor) -> Tensor:
        return 1 / gramian.diagonal().sqrt()


class Leaks(Sum):
    """Lets all heads share one gradient."""

    name = "leaks"

    def update(self, step: Step) -> dict[str, Tensor]:
        heads = list(step.heads.values())[: len(step.tasks)]  # type: ignore[attr-defined]
        apply = step.apply

        def mixed() -> None:
            total = torch.stack([head.grad for head in heads]).sum(0)
            for head in heads:
                head.grad = total.clone()
            apply()

        step.apply = mixed  # type: ignore[method-assign]
        return super().update(step)


class KeepsGoing(Sum):
    """Steps with whatever the gradient is."""

    name = "keeps_going"

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = {task: step.backward(task) for task in step.tasks}
        for parameter in step.shared:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
        step.apply()
        return losses


class LeavesSparse(Sum):
    """Leaves the sparse gradient of a table to the optimizer."""

    name = "leaves_sparse"

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = {task: step.backward(task) for task in step.tasks}
        step.apply()
        return losses


class Moody(PCGrad):
    """Changes with time, and does not save it."""

    name = "moody"

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def weights(self, gramian: Tensor) -> Tensor:
        self.steps += 1
        return super().weights(gramian) * self.steps


class Upside(Metric):
    """Smaller is better."""

    name = "upside"

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float(np.abs(predicted - expected).mean())


class FirstOnly(Metric):
    """Looks at the first half."""

    name = "first_only"

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float((predicted == expected)[:20].mean() + (predicted == expected).mean())


class Undefined(Metric):
    """Is not a number where predictions are constant."""

    name = "undefined"

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float("nan") if np.ptp(predicted) == 0 else float((predicted == expected).mean())


class Sound(DataSet):
    """Two texts in two classes."""

    name = "sound"
    labels = Labels.of_classes(2)
    ids: tuple[str, ...] = ("a", "b")
    values: tuple[float, ...] = (0.0, 1.0)
    texts: tuple[str, ...] = ("yes", "no")

    def load(self, split: Split) -> Examples:
        return Examples((self.texts,), np.array(self.values), self.ids)

    def content(self) -> str:
        return "two texts"


class TwiceTheId(Sound):
    """An id occurs twice."""

    name = "twice_the_id"
    ids = ("a", "a")


class EmptyText(Sound):
    """A text is empty."""

    name = "empty_text"
    texts = ("yes", " ")


class LabelTooHigh(Sound):
    """A label is no class."""

    name = "label_too_high"
    values = (0.0, 2.0)


class Unstable(Sound):
    """Gives its examples in another order each time."""

    name = "unstable"

    def load(self, split: Split) -> Examples:
        self.ids = self.ids[::-1]
        return super().load(split)


class Unfingerprinted(Sound):
    """Has another fingerprint each time."""

    name = "unfingerprinted"

    def content(self) -> str:
        return str(id(object()) + id(self))


BROKEN: list[tuple[type[Component], str]] = [
    (OutOfRange, "groups hold rows of the tasks"),
    (ShortEpoch, "an epoch has as many steps as it says"),
    (LateState, "any state goes on exactly"),
    (Restless, "one seed gives one order"),
    (WrongShape, "weights are one finite number per task"),
    (Divides, "weights are one finite number per task"),
    (Leaks, "a head learns from its own task only"),
    (KeepsGoing, "a gradient that is not finite names its task"),
    (LeavesSparse, "an update moves the shared parameters"),
    (Moody, "its state survives saving"),
    (Upside, "the perfect prediction is best"),
    (FirstOnly, "the order of examples does not matter"),
    (Undefined, "a score is a finite number"),
    (TwiceTheId, "examples are whole"),
    (EmptyText, "examples are whole"),
    (LabelTooHigh, "labels are what it says"),
    (Unstable, "loading is repeatable"),
    (Unfingerprinted, "loading is repeatable"),
]


@pytest.mark.parametrize(("component", "law"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_the_kit_catches_a_broken_component(component: type[Component], law: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(component)
    lines = str(caught.value).splitlines()
    name = f"{component.kind} {component.name!r}"
    assert any(line.startswith(name) and f"breaks the law {law!r}: " in line for line in lines), str(caught.value)


def test_a_sound_data_set_passes() -> None:
    check(Sound)
