"""Laws of losses."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from taskloom.core.data import Labels
from taskloom.core.errors import TaskloomError
from taskloom.core.loss import Loss
from taskloom.core.prediction import Prediction, Replay
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import Subject, generator, given, require, require_close, untouched_randomness

WIDTH, ROWS = 5, 6


@dataclass(frozen=True)
class Case:
    """Labels, and the number of vectors per example."""

    labels: Labels
    sequences: int

    def __str__(self) -> str:
        low, high = self.labels.low, self.labels.high
        kind = f"{self.labels.classes} classes" if self.labels.classes else f"values from {low:g} to {high:g}"
        return f"labels of {kind}, {self.sequences} vectors per example"

    def target(self, rows: int) -> Tensor:
        place = torch.rand(rows, generator=generator(2))
        if self.labels.classes:
            return (place * self.labels.classes).long()
        return self.labels.low + place * (self.labels.high - self.labels.low)

    def forward(self, loss: Loss, embedded: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        """The loss of a small model that is linear in its embeddings [S·B, d]; it can be replayed."""
        outputs = self.labels.classes if loss.expects == "classes" else 1
        layer = torch.randn(self.sequences * WIDTH, outputs, generator=generator(3)).to(embedded.dtype)

        def run(start: Tensor | None) -> Prediction:
            start = embedded if start is None else start
            vectors = start.view(self.sequences, -1, WIDTH)  # [S, B, d]
            score = torch.cat(tuple(vectors), -1) @ layer  # [B, outputs]
            return Prediction(score if loss.expects == "classes" else score[:, 0], vectors, rows, Replay(start, run))

        bind_generator(loss, generator(4))
        value: Tensor = loss(run(None), target)
        return value


def embedded(case: Case, rows: int = ROWS, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.randn(case.sequences, rows, WIDTH, generator=generator(1), dtype=torch.float64)
    return drawn.to(dtype).flatten(0, 1)  # [S·B, d]


def _value(loss: Loss, case: Case, rows: int = ROWS, dtype: torch.dtype = torch.float64) -> Tensor:
    return case.forward(loss, embedded(case, rows, dtype), case.target(rows), torch.arange(rows))


def _make(subject: Subject, case: Case) -> Loss:
    loss: Loss = subject.make()
    loss.prepare(labels=case.labels, rows=ROWS)
    return loss.train()


def _cases(subject: Subject) -> list[Case]:
    """The cases that the loss takes; one that it refuses with a message of ours is no breach."""
    kinds = [Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 1)]
    if subject.make().expects == "classes":
        kinds = [Labels.of_classes(3), Labels.of_classes(2)]
    taken = []
    for case in [Case(labels, sequences) for labels in kinds for sequences in (2, 1, 3)]:
        with given(str(case)):
            try:
                _value(_make(subject, case), case)
            except TaskloomError:
                continue
            taken.append(case)
    require(bool(taken), f"the loss refuses all of {', '.join(map(repr, kinds))}")
    return taken


@contextmanager
def _given_loss(subject: Subject, case: Case) -> Iterator[Loss]:
    with given(str(case)):
        yield _make(subject, case)


def it_is_one_finite_number(subject: Subject) -> None:
    for case in _cases(subject):
        for rows in (ROWS, 1):
            with _given_loss(subject, case) as loss, given(f"{rows} examples"):
                value = _value(loss, case, rows)
                require(value.shape == (), f"the loss should be a scalar. Found shape {list(value.shape)}.")
                require(bool(value.isfinite()), f"the loss is {value.item()}")


def its_gradient_is_that_of_finite_differences(subject: Subject) -> None:
    for case in _cases(subject):
        with _given_loss(subject, case) as loss:

            def value(x: Tensor, loss: Loss = loss, case: Case = case) -> Tensor:
                return case.forward(loss, x, case.target(ROWS), torch.arange(ROWS))

            torch.autograd.gradcheck(value, embedded(case).requires_grad_(), rtol=1e-4, atol=1e-6)


def the_order_of_examples_does_not_matter(subject: Subject) -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for case in _cases(subject):
        with _given_loss(subject, case) as loss:
            moved = embedded(case).view(case.sequences, ROWS, WIDTH)[:, order].flatten(0, 1)
            value = case.forward(loss, moved, case.target(ROWS)[order], torch.arange(ROWS)[order])
            require_close(value, _value(_make(subject, case), case), "a permuted batch has another loss", within=1e-9)


def it_works_in_every_precision(subject: Subject) -> None:
    for case in _cases(subject):
        expected = _value(_make(subject, case), case)
        for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
            with _given_loss(subject, case) as loss, given(f"{dtype}"):
                x = embedded(case, dtype=dtype).requires_grad_()
                value = case.forward(loss, x, case.target(ROWS), torch.arange(ROWS))
                require_close(value.detach(), expected, "it differs from float64", within=within)
                torch.autograd.backward(value)
                require(x.grad is not None and bool(x.grad.isfinite().all()), "its gradient is not finite")


def its_randomness_is_the_generators(subject: Subject) -> None:
    for case in _cases(subject):
        with untouched_randomness(), _given_loss(subject, case) as loss:
            value = _value(loss, case)
            require(value.equal(_value(_make(subject, case), case)), "the same seed gives another loss")


def its_state_survives_saving(subject: Subject) -> None:
    for case in _cases(subject):
        with _given_loss(subject, case) as first:
            for epoch, score in ((1, 0.5), (2, 0.4)):
                _value(first, case)
                first.epoch_ended(epoch=epoch, score=score)
            second = _make(subject, case)
            second.load_state_dict(first.state_dict())
            for epoch, score in ((3, 0.6), (4, 0.1)):
                values = [_value(loss, case) for loss in (first, second)]
                require(values[0].equal(values[1]), f"after epoch {epoch - 1}, a restored loss gives another value")
                for loss in (first, second):
                    loss.epoch_ended(epoch=epoch, score=score)


LAWS = (
    it_is_one_finite_number,
    its_gradient_is_that_of_finite_differences,
    the_order_of_examples_does_not_matter,
    it_works_in_every_precision,
    its_randomness_is_the_generators,
    its_state_survives_saving,
)
