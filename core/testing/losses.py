"""Laws of losses."""

import math
from itertools import combinations
from typing import get_args, get_type_hints

import torch
from torch import Tensor

from taskloom.core.loss import Loss
from taskloom.core.testing.gradients import require_gradient
from taskloom.core.testing.law import (
    Subject,
    at_edges,
    given,
    require,
    require_close,
    require_equal,
    require_finite,
    untouched_randomness,
)
from taskloom.core.testing.passes import ROWS, Ran, Trial, trials
from taskloom.core.testing.states import require_no_graph, written

EXPECTS = get_args(get_type_hints(Loss)["expects"])
_ORDER = (3, 0, 5, 1, 4, 2)
_ONCE = "state that moves once per batch should move where prediction.part is 0"
_MEANT = "; if a part of it is detached on purpose, say stops_gradient = True"
_SPLITS: tuple[tuple[int, ...], ...] = ((1, 5), (3, 3), (2, 2, 2), (1,) * ROWS)


def it_says_what_it_expects(subject: Subject) -> None:
    expects = subject.make().expects
    require(expects in EXPECTS, f"expects should be one of {', '.join(EXPECTS)}. Found {expects!r}.")


@at_edges
def it_is_one_finite_number(subject: Subject) -> None:
    for trial in trials(subject):
        with given(f"{trial.case}, {ROWS} examples"):
            value = trial.run().value
            require(value.shape == (), f"the loss should be a scalar. Found shape {list(value.shape)}.")
            require_finite(value.detach(), "the loss")


def a_batch_of_one_has_a_finite_loss_and_gradient(subject: Subject) -> None:
    for trial in trials(subject):
        with given(f"{trial.case}, 1 example"):
            _require_finite_with_gradient(trial, trial.case.embedded(torch.float32)[::ROWS], (0,))


@at_edges
def extreme_scores_have_a_finite_loss_and_gradient(subject: Subject) -> None:
    for trial in trials(subject):
        for words, factor in (("embeddings times 1e4", 1e4), ("embeddings of zero", 0.0)):
            with given(f"{trial.case}, {words}"):
                _require_finite_with_gradient(trial, factor * trial.case.embedded(torch.float32))


def _require_finite_with_gradient(trial: Trial, start: Tensor, rows: tuple[int, ...] | None = None) -> None:
    x = start.to(trial.dtype).requires_grad_()
    value = trial.run(x, rows).value
    require_finite(value.detach(), "the loss")
    if value.requires_grad:  # a batch that costs nothing may have no gradient
        torch.autograd.backward(value)
    if x.grad is not None:
        require_finite(x.grad, "its gradient")


@at_edges
def its_gradient_is_that_of_finite_differences(subject: Subject) -> None:
    """What the loss itself adds to the embeddings before a replay counts as a constant, as in adversarial training.

    A loss that says ``stops_gradient`` has a gradient that is not that of its value, and need only have one.
    """
    for trial in trials(subject, torch.float64):
        with given(f"{trial.case}, in float64"):
            x = trial.case.embedded(trial.dtype).requires_grad_()
            first = trial.run(x)
            if getattr(trial.loss, "stops_gradient", False):
                require(first.value.requires_grad, "no gradient flows back")
                continue

            def value(trial: Trial = trial, x: Tensor = x, first: Ran = first) -> Tensor:
                return trial.run(x, changes=first.changes).value

            require_gradient(value, {"embeddings": x}, directions=1 if subject.quick else 3, hint=_MEANT)


def the_order_of_examples_does_not_matter(subject: Subject) -> None:
    """Where a loss draws numbers for each example, the mean over many seeds does not depend on the order."""
    for trial in trials(subject):
        with given(str(trial.case)):
            first = trial.run()
            moved = trial.run(rows=_ORDER, changes=first.changes)
            if not first.drew or first.changes:
                require_close(moved.value, first.value, "a permuted batch has another loss", within=1e-5)
                continue
            pairs = [[trial.run(rows=rows, seed=seed).value.item() for rows in (None, _ORDER)] for seed in range(64)]
            gaps = torch.tensor(pairs).diff(dim=1)[:, 0]
            error = gaps.std().item() / math.sqrt(len(gaps))
            words = f"over {len(gaps)} seeds a permuted batch has another mean loss, by {gaps.mean():.3g} ± {error:.2g}"
            require(abs(gaps.mean().item()) <= 5 * error + 1e-6, words)


def the_loss_of_a_batch_is_no_sum(subject: Subject) -> None:
    """A loss that grows with the batch would weigh a task by its batch size."""
    for trial in trials(subject):
        with given(str(trial.case)):
            whole, parts = _in_parts(trial)
            sums = all(_near(sum(values), whole) for values in parts)
            if abs(whole) > 1e-3 and sums:
                raise AssertionError(
                    f"the loss of {ROWS} examples ({whole:.6g}) is the sum of its parts' in every split, as in "
                    f"{' + '.join(f'{value:.6g}' for value in parts[0])}; take the mean over examples"
                )
            if not getattr(trial.loss, "separable", False) and not trial.run().drew:
                _require_no_faster_growth(trial)


def _require_no_faster_growth(trial: Trial) -> None:
    """A loss that looks across the batch may grow with it, but not as the sum over examples of what each one meets.

    Let Mₘ be its mean over all batches of m of the examples. More examples to be told apart make a mean over examples
    larger by less and less (log-sum-exp, largest) or by as much each time (sum): M₆ − M₄ ≤ M₄ − M₂. A sum over examples
    is m times that, so M₆ ≥ 3 M₂ and M₆ − M₄ > M₄ − M₂. Where examples look for the hardest of a kind, which a small
    batch does not have, a mean may grow as fast; but it does not when the batch is only repeated, as a sum does.
    """
    means = []
    for size in (2, 4, 6):
        found = [trial.run(rows=rows).value.item() for rows in combinations(range(ROWS), size)]
        means.append(sum(found) / len(found))
    two, four, six = means
    grows = 0 <= two < four and six >= 3 * two * (1 - 1e-5) and six - four > (four - two) + 1e-3 * six
    once, twice = (trial.run(rows=times * list(range(ROWS))).value.item() for times in (1, 2))
    grows = grows and twice > 1.5 * once
    words = f"batches of 2, 4 and 6 examples have losses of {two:.6g}, {four:.6g} and {six:.6g} on average"
    require(not grows, f"{words}: they grow faster than the batch; take the mean over examples")


def a_separable_loss_is_the_mean_over_its_examples(subject: Subject) -> None:
    """``separable`` promises that micro-batches can be summed: each example's loss does not hang on the others.

    Nor does its state: what moves once per batch moves with the first part.
    """
    for trial in trials(subject):
        first = trial.run()
        alone = first.drew and not first.changes  # numbers that are drawn for a part are not those of the whole
        if alone or not getattr(trial.loss, "separable", False):
            continue
        with given(str(trial.case)):
            whole = first.value.item()
            for sizes in _SPLITS:
                parts = trial.run_parts(sizes, changes=first.changes)
                for name, state in parts[-1].state.items():
                    words = f"{_ONCE}; after parts of {list(sizes)} examples {name!r} is not as after the whole batch"
                    require_close(state.double().nan_to_num(), first.state[name].double().nan_to_num(), words)
                mean = sum(size * part.value.item() for size, part in zip(sizes, parts, strict=True)) / ROWS
                words = f"the loss is {whole:.7g}, the mean over parts of {list(sizes)} examples {mean:.7g}"
                require(_near(mean, whole), words)


def _in_parts(trial: Trial) -> tuple[float, list[list[float]]]:
    """The loss of the whole batch, and for each split those of its parts."""
    first = trial.run()
    found = []
    for sizes in _SPLITS:
        rows = torch.split(torch.arange(ROWS), list(sizes))
        found.append([trial.run(rows=part.tolist(), changes=first.changes).value.item() for part in rows])
    return first.value.item(), found


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= 2e-5 * max(1.0, abs(other))


def it_works_in_every_precision(subject: Subject) -> None:
    """float32 as it is; bfloat16 as in training, where autocast hands over what the head made."""
    for trial in trials(subject):
        first = trial.run()
        for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
            with given(f"{trial.case}, in {str(dtype).removeprefix('torch.')}"):
                x = trial.case.embedded(dtype).requires_grad_()
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                    value = trial.to(dtype).run(x, changes=first.changes).value
                require_finite(value.detach(), "the loss")
                require_close(value, first.value, "it differs from float32", within=within)
                if value.requires_grad:
                    torch.autograd.backward(value.float())
                if x.grad is not None:
                    require_finite(x.grad, "its gradient")


@at_edges
def one_seed_gives_one_loss(subject: Subject) -> None:
    for one, other in zip(trials(subject), trials(subject), strict=True):
        with given(str(one.case)):
            require_equal(other.run().value, one.run().value, "the same seed gives another loss")


def it_touches_no_global_random_state(subject: Subject) -> None:
    for trial in trials(subject):
        with given(str(trial.case)), untouched_randomness():
            trial.train_on()
            trial.loss.epoch_ended(epoch=1, score=0.5)
    with given("a loss that is made and prepared"), untouched_randomness():
        trials(subject)


def it_leaves_prediction_and_target_as_they_are(subject: Subject) -> None:
    for trial in trials(subject):
        with given(str(trial.case)):
            ran = trial.run()
            for name, now, before in ran.inputs:
                require_equal(now, before, f"the {name} of the prediction was written to")


def one_step_of_training_follows_another(subject: Subject) -> None:
    for trial in trials(subject):
        for step in (1, 2, 3):
            with given(f"{trial.case}, step {step} of 3"):
                value = trial.train_on(step)
                if value.requires_grad:
                    torch.autograd.backward(value)
                require_no_graph(trial.loss)


def its_state_survives_saving(subject: Subject) -> None:
    """State goes through the bytes of a checkpoint, after an epoch or within one, into a new loss that goes on."""
    for words, more in (("2 epochs", 0), ("2 epochs and a step", 1)):
        for first, second in zip(trials(subject), trials(subject), strict=True):
            with given(f"{first.case}, state taken after {words}"):
                for epoch, score in ((1, 0.5), (2, 0.4)):
                    first.train_on(epoch)
                    first.loss.epoch_ended(epoch=epoch, score=score)
                for step in range(more):
                    first.train_on(3 + step)
                second.loss.load_state_dict(written(first.loss))
                for epoch, score in ((3, 0.6), (4, 0.1), (5, 0.2)):
                    found, expected = second.train_on(epoch), first.train_on(epoch)
                    require_equal(found, expected, f"in epoch {epoch} a restored loss gives another value")
                    for trial in (first, second):
                        trial.loss.epoch_ended(epoch=epoch, score=score)


def its_state_is_tensors(subject: Subject) -> None:
    for trial in trials(subject):
        with given(str(trial.case)):
            trial.train_on()
            written(trial.loss)


def its_figures_are_finite_numbers(subject: Subject) -> None:
    for trial in trials(subject):
        with given(str(trial.case)):
            trial.train_on()
            trial.loss.epoch_ended(epoch=1, score=0.5)
            for name, value in trial.loss.figures().items():
                sound = isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
                require(sound, f"figures() should map names to finite numbers. Found {name!r}: {value!r}.")


LAWS = (
    it_says_what_it_expects,
    it_is_one_finite_number,
    a_batch_of_one_has_a_finite_loss_and_gradient,
    extreme_scores_have_a_finite_loss_and_gradient,
    its_gradient_is_that_of_finite_differences,
    the_order_of_examples_does_not_matter,
    the_loss_of_a_batch_is_no_sum,
    a_separable_loss_is_the_mean_over_its_examples,
    it_works_in_every_precision,
    one_seed_gives_one_loss,
    it_touches_no_global_random_state,
    it_leaves_prediction_and_target_as_they_are,
    one_step_of_training_follows_another,
    its_state_survives_saving,
    its_state_is_tensors,
    its_figures_are_finite_numbers,
)
