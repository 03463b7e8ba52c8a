"""Laws of gradient combiners, tried on the optimizer steps of a small model."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from taskloom.core.combiner import GradientCombiner, Step
from taskloom.core.errors import TrainingError
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.learning import NewTrial, Trial, laws_of_learning
from taskloom.core.testing.require import new_generator, require_finite, require_same, require_zero_mean
from taskloom.core.testing.specimens import Specimen

_SEEDS = 48


class SmallStep(Step):
    """A step over a small model: an embedding table and a layer that all tasks share, one head per task.

    ``spoilt`` names a task whose gradient is not finite; ``order`` is that of the tasks.
    """

    def __init__(
        self,
        count: int,
        spoilt: str | None = None,
        *,
        order: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        draws = new_generator(7)
        names = tuple(f"task{k}" for k in range(count))
        self.tasks = names if order is None else tuple(names[k] for k in order)
        self.spoilt = spoilt
        self.shared = [
            nn.Parameter(torch.randn(40, 4, generator=draws).to(device, dtype)),
            nn.Parameter(torch.randn(4, 4, generator=draws).to(device, dtype)),
        ]
        self.heads = {
            task: nn.Parameter(torch.randn(4, generator=draws).to(device, dtype)) for task in (*names, "absent")
        }
        self.ids = {task: torch.randint(40, (5,), generator=draws).to(device) for task in self.heads}
        self.seen: list[dict[str, Tensor | None]] = []  # the heads' gradients at each apply

    def loss(self, task: str) -> Tensor:
        table, layer = self.shared
        states = (nn.functional.embedding(self.ids[task], table, sparse=True) @ layer).tanh()  # [5, 4]
        return (states @ self.heads[task]).sin().add(1.5).sum()  # above zero, as losses are

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.heads[task]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.loss(task)
        torch.autograd.backward(loss * scale)
        if task == self.spoilt and self.shared[1].grad is not None:
            self.shared[1].grad[0, 0] = float("nan")
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        with torch.no_grad():
            return self.loss(task)

    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        pass

    def apply(self) -> None:
        self.seen.append({task: None if p.grad is None else p.grad.clone() for task, p in self.heads.items()})
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.grad is not None:
                    require(not parameter.grad.is_sparse, "a gradient is sparse when the step is applied")
                    parameter.sub_(parameter.grad, alpha=0.05)
                parameter.grad = None

    def values(self) -> Tensor:
        """All parameters in a row."""
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters()])

    def parameters(self) -> list[nn.Parameter]:
        """All parameters, the shared ones first."""
        return [*self.shared, *self.heads.values()]


def _prepared(specimen: Specimen, tasks: Sequence[str], seed: int = 0) -> GradientCombiner:
    combiner: GradientCombiner = specimen.make()
    combiner.prepare(tasks=tasks)
    bind_generator(combiner, new_generator(seed))
    return combiner


def _takes(specimen: Specimen, count: int) -> bool:
    """Whether its options fit this number of tasks; a combiner may refuse them beforehand."""
    return not specimen.make().problems(SmallStep(count).tasks)


def _counts(specimen: Specimen) -> list[tuple[str, int]]:
    counts = (3,) if specimen.edge else (1, 2, 3, 4)
    return [(f"{count} task{'s' if count > 1 else ''}", count) for count in counts if _takes(specimen, count)]


def _several(specimen: Specimen) -> list[tuple[str, int]]:
    """Three tasks, or the nearest number that it accepts."""
    return sorted(_counts(specimen), key=lambda pair: abs(pair[1] - 3))[:1]


def _updated(specimen: Specimen, step: SmallStep, seed: int = 3) -> tuple[GradientCombiner, Tensor]:
    combiner = _prepared(specimen, step.tasks, seed)
    combiner.update(step)
    return combiner, step.values()


def _gramians(count: int) -> Iterator[tuple[str, Tensor]]:
    jacobian = torch.randn(count, 3, generator=new_generator(count), dtype=torch.float64)
    first_zero = jacobian.clone()
    first_zero[0] = 0
    opposite = jacobian[:1] * torch.tensor([(-1.0) ** k for k in range(count)])[:, None]
    yield "random gradients", jacobian @ jacobian.T
    yield "zero gradients", torch.zeros(count, count).double()
    yield "a first gradient of zero", first_zero @ first_zero.T
    yield "opposite gradients", opposite @ opposite.T
    yield "gradients of 1e4", 1e8 * jacobian @ jacobian.T
    yield "gradients of 1e-12", 1e-24 * jacobian @ jacobian.T


@law("combiner", cases=_counts, at_edges=True)
def weights_are_one_finite_number_per_task(specimen: Specimen, count: int) -> None:
    if specimen.component.weights is GradientCombiner.weights:  # type: ignore[attr-defined]
        return  # the combiner has an update of its own
    for words, gramian in _gramians(count):
        with given(words):
            before = gramian.clone()
            weights = _prepared(specimen, SmallStep(count).tasks).weights(gramian)
            require(weights.shape == (count,), f"weights should be [{count}]. Found {list(weights.shape)}.")
            require_finite(weights, "a weight")
            require(gramian.equal(before), "the Gramian was written to")


@law("combiner", cases=_counts, at_edges=True)
def an_update_moves_the_shared_parameters(specimen: Specimen, count: int) -> None:
    step = SmallStep(count)
    before = [parameter.detach().clone() for parameter in step.shared]
    losses = {task: step.evaluate(task) for task in step.tasks}
    returned = _prepared(specimen, step.tasks).update(step)
    words = f"update should return the loss of each task. Found {sorted(returned)}."
    require(set(returned) == set(step.tasks), words)
    wrong = [task for task in step.tasks if abs(float(returned[task] - losses[task])) > 1e-5]
    require(not wrong, f"the losses returned for {wrong} are not those of the batch")
    for parameter, old in zip(step.shared, before, strict=True):
        require_finite(parameter.detach(), "a shared parameter after the step")
        require(not parameter.equal(old) or specimen.edge, "a shared parameter did not move")


@law("combiner", cases=_counts)
def a_head_learns_from_its_own_task_only(specimen: Specimen, count: int) -> None:
    step = SmallStep(count)
    own = {t: torch.autograd.grad(step.loss(t), step.heads[t])[0] for t in step.tasks}
    _prepared(specimen, step.tasks).update(step)
    require(bool(step.seen), "update did not apply the step")
    require(step.seen[0]["absent"] is None, "the head of a task outside the step got a gradient")
    for task in step.tasks:
        gradient = step.seen[0][task]
        if gradient is None:
            raise AssertionError(f"the head of {task!r} got no gradient")
        share = (gradient @ own[task]) / (own[task] @ own[task])
        rest = (gradient - share * own[task]).norm() / own[task].norm()
        message = f"the gradient of the head of {task!r} is not a positive multiple of its own task's"
        require(float(rest) < 1e-5 and float(share) >= 0, message)


@law("combiner")
def the_order_of_tasks_does_not_matter(specimen: Specimen) -> None:
    """The update does not depend on it, or where numbers are drawn its mean does not."""
    for order in ((1, 0), (2, 0, 1)):
        if not _takes(specimen, len(order)):
            continue
        with given(f"tasks in the order {list(order)}"):
            combiner, straight = _updated(specimen, SmallStep(len(order)))
            _, other = _updated(specimen, SmallStep(len(order), order=order))
            source = combiner.generator
            if source is None or source.get_state().equal(new_generator(3).get_state()):
                require_same(other, straight, "another order gives another update", within=1e-4)
            else:
                _require_same_mean(specimen, order)


def _require_same_mean(specimen: Specimen, order: Sequence[int]) -> None:
    gaps = torch.stack(
        [
            _updated(specimen, SmallStep(len(order), order=order), seed=seed)[1]
            - _updated(specimen, SmallStep(len(order)), seed=1000 + seed)[1]
            for seed in range(_SEEDS)
        ]
    )  # [seeds, parameters]
    require_zero_mean(gaps, "another order gives another update")


@law("combiner", cases=_several)
def a_gradient_that_is_not_finite_names_its_task(specimen: Specimen, count: int) -> None:
    step = SmallStep(count, spoilt=(task := f"task{count - 1}"))
    with given(f"NaN in the gradient of {task!r}"):
        try:
            _prepared(specimen, step.tasks).update(step)
        except TrainingError as error:
            require(task in str(error), f"the message should name {task!r}. Found {str(error)!r}.")
        else:
            raise AssertionError("the update raised no TrainingError")


class CombinerTrial(Trial):
    """A combiner and a small model, which it updates twice in each step."""

    def __init__(self, specimen: Specimen, count: int, seed: int = 0) -> None:
        self.specimen, self.step = specimen, SmallStep(count)
        self.combiner = _prepared(specimen, self.step.tasks, seed)

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.combiner,)

    def run(self, step: int, *, training: bool) -> Tensor:
        for update in (0, 1) if training else ():
            bind_generator(self.combiner, new_generator(2 * step + update))
            self.combiner.update(self.step)
        return self.step.values()

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.step = SmallStep(len(self.step.tasks), device=device)

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Losses fall at another rate for each task and each epoch."""
        losses = {task: (1.5 + k) / epoch + k * 0.1 for k, task in enumerate(self.step.tasks)}
        self.combiner.epoch_ended(epoch=epoch, losses=losses)
        return self.combiner.metrics()

    def restore(self, other: Trial) -> None:
        super().restore(other)
        self.step = copy.deepcopy(other.step)  # type: ignore[attr-defined]

    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """With parameters and gradients in bfloat16."""
        low, high = (SmallStep(len(self.step.tasks), dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
        for half, whole in zip(low.parameters(), high.parameters(), strict=True):
            whole.data.copy_(half.data)
        return _updated(self.specimen, low)[1], _updated(self.specimen, high)[1], None


def _trials(specimen: Specimen) -> Iterator[tuple[str, NewTrial]]:
    yield from ((words, partial(CombinerTrial, specimen, count)) for words, count in _several(specimen))


laws_of_learning("combiner", _trials)
