"""Laws of gradient combiners."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taskloom.core.combiner import GradientCombiner
from taskloom.core.errors import TrainingError
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import (
    Subject,
    at_edges,
    generator,
    given,
    require,
    require_close,
    require_equal,
    require_finite,
    untouched_randomness,
)
from taskloom.core.testing.states import require_no_graph, written
from taskloom.core.testing.steps import SmallStep

COUNTS = (1, 2, 3, 4)
_SEEDS = 48


def _prepared(subject: Subject, tasks: Sequence[str], seed: int = 0) -> GradientCombiner:
    combiner: GradientCombiner = subject.make()
    combiner.prepare(tasks=tasks)
    bind_generator(combiner, generator(seed))
    return combiner


def _counts(subject: Subject) -> tuple[int, ...]:
    """The numbers of tasks that the combiner takes; it may say beforehand that its options do not go with some."""
    counts = (3,) if subject.quick else COUNTS
    return tuple(count for count in counts if not subject.make().problems(SmallStep(count).tasks))


def _updated(subject: Subject, step: SmallStep, updates: int = 1, seed: int = 3) -> tuple[GradientCombiner, Tensor]:
    combiner = _prepared(subject, step.tasks, seed)
    for _ in range(updates):
        combiner.update(step)
    return combiner, step.values()


def _gramians(count: int) -> Iterator[tuple[str, Tensor]]:
    jacobian = torch.randn(count, 3, generator=generator(count), dtype=torch.float64)
    first_zero = jacobian.clone()
    first_zero[0] = 0
    opposite = jacobian[:1] * torch.tensor([(-1.0) ** k for k in range(count)])[:, None]
    yield "random gradients", jacobian @ jacobian.T
    yield "zero gradients", torch.zeros(count, count).double()
    yield "a first gradient of zero", first_zero @ first_zero.T
    yield "opposite gradients", opposite @ opposite.T
    yield "gradients of 1e4", 1e8 * jacobian @ jacobian.T
    yield "gradients of 1e-12", 1e-24 * jacobian @ jacobian.T


@at_edges
def weights_are_one_finite_number_per_task(subject: Subject) -> None:
    if subject.component.weights is GradientCombiner.weights:  # type: ignore[attr-defined]
        return  # the combiner has an update of its own
    for count in _counts(subject):
        for words, gramian in _gramians(count):
            with given(f"{count} tasks, {words}"), untouched_randomness():
                given_gramian = gramian.clone()
                weights = _prepared(subject, SmallStep(count).tasks).weights(gramian)
                require(weights.shape == (count,), f"weights should be [{count}]. Found {list(weights.shape)}.")
                require_finite(weights, "a weight")
                require(gramian.equal(given_gramian), "the Gramian was written to")


@at_edges
def an_update_moves_the_shared_parameters(subject: Subject) -> None:
    for count in _counts(subject):
        with given(f"{count} tasks"):
            step = SmallStep(count)
            before = [parameter.detach().clone() for parameter in step.shared]
            losses = {task: step.evaluate(task) for task in step.tasks}
            found = _prepared(subject, step.tasks).update(step)
            words = f"update should return the loss of each task. Found {sorted(found)}."
            require(set(found) == set(step.tasks), words)
            wrong = [task for task in step.tasks if abs(float(found[task] - losses[task])) > 1e-5]
            require(not wrong, f"the losses returned for {wrong} are not those of the batch")
            for parameter, then in zip(step.shared, before, strict=True):
                require_finite(parameter.detach(), "a shared parameter after the step")
                require(not parameter.equal(then) or subject.quick, "a shared parameter did not move")


def a_head_learns_from_its_own_task_only(subject: Subject) -> None:
    for count in _counts(subject):
        with given(f"{count} tasks"):
            step = SmallStep(count)
            own = {t: torch.autograd.grad(step.loss(t), step.heads[t])[0] for t in step.tasks}
            _prepared(subject, step.tasks).update(step)
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


def the_order_of_tasks_does_not_matter(subject: Subject) -> None:
    """Permuting tasks permutes their weights: the update stays the same, or where numbers are drawn its mean does."""
    if getattr(subject.component, "ordered", False):
        return
    for order in ((1, 0), (2, 0, 1)):
        if len(order) not in _counts(subject):
            continue
        with given(f"tasks in the order {list(order)}"):
            combiner, straight = _updated(subject, SmallStep(len(order)))
            _, other = _updated(subject, SmallStep(len(order), order=order))
            source = combiner.generator
            if source is None or source.get_state().equal(generator(3).get_state()):
                require_close(other, straight, "another order gives another update", within=1e-4)
            else:
                _require_same_mean(subject, order)


def _require_same_mean(subject: Subject, order: Sequence[int]) -> None:
    gaps = torch.stack(
        [
            _updated(subject, SmallStep(len(order), order=order), seed=seed)[1]
            - _updated(subject, SmallStep(len(order)), seed=1000 + seed)[1]
            for seed in range(_SEEDS)
        ]
    )  # [seeds, parameters]
    error = gaps.std(0) / math.sqrt(_SEEDS)
    excess = (gaps.mean(0).abs() - 5.5 * error).max().item()
    require(excess <= 1e-4, f"over {_SEEDS} seeds, another order gives another mean update, by {excess:.3g}")


def larger_gradients_make_an_equally_larger_update(subject: Subject) -> None:
    """For a combiner that says so (``scales``): c times all gradients, c times the update."""
    if not getattr(subject.component, "scales", False):
        return
    for count in _counts(subject):
        plain = _updated(subject, SmallStep(count))[1]
        for factor in (0.125, 8.0):
            with given(f"{count} tasks, gradients times {factor:g}"):
                scaled = _updated(subject, SmallStep(count, scale=factor))[1]
                require_close(scaled, plain, f"the update is not {factor:g} times as large", within=1e-4)


def it_works_in_bfloat16(subject: Subject) -> None:
    """Parameters and gradients of half precision give about the same update as in float32."""
    if 2 not in _counts(subject):
        return
    with given("2 tasks, parameters in bfloat16"):
        step = SmallStep(2, dtype=torch.bfloat16)
        whole = SmallStep(2)
        for low, high in zip([*step.shared, *step.heads.values()], [*whole.shared, *whole.heads.values()], strict=True):
            high.data.copy_(low.data)
        found, expected = _updated(subject, step)[1], _updated(subject, whole)[1]
        require_close(found.float(), expected, "the update differs from float32's", within=0.1)


@at_edges
def one_seed_gives_one_training(subject: Subject) -> None:
    for count in _counts(subject):
        with given(f"{count} tasks, 3 updates"):
            one, other = (_updated(subject, SmallStep(count), 3)[1] for _ in range(2))
            require_equal(other, one, "the same seed gives other parameters")


def it_touches_no_global_random_state(subject: Subject) -> None:
    for count in _counts(subject):
        with given(f"{count} tasks"), untouched_randomness():
            _updated(subject, SmallStep(count))


def _train_epochs(combiner: GradientCombiner, step: SmallStep, *epochs: int) -> None:
    """Two updates in each epoch; what the losses fall by is another share for each task and each epoch."""
    for epoch in epochs:
        combiner.update(step)
        combiner.update(step)
        losses = {task: (1.5 + place) / epoch + place * 0.1 for place, task in enumerate(step.tasks)}
        combiner.epoch_ended(epoch=epoch, losses=losses)


def its_state_survives_saving(subject: Subject) -> None:
    """State of two epochs goes through the bytes of a checkpoint; a new combiner goes on with it as the first does."""
    for count in [count for count in (3, 2) if count in _counts(subject)][:1]:
        for words, more in (("2 epochs", 0), ("2 epochs and an update", 1)):
            step = SmallStep(count)
            first = _prepared(subject, step.tasks, 3)
            _train_epochs(first, step, 1, 2)
            for _ in range(more):
                first.update(step)
            second, copied = _prepared(subject, step.tasks), copy.deepcopy(step)
            with given(f"{count} tasks, state taken after {words}"):
                second.load_state_dict(written(first))
                if first.generator is not None and second.generator is not None:
                    second.generator.set_state(first.generator.get_state())
                _require_same_course(first, step, second, copied)


def _require_same_course(first: GradientCombiner, step: SmallStep, second: GradientCombiner, copied: SmallStep) -> None:
    """Two combiners do the same in an update, and in the two epochs that follow."""
    first.update(step)
    second.update(copied)
    require_equal(copied.values(), step.values(), "in the next update a restored combiner gives other parameters")
    for epoch in (3, 4, 5):
        _train_epochs(first, step, epoch)
        _train_epochs(second, copied, epoch)
        require_equal(copied.values(), step.values(), f"in epoch {epoch} a restored combiner gives other parameters")


def its_state_is_tensors(subject: Subject) -> None:
    for count in _counts(subject):
        step = SmallStep(count)
        combiner = _prepared(subject, step.tasks, 3)
        with given(f"{count} tasks, after an epoch"):
            _train_epochs(combiner, step, 1)
            require_no_graph(combiner)
            written(combiner)


def a_gradient_that_is_not_finite_names_its_task(subject: Subject) -> None:
    for count in [count for count in (3, 2) if count in _counts(subject)][:1]:
        step = SmallStep(count, spoilt="task1")
        try:
            _prepared(subject, step.tasks).update(step)
        except TrainingError as error:
            require("task1" in str(error), f"the message should name 'task1'. Found {str(error)!r}.")
        else:
            raise AssertionError("with NaN in the gradient of 'task1': the update raised no TrainingError")


LAWS = (
    weights_are_one_finite_number_per_task,
    an_update_moves_the_shared_parameters,
    a_head_learns_from_its_own_task_only,
    the_order_of_tasks_does_not_matter,
    larger_gradients_make_an_equally_larger_update,
    it_works_in_bfloat16,
    one_seed_gives_one_training,
    it_touches_no_global_random_state,
    its_state_survives_saving,
    its_state_is_tensors,
    a_gradient_that_is_not_finite_names_its_task,
)
__all__ = ["LAWS", "SmallStep"]
