"""Laws of heads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from taskloom.core.data import Labels
from taskloom.core.head import Head, SharedModules
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import Subject, generator, given, require, require_close, untouched_randomness
from taskloom.core.tokens import SEQUENCES

WIDTH, ROWS = 8, 6


@dataclass(frozen=True)
class Case:
    """One way to use a head: what it reads (where that is an option), the size of its score, the labels."""

    options: dict[str, Any]
    outputs: int
    labels: Labels

    def __str__(self) -> str:
        kind = f"{self.labels.classes} classes" if self.labels.classes else "values"
        return f"{self.options or 'its own reads'}, {self.outputs} outputs, labels of {kind}"


def _cases(subject: Subject) -> Iterator[Case]:
    hints = get_type_hints(subject.component.__init__)
    readings = (
        [{}] if "reads" in subject.options or "reads" not in hints else [{"reads": r} for r in get_args(hints["reads"])]
    )
    for options in readings or [{}]:
        gives = subject.make(**options).gives  # of the head made: one that wraps another gives what that gives
        if gives in ("classes", "either"):
            yield Case(options, 3, Labels.of_classes(3))
        if gives != "classes":
            yield Case(options, 1, Labels.of_classes(2))
            yield Case(options, 1, Labels.of_range(0, 5))


@contextmanager
def _built(subject: Subject, case: Case, seed: int = 0) -> Iterator[tuple[Head, SharedModules]]:
    with given(str(case)):
        head, shared = subject.make(**case.options), SharedModules()
        head.build(width=WIDTH, outputs=case.outputs, labels=case.labels, generator=generator(seed), shared=shared)
        yield head.eval(), shared.eval()


def _vectors(head: Head, rows: int = ROWS) -> Tensor:
    return torch.randn(SEQUENCES[head.reads], rows, WIDTH, generator=generator(1))


def it_gives_one_score_and_its_vectors_per_example(subject: Subject) -> None:
    for case in _cases(subject):
        for rows in (ROWS, 1):
            with _built(subject, case) as (head, _), given(f"{rows} examples"):
                prediction = head(_vectors(head, rows))
                score, vectors = prediction.score, prediction.vectors
                if head.gives != "vectors":
                    shape = (rows,) if case.outputs == 1 else (rows, case.outputs)
                    require(score.shape == shape, f"the score should be {list(shape)}. Found {list(score.shape)}.")
                    require(bool(score.isfinite().all()), "the score is not finite")
                require(
                    vectors.dim() == 3 and vectors.shape[1] == rows,
                    f"vectors should be [S, {rows}, d]. Found {list(vectors.shape)}.",
                )


def each_example_is_scored_by_itself(subject: Subject) -> None:
    """Permuting a batch permutes its scores, and an example alone scores as it does in a batch."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for case in _cases(subject):
        with _built(subject, case) as (head, _):
            x = _vectors(head)
            score = head(x).score
            require_close(head(x[:, order]).score, score[order], "a permuted batch gives other scores")
            require_close(head(x[:, :1]).score, score[:1], "an example alone gets another score")


def it_decides_in_the_units_of_the_labels(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _):
            if head.gives == "vectors":
                continue
            score = 5 * torch.randn(ROWS, *[case.outputs] * (case.outputs > 1), generator=generator(2))
            decided = head.decide(score)
            require(decided.shape == (ROWS,), f"decide should give [{ROWS}]. Found {list(decided.shape)}.")
            if case.labels.classes:
                allowed = set(range(case.labels.classes))
                require(set(decided.tolist()) <= allowed, f"decided {decided.tolist()}, which are not all classes")
            require(bool(decided.double().isfinite().all()), "a decision is not finite")


def gradients_reach_its_input_and_its_parameters(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, shared):
            x = _vectors(head, 32).requires_grad_()
            prediction = head(x)
            seen = prediction.vectors if head.gives == "vectors" else prediction.score
            seen.square().sum().backward()
            require(x.grad is not None and bool(x.grad.any()), "no gradient reaches the sentence vectors")
            for name, parameter in [*head.named_parameters(), *shared.named_parameters()]:
                reached = parameter.grad is not None and bool(parameter.grad.isfinite().all())
                require(reached, f"no finite gradient reaches parameter {name!r}")


def it_works_in_bfloat16(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _):
            x = _vectors(head)
            expected = head(x).score
            with torch.autocast("cpu", dtype=torch.bfloat16):
                score = head(x.bfloat16()).score
            require_close(score.float(), expected, "bfloat16 gives another score", within=0.1)


def its_randomness_is_the_generators(subject: Subject) -> None:
    """One seed gives one head and one training pass; nothing global is drawn from."""
    for case in _cases(subject):
        seen = []
        for _ in range(2):
            with untouched_randomness(), _built(subject, case, seed=3) as (head, shared):
                bind_generator(head.train(), generator(4))
                bind_generator(shared.train(), generator(5))
                seen.append(head(_vectors(head)).score)
        with given(str(case)):
            require(seen[0].equal(seen[1]), "the same seed gives another score in training")


def its_state_survives_saving(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case, 0) as (first, ours), _built(subject, case, 1) as (second, theirs):
            second.load_state_dict(first.state_dict())
            theirs.load_state_dict(ours.state_dict())
            x = _vectors(first)
            require(second(x).score.equal(first(x).score), "a head that loaded the state gives another score")


LAWS = (
    it_gives_one_score_and_its_vectors_per_example,
    each_example_is_scored_by_itself,
    it_decides_in_the_units_of_the_labels,
    gradients_reach_its_input_and_its_parameters,
    it_works_in_bfloat16,
    its_randomness_is_the_generators,
    its_state_survives_saving,
)
