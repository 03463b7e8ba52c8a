"""Laws of the components that are trained or train: losses, heads, encoders and combiners."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.core.testing.device import PretendGPU
from taskloom.core.testing.law import given, law, location_of, require, untouched_randomness, words_of
from taskloom.core.testing.require import require_finite, require_same, through_checkpoint
from taskloom.core.testing.specimens import RAISED, Specimen


class Trial(ABC):
    """A component in a small training run, in which the random numbers of a step depend on its number alone.

    ``start`` is the input of the last pass, where it has a gradient.
    """

    device = torch.device("cpu")
    start: Tensor | None = None

    @property
    @abstractmethod
    def modules(self) -> Sequence[nn.Module]:
        """The modules whose state goes into a checkpoint."""

    @abstractmethod
    def run(self, step: int, *, training: bool) -> Tensor:
        """Its output in this step."""

    @abstractmethod
    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Its output in bfloat16 and in float32, and the bfloat16 input that has a gradient, if any."""

    def train(self, step: int) -> Tensor:
        """Its output in this step, after a backward pass."""
        output = self.run(step, training=True)
        if output.requires_grad:
            torch.autograd.backward(output.square().mean())
        return output.detach()

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self.device = device
        for module in self.modules:
            module.to(device)

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Its metrics after an epoch of training."""
        return {}

    def restore(self, other: "Trial") -> None:
        """Continue from another's checkpoint."""
        for mine, theirs in zip(self.modules, other.modules, strict=True):
            mine.load_state_dict(through_checkpoint(theirs))


#: Makes a trial; layers are built from the seed.
NewTrial = Callable[[int], Trial]


def laws_of_learning(kind: str, trials: Callable[[Specimen], Iterable[tuple[str, NewTrial]]]) -> None:
    """Hold a kind to the laws below."""
    law(kind, cases=trials, at_edges=True)(its_randomness_comes_from_its_generator)
    law(kind, cases=trials)(it_works_in_half_precision)
    law(kind, cases=trials)(its_state_survives_saving)
    law(kind, cases=trials)(it_works_on_a_gpu)


def its_randomness_comes_from_its_generator(_: Specimen, new: NewTrial) -> None:
    """The same seed gives the same training, and no global random state is touched."""
    with untouched_randomness():
        first, second = new(0), new(0)
        outputs = second.train(1), first.train(1)
        first.end_epoch(1)
        second.end_epoch(1)
    require_same(*outputs, "the same seed gives something else in training")


def it_works_in_half_precision(_: Specimen, new: NewTrial) -> None:
    """About the same in bfloat16 as in float32, as autocast hands it over in training; with finite gradients."""
    with given("in bfloat16"):
        half, full, start = new(0).in_half()
        require_same(half.float(), full, "it differs from float32", within=0.1)
        if start is not None and half.requires_grad:
            gradient = torch.autograd.grad(half.float().sum(), start, materialize_grads=True)[0]
            require_finite(gradient, "its gradient")


def its_state_survives_saving(_: Specimen, new: NewTrial) -> None:
    """A checkpoint, taken after an epoch or within one, restores a new component that continues as the first does.

    Nothing else may be carried from step to step, least of all the graph of an earlier one.
    """
    for words, more in (("2 epochs", 0), ("2 epochs and a step", 1)):
        with given(f"state taken after {words}"):
            first, second = new(0), new(1)
            for epoch in (1, 2):
                first.train(epoch)
                first.end_epoch(epoch)
            for step in range(more):
                first.train(3 + step)
            second.restore(first)
            for training in (False, True):
                restored, original = (trial.run(3, training=training).detach() for trial in (second, first))
                mode = "training" if training else "evaluation"
                require_same(restored, original, f"in a pass in {mode} a restored one gives something else")
            for epoch in (3, 4, 5):
                require_same(
                    second.train(epoch), first.train(epoch), f"in epoch {epoch} a restored one gives something else"
                )
                figures = first.end_epoch(epoch)
                require(second.end_epoch(epoch) == figures, f"in epoch {epoch} a restored one gives other metrics")
                sound = all(isinstance(value, int | float) and math.isfinite(value) for value in figures.values())
                require(sound, f"metrics() should map names to finite numbers. Found {figures}.")


#: What to write instead where a tensor is on the wrong device.
_INSTEAD = (
    "create tensors on the device of the inputs, as in torch.arange(n, device=target.device), keep its own as "
    "buffers, and copy with .cpu() before .numpy()"
)


def it_works_on_a_gpu(_: Specimen, new: NewTrial) -> None:
    """Forward and backward run on an emulated GPU and, where nothing is drawn, give the same as on the CPU."""
    if not PretendGPU.possible():
        return
    drawn: list[str] = []

    def watch(func: Any, *_: Any) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn.append(func.name())

    for training in (False, True):
        with given(f"a pass in {'training' if training else 'evaluation'}"):
            state = torch.get_rng_state()
            expected = _tensors_of_pass(new(0), training)
            torch.set_rng_state(state)  # drawing from it is judged by another law
            with PretendGPU(watch) as gpu:
                trial = new(0)
                try:
                    trial.to(gpu.device)
                    actual = {name: tensor.cpu() for name, tensor in _tensors_of_pass(trial, training).items()}
                except RAISED as error:
                    raise AssertionError(f"on a GPU: {words_of(error)}{location_of(error)}; {_INSTEAD}") from error
            require(actual.keys() == expected.keys(), f"on a GPU it gives {list(actual)}, elsewhere {list(expected)}")
            for name, tensor in expected.items() if not drawn else ():
                require_same(actual[name], tensor, f"on a GPU {name} is another", within=1e-4)


def _tensors_of_pass(trial: Trial, training: bool) -> dict[str, Tensor]:
    """The output of a pass and the gradients of its backward pass; in training the epoch ends afterwards."""
    output = trial.run(1, training=training)
    tensors = {"what it gives": output.detach()}
    if output.requires_grad:
        torch.autograd.backward(output.square().mean())
        named = [pair for module in trial.modules for pair in module.named_parameters()]
        for name, leaf in [("its input", trial.start), *named]:
            if leaf is not None and leaf.grad is not None:
                tensors[f"the gradient of {name}"] = leaf.grad.to_dense()
    if training:
        trial.end_epoch(1)
    return tensors
