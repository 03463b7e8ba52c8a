"""Laws of everything that takes part in training: losses, heads, encoders and combiners."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.core.testing.device import PretendGPU
from taskloom.core.testing.law import given, law, place_of, require, untouched_randomness, words_of
from taskloom.core.testing.require import require_finite, require_same, through_checkpoint
from taskloom.core.testing.subjects import RAISED, Subject


class Trial(ABC):
    """A component in a small training of its own, in which each step draws the same numbers whoever takes it.

    ``start`` is the input of the last pass, where it has a gradient.
    """

    device = torch.device("cpu")
    start: Tensor | None = None

    @property
    @abstractmethod
    def modules(self) -> Sequence[nn.Module]:
        """Those whose state goes into a checkpoint."""

    @abstractmethod
    def run(self, step: int, *, training: bool) -> Tensor:
        """What it gives in this step."""

    @abstractmethod
    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What it gives in bfloat16, in float32, and the input in bfloat16 that has a gradient, if any."""

    def train(self, step: int) -> Tensor:
        """What it gives in this step, after which gradients flow back."""
        output = self.run(step, training=True)
        if output.requires_grad:
            torch.autograd.backward(output.square().mean())
        return output.detach()

    def to(self, device: torch.device) -> None:
        """Go on on another device."""
        self.device = device
        for module in self.modules:
            module.to(device)

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """What it reports after an epoch of training."""
        return {}

    def restore(self, other: "Trial") -> None:
        """Go on from another's checkpoint."""
        for mine, theirs in zip(self.modules, other.modules, strict=True):
            mine.load_state_dict(through_checkpoint(theirs))


#: Makes a trial; where layers are built, from the seed given.
NewTrial = Callable[[int], Trial]


def laws_of_learning(kind: str, trials: Callable[[Subject], Iterable[tuple[str, NewTrial]]]) -> None:
    """Hold a kind to the laws below."""
    law(kind, cases=trials, at_edges=True)(its_randomness_comes_from_its_generator)
    law(kind, cases=trials)(it_works_in_half_precision)
    law(kind, cases=trials)(its_state_survives_saving)
    law(kind, cases=trials)(it_works_on_a_gpu)


def its_randomness_comes_from_its_generator(_: Subject, new: NewTrial) -> None:
    """The same seed gives the same training, and no global random state is touched."""
    with untouched_randomness():
        first, second = new(0), new(0)
        found, expected = second.train(1), first.train(1)
        first.end_epoch(1)
        second.end_epoch(1)
    require_same(found, expected, "the same seed gives something else in training")


def it_works_in_half_precision(_: Subject, new: NewTrial) -> None:
    """About the same in bfloat16 as in float32, as autocast hands it over in training; with finite gradients."""
    with given("in bfloat16"):
        found, expected, start = new(0).in_half()
        require_same(found.float(), expected, "it differs from float32", within=0.1)
        if start is not None and found.requires_grad:
            gradient = torch.autograd.grad(found.float().sum(), start, materialize_grads=True)[0]
            require_finite(gradient, "its gradient")


def its_state_survives_saving(_: Subject, new: NewTrial) -> None:
    """State goes through the bytes of a checkpoint, after an epoch or within one, into a new one that goes on.

    Nothing else may be carried from step to step, the graph of an earlier one least of all.
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
                found, expected = (trial.run(3, training=training).detach() for trial in (second, first))
                mode = "training" if training else "evaluation"
                require_same(found, expected, f"in a pass in {mode} a restored one gives something else")
            for epoch in (3, 4, 5):
                found, expected = second.train(epoch), first.train(epoch)
                require_same(found, expected, f"in epoch {epoch} a restored one gives something else")
                figures = first.end_epoch(epoch)
                require(second.end_epoch(epoch) == figures, f"in epoch {epoch} a restored one gives other metrics")
                sound = all(isinstance(value, int | float) and math.isfinite(value) for value in figures.values())
                require(sound, f"metrics() should map names to finite numbers. Found {figures}.")


#: What to write where something was made on the wrong device.
_INSTEAD = (
    "make tensors where those are that it is given, as in torch.arange(n, device=target.device), keep its own as "
    "buffers, and copy with .cpu() before .numpy()"
)


def it_works_on_a_gpu(_: Subject, new: NewTrial) -> None:
    """Forward and backward run there (it is a pretend one) and give what the CPU gives, where nothing is drawn."""
    if not PretendGPU.possible():
        return
    drawn: list[str] = []

    def watch(func: Any, *_: Any) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn.append(func.name())

    for training in (False, True):
        with given(f"a pass in {'training' if training else 'evaluation'}"):
            state = torch.get_rng_state()
            expected = _passed(new(0), training)
            torch.set_rng_state(state)  # drawing from it is judged by another law
            with PretendGPU(watch) as gpu:
                trial = new(0)
                try:
                    trial.to(gpu.device)
                    found = {name: tensor.cpu() for name, tensor in _passed(trial, training).items()}
                except RAISED as error:
                    raise AssertionError(f"on a GPU: {words_of(error)}{place_of(error)}; {_INSTEAD}") from error
            require(found.keys() == expected.keys(), f"on a GPU it gives {list(found)}, elsewhere {list(expected)}")
            for name, tensor in expected.items() if not drawn else ():
                require_same(found[name], tensor, f"on a GPU {name} is another", within=1e-4)


def _passed(trial: Trial, training: bool) -> dict[str, Tensor]:
    """What a pass gives, and the gradients that flow back from it; after training, the epoch ends."""
    output = trial.run(1, training=training)
    found = {"what it gives": output.detach()}
    if output.requires_grad:
        torch.autograd.backward(output.square().mean())
        named = [pair for module in trial.modules for pair in module.named_parameters()]
        for name, one in [("its input", trial.start), *named]:
            if one is not None and one.grad is not None:
                found[f"the gradient of {name}"] = one.grad.to_dense()
    if training:
        trial.end_epoch(1)
    return found
