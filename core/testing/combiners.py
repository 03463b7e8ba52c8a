"""Laws of gradient combiners."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from taskloom.core.combiner import GradientCombiner
from taskloom.core.errors import TrainingError
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import Subject, generator, given, require, untouched_randomness

COUNTS = (1, 2, 3, 4)


class SmallStep:
    """A step over a small model: a table of embeddings and a layer that all tasks share, one head per task.

    ``spoilt`` names a task whose gradient is not finite.
    """

    def __init__(self, count: int, spoilt: str | None = None) -> None:
        draws = generator(7)
        self.tasks: Sequence[str] = tuple(f"task{k}" for k in range(count))
        self.spoilt = spoilt
        self.shared = [
            nn.Parameter(torch.randn(40, 4, generator=draws)),
            nn.Parameter(torch.randn(4, 4, generator=draws)),
        ]
        self.heads = {task: nn.Parameter(torch.randn(4, generator=draws)) for task in (*self.tasks, "absent")}
        self.ids = {task: torch.randint(40, (5,), generator=draws) for task in self.heads}
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

    def apply(self) -> None:
        self.seen.append({task: None if p.grad is None else p.grad.clone() for task, p in self.heads.items()})
        with torch.no_grad():
            for parameter in [*self.shared, *self.heads.values()]:
                if parameter.grad is not None:
                    require(not parameter.grad.is_sparse, "a gradient is sparse when the step is applied")
                    parameter.sub_(parameter.grad, alpha=0.05)
                parameter.grad = None


def _prepared(subject: Subject, count: int, seed: int = 0) -> GradientCombiner:
    combiner: GradientCombiner = subject.make()
    combiner.prepare(tasks=SmallStep(count).tasks)
    bind_generator(combiner, generator(seed))
    return combiner


def _after(combiner: GradientCombiner, step: SmallStep, updates: int) -> list[Tensor]:
    for _ in range(updates):
        combiner.update(step)
    return [parameter.detach().clone() for parameter in [*step.shared, *step.heads.values()]]


def weights_are_one_finite_number_per_task(subject: Subject) -> None:
    if subject.component.weights is GradientCombiner.weights:  # type: ignore[attr-defined]
        return  # the combiner has an update of its own
    for count in COUNTS:
        jacobian = torch.randn(count, 3, generator=generator(count), dtype=torch.float64)
        for words, gramian in (
            ("random gradients", jacobian @ jacobian.T),
            ("zero gradients", torch.zeros(count, count).double()),
        ):
            with given(f"{count} tasks, {words}"), untouched_randomness():
                given_gramian = gramian.clone()
                weights = _prepared(subject, count).weights(gramian)
                require(weights.shape == (count,), f"weights should be [{count}]. Found {list(weights.shape)}.")
                require(bool(weights.isfinite().all()), f"weights are {weights.tolist()}")
                require(gramian.equal(given_gramian), "the Gramian was written to")
                again = _prepared(subject, count).weights(gramian)
                require(weights.equal(again), "the same seed gives other weights")


def an_update_moves_the_shared_parameters(subject: Subject) -> None:
    for count in COUNTS:
        with given(f"{count} tasks"):
            step = SmallStep(count)
            before = [parameter.detach().clone() for parameter in step.shared]
            losses = {task: step.evaluate(task) for task in step.tasks}
            found = _prepared(subject, count).update(step)
            require(
                set(found) == set(step.tasks), f"update should return the loss of each task. Found {sorted(found)}."
            )
            wrong = [task for task in step.tasks if abs(float(found[task] - losses[task])) > 1e-5]
            require(not wrong, f"the losses returned for {wrong} are not those of the batch")
            moved = all(not p.equal(b) and p.isfinite().all() for p, b in zip(step.shared, before, strict=True))
            require(moved, "a shared parameter did not move, or is not finite")


def a_head_learns_from_its_own_task_only(subject: Subject) -> None:
    for count in COUNTS:
        with given(f"{count} tasks"):
            step = SmallStep(count)
            own = {t: torch.autograd.grad(step.loss(t), step.heads[t])[0] for t in step.tasks}
            _prepared(subject, count).update(step)
            require(bool(step.seen), "update did not apply the step")
            require(step.seen[0]["absent"] is None, "the head of a task outside the step got a gradient")
            for task in step.tasks:
                found = step.seen[0][task]
                if found is None:
                    raise AssertionError(f"the head of {task!r} got no gradient")
                share = (found @ own[task]) / (own[task] @ own[task])
                rest = (found - share * own[task]).norm() / own[task].norm()
                message = f"the head of {task!r} got a gradient that is no positive multiple of its own task's"
                require(float(rest) < 1e-5 and float(share) >= 0, message)


def one_seed_gives_one_training(subject: Subject) -> None:
    for count in COUNTS:
        with given(f"{count} tasks, 3 updates"), untouched_randomness():
            runs = [_after(_prepared(subject, count, seed=3), SmallStep(count), 3) for _ in range(2)]
            same = all(a.equal(b) for a, b in zip(*runs, strict=True))
            require(same, "the same seed gives other parameters")


def its_state_survives_saving(subject: Subject) -> None:
    first, step = _prepared(subject, 3), SmallStep(3)
    _after(first, step, 2)
    first.epoch_ended(epoch=1, losses=dict.fromkeys(step.tasks, 0.5))
    second, copied = _prepared(subject, 3), copy.deepcopy(step)
    second.load_state_dict(first.state_dict())
    if first.generator is not None and second.generator is not None:
        second.generator.set_state(first.generator.get_state())
    same = all(a.equal(b) for a, b in zip(_after(first, step, 3), _after(second, copied, 3), strict=True))
    require(same, "a combiner that loaded the state goes on differently")


def a_gradient_that_is_not_finite_names_its_task(subject: Subject) -> None:
    step = SmallStep(3, spoilt="task1")
    try:
        _prepared(subject, 3).update(step)
    except TrainingError as error:
        require("task1" in str(error), f"the message should name 'task1'. Found {str(error)!r}.")
    else:
        raise AssertionError("with NaN in the gradient of 'task1': the update raised no TrainingError")


LAWS = (
    weights_are_one_finite_number_per_task,
    an_update_moves_the_shared_parameters,
    a_head_learns_from_its_own_task_only,
    one_seed_gives_one_training,
    its_state_survives_saving,
    a_gradient_that_is_not_finite_names_its_task,
)
