"""Laws of losses, tried on the predictions of a small model whose passes can be replayed."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

from taskloom.core.data import Labels
from taskloom.core.errors import TaskloomError
from taskloom.core.loss import Loss
from taskloom.core.prediction import Prediction, Replay
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import law, untouched_randomness
from taskloom.core.testing.require import (
    given,
    new_generator,
    require,
    require_finite,
    require_gradient,
    require_same,
    through_checkpoint,
)
from taskloom.core.testing.subjects import Subject

WIDTH, ROWS = 5, 6
EXPECTS = get_args(get_type_hints(Loss)["expects"])
_ORDER = (3, 0, 5, 1, 4, 2)
_SPLITS: tuple[tuple[int, ...], ...] = ((1, 5), (3, 3), (2, 2, 2), (1,) * ROWS)


@dataclass(frozen=True)
class Case:
    """Labels, the number of vectors per example, and what the loss looks at."""

    labels: Labels
    sequences: int
    expects: Literal["classes", "score", "vectors"]

    def __str__(self) -> str:
        low, high = self.labels.low, self.labels.high
        kind = f"labels of {self.labels.classes} classes" if self.labels.classes else f"labels from {low:g} to {high:g}"
        vectors = f"{self.sequences} vector{'s' if self.sequences > 1 else ''} per example"
        return f"{kind if high > low else 'no labels'}, {vectors}"

    def embedded(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Input embeddings, [S·B, d]."""
        return self._draw(1, self.sequences * ROWS, WIDTH).to(dtype)

    def target(self, rows: Tensor) -> Tensor:
        place = torch.rand(ROWS, generator=new_generator(2))[rows]
        if self.labels.classes:
            return (place * self.labels.classes).long()
        return self.labels.low + place * (self.labels.high - self.labels.low)

    def layer(self) -> Tensor:
        return self._draw(3, self.sequences * WIDTH, self.labels.classes if self.expects == "classes" else 1)

    def _draw(self, seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=new_generator(seed), dtype=torch.float64)


class Pass(nn.Module):
    """A model that is linear in its embeddings [S·B, d].

    ``changes`` are what an earlier pass added to the embeddings, replay by replay. They are put in the place of what
    is added now (its gradient still flows), so that two passes differ in nothing but what the law changed.
    """

    def __init__(self, case: Case, embedded: Tensor, rows: Tensor, changes: Sequence[Tensor], part: int) -> None:
        super().__init__()
        self.case, self.embedded, self.rows, self.part = case, embedded, rows, part
        self.layer = nn.Parameter(case.layer().to(embedded.dtype))
        self.given, self.made = changes, list[Tensor]()

    def forward(self, start: Tensor | None) -> Prediction:
        start = self.embedded if start is None else self._held(start)
        vectors = start.view(self.case.sequences, -1, WIDTH)  # [S, B, d]
        score = torch.cat(tuple(vectors), -1) @ self.layer  # [B, outputs]
        score = score if self.case.expects == "classes" else score[:, 0]
        return Prediction(score, vectors, self.rows, Replay(start, self), self.part)

    def _held(self, start: Tensor) -> Tensor:
        self.made.append((start - self.embedded).detach().double())
        if len(self.made) > len(self.given):
            return start
        held = self.embedded + self.given[len(self.made) - 1].to(start.dtype)
        return start + (held - start).detach()


@dataclass(frozen=True)
class Ran:
    """What a pass gave: the loss, what it added to embeddings, and whether it drew numbers."""

    value: Tensor
    changes: list[Tensor]
    drew: bool


@dataclass(frozen=True)
class Trial:
    """A loss that is prepared for one case."""

    subject: Subject
    case: Case
    dtype: torch.dtype = torch.float32
    loss: Loss = field(init=False)

    def __post_init__(self) -> None:
        loss: Loss = self.subject.make()
        loss.prepare(labels=self.case.labels, rows=ROWS)
        object.__setattr__(self, "loss", loss.train())

    def run(
        self,
        embedded: Tensor | None = None,
        rows: Sequence[int] = range(ROWS),
        *,
        changes: Sequence[Tensor] = (),
        seed: int = 4,
        part: int = 0,
        loss: Loss | None = None,
    ) -> Ran:
        """The loss of the examples named by ``rows`` (in this order); ``changes`` are those of all examples.

        It is that of a copy, so that no pass changes the state for the next, unless a ``loss`` is given.
        """
        loss, index, source = loss or self.copied(), torch.tensor(rows), new_generator(seed)
        start = self._taken(self.case.embedded(self.dtype), index) if embedded is None else embedded
        model = Pass(self.case, start, index, [self._taken(change, index) for change in changes], part)
        bind_generator(loss, source)
        before = source.get_state()
        value = loss(model(None), self.case.target(index))
        require(isinstance(value, Tensor), f"the loss should be a tensor. Found {type(value).__name__}.")
        bind_generator(loss, None)
        return Ran(value, model.made, not source.get_state().equal(before))

    def copied(self) -> Loss:
        """The loss as it was prepared; its state stays in the precision it chose itself, but for float64."""
        loss = copy.deepcopy(self.loss)
        return loss.double() if self.dtype is torch.float64 else loss

    def train(self, step: int) -> Tensor:
        """The loss of a step of training; each step has embeddings of its own."""
        embedded = (self.case.embedded() * (1 + 0.3 * step)).requires_grad_()
        value = self.run(embedded, seed=4 + step, loss=self.loss).value
        if value.requires_grad:
            torch.autograd.backward(value)
        return value.detach()

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """What the loss reports after an epoch of training."""
        self.loss.epoch_ended(epoch=epoch, score=0.7 / epoch + 0.1 * (epoch % 2))
        return self.loss.metrics()

    def _taken(self, every: Tensor, index: Tensor) -> Tensor:
        return every.view(self.case.sequences, ROWS, WIDTH)[:, index].flatten(0, 1)


def _trials(subject: Subject) -> Iterator[tuple[str, Trial]]:
    """The loss in every case that it takes; refusing some, with a message of ours, breaks no law."""
    taken, refused = 0, []
    for case in _cases(subject.make()):
        with given(str(case)):
            try:
                trial = Trial(subject, case)
                trial.run()
            except TaskloomError as error:
                refused.append(f"{case} ({error})")
                continue
        taken += 1
        yield str(case), trial
        if subject.edge and taken == 2:
            break
    require(bool(taken) or subject.edge, f"the loss refuses every input: {'; '.join(refused)}")


def _cases(loss: Loss) -> list[Case]:
    """Every kind of labels with two vectors (or as many as the loss works with), every number with the first kind."""
    counts = tuple(loss.vectors or (2, 1, 3))
    kinds = [Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 1)]
    if loss.expects == "classes":
        kinds = [Labels.of_classes(3), Labels.of_classes(2)]
    elif loss.expects == "vectors":
        kinds.append(Labels.of_range(0, 0))
    first = [(kind, counts[0]) for kind in kinds]
    pairs = first + [(kind, count) for kind in (kinds[0], kinds[-1]) for count in counts]
    return [Case(kind, count, loss.expects) for kind, count in dict.fromkeys(pairs)]


@law("loss", cases=_trials, at_edges=True)
def it_is_one_finite_number_with_a_finite_gradient(_: Subject, trial: Trial) -> None:
    """For extreme scores and a batch of one, too; and it looks at what it says it ``expects``."""
    expects, whole, every = trial.loss.expects, trial.case.embedded(), range(ROWS)
    require(expects in EXPECTS, f"expects should be one of {', '.join(EXPECTS)}. Found {expects!r}.")
    for words, start, rows in (
        (f"{ROWS} examples", whole, every),
        ("1 example", whole[::ROWS], [0]),
        ("embeddings times 1e4", 1e4 * whole, every),
        ("embeddings of zero", 0 * whole, every),
    ):
        with given(words):
            x = start.detach().requires_grad_()
            value = trial.run(x, rows).value
            require(value.shape == (), f"the loss should be a scalar. Found shape {list(value.shape)}.")
            require_finite(value, "the loss")
            if value.requires_grad:  # a batch that costs nothing may have no gradient
                require_finite(torch.autograd.grad(value, x, materialize_grads=True)[0], "its gradient")


@law("loss", cases=_trials, at_edges=True)
def its_gradient_is_that_of_finite_differences(_: Subject, trial: Trial) -> None:
    """What the loss itself adds to the embeddings before a replay counts as a constant, as in adversarial training.

    A loss that says ``stops_gradient`` has a gradient that is not that of its value, and need only have one.
    """
    with given("in float64"):
        trial = replace(trial, dtype=torch.float64)
        x = trial.case.embedded(torch.float64).requires_grad_()
        first = trial.run(x)
        if trial.loss.stops_gradient:
            require(first.value.requires_grad, "no gradient flows back")
            return
        hint = "; if a part of it is detached on purpose, set stops_gradient = True"
        require_gradient(lambda: trial.run(x, changes=first.changes).value, {"embeddings": x}, hint)


@law("loss", cases=_trials)
def the_order_of_examples_does_not_matter(_: Subject, trial: Trial) -> None:
    """Where a loss draws numbers for each example, the mean over many seeds does not depend on the order."""
    first = trial.run()
    if not first.drew or first.changes:
        moved = trial.run(rows=_ORDER, changes=first.changes)
        require_same(moved.value, first.value, "a permuted batch has another loss", within=1e-5)
        return
    orders = (range(ROWS), _ORDER)
    pairs = [[trial.run(rows=rows, seed=seed).value.item() for rows in orders] for seed in range(64)]
    gaps = torch.tensor(pairs).diff(dim=1)[:, 0]
    error = gaps.std().item() / math.sqrt(len(gaps))
    words = f"over {len(gaps)} seeds a permuted batch has another mean loss, by {gaps.mean():.3g} ± {error:.2g}"
    require(abs(gaps.mean().item()) <= 5 * error + 1e-6, words)


@law("loss", cases=_trials)
def the_loss_of_a_batch_is_not_a_sum(_: Subject, trial: Trial) -> None:
    """A loss that grows with the batch would weigh a task by its batch size."""
    first = trial.run()
    whole, sums = first.value.item(), []
    for sizes in _SPLITS:
        parts = torch.split(torch.arange(ROWS), list(sizes))
        sums.append(sum(trial.run(rows=part.tolist(), changes=first.changes).value.item() for part in parts))
    is_sum = abs(whole) > 1e-3 and all(_near(total, whole) for total in sums)
    require(not is_sum, f"the loss ({whole:.6g}) is the sum over parts of the batch; take the mean over examples")
    if not trial.loss.separable and not first.drew:
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
    words = f"batches of 2, 4 and 6 examples have losses of {two:.6g}, {four:.6g} and {six:.6g} on average"
    grows = grows and twice > 1.5 * once
    require(not grows, f"{words}: they grow faster than the batch; take the mean over examples")


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= 2e-5 * max(1.0, abs(other))


@law("loss", cases=_trials)
def a_separable_loss_is_the_mean_over_its_examples(_: Subject, trial: Trial) -> None:
    """``separable`` promises that micro-batches can be summed: each example's loss does not depend on the others.

    Nor does its state: what moves once per batch moves with the first part.
    """
    whole = trial.copied()
    first = trial.run(loss=whole)
    alone = first.drew and not first.changes  # numbers that are drawn for a part are not those of the whole
    for sizes in () if alone or not trial.loss.separable else _SPLITS:
        with given(f"parts of {list(sizes)} examples"):
            loss, mean = trial.copied(), 0.0
            for part, rows in enumerate(torch.split(torch.arange(ROWS), list(sizes))):
                ran = trial.run(rows=rows.tolist(), changes=first.changes, part=part, loss=loss)
                mean += len(rows) * ran.value.item() / ROWS
            for name, buffer in loss.named_buffers():
                words = f"buffer {name!r} is not as after the whole batch; move it where prediction.part is 0"
                require_same(buffer.double(), whole.get_buffer(name).double(), words, within=1e-5)
            require(
                _near(mean, first.value.item()), f"the loss is {first.value.item():.7g}, the parts' mean {mean:.7g}"
            )


@law("loss", cases=_trials)
def it_works_in_half_precision(_: Subject, trial: Trial) -> None:
    """bfloat16 as in training, where autocast hands over what the head made."""
    first, x = trial.run(), trial.case.embedded(torch.bfloat16).requires_grad_()
    with given("in bfloat16"):
        with torch.autocast("cpu", torch.bfloat16):
            value = trial.run(x, changes=first.changes).value
        require_same(value.float(), first.value, "it differs from float32", within=0.1)
        if value.requires_grad:
            require_finite(torch.autograd.grad(value, x, materialize_grads=True)[0], "its gradient")


@law("loss", cases=_trials, at_edges=True)
def its_randomness_comes_from_its_generator(_: Subject, trial: Trial) -> None:
    """The same seed gives the same loss, and no global random state is touched."""
    losses: list[Tensor] = []
    with untouched_randomness():
        for again in (replace(trial), replace(trial)):
            losses.append(again.train(1))
            again.end_epoch(1)
    require_same(losses[1], losses[0], "the same seed gives another loss")


@law("loss", cases=_trials)
def it_leaves_prediction_and_target_as_they_are(_: Subject, trial: Trial) -> None:
    rows = torch.arange(ROWS)
    bind_generator(trial.loss, new_generator(4))
    prediction = Pass(trial.case, trial.case.embedded(), rows, (), 0)(None)
    shown = {"score": prediction.score, "vectors": prediction.vectors, "rows": rows, "target": trial.case.target(rows)}
    before = {name: tensor.detach().clone() for name, tensor in shown.items()}
    trial.loss(prediction, shown["target"])
    for name, tensor in shown.items():
        require_same(tensor, before[name], f"the {name} was written to")


@law("loss", cases=_trials)
def its_state_survives_saving(_: Subject, trial: Trial) -> None:
    """State goes through the bytes of a checkpoint, after an epoch or within one, into a new loss that goes on.

    Nothing else may be carried from step to step, the graph of an earlier one least of all.
    """
    for words, more in (("2 epochs", 0), ("2 epochs and a step", 1)):
        with given(f"state taken after {words}"):
            first, second = replace(trial), replace(trial)
            for epoch in (1, 2):
                first.train(epoch)
                first.end_epoch(epoch)
            for step in range(more):
                first.train(3 + step)
            second.loss.load_state_dict(through_checkpoint(first.loss))
            for epoch in (3, 4, 5):
                found, expected = second.train(epoch), first.train(epoch)
                require_same(found, expected, f"in epoch {epoch} a restored loss gives another value")
                figures = first.end_epoch(epoch)
                require(second.end_epoch(epoch) == figures, f"in epoch {epoch} a restored loss gives other metrics")
                sound = all(isinstance(value, int | float) and math.isfinite(value) for value in figures.values())
                require(sound, f"metrics() should map names to finite numbers. Found {figures}.")
