"""For every law of samplers and combiners, one that breaks it and is caught."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from taskloom.core import Component, Pool, Step, TaskBatch
from taskloom.core.testing import check, general, laws
from taskloom.plugins.combiners import NashMTL, PCGrad, Sum
from taskloom.plugins.samplers import RoundRobin

LAWS = {(kind, law.name): law for kind in ("sampler", "combiner") for law in laws(kind)}
MUTANTS: list[tuple[type[Component], str]] = []


def breaks(*names: str) -> Callable[[type[Component]], type[Component]]:
    def mark(mutant: type[Component]) -> type[Component]:
        MUTANTS.extend((mutant, name) for name in names)
        return mutant

    return mark


# Samplers


@breaks("groups hold rows of the tasks")
class OutOfRange(RoundRobin):
    """Asks for one row too far."""

    def group(self, step: int) -> Any:
        group = super().group(step)
        for batch in group:
            batch.rows[...] += 1
        return group


@breaks("an epoch has as many steps as it says")
class ShortEpoch(RoundRobin):
    """Says one step more than it gives."""

    def epoch(self) -> Any:
        groups = list(super().epoch())
        yield from groups[:-1]


@breaks("any state goes on exactly")
class LateState(RoundRobin):
    """Counts a group only when the next one is asked for."""

    def epoch(self) -> Any:
        while self._step < self.steps:
            yield self.group(self._step)
            self._step += 1
        self._step = 0


@breaks("any state goes on exactly")
class ForgetsEpochs(RoundRobin):
    """Turns its batches round in the third epoch, and does not save which one it is."""

    ended = 0

    def epoch(self) -> Any:
        for group in super().epoch():
            turned = tuple(TaskBatch(batch.task, batch.rows[::-1].copy()) for batch in group)
            yield turned if self.ended == 2 else group
        self.ended += 1


@breaks("it uses the rows that it says")
class Repeats(RoundRobin):
    """Gives a batch's first row once more in the place of its last."""

    def group(self, step: int) -> Any:
        group = super().group(step)
        for batch in group:
            batch.rows[-1] = batch.rows[0]
        return group


@breaks("it uses the rows that it says")
class DropsTheShortBatch(RoundRobin):
    """Leaves out the rows of a pass that do not fill a batch."""

    def group(self, step: int) -> Any:
        group = [(stream, stream.next()) for stream in self.streams.values()]
        return tuple(
            batch if len(batch.rows) == min(8, stream.composer.size) else stream.next() for stream, batch in group
        )


@breaks("it uses the rows that it says")
class NeverTheLast(RoundRobin):
    """Asks for the first row where it should ask for the last; it says only that each has its turn."""

    def prepare(self, pools: Any, **given: Any) -> None:
        super().prepare(pools, **given)
        self.uses, self.sizes = "every", {task: pool.size for task, pool in pools.items()}

    def group(self, step: int) -> Any:
        group = super().group(step)
        for batch in group:
            batch.rows[batch.rows == self.sizes[batch.task] - 1] = 0
        return group


@breaks("it uses the rows that it says")
class SaysAnything(RoundRobin):
    """Promises what nobody knows."""

    def prepare(self, pools: Any, **given: Any) -> None:
        super().prepare(pools, **given)
        self.uses = "most"  # type: ignore[assignment]


@breaks("one seed gives one order")
class Restless(RoundRobin):
    """Draws another seed each time."""

    made = 0

    def prepare(self, pools: Any, *, generator: torch.Generator, epochs: int = 1) -> None:
        Restless.made += 1
        super().prepare(pools, generator=torch.Generator().manual_seed(Restless.made), epochs=epochs)


@breaks("a new process gives the same order")
class AsTheSetHasThem(RoundRobin):
    """Goes through the tasks as a set gives them: in one process always the same, in another not."""

    def prepare(self, pools: dict[str, Pool], **given: Any) -> None:  # type: ignore[override]
        super().prepare({task: pools[task] for task in set(pools)}, **given)


@breaks("it touches no global random state")
class Global(RoundRobin):
    """Draws its seed from the global state."""

    def prepare(self, pools: Any, *, generator: torch.Generator, epochs: int = 1) -> None:
        torch.randint(10, (1,))
        super().prepare(pools, generator=generator, epochs=epochs)


@breaks("it leaves the pools as they are")
class SortsInPlace(RoundRobin):
    """Sorts the lengths where they are."""

    def prepare(self, pools: dict[str, Pool], **given: Any) -> None:  # type: ignore[override]
        for pool in pools.values():
            if pool.lengths is not None:
                pool.lengths.sort()
        super().prepare(pools, **given)


@breaks("its state is json")
class StateOfTensors(RoundRobin):
    """Saves a tensor."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": torch.zeros(1)}


# Combiners


@breaks("weights are one finite number per task")
class WrongShape(PCGrad):
    """Gives the whole matrix of coefficients."""

    def weights(self, gramian: Tensor) -> Tensor:
        return super().weights(gramian)[:, None]


@breaks("weights are one finite number per task")
class Divides(PCGrad):
    """Divides by the norm of a gradient that may be zero."""

    def weights(self, gramian: Tensor) -> Tensor:
        return 1 / gramian.diagonal().sqrt()


@breaks("a head learns from its own task only")
class Leaks(Sum):
    """Lets all heads share one gradient."""

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


@breaks("a gradient that is not finite names its task")
class KeepsGoing(Sum):
    """Steps with whatever the gradient is."""

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = {task: step.backward(task) for task in step.tasks}
        for parameter in step.shared:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
        step.apply()
        return losses


@breaks("an update moves the shared parameters")
class LeavesSparse(Sum):
    """Leaves the sparse gradient of a table to the optimizer."""

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = {task: step.backward(task) for task in step.tasks}
        step.apply()
        return losses


@breaks("the order of tasks does not matter")
class ByPlace(Sum):
    """Weighs tasks by their place."""

    def factors(self, tasks: Any) -> list[float]:
        return [1.0 + place for place in range(len(tasks))]


@breaks("the order of tasks does not matter")
class ByPlaceAndChance(PCGrad):
    """Weighs tasks by their place, and draws numbers besides."""

    def weights(self, gramian: Tensor) -> Tensor:
        return super().weights(gramian) * torch.arange(1, len(gramian) + 1)


@breaks("larger gradients make an equally larger update")
class SaysItScales(NashMTL):
    """Gives updates of one length, and says that they grow with the gradients."""

    scales = True


@breaks("it works in bfloat16")
class InNumpy(Sum):
    """Goes through numpy, which has no bfloat16."""

    def update(self, step: Step) -> dict[str, Tensor]:
        step.shared[0].detach().numpy()
        return super().update(step)


@breaks("one seed gives one training")
class Changes(PCGrad):
    """Counts how many were made."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Changes.made += 1
        self.factor = Changes.made

    def weights(self, gramian: Tensor) -> Tensor:
        return super().weights(gramian) * self.factor


@breaks("it touches no global random state")
class GlobalOrder(PCGrad):
    """Draws from torch's global state."""

    def weights(self, gramian: Tensor) -> Tensor:
        self.generator = None
        return super().weights(gramian)


@breaks("its state survives saving")
class Moody(PCGrad):
    """Changes with time, and does not save it."""

    name = "moody"

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def weights(self, gramian: Tensor) -> Tensor:
        self.steps += 1
        return super().weights(gramian) * self.steps


@breaks("its state survives saving")
class LosesItsHistory(PCGrad):
    """Weighs tasks by how their losses fell over two epochs, which it keeps in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []

    def epoch_ended(self, *, epoch: int, losses: dict[str, float]) -> None:
        self.history = [*self.history, losses][-2:]

    def weights(self, gramian: Tensor) -> Tensor:
        if len(self.history) < 2:
            return super().weights(gramian)
        before, last = self.history
        return super().weights(gramian) * torch.tensor([last[task] / before[task] for task in last])


@breaks("its state survives saving")
class LosesTheSum(PCGrad):
    """Adds up what happens in an epoch, in a number that is lost with a checkpoint in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.register_buffer("factor", torch.ones(()))

    def weights(self, gramian: Tensor) -> Tensor:
        self.total += float(gramian.trace())
        return super().weights(gramian) * self.factor

    def epoch_ended(self, *, epoch: int, losses: dict[str, float]) -> None:
        self.factor.fill_(1 / (1 + self.total))
        self.total = 0.0


@breaks("its state is tensors")
class Pickled(PCGrad):
    """Saves an object."""

    def get_extra_state(self) -> Any:
        return self.reduction

    def set_extra_state(self, state: Any) -> None:
        self.reduction = state


@breaks("its state is tensors")
class KeepsTheGraph(PCGrad):
    """Learns a factor, and keeps in a buffer how it came about."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.ones(()))

    def weights(self, gramian: Tensor) -> Tensor:
        self.mean = (self.mean + self.factor) / 2
        return super().weights(gramian) * self.mean.detach()


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_mutant_is_caught(mutant: type[Component], law: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[mutant.kind, law](mutant)


def test_every_law_has_a_mutant() -> None:
    own = {key for key, law in LAWS.items() if law.holds not in general.LAWS}
    assert own == {(mutant.kind, law) for mutant, law in MUTANTS}


def test_a_combiner_whose_state_is_lost_is_told_with_both_values() -> None:
    with pytest.raises(AssertionError) as caught:
        check(Moody)
    place = r"at \[\d+\] it is -?\d+\.\d+ and not -?\d+\.\d+"
    told = r"with 3 tasks, state taken after 2 epochs: in the next update a restored combiner gives other parameters: "
    assert re.search(f"'its state survives saving': {told}{place}", str(caught.value))


def test_a_combiner_in_which_order_counts_says_so() -> None:
    class InOrder(ByPlace):  # type: ignore[misc, valid-type]
        """Weighs tasks by their place."""

        name = "in_order"
        ordered = True

    check(InOrder)
