"""A small model whose predictions losses are tried on; its passes can be replayed."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from taskloom.core.data import Labels
from taskloom.core.errors import TaskloomError
from taskloom.core.loss import Loss
from taskloom.core.prediction import Prediction, Replay
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import Subject, generator, given, require

WIDTH, ROWS = 5, 6


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

    def embedded(self, dtype: torch.dtype) -> Tensor:
        """Input embeddings, [S·B, d]."""
        drawn = torch.randn(self.sequences * ROWS, WIDTH, generator=generator(1), dtype=torch.float64)
        return drawn.to(dtype)

    @property
    def target(self) -> Tensor:
        place = torch.rand(ROWS, generator=generator(2))
        if self.labels.classes:
            return (place * self.labels.classes).long()
        return self.labels.low + place * (self.labels.high - self.labels.low)

    @property
    def layer(self) -> Tensor:
        outputs = self.labels.classes if self.expects == "classes" else 1
        return torch.randn(self.sequences * WIDTH, outputs, generator=generator(3), dtype=torch.float64)


class Pass(nn.Module):
    """A model that is linear in its embeddings [S·B, d].

    ``changes`` are what an earlier pass added to the embeddings, replay by replay. They are put in the place of what
    is added now (its gradient still flows), so that two passes differ in nothing but what the law changed.
    """

    def __init__(
        self, case: Case, embedded: Tensor, rows: Tensor, changes: Sequence[Tensor] | None, part: int = 0
    ) -> None:
        super().__init__()
        self.case, self.part = case, part
        self.embedded = embedded
        self.rows = rows
        self.layer = nn.Parameter(case.layer.to(embedded.dtype))
        self.given = changes
        self.made: list[Tensor] = []

    def forward(self, start: Tensor | None) -> Prediction:
        start = self.embedded if start is None else self._held(start)
        vectors = start.view(self.case.sequences, -1, WIDTH)  # [S, B, d]
        score = torch.cat(tuple(vectors), -1) @ self.layer  # [B, outputs]
        score = score if self.case.expects == "classes" else score[:, 0]
        return Prediction(score, vectors, self.rows, Replay(start, self), self.part)

    def _held(self, start: Tensor) -> Tensor:
        self.made.append((start - self.embedded).detach().double())
        if self.given is None or len(self.made) > len(self.given):
            return start
        held = self.embedded + self.given[len(self.made) - 1].to(start.dtype)
        return start + (held - start).detach()


@dataclass(frozen=True)
class Ran:
    """What a pass gave: the loss, what it added to embeddings, whether it drew numbers, its inputs and their copies.

    ``state`` are the buffers of the loss after the pass.
    """

    value: Tensor
    changes: list[Tensor]
    drew: bool
    inputs: list[tuple[str, Tensor, Tensor]]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """A loss, prepared for one case and never run itself: each pass is that of a copy."""

    loss: Loss
    case: Case
    dtype: torch.dtype

    def to(self, dtype: torch.dtype) -> "Trial":
        """The same in another precision; the state of the loss stays in the precision it chose itself."""
        return replace(self, dtype=dtype)

    def run(
        self,
        embedded: Tensor | None = None,
        rows: Sequence[int] | None = None,
        *,
        changes: Sequence[Tensor] | None = None,
        seed: int = 4,
    ) -> Ran:
        """The loss of the examples named by ``rows`` (in this order); ``changes`` are those of all examples."""
        return self._ran(self._copied(), embedded, rows, changes, seed)

    def run_parts(self, sizes: Sequence[int], *, changes: Sequence[Tensor] | None = None) -> list[Ran]:
        """The batch in parts of these sizes, one after another through one and the same copy."""
        loss, parts = self._copied(), torch.split(torch.arange(ROWS), list(sizes))
        return [self._ran(loss, None, rows.tolist(), changes, 4, part) for part, rows in enumerate(parts)]

    def _copied(self) -> Loss:
        loss = copy.deepcopy(self.loss)
        return loss.double() if self.dtype is torch.float64 else loss

    def train_on(self, step: int = 0) -> Tensor:
        """The loss of a step of training, which may change the state; each step has embeddings of its own."""
        start = self.case.embedded(self.dtype) * (1 + 0.3 * step)
        return self._ran(self.loss, start, None, None, 4 + step).value

    def _ran(
        self,
        loss: Loss,
        embedded: Tensor | None,
        rows: Sequence[int] | None,
        changes: Sequence[Tensor] | None,
        seed: int,
        part: int = 0,
    ) -> Ran:
        index = torch.arange(ROWS) if rows is None else torch.tensor(rows)
        whole = self.case.embedded(self.dtype)
        start = self._taken(whole, index) if embedded is None else embedded
        held = None if changes is None else [self._taken(change, index) for change in changes]
        source = generator(seed)
        bind_generator(loss, source)
        before = source.get_state()
        model = Pass(self.case, start, index.clone(), held, part)
        prediction, target = model(None), self.case.target[index]
        shown = {
            "score": prediction.score,
            "vectors": prediction.vectors,
            "rows": index.clone() if prediction.rows is None else prediction.rows,
            "target": target,
        }
        copies = {name: tensor.detach().clone() for name, tensor in shown.items()}
        value: Tensor = loss(prediction, target)
        require(isinstance(value, Tensor), f"the loss should be a tensor. Found {type(value).__name__}.")
        inputs = [(name, tensor.detach(), copies[name]) for name, tensor in shown.items()]
        bind_generator(loss, None)
        state = {name: buffer.detach().clone() for name, buffer in loss.named_buffers()}
        return Ran(value, model.made, not source.get_state().equal(before), inputs, state)

    def _taken(self, every: Tensor, index: Tensor) -> Tensor:
        return every.view(self.case.sequences, ROWS, WIDTH)[:, index].flatten(0, 1)


def trials(subject: Subject, dtype: torch.dtype = torch.float32) -> list[Trial]:
    """The loss in every case that it takes; one that it refuses with a message of ours is no breach."""
    taken: list[Trial] = []
    refused: list[str] = []
    for case in _cases(subject.make()):
        with given(f"{case}, in {str(dtype).removeprefix('torch.')}"):
            try:
                trial = Trial(_prepared(subject, case), case, dtype)
                trial.run()
            except TaskloomError as error:
                refused.append(f"{case} ({error})")
                continue
            taken.append(trial)
            if subject.quick and len(taken) == 2:
                break
    require(bool(taken) or subject.quick, f"the loss refuses every input: {'; '.join(refused)}")
    return taken


def _prepared(subject: Subject, case: Case) -> Loss:
    loss: Loss = subject.make()
    loss.prepare(labels=case.labels, rows=ROWS)
    return loss.train()


def _cases(loss: Loss) -> list[Case]:
    """Every kind of labels with two vectors (or as many as the loss works with), every number with the first kind."""
    counts = tuple(loss.vectors or (2, 1, 3))
    kinds = [Labels.of_classes(2), Labels.of_range(0, 5), Labels.of_range(0, 1)]
    if loss.expects == "classes":
        kinds = [Labels.of_classes(3), Labels.of_classes(2)]
    elif loss.expects == "vectors":
        kinds.append(Labels.of_range(0, 0))
    pairs = [(kind, counts[0]) for kind in kinds] + [
        (kind, count) for kind in (kinds[0], kinds[-1]) for count in counts
    ]
    return [Case(kind, count, loss.expects) for kind, count in dict.fromkeys(pairs)]
