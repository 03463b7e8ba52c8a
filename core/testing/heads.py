"""Laws of heads."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from taskloom.core.data import Labels
from taskloom.core.head import SharedModules
from taskloom.core.prediction import ScoreMeans
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.learning import Trial, laws_of_learning
from taskloom.core.testing.require import new_generator, require_finite, require_gradient, require_same
from taskloom.core.testing.specimens import Specimen
from taskloom.core.tokens import SEQUENCES

WIDTH, ROWS = 8, 6
GIVES = ("classes", "score", "either", "vectors")


class HeadTrial(Trial):
    """A head built for a score of this size and these labels, and its input vectors."""

    def __init__(
        self,
        specimen: Specimen,
        options: dict[str, Any],
        outputs: int,
        labels: Labels,
        seed: int = 0,
        *,
        score_means: ScoreMeans = "logit",
    ) -> None:
        self.outputs, self.labels = outputs, labels
        self.head, self.shared = specimen.make(**options), SharedModules()
        self.head.labels, self.head.score_means = labels, score_means
        generator = new_generator(seed)
        self.head.build(width=WIDTH, outputs=outputs, labels=labels, generator=generator, shared=self.shared)
        self.ready(training=False)

    @property
    def modules(self) -> Sequence[nn.Module]:
        return self.head, self.shared

    def ready(self, *, training: bool) -> None:
        """Prepare a pass; its random numbers are always the same."""
        for module, seed in ((self.head, 4), (self.shared, 5)):
            bind_generator(module.train(training), new_generator(seed, self.device))

    def vectors(self, rows: int = ROWS) -> Tensor:
        return torch.randn(SEQUENCES[self.head.reads], rows, WIDTH, generator=new_generator(1)).to(self.device)

    def output(self, vectors: Tensor) -> Tensor:
        """The head's score, or its vectors where it gives nothing else."""
        prediction = self.head(vectors)
        return prediction.vectors if self.head.gives == "vectors" else prediction.score  # type: ignore[no-any-return]

    def run(self, step: int, *, training: bool) -> Tensor:
        self.ready(training=training)
        self.start = (step * self.vectors()).requires_grad_()
        self.score = self.output(self.start)
        return self.score

    def end_epoch(self, epoch: int) -> dict[str, float]:
        if self.head.gives != "vectors":
            self.head.decide(self.score.detach())
        return {}

    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        low = self.vectors().bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            score = self.head(low).score
        return score, self.head(self.vectors()).score, low


NewTrial = Callable[..., HeadTrial]


def _uses(specimen: Specimen) -> Iterator[tuple[str, NewTrial]]:
    """Each use of a head: what it reads (where that is an option), the size of its score, the labels."""
    reads = specimen.known.get("reads")
    option_sets: list[dict[str, Any]] = [{}]
    if reads is not None and "reads" not in specimen.options and not specimen.edge:
        option_sets = [{"reads": choice} for choice in get_args(reads.annotation)]
    for options in option_sets:
        gives = specimen.make(**options).gives  # of the instance: one that wraps another gives what that gives
        words = f"reads {options['reads']!r}, " if options else ""
        if gives in ("classes", "either"):
            labels = Labels.of_classes(3)
            yield f"{words}3 outputs, labels of 3 classes", partial(HeadTrial, specimen, options, 3, labels)
        if gives != "classes":
            labels = Labels.of_classes(2)
            yield f"{words}1 output, labels of 2 classes", partial(HeadTrial, specimen, options, 1, labels)
            if not specimen.edge:
                labels = Labels.of_range(0, 5)
                yield f"{words}1 output, labels of values", partial(HeadTrial, specimen, options, 1, labels)


@law("head", cases=_uses, at_edges=True)
def it_gives_one_finite_score_and_its_vectors_per_example(_: Specimen, new: NewTrial) -> None:
    """As ``reads`` and ``gives`` say, also for a single example and extreme vectors, with finite gradients."""
    trial = new()
    head = trial.head
    require(head.reads in SEQUENCES, f"reads should be one of {', '.join(SEQUENCES)}. Found {head.reads!r}.")
    require(head.gives in GIVES, f"gives should be one of {', '.join(GIVES)}. Found {head.gives!r}.")
    for words, rows, factor in (
        (f"{ROWS} examples", ROWS, 1.0),
        ("1 example", 1, 1.0),
        ("vectors times 1e4", ROWS, 1e4),
        ("vectors of zero", ROWS, 0.0),
    ):
        with given(words):
            x = (factor * trial.vectors(rows)).requires_grad_()
            trial.ready(training=True)
            prediction = head(x)
            score, vectors = prediction.score, prediction.vectors
            shape = [rows] if trial.outputs == 1 else [rows, trial.outputs]
            sound = head.gives == "vectors" or list(score.shape) == shape
            require(sound, f"the score should be {shape}. Found {list(score.shape)}.")
            sound = vectors.dim() == 3 and vectors.shape[1] == rows
            require(sound, f"vectors should be [S, {rows}, d]. Found {list(vectors.shape)}.")
            output = vectors if head.gives == "vectors" else score
            require_finite(output, "the score")
            if output.requires_grad:
                require_finite(torch.autograd.grad(output.sum(), x, materialize_grads=True)[0], "the gradient")


@law("head", cases=_uses)
def each_example_is_scored_by_itself(_: Specimen, new: NewTrial) -> None:
    """Permuting a batch permutes its scores, an example alone scores as in a batch, and the input is not changed."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    trial = new()
    head, x = trial.head, trial.vectors()
    score = head(x).score
    require_same(x, trial.vectors(), "the sentence vectors were written to")
    require_same(head(x[:, order]).score, score[order], "a permuted batch gives other scores", within=1e-5)
    require_same(head(x[:, :1]).score, score[:1], "an example alone gets another score", within=1e-5)


@law("head", cases=_uses)
def it_decides_in_the_units_of_the_labels(_: Specimen, new: NewTrial) -> None:
    trial = new()
    if trial.head.gives == "vectors":
        return
    score = 5 * torch.randn(ROWS, *[trial.outputs] * (trial.outputs > 1), generator=new_generator(2))
    decided = trial.head.decide(score)
    require(decided.shape == (ROWS,), f"decide should give [{ROWS}]. Found {list(decided.shape)}.")
    allowed = set(range(trial.labels.classes)) or set(decided.tolist())
    require(set(decided.tolist()) <= allowed, f"decided {decided.tolist()}, which are not all classes")
    require_finite(decided.double(), "a decision")
    probabilities = trial.head.probabilities(score)
    if probabilities is not None:
        shape = [ROWS, trial.labels.classes]
        sound = list(probabilities.shape) == shape
        require(sound, f"probabilities should be {shape}. Found {list(probabilities.shape)}.")
        require_same(probabilities.sum(-1), torch.ones(ROWS), "probabilities do not add up to 1", within=1e-5)
        require_same(probabilities.argmax(-1), decided, "the most probable class is not the one decided")
    if trial.outputs == 1 and trial.labels.classes == 2 and trial.head.cut is None:
        means: tuple[tuple[ScoreMeans, list[float]], ...] = (("logit", [-0.3, 0.3]), ("value", [0.3, 0.7]))
        for score_means, scores in means:
            with given(f"score_means {score_means!r} and scores {scores}"):
                classes = new(score_means=score_means).head.decide(torch.tensor(scores)).tolist()
                require(classes == [0, 1], f"decide should give [0, 1], or the head state its cut. Found {classes}.")


@law("head", cases=_uses)
def its_snippet_does_what_it_does(_: Specimen, new: NewTrial) -> None:
    """The lines, if there are any, compute the same scores and decisions from its tensors alone."""
    meanings: tuple[ScoreMeans, ...] = ("logit", "value") if new().labels.classes == 2 else ("logit",)
    for score_means in meanings:
        trial = new(score_means=score_means)
        trial.ready(training=False)
        head, vectors = trial.head, trial.vectors()
        if not (lines := head.snippet()):
            return
        with given("\n".join(lines)), torch.no_grad():
            for parameter in head.parameters():  # biases begin as zeros
                parameter += torch.randn(parameter.shape, generator=new_generator(3))
            names: dict[str, Any] = {"torch": torch, "F": nn.functional, "vectors": vectors, "w": head.state_dict()}
            exec("\n".join(lines), names)  # noqa: S102 - what the head itself gives
            score = head(vectors).score
            for name, expected in (("score", score), ("predicted", head.decide(score))):
                computed = names.get(name)
                require(isinstance(computed, Tensor), f"the snippet leaves no {name!r}")
                require_same(cast(Tensor, computed), expected, f"the snippet gives another {name!r}", within=1e-5)


@law("head", cases=_uses, at_edges=True)
def its_gradients_are_those_of_finite_differences(_: Specimen, new: NewTrial) -> None:
    """And they reach the sentence vectors and every parameter."""
    trial = new()
    for module in trial.modules:
        module.double()
    x = trial.vectors().double().requires_grad_()
    weights = torch.randn(trial.output(x).shape, generator=new_generator(9), dtype=torch.float64)

    def value() -> Tensor:
        return (trial.output(x) * weights).sum()

    named = [(f"parameter {name!r}", p) for module in trial.modules for name, p in module.named_parameters()]
    at = {"sentence vectors": x, **{name: parameter for name, parameter in named if parameter.requires_grad}}
    require(value().requires_grad, "no gradient flows back")
    for name, gradient in zip(at, torch.autograd.grad(value(), list(at.values()), allow_unused=True), strict=True):
        require(gradient is not None, f"no gradient reaches {name}")
    require_gradient(value, {name: at[name] for name in (*list(at)[:3], *list(at)[-2:])})


laws_of_learning("head", _uses)
