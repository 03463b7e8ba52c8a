"""Laws of heads."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from taskloom.core.data import Labels
from taskloom.core.head import Head, SharedModules
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
from taskloom.core.tokens import SEQUENCES

WIDTH, ROWS = 8, 6
GIVES = ("classes", "score", "either", "vectors")


@dataclass(frozen=True)
class Case:
    """One use of a head: what it reads (where that is an option), the size of its score, the labels."""

    options: dict[str, Any]
    outputs: int
    labels: Labels

    def __str__(self) -> str:
        kind = f"{self.labels.classes} classes" if self.labels.classes else "values"
        reads = f"reads {self.options['reads']!r}, " if self.options else ""
        return f"{reads}{self.outputs} output{'s' if self.outputs > 1 else ''}, labels of {kind}"


def _cases(subject: Subject) -> Iterator[tuple[str, Case]]:
    for case in _uses(subject):
        yield str(case), case


def _uses(subject: Subject) -> Iterator[Case]:
    reads = subject.known.get("reads")
    free = reads is not None and "reads" not in subject.options and not subject.edge
    for options in [{"reads": one} for one in get_args(reads.annotation)] if reads is not None and free else [{}]:
        gives = subject.make(**options).gives  # of the head made: one that wraps another gives what that gives
        if gives in ("classes", "either"):
            yield Case(options, 3, Labels.of_classes(3))
        if gives != "classes":
            yield Case(options, 1, Labels.of_classes(2))
            if not subject.edge:
                yield Case(options, 1, Labels.of_range(0, 5))


def _built(subject: Subject, case: Case, seed: int = 0) -> tuple[Head, SharedModules]:
    head, shared = subject.make(**case.options), SharedModules()
    head.build(width=WIDTH, outputs=case.outputs, labels=case.labels, generator=new_generator(seed), shared=shared)
    return head.eval(), shared.eval()


def _in_mode(head: Head, shared: SharedModules, *, training: bool) -> Head:
    """The head ready for a pass, whose random numbers are always the same."""
    for module, seed in ((head, 4), (shared, 5)):
        bind_generator(module.train(training), new_generator(seed))
    return head


def _vectors(head: Head, rows: int = ROWS) -> Tensor:
    return torch.randn(SEQUENCES[head.reads], rows, WIDTH, generator=new_generator(1))


def _output(head: Head, vectors: Tensor) -> Tensor:
    """What the head gives: its score, or its vectors where they are all it gives."""
    prediction = head(vectors)
    return prediction.vectors if head.gives == "vectors" else prediction.score  # type: ignore[no-any-return]


@law("head", cases=_cases, at_edges=True)
def it_gives_one_finite_score_and_its_vectors_per_example(subject: Subject, case: Case) -> None:
    """As ``reads`` and ``gives`` say; of a single example and of extreme vectors, too, with finite gradients."""
    head, shared = _built(subject, case)
    require(head.reads in SEQUENCES, f"reads should be one of {', '.join(SEQUENCES)}. Found {head.reads!r}.")
    require(head.gives in GIVES, f"gives should be one of {', '.join(GIVES)}. Found {head.gives!r}.")
    for words, rows, factor in (
        (f"{ROWS} examples", ROWS, 1.0),
        ("1 example", 1, 1.0),
        ("vectors times 1e4", ROWS, 1e4),
        ("vectors of zero", ROWS, 0.0),
    ):
        with given(words):
            x = (factor * _vectors(head, rows)).requires_grad_()
            prediction = _in_mode(head, shared, training=True)(x)
            score, vectors = prediction.score, prediction.vectors
            shape = [rows] if case.outputs == 1 else [rows, case.outputs]
            sound = head.gives == "vectors" or list(score.shape) == shape
            require(sound, f"the score should be {shape}. Found {list(score.shape)}.")
            sound = vectors.dim() == 3 and vectors.shape[1] == rows
            require(sound, f"vectors should be [S, {rows}, d]. Found {list(vectors.shape)}.")
            output = vectors if head.gives == "vectors" else score
            require_finite(output, "the score")
            if output.requires_grad:
                require_finite(torch.autograd.grad(output.sum(), x, materialize_grads=True)[0], "the gradient")


@law("head", cases=_cases)
def each_example_is_scored_by_itself(subject: Subject, case: Case) -> None:
    """Permuting a batch permutes its scores, an example alone scores as in a batch, and the vectors stay the same."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    head, _ = _built(subject, case)
    x = _vectors(head)
    score = head(x).score
    require_same(x, _vectors(head), "the sentence vectors were written to")
    require_same(head(x[:, order]).score, score[order], "a permuted batch gives other scores", within=1e-5)
    require_same(head(x[:, :1]).score, score[:1], "an example alone gets another score", within=1e-5)


@law("head", cases=_cases)
def it_decides_in_the_units_of_the_labels(subject: Subject, case: Case) -> None:
    head, _ = _built(subject, case)
    if head.gives == "vectors":
        return
    score = 5 * torch.randn(ROWS, *[case.outputs] * (case.outputs > 1), generator=new_generator(2))
    decided = head.decide(score)
    require(decided.shape == (ROWS,), f"decide should give [{ROWS}]. Found {list(decided.shape)}.")
    allowed = set(range(case.labels.classes)) or set(decided.tolist())
    require(set(decided.tolist()) <= allowed, f"decided {decided.tolist()}, which are not all classes")
    require_finite(decided.double(), "a decision")


@law("head", cases=_cases, at_edges=True)
def its_gradients_are_those_of_finite_differences(subject: Subject, case: Case) -> None:
    """And they reach the sentence vectors and every parameter."""
    head, shared = _built(subject, case)
    head, shared = head.double(), shared.double()
    x = _vectors(head).double().requires_grad_()
    weights = torch.randn(_output(head, x).shape, generator=new_generator(9), dtype=torch.float64)

    def value() -> Tensor:
        return (_output(head, x) * weights).sum()

    named = [(f"parameter {name!r}", p) for part in (head, shared) for name, p in part.named_parameters()]
    at = {"sentence vectors": x, **{name: parameter for name, parameter in named if parameter.requires_grad}}
    require(value().requires_grad, "no gradient flows back")
    for name, gradient in zip(at, torch.autograd.grad(value(), list(at.values()), allow_unused=True), strict=True):
        require(gradient is not None, f"no gradient reaches {name}")
    require_gradient(value, {name: at[name] for name in (*list(at)[:3], *list(at)[-2:])})


@law("head", cases=_cases)
def it_works_in_half_precision(subject: Subject, case: Case) -> None:
    head, _ = _built(subject, case)
    x = _vectors(head)
    low = x.bfloat16().requires_grad_()
    with given("autocast to bfloat16"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            score = head(low).score
        require_same(score.float(), head(x).score, "it gives another score", within=0.1)
        if score.requires_grad:
            gradient = torch.autograd.grad(score.float().sum(), low, materialize_grads=True)[0]
            require_finite(gradient, "its gradient")


@law("head", cases=_cases, at_edges=True)
def its_randomness_comes_from_its_generator(subject: Subject, case: Case) -> None:
    """The same seed gives the same head and the same pass, and no global random state is touched."""
    scores: list[Tensor] = []
    with untouched_randomness():
        for _ in range(2):
            head, shared = _built(subject, case, seed=3)
            scores.append(_in_mode(head, shared, training=True)(_vectors(head)).score)
    require_same(scores[1], scores[0], "the same seed gives another score in training")


@law("head", cases=_cases)
def its_state_survives_saving(subject: Subject, case: Case) -> None:
    """After some steps of training: what counts them, say, is part of the state, and the graph of a step is not."""
    (first, ours), (second, theirs) = _built(subject, case, 0), _built(subject, case, 1)
    x = _vectors(first)
    for step in (1, 2, 3):
        with given(f"step {step} of 3"):
            output = _output(_in_mode(first, ours, training=True), (step * x).requires_grad_())
            if output.requires_grad:
                torch.autograd.backward(output.square().mean())
    second.load_state_dict(through_checkpoint(first))
    theirs.load_state_dict(through_checkpoint(ours))
    for mode, training in (("evaluation", False), ("training", True)):
        with given(f"3 steps of training before it was saved, and a pass in {mode} after"), torch.no_grad():
            found = _output(_in_mode(second, theirs, training=training), x)
            expected = _output(_in_mode(first, ours, training=training), x)
            require_same(found, expected, "a head that loaded the state gives another score")
