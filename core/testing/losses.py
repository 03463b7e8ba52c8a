"""Laws of losses, tried on the predictions of a small model that can be replayed."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import get_args, get_type_hints

import torch
from torch import Tensor, nn

from taskloom.core.data import Labels
from taskloom.core.loss import Loss
from taskloom.core.prediction import Prediction, Replay, Replayable
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import accepted, given, law, require
from taskloom.core.testing.learning import Trial, laws_of_learning
from taskloom.core.testing.require import (
    new_generator,
    require_finite,
    require_gradient,
    require_same,
    require_zero_mean,
)
from taskloom.core.testing.specimens import Specimen

WIDTH, ROWS = 5, 6
EXPECTS = get_args(get_type_hints(Loss)["expects"])
_ORDER = (3, 0, 5, 1, 4, 2)
_SPLITS: tuple[tuple[int, ...], ...] = ((1, 5), (3, 3), (2, 2, 2), (1,) * ROWS)


class LinearModel(Replayable):
    """A model that is linear in its embeddings [S·B, d], with S vectors per example.

    ``earlier_changes`` are what an earlier run of the loss added to the embeddings, replay by replay. They replace what
    is added now (its gradient still flows), so that two runs differ in nothing but what the law changed.
    """

    def __init__(
        self, layer: Tensor, embedded: Tensor, rows: Tensor, earlier_changes: Sequence[Tensor], part: int
    ) -> None:
        super().__init__()
        self.embedded, self.rows, self.part = embedded, rows, part
        self.layer = nn.Parameter(layer.to(embedded))
        self.earlier_changes, self.changes = earlier_changes, list[Tensor]()

    def forward(self, embedded: Tensor | None) -> Prediction:
        start = self.embedded if embedded is None else self._with_earlier_change(embedded)
        vectors = start.view(-1, len(self.rows), WIDTH)  # [S, B, d]
        score = torch.cat(tuple(vectors), -1) @ self.layer  # [B, outputs], or [B]
        return Prediction(score, vectors, self.rows, Replay(start, self), self.part)

    def _with_earlier_change(self, embedded: Tensor) -> Tensor:
        self.changes.append((embedded - self.embedded).detach().double())
        if len(self.changes) > len(self.earlier_changes):
            return embedded
        earlier = self.embedded + self.earlier_changes[len(self.changes) - 1].to(embedded.dtype)
        return embedded + (earlier - embedded).detach()


@dataclass(frozen=True)
class LossEvaluation:
    """The loss of a batch, what it added to the embeddings, and whether it drew random numbers."""

    value: Tensor
    changes: list[Tensor]
    drew: bool


class LossTrial(Trial):
    """A loss prepared for these labels and this number of vectors per example."""

    def __init__(
        self, specimen: Specimen, labels: Labels, sequences: int, seed: int = 0, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.labels, self.sequences, self.dtype = labels, sequences, dtype
        self.loss: Loss = specimen.make()
        self.loss.prepare(labels=labels, rows=ROWS)
        self.loss.train()
        if dtype is torch.float64:  # else its state stays in the precision it chose itself
            self.loss.double()

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.loss,)

    def embedded(self) -> Tensor:
        """Input embeddings, [S·B, d]."""
        return self._draw(1, self.sequences * ROWS, WIDTH).to(self.device, self.dtype)

    def target(self, rows: Tensor) -> Tensor:
        uniform = torch.rand(ROWS, generator=new_generator(2))[rows].to(self.device)
        if self.labels.classes:
            return (uniform * self.labels.classes).long()
        return self.labels.low + uniform * (self.labels.high - self.labels.low)

    def model(self, embedded: Tensor, rows: Tensor, changes: Sequence[Tensor] = (), part: int = 0) -> LinearModel:
        """The model that predicts for these rows."""
        outputs = [self.labels.classes] if self.loss.expects == "classes" else []
        return LinearModel(self._draw(3, self.sequences * WIDTH, *outputs), embedded, rows, changes, part)

    def compute(
        self,
        embedded: Tensor | None = None,
        rows: Sequence[int] = range(ROWS),
        *,
        changes: Sequence[Tensor] = (),
        seed: int = 4,
        part: int = 0,
    ) -> LossEvaluation:
        """The loss of the examples in ``rows`` (in this order); ``changes`` are those of all examples."""
        index, source = torch.tensor(rows), new_generator(seed, self.device)
        start = self._select(self.embedded(), index) if embedded is None else embedded
        model = self.model(start, index, [self._select(change, index) for change in changes], part)
        bind_generator(self.loss, source)
        before = source.get_state()
        value = self.loss(model(None), self.target(index))
        require(isinstance(value, Tensor), f"the loss should be a tensor. Found {type(value).__name__}.")
        return LossEvaluation(value, model.changes, not source.get_state().equal(before))

    def run(self, step: int, *, training: bool) -> Tensor:
        """Each step has embeddings of its own."""
        self.start = (self.embedded() * (1 + 0.3 * step)).requires_grad_()
        return self.compute(self.start, seed=4 + step).value

    def end_epoch(self, epoch: int) -> dict[str, float]:
        score = 0.7 / epoch + 0.1 * (epoch % 2)
        self.loss.epoch_ended(epoch=epoch, score=score, overall=1 - score)
        return self.loss.metrics()

    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        first, low = copy.deepcopy(self).compute(), self.embedded().bfloat16().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            value = self.compute(low, changes=first.changes).value
        return value, first.value, low

    def _select(self, embedded: Tensor, index: Tensor) -> Tensor:
        return embedded.view(self.sequences, ROWS, WIDTH)[:, index].flatten(0, 1)

    def _draw(self, seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=new_generator(seed), dtype=torch.float64)


NewTrial = Callable[..., LossTrial]


def _trials(specimen: Specimen) -> Iterator[tuple[str, NewTrial]]:
    """The loss in every case that it accepts; at the edge of an option in two of them."""
    if _expects(specimen) in EXPECTS:  # else one law is broken, and not all of them
        cases = accepted(specimen, _cases(specimen), lambda new: new().compute())
        yield from islice(cases, 2) if specimen.edge else cases


def _expects(specimen: Specimen) -> str | None:
    return getattr(specimen.make(), "expects", None)


def _cases(specimen: Specimen) -> Iterator[tuple[str, NewTrial]]:
    """All labels with two vectors (or the first number that it accepts); all numbers with the first and last labels."""
    loss: Loss = specimen.make()
    counts = tuple(loss.vectors or (2, 1, 3))
    kinds = [Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 1)]
    if loss.expects == "classes":
        kinds = [Labels.of_classes(3), Labels.of_classes(2)]
    elif loss.expects == "vectors":
        kinds.append(Labels.of_range(0, 0))
    first = [(kind, counts[0]) for kind in kinds]
    for labels, count in dict.fromkeys(first + [(kind, count) for kind in (kinds[0], kinds[-1]) for count in counts]):
        kind = f"of {labels.classes} classes" if labels.classes else f"from {labels.low:g} to {labels.high:g}"
        words = f"labels {kind}, {count} vector{'s' if count > 1 else ''} per example"
        yield words, partial(LossTrial, specimen, labels, count)


@law("loss")
def it_says_what_it_looks_at(specimen: Specimen) -> None:
    """And, where one number per example decides between two classes, whether it is a logit or a value."""
    expects = _expects(specimen)
    require(expects in EXPECTS, f"expects should be one of {', '.join(EXPECTS)}. Found {expects!r}.")
    for words, new in _trials(specimen):
        trial = new()
        is_stated = expects != "score" or trial.labels.classes != 2 or trial.loss.score_means is not None
        with given(words):
            require(is_stated, "score_means should be 'logit' or 'value', so that classes can be decided. Found None.")


@law("loss", cases=_trials, at_edges=True)
def it_is_one_finite_number_with_a_finite_gradient(_: Specimen, new: NewTrial) -> None:
    """Also for extreme scores and a batch of one."""
    whole, every = new().embedded(), range(ROWS)
    for words, start, rows in (
        (f"{ROWS} examples", whole, every),
        ("1 example", whole[::ROWS], [0]),
        ("embeddings times 1e4", 1e4 * whole, every),
        ("embeddings of zero", 0 * whole, every),
    ):
        with given(words):
            x = start.detach().requires_grad_()
            value = new().compute(x, rows).value
            require(value.shape == (), f"the loss should be a scalar. Found shape {list(value.shape)}.")
            require_finite(value, "the loss")
            if value.requires_grad:  # a batch that costs nothing may have no gradient
                require_finite(torch.autograd.grad(value, x, materialize_grads=True)[0], "its gradient")


@law("loss", cases=_trials, at_edges=True)
def its_gradient_is_that_of_finite_differences(_: Specimen, new: NewTrial) -> None:
    """What the loss itself adds to the embeddings before a replay counts as a constant, as in adversarial training.

    A loss that says ``stops_gradient`` has a gradient that is not that of its value, and need only have one.
    """
    with given("in float64"):
        trial = new(dtype=torch.float64)
        x = trial.embedded().requires_grad_()
        first = copy.deepcopy(trial).compute(x)
        if trial.loss.stops_gradient:
            require(first.value.requires_grad, "no gradient flows back")
            return
        hint = "; if a part of it is detached on purpose, set stops_gradient = True"
        require_gradient(lambda: copy.deepcopy(trial).compute(x, changes=first.changes).value, {"embeddings": x}, hint)


@law("loss", cases=_trials)
def the_order_of_examples_does_not_matter(_: Specimen, new: NewTrial) -> None:
    """Where a loss draws numbers for each example, the mean over many seeds does not depend on the order."""
    first = new().compute()
    if not first.drew or first.changes:
        moved = new().compute(rows=_ORDER, changes=first.changes)
        require_same(moved.value, first.value, "a permuted batch has another loss", within=1e-5)
        return
    orders = (range(ROWS), _ORDER)
    pairs = [[new().compute(rows=rows, seed=seed).value.item() for rows in orders] for seed in range(64)]
    require_zero_mean(torch.tensor(pairs).diff(dim=1), "a permuted batch has another loss")


@law("loss", cases=_trials)
def the_loss_of_a_batch_is_not_a_sum(_: Specimen, new: NewTrial) -> None:
    """A loss that grows with the batch would weigh a task by its batch size."""
    first = new().compute()
    whole, sums = first.value.item(), []
    for sizes in _SPLITS:
        parts = torch.split(torch.arange(ROWS), list(sizes))
        sums.append(sum(new().compute(rows=part.tolist(), changes=first.changes).value.item() for part in parts))
    is_sum = abs(whole) > 1e-3 and all(_near(total, whole) for total in sums)
    require(not is_sum, f"the loss ({whole:.6g}) is the sum over parts of the batch; take the mean over examples")
    if not new().loss.separable and not first.drew:
        _require_no_faster_growth(new)


def _require_no_faster_growth(new: NewTrial) -> None:
    """A loss that compares examples may grow with the batch, but not as a sum over examples does.

    Let Mₘ be its mean over all batches of m examples. Each further example to compare with increases a mean over
    examples by less (log-sum-exp, maximum) or by the same amount (sum): M₆ − M₄ ≤ M₄ − M₂. A sum over examples is m
    times that, so M₆ ≥ 3 M₂ and M₆ − M₄ > M₄ − M₂. Where each example looks for its hardest partner, which a small
    batch may lack, a mean may grow as fast; but unlike a sum it does not grow when the batch is only repeated.
    """

    def mean_over_batches(size: int) -> float:
        values = [new().compute(rows=rows).value.item() for rows in combinations(range(ROWS), size)]
        return sum(values) / len(values)

    two, four, six = map(mean_over_batches, (2, 4, 6))
    grows = 0 <= two < four and six >= 3 * two * (1 - 1e-5) and six - four > (four - two) + 1e-3 * six
    once, twice = (new().compute(rows=times * list(range(ROWS))).value.item() for times in (1, 2))
    words = f"batches of 2, 4 and 6 examples have losses of {two:.6g}, {four:.6g} and {six:.6g} on average"
    grows = grows and twice > 1.5 * once
    require(not grows, f"{words}: they grow faster than the batch; take the mean over examples")


def _near(actual: float, expected: float) -> bool:
    return abs(actual - expected) <= 2e-5 * max(1.0, abs(expected))


@law("loss", cases=_trials)
def a_separable_loss_is_the_mean_over_its_examples(_: Specimen, new: NewTrial) -> None:
    """``separable`` promises that micro-batches give the same: each example's loss does not depend on the others.

    Nor does its state: what changes once per batch changes with the first part.
    """
    whole = new()
    first = whole.compute()
    draws_differ = first.drew and not first.changes  # numbers drawn for a part are not those of the whole batch
    for sizes in () if draws_differ or not whole.loss.separable else _SPLITS:
        with given(f"parts of {list(sizes)} examples"):
            trial, mean = new(), 0.0
            for part, rows in enumerate(torch.split(torch.arange(ROWS), list(sizes))):
                value = trial.compute(rows=rows.tolist(), changes=first.changes, part=part).value
                mean += len(rows) * value.item() / ROWS
            for name, buffer in trial.loss.named_buffers():
                words = f"buffer {name!r} is not as after the whole batch; move it where prediction.part is 0"
                require_same(buffer.double(), whole.loss.get_buffer(name).double(), words, within=1e-5)
            total = first.value.item()
            require(_near(mean, total), f"the loss is {total:.7g}, the parts' mean {mean:.7g}")


@law("loss", cases=_trials)
def it_leaves_prediction_and_target_as_they_are(_: Specimen, new: NewTrial) -> None:
    trial, rows = new(), torch.arange(ROWS)
    bind_generator(trial.loss, new_generator(4))
    prediction = trial.model(trial.embedded(), rows)(None)
    inputs = {"score": prediction.score, "vectors": prediction.vectors, "rows": rows, "target": trial.target(rows)}
    before = {name: tensor.detach().clone() for name, tensor in inputs.items()}
    trial.loss(prediction, inputs["target"])
    for name, tensor in inputs.items():
        require_same(tensor, before[name], f"the {name} was written to")


laws_of_learning("loss", _trials)
