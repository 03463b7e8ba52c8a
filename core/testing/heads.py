"""Laws of heads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from taskloom.core.data import Labels
from taskloom.core.head import Head, SharedModules
from taskloom.core.random import bind_generator
from taskloom.core.testing.edges import known_options
from taskloom.core.testing.gradients import require_gradient
from taskloom.core.testing.law import (
    REFUSALS,
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
from taskloom.core.testing.states import written
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
    reads = known_options(subject.component).get("reads")
    free = reads is not None and "reads" not in subject.options and not subject.quick
    for options in [{"reads": r} for r in get_args(reads.annotation)] if reads is not None and free else [{}]:
        gives = subject.make(**options).gives  # of the head made: one that wraps another gives what that gives
        if gives in ("classes", "either"):
            yield Case(options, 3, Labels.of_classes(3))
        if gives != "classes":
            yield Case(options, 1, Labels.of_classes(2))
            if not subject.quick:
                yield Case(options, 1, Labels.of_range(0, 5))


@contextmanager
def _built(subject: Subject, case: Case, seed: int = 0) -> Iterator[tuple[Head, SharedModules]]:
    with given(str(case)):
        head, shared = subject.make(**case.options), SharedModules()
        head.build(width=WIDTH, outputs=case.outputs, labels=case.labels, generator=generator(seed), shared=shared)
        yield head.eval(), shared.eval()


def _vectors(head: Head, rows: int = ROWS) -> Tensor:
    return torch.randn(SEQUENCES[head.reads], rows, WIDTH, generator=generator(1))


def _seen(head: Head, vectors: Tensor) -> Tensor:
    """What the head gives: its score, or its vectors where they are all it gives."""
    prediction = head(vectors)
    return prediction.vectors if head.gives == "vectors" else prediction.score  # type: ignore[no-any-return]


def it_says_what_it_reads_and_gives(subject: Subject) -> None:
    for case in _cases(subject):
        head = subject.make(**case.options)
        with given(str(case)):
            require(head.reads in SEQUENCES, f"reads should be one of {', '.join(SEQUENCES)}. Found {head.reads!r}.")
            kinds = ("classes", "score", "either", "vectors")
            require(head.gives in kinds, f"gives should be one of {', '.join(kinds)}. Found {head.gives!r}.")


@at_edges
def it_gives_one_score_and_its_vectors_per_example(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _), given(f"{ROWS} examples"):
            _require_shapes(head, case, ROWS)


def it_works_on_a_batch_of_one(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _), given("1 example"):
            _require_shapes(head.train(), case, 1)


def _require_shapes(head: Head, case: Case, rows: int) -> None:
    bind_generator(head, generator(2))
    prediction = head(_vectors(head, rows))
    score, vectors = prediction.score, prediction.vectors
    if head.gives != "vectors":
        shape = (rows,) if case.outputs == 1 else (rows, case.outputs)
        require(score.shape == shape, f"the score should be {list(shape)}. Found {list(score.shape)}.")
        require_finite(score, "the score")
    form = vectors.dim() == 3 and vectors.shape[1] == rows
    require(form, f"vectors should be [S, {rows}, d]. Found {list(vectors.shape)}.")


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
            require_finite(decided.double(), "a decision")


def gradients_reach_its_input_and_its_parameters(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, shared):
            x = _vectors(head, 32).requires_grad_()
            torch.autograd.backward(_seen(head, x).square().sum())
            require(x.grad is not None and bool(x.grad.any()), "no gradient reaches the sentence vectors")
            for name, parameter in [*head.named_parameters(), *shared.named_parameters()]:
                reached = parameter.grad is not None and bool(parameter.grad.isfinite().all())
                require(reached, f"no finite gradient reaches parameter {name!r}")


@at_edges
def its_gradients_are_those_of_finite_differences(subject: Subject) -> None:
    for case in _cases(subject):
        try:
            with _built(subject, case) as (head, shared):
                _require_gradients(head.double(), shared.double())
        except REFUSALS:
            if not subject.quick:
                raise


def _require_gradients(head: Head, shared: SharedModules) -> None:
    x = _vectors(head).double().requires_grad_()
    weights = torch.randn(_seen(head, x).shape, generator=generator(9), dtype=torch.float64)
    named = {name: p for name, p in [*head.named_parameters(), *shared.named_parameters()] if p.requires_grad}
    few = list(named)[:2] + list(named)[-2:]
    at = {"sentence vectors": x, **{f"parameter {name!r}": named[name] for name in few}}
    require_gradient(lambda: (_seen(head, x) * weights).sum(), at)


def extreme_vectors_give_finite_scores_and_gradients(subject: Subject) -> None:
    for case in _cases(subject):
        for words, factor in (("vectors times 1e4", 1e4), ("vectors of zero", 0.0)):
            with _built(subject, case) as (head, _), given(words):
                x = (factor * _vectors(head)).requires_grad_()
                seen = _seen(head, x)
                require_finite(seen.detach(), "the score")
                torch.autograd.backward(seen.sum())
                if x.grad is not None:
                    require_finite(x.grad, "the gradient")


def it_leaves_its_vectors_as_they_are(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _):
            x = _vectors(head)
            head(x)
            require_equal(x, _vectors(head), "the sentence vectors were written to")


def it_works_in_bfloat16(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _), given("autocast to bfloat16"):
            x = _vectors(head)
            expected = head(x).score
            low = x.bfloat16().requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                score = head(low).score
            require_close(score.float(), expected, "it gives another score", within=0.1, least=1e-2)
            if score.requires_grad:
                torch.autograd.backward(score.float().sum())
                require(low.grad is None or bool(low.grad.isfinite().all()), "its gradient is not finite")


@at_edges
def one_seed_gives_one_head_and_one_pass(subject: Subject) -> None:
    for case in _cases(subject):
        seen = [_trained(subject, case) for _ in range(2)]
        with given(str(case)):
            require_equal(seen[1], seen[0], "the same seed gives another score in training")


def it_touches_no_global_random_state(subject: Subject) -> None:
    for case in _cases(subject):
        with given(str(case)), untouched_randomness():
            _trained(subject, case)


def _trained(subject: Subject, case: Case) -> Tensor:
    with _built(subject, case, seed=3) as (head, shared):
        score: Tensor = _in_mode(head, shared, training=True)(_vectors(head)).score
    return score.detach()


def one_step_of_training_follows_another(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, shared):
            x, steps = _vectors(head), 3
            for step in range(steps):
                with given(f"step {step + 1} of {steps}"):
                    _in_mode(head, shared, training=True)
                    seen = _seen(head, (x * (step + 1)).requires_grad_())
                    require_finite(seen.detach(), "the score")
                    torch.autograd.backward(seen.square().mean())
                    with torch.no_grad():
                        for parameter in [*head.parameters(), *shared.parameters()]:
                            if parameter.grad is not None:
                                parameter.sub_(1e-3 * parameter.grad)
                                parameter.grad = None


@torch.no_grad()
def its_state_survives_saving(subject: Subject) -> None:
    """After some steps of training: what counts them, say, is part of the state."""
    for case in _cases(subject):
        with _built(subject, case, 0) as (first, ours), _built(subject, case, 1) as (second, theirs):
            x = _vectors(first)
            for factor in (1, 2, 3):
                _in_mode(first, ours, training=True)(factor * x)
            second.load_state_dict(written(first))
            theirs.load_state_dict(written(ours))
            for words, training in (("evaluation", False), ("training", True)):
                with given(f"3 passes in training before it was saved, and one in {words} after"):
                    found = _seen(_in_mode(second, theirs, training=training), x)
                    expected = _seen(_in_mode(first, ours, training=training), x)
                    require_equal(found, expected, "a head that loaded the state gives another score")


def _in_mode(head: Head, shared: SharedModules, *, training: bool) -> Head:
    """The head ready for a pass, whose random numbers are always the same."""
    for module, seed in ((head, 4), (shared, 5)):
        bind_generator(module.train(training), generator(seed))
    return head


def its_state_is_tensors(subject: Subject) -> None:
    for case in _cases(subject):
        with _built(subject, case) as (head, _):
            written(head)


LAWS = (
    it_says_what_it_reads_and_gives,
    it_gives_one_score_and_its_vectors_per_example,
    it_works_on_a_batch_of_one,
    each_example_is_scored_by_itself,
    it_decides_in_the_units_of_the_labels,
    gradients_reach_its_input_and_its_parameters,
    its_gradients_are_those_of_finite_differences,
    extreme_vectors_give_finite_scores_and_gradients,
    it_leaves_its_vectors_as_they_are,
    it_works_in_bfloat16,
    one_seed_gives_one_head_and_one_pass,
    it_touches_no_global_random_state,
    one_step_of_training_follows_another,
    its_state_survives_saving,
    its_state_is_tensors,
)
