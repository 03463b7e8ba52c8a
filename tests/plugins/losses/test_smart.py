"""SMART: its perturbation, its gradient, what it costs, and the moving average of its proximal term."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from taskloom.core import (
    Event,
    Head,
    Job,
    Labels,
    Loss,
    Prediction,
    Replay,
    SharedModules,
    Tokens,
    TrainingError,
    bind_generator,
    derive_generator,
    predict,
)
from taskloom.core.testing import check, laws
from taskloom.plugins.combiners import PCGrad
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.plugins.heads.cosine import Cosine
from taskloom.plugins.heads.linear import Linear
from taskloom.plugins.losses.binary_cross_entropy import BinaryCrossEntropy
from taskloom.plugins.losses.cosine_embedding import CosineEmbedding
from taskloom.plugins.losses.cross_entropy import CrossEntropy
from taskloom.plugins.losses.divergence import divergence_of
from taskloom.plugins.losses.mse import MSE
from taskloom.plugins.losses.smart import Smart
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.checkpoint import load_module_state, module_state, save_folder
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run, train

Kind = Literal["classes", "logit", "score", "vectors"]
LABELS = {
    "classes": Labels.of_classes(3),
    "logit": Labels.of_classes(2),
    "score": Labels.of_range(0, 5),
    "vectors": Labels.of_classes(2),
}
TARGETS = {
    "classes": torch.tensor([0, 2, 1]),
    "logit": torch.tensor([1, 0, 1]),
    "score": torch.tensor([1.0, 4.5, 3.0]),
    "vectors": torch.tensor([1, 0, 1]),
}
KINDS: list[Kind] = ["classes", "logit", "score", "vectors"]
TOKENS = Tokens.pack([[1, 7, 8, 2], [1, 9, 2], [1, 5, 6, 7, 2], [1, 8, 2], [1, 6, 9, 9, 2], [1, 7, 2]])


class Case:
    """A tiny encoder and a head for three examples, with weights large enough for all to matter."""

    def __init__(self, kind: Kind, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        self.kind = kind
        self.encoder = MinBert(
            layers=1, width=4, heads=2, vocabulary=12, dropout=dropout, attention_dropout=dropout, pooling="mean"
        )
        self.encoder.build(generator=derive_generator(0, "encoder"))
        self.head: Head = Cosine(dropout=dropout) if kind == "vectors" else Linear(reads="pair", dropout=dropout)
        outputs = 3 if kind == "classes" else 1
        self.head.build(
            width=4,
            outputs=outputs,
            labels=LABELS[kind],
            generator=derive_generator(0, "head"),
            shared=SharedModules(),
        )
        draw = derive_generator(1, "weights")
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        for part in (self.encoder, self.head):
            part.to(dtype).train()
            bind_generator(part, derive_generator(2, "dropout"))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.encoder.parameters(), *self.head.parameters()]

    @property
    def target(self) -> Tensor:
        return TARGETS[self.kind]

    def wrapped(self) -> Loss:
        made: dict[Kind, Callable[[], Loss]] = {
            "classes": CrossEntropy,
            "logit": BinaryCrossEntropy,
            "score": MSE,
            "vectors": CosineEmbedding,
        }
        return made[self.kind]()

    def smart(self, seed: int = 0, **options: Any) -> Smart:
        loss = Smart(loss=self.wrapped(), **options)
        loss.prepare(labels=LABELS[self.kind], rows=3)
        bind_generator(loss, torch.Generator().manual_seed(seed))
        return loss

    def predict(self) -> Prediction:
        return predict(self.encoder, self.head, TOKENS, torch.arange(3))

    def outputs(self, prediction: Prediction) -> Tensor:
        return prediction.vectors if self.kind == "vectors" else prediction.score

    def gradients(self, value: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(value, self.parameters, allow_unused=True)
        return [torch.zeros(()) if one is None else one.to_dense() for one in found]


def replay_of(prediction: Prediction) -> Replay:
    assert prediction.replay is not None
    return prediction.replay


def written_out(kind: Kind, one: Tensor, other: Tensor) -> Tensor:
    """The divergence of each example from its textbook definition."""
    if kind == "score":
        return (one - other) ** 2
    if kind == "vectors":
        return torch.stack([((one[:, i] - other[:, i]) ** 2).mean() for i in range(one.shape[1])])
    if kind == "logit":
        one, other = (torch.stack([torch.zeros_like(s), s], 1) for s in (one, other))
    p, q = one.softmax(1), other.softmax(1)
    return (p * (p / q).log()).sum(1) + (q * (q / p).log()).sum(1)


# Divergence


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["kl", "squared_error"]), columns=st.integers(0, 4))
def test_a_divergence_is_symmetric_and_zero_only_for_equals(seed: int, kind: Any, columns: int) -> None:
    shape = (3, columns + 1) if columns else (3,)
    one, other = torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    apart = divergence_of(one, other, kind)
    assert apart.shape == (3,)
    torch.testing.assert_close(apart, divergence_of(other, one, kind))
    assert (apart > 0).all()
    assert not divergence_of(one, one, kind).any()
    if kind == "kl" and columns:  # of distributions: a constant added to all logits of an example is nothing
        torch.testing.assert_close(divergence_of(one + 3, other, kind), apart)


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_is_the_textbooks(kind: Kind) -> None:
    case = Case(kind)
    prediction = case.predict()
    other = replay_of(prediction)(replay_of(prediction).embedded + 0.3)
    expected = written_out(kind, case.outputs(prediction), case.outputs(other))
    torch.testing.assert_close(case.smart()._distance(prediction, other), expected)


def test_one_logit_is_two() -> None:
    one, other = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    two = [torch.stack([torch.zeros_like(s), s], 1) for s in (one, other)]
    torch.testing.assert_close(divergence_of(one, other, "kl"), divergence_of(two[0], two[1], "kl"))


def test_the_divergence_can_be_chosen() -> None:
    case = Case("logit")
    prediction = case.predict()
    other = replay_of(prediction)(replay_of(prediction).embedded + 0.3)
    chosen = case.smart(divergence="squared_error")._distance(prediction, other)
    torch.testing.assert_close(chosen, (prediction.score - other.score) ** 2)
    with pytest.raises(ValueError, match=r"'kl' needs a score\. Found loss 'cosine_embedding'"):
        Smart(loss=CosineEmbedding(), divergence="kl")


# The perturbation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", ["normalise", "project"])
def test_the_first_step_goes_up_the_gradient_of_finite_differences(kind: Kind, bound: Any) -> None:
    case = Case(kind)
    prediction = case.predict()
    replay = replay_of(prediction)
    loss = case.smart(noise=0.1, step=0.5, epsilon=0.3, bound=bound)
    start = replay.embedded.detach()
    fixed = case.outputs(prediction).detach()
    noise = 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(0)).double()

    @torch.no_grad()
    def apart(delta: Tensor) -> float:
        return float(written_out(kind, case.outputs(replay(start + delta)), fixed).sum())

    rise = torch.zeros_like(noise)
    for place in range(noise.numel()):
        change = torch.zeros(noise.numel(), dtype=torch.float64)
        change[place] = 1e-5
        rise.view(-1)[place] = (apart(noise + change.view_as(noise)) - apart(noise - change.view_as(noise))) / 2e-5
    expected = torch.empty_like(noise)
    for row, (delta, g) in enumerate(zip(noise, rise, strict=True)):  # token by token
        if bound == "normalise":
            moved = delta + 0.5 * g
            expected[row] = moved / (max(moved.abs().tolist()) + 0.3)
        else:
            expected[row] = torch.tensor([min(max(x, -0.3), 0.3) for x in delta + 0.5 * g / max(g.abs().tolist())])
    torch.testing.assert_close(loss.perturbation(prediction), expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=20)
@given(
    kind=st.sampled_from(KINDS),
    epsilon=st.sampled_from([1e-6, 1e-3, 0.5]),
    noise=st.sampled_from([1e-5, 1e-2]),
    steps=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_each_tokens_perturbation_stays_in_its_bound(
    kind: Kind, epsilon: float, noise: float, steps: int, seed: int
) -> None:
    case = Case(kind)
    prediction = case.predict()
    options = {"noise": noise, "epsilon": epsilon, "steps": steps}
    clipped = case.smart(seed, bound="project", **options).perturbation(prediction).abs().amax(1)
    assert clipped.shape == TOKENS.ids.shape
    assert (clipped <= epsilon).all()
    near = case.smart(seed, bound="normalise", **options).perturbation(prediction).abs().amax(1)
    assert (near < 1).all()
    assert (near > 0).all()
    if epsilon < noise / 100:  # ε only guards the division
        assert (near > 0.9).all()


def test_at_the_papers_values_the_two_readings_are_orders_of_magnitude_apart() -> None:
    case = Case("classes")
    prediction = case.predict()
    near, clipped = (case.smart(bound=b).perturbation(prediction).abs().amax(1) for b in ("normalise", "project"))
    assert (near > 0.3).all()
    torch.testing.assert_close(
        clipped, torch.full_like(clipped, 1e-5)
    )  # η is a hundred times ε: each token at its bound


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_more_steps_move_the_prediction_further(steps: int) -> None:
    case = Case("score")
    prediction = case.predict()

    @torch.no_grad()
    def apart(loss: Smart) -> float:
        moved = replay_of(prediction)(replay_of(prediction).embedded + loss.perturbation(prediction))
        return float((moved.score - prediction.score).square().sum())

    options: dict[str, Any] = {"bound": "project", "epsilon": 0.05, "step": 0.02, "noise": 1e-4}
    assert apart(case.smart(steps=steps + 1, **options)) > apart(case.smart(steps=steps, **options))


def test_a_token_without_gradient_keeps_a_finite_perturbation() -> None:
    case = Case("score")
    with torch.no_grad():
        for parameter in case.head.parameters():
            parameter.zero_()  # whatever is changed, the score stays
    for bound in ("normalise", "project"):
        assert case.smart(bound=bound).perturbation(case.predict()).isfinite().all()


# The loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", ["normalise", "project"])
def test_the_gradient_is_that_of_finite_differences_with_the_perturbation_held(kind: Kind, bound: Any) -> None:
    case = Case(kind)
    loss = case.smart(weight=2.0, noise=0.1, step=0.5, epsilon=0.2, bound=bound)
    delta = case.smart(noise=0.1, step=0.5, epsilon=0.2, bound=bound).perturbation(case.predict())

    def value() -> Tensor:
        prediction = case.predict()
        replay = replay_of(prediction)
        moved = replay(replay.embedded + delta)
        apart = written_out(kind, case.outputs(prediction), case.outputs(moved)).mean()
        return case.wrapped()(prediction, case.target) + 2.0 * apart  # type: ignore[no-any-return]

    found = loss(case.predict(), case.target)
    torch.testing.assert_close(found, value())
    draw = torch.Generator().manual_seed(5)
    for parameter, gradient in zip(case.parameters, case.gradients(found), strict=True):
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-5)
            above = value()
            parameter.sub_(direction, alpha=2e-5)
            below = value()
            parameter.add_(direction, alpha=1e-5)
        expected = (above - below) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["classes", "score"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("values", [(1e-5, 1e-3, 1e-5), (0.1, 0.5, 0.2)], ids=["paper", "large"])
def test_it_is_smart_pytorchs(kind: Kind, steps: int, values: tuple[float, float, float]) -> None:
    reason = "install it with --no-deps: the stubs that it brings replace numpy's own types"
    peer = pytest.importorskip("smart_pytorch", reason=reason)
    noise, step, epsilon = values
    case = Case(kind, torch.float32)
    prediction = case.predict()
    replay = replay_of(prediction)

    def apart(one: Tensor, other: Tensor, reduction: str) -> Tensor:
        if kind == "score":
            return functional.mse_loss(one, other, reduction="mean" if reduction == "batchmean" else reduction)
        # kl_loss is theirs; their sym_kl_loss has the same value, with one side of each half detached.
        both: Tensor = peer.kl_loss(one, other, reduction) + peer.kl_loss(other, one, reduction)
        torch.testing.assert_close(both, peer.sym_kl_loss(one, other, reduction))
        return both

    theirs = peer.SMARTLoss(
        lambda embedded: replay(embedded).score,
        lambda one, other: apart(one, other, "sum"),
        lambda one, other: apart(one, other, "batchmean"),
        num_steps=steps,
        step_size=step,
        epsilon=epsilon,
        noise_var=noise,
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        expected = case.wrapped()(prediction, case.target) + 5 * theirs(replay.embedded, prediction.score)
    loss = case.smart(11, noise=noise, step=step, epsilon=epsilon, steps=steps)
    found = loss(case.predict(), case.target)
    torch.testing.assert_close(found, expected)
    for ours, other in zip(case.gradients(found), case.gradients(expected), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_without_weight_it_is_the_wrapped_loss_bit_for_bit(kind: Kind) -> None:
    case = Case(kind, torch.float32, dropout=0.1)
    values, states = [], []
    for loss in (case.smart(weight=0.0), case.wrapped()):
        bind_generator(case.encoder, drawing := torch.Generator().manual_seed(4))
        bind_generator(case.head, drawing)
        value = loss(case.predict(), case.target)
        values.append([value, *case.gradients(value)])
        states.append(drawing.get_state())
    assert all(one.equal(other) for one, other in zip(*values, strict=True))
    assert states[0].equal(states[1])  # nothing was replayed, so no dropout was drawn


@pytest.mark.parametrize("kind", KINDS)
def test_outside_of_training_it_is_the_wrapped_loss(kind: Kind) -> None:
    case = Case(kind)
    loss = case.smart(proximal=1.0).eval()
    for part in (case.encoder, case.head):
        part.eval()
    with torch.inference_mode():
        prediction = case.predict()
        assert loss(prediction, case.target).equal(case.wrapped()(prediction, case.target))
    alone = Prediction(prediction.score, prediction.vectors)
    assert loss(alone, case.target).isfinite()


def test_in_training_a_prediction_must_be_replayable() -> None:
    case = Case("score")
    prediction = case.predict()
    with pytest.raises(TrainingError, match="loss 'smart' needs a prediction that can be replayed"):
        case.smart()(Prediction(prediction.score, prediction.vectors), case.target)


def test_a_loss_that_is_only_evaluated_has_the_same_value() -> None:
    case = Case("classes")
    expected = case.smart()(case.predict(), case.target)
    with torch.no_grad():
        found = case.smart()(case.predict(), case.target)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_each_examples_perturbation_is_its_own_business(kind: Kind) -> None:
    """The ascent sums over examples, so that a token's δ does not depend on what else is in the batch."""
    case = Case(kind)
    options = {"noise": 1e-4, "step": 0.5, "epsilon": 0.1, "steps": 2}
    whole = case.smart(**options).perturbation(case.predict())
    with torch.no_grad():  # another text in the first example; the second and third keep theirs
        other = Tokens(TOKENS.ids.clone(), TOKENS.lengths, TOKENS.types)
        other.ids[1] = 5
    changed = case.smart(**options).perturbation(predict(case.encoder, case.head, other, torch.arange(3)))
    same = (TOKENS.owners != 0) & (TOKENS.owners != 3)  # sequence 3 is the first example's second text
    torch.testing.assert_close(whole[same], changed[same])
    assert not whole[~same].allclose(changed[~same])


def test_expects_and_messages_are_those_of_the_wrapped_loss() -> None:
    assert [Case(kind).smart().expects for kind in KINDS] == ["classes", "score", "score", "vectors"]
    with pytest.raises(TrainingError, match="labels from 0 to 1"):
        Smart(loss=BinaryCrossEntropy()).prepare(labels=Labels.of_range(0, 5), rows=3)

    class Listening(MSE):
        """Remembers what it is told."""

        name = "listening"
        told: tuple[int, float] = (0, 0.0)

        def epoch_ended(self, *, epoch: int, score: float) -> None:
            self.told = (epoch, score)

    inner = Listening()
    Smart(loss=inner).epoch_ended(epoch=3, score=0.5)
    assert inner.told == (3, 0.5)


@pytest.mark.parametrize("wrapped", [CrossEntropy, BinaryCrossEntropy, MSE, CosineEmbedding])
def test_it_keeps_the_laws_of_losses(wrapped: type[Loss]) -> None:
    check(Smart, loss=wrapped(), bound="project", proximal=1.0)


@pytest.mark.parametrize("law", laws("loss"), ids=str)
def test_normalised_it_keeps_those_that_do_not_hang_on_the_noise(law: Any) -> None:
    # δ as large as the embeddings comes from noise that is drawn row by row and cannot be resolved in half precision,
    # and is a constant in the gradient, so these three cannot hold:
    if any(word in law.name for word in ("finite differences", "order", "precision")):
        return
    law(Smart, loss=CrossEntropy())


# What it costs


@pytest.mark.parametrize("kind", KINDS)
def test_the_ascent_leaves_no_gradient_and_computes_none_for_weights(kind: Kind) -> None:
    case = Case(kind)
    prediction = case.predict()
    seen: list[Any] = []

    def note(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    weights = {parameter.data_ptr() for parameter in case.parameters}
    handles = [parameter.register_hook(lambda _: seen.append("weight gradient")) for parameter in case.parameters]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        case.smart(steps=2).perturbation(prediction)
    for handle in handles:
        handle.remove()
    assert "weight gradient" not in seen
    assert all(parameter.grad is None for parameter in case.parameters)
    assert not any(tensor.requires_grad and tensor.data_ptr() in weights for tensor in seen)


def test_what_an_ascent_step_keeps_is_gone_before_the_next_pass() -> None:
    case = Case("classes", dropout=0.1)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()

    def pack(tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        alive.add(kept)
        return kept

    counts: list[int] = []

    class Counting(nn.Module):
        """The pass of a replay, counting what is kept for backward when it begins."""

        def __init__(self, run: Any) -> None:
            super().__init__()
            self.run = run

        def forward(self, embedded: Tensor | None) -> Prediction:
            counts.append(len(alive))
            prediction: Prediction = self.run(embedded)
            return prediction

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        made = case.predict()
        prediction = Prediction(
            made.score, made.vectors, None, Replay(replay_of(made).embedded, Counting(made.replay.run))
        )  # type: ignore[union-attr]
        value = case.smart(steps=3)(prediction, case.target)
    first, *rest = counts
    assert len(rest) == 3  # two more ascent steps and the last pass
    assert max(rest) <= first + 4  # the wrapped loss, the sum with δ: never another pass
    assert len(alive) > 1.8 * first  # and the last pass is kept, to be differentiated
    value.backward()  # type: ignore[no-untyped-call]


# Frozen encoders, bfloat16, combiners


@pytest.mark.parametrize("proximal", [0.0, 1.0])
def test_a_frozen_encoder_still_teaches_the_head(proximal: float) -> None:
    case = Case("classes")
    case.encoder.requires_grad_(False)
    loss = case.smart(proximal=proximal)
    value = loss(case.predict(), case.target)
    value.backward()
    assert all(parameter.grad is None for parameter in case.encoder.parameters())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in case.head.parameters())
    kept = {name.split("/")[0] for name in loss.average.state_dict()}
    assert kept == ({"head"} if proximal else set())  # what does not learn needs no average


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", ["normalise", "project"])
def test_bfloat16(kind: Kind, bound: Any) -> None:
    case = Case(kind, torch.bfloat16)
    loss = case.smart(bound=bound, proximal=1.0)
    assert loss.perturbation(case.predict()).dtype == torch.float32
    value = loss(case.predict(), case.target)
    assert value.dtype == torch.float32
    value.backward()
    gradients = [parameter.grad for parameter in case.parameters if parameter.grad is not None]
    assert gradients
    assert all(gradient.to_dense().isfinite().all() for gradient in gradients)
    assert all(average.dtype == torch.float32 for average in loss.average.state_dict().values())


def spec(loss: dict[str, Any], **stage: Any) -> dict[str, Any]:
    """A resolved run of three tasks that all have the loss around their own."""
    own = {"sentiment": "cross_entropy", "paraphrase": "binary_cross_entropy", "similarity": "mse"}
    pair = {"name": "linear", "reads": "pair"}
    run = {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            task: {
                "data": {"name": "generated", "task": task, "size": 24, "dev_size": 8},
                "head": "linear" if task == "sentiment" else pair,
                "loss": {**loss, "loss": inner},
                "metric": "pearson" if task == "similarity" else "accuracy",
            }
            for task, inner in own.items()
        },
        "stages": [{"epochs": 4, "optimizer": {"lr": 0.01}, **stage}],
        "selection": "last",
    }
    resolved, problems = load_catalogue().resolve_run(run)
    assert not problems
    return resolved


def ignore(event: Event) -> None:
    pass


def test_a_combiner_sees_each_tasks_whole_gradient(tmp_path: Path) -> None:
    resolved = spec({"name": "smart"}, combiner="pcgrad")
    run = Run.build(Job("x", "x", 0, resolved, str(tmp_path)), ignore, load_catalogue())
    state = StageState.build(run, 0, resolved["stages"][0], tuple(resolved["tasks"]))
    assert isinstance(state.combiner, PCGrad)
    run.model.train()
    shared, group = run.model.shared_parameters(), next(state.sampler.epoch())
    step = GroupStep(
        group,
        model=run.model,
        feeds=run.train,
        shared=shared,
        trained=state.trained,
        optimizer=state.optimizer,
        clip=None,
    )
    before = [parameter.detach().clone() for parameter in shared]
    losses = state.combiner.update(step)
    assert set(losses) == set(resolved["tasks"])
    assert all(loss > 0 for loss in losses.values())
    assert any(not one.equal(other) for one, other in zip(before, shared, strict=True))


# The proximal term


def test_the_average_follows_the_model_as_written() -> None:
    case = Case("score")
    loss = case.smart(weight=0.0, proximal=3.0, momentum=0.8)
    plain = case.wrapped()
    average = {}
    for _ in range(4):
        prediction = case.predict()
        present = {name: p.detach().clone() for name, p in replay_of(prediction).parameters.items()}
        average = {name: 0.8 * average.get(name, now) + 0.2 * now for name, now in present.items()}
        value = loss(prediction, case.target)
        found = case.gradients(value)
        with torch.no_grad():
            for name, parameter in replay_of(prediction).parameters.items():
                parameter.copy_(average[name])
            target = case.predict().score
            for name, parameter in replay_of(prediction).parameters.items():
                parameter.copy_(present[name])
        expected = plain(case.predict(), case.target) + 3.0 * ((case.predict().score - target) ** 2).mean()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(found, case.gradients(expected))
        with torch.no_grad():
            for parameter, gradient in zip(case.parameters, found, strict=True):
                parameter.sub_(0.01 * gradient)
    assert value > plain(case.predict(), case.target)


def test_the_first_proximal_term_is_zero_and_evaluation_moves_nothing() -> None:
    case = Case("classes")
    loss = case.smart(weight=0.0, proximal=3.0)
    with torch.no_grad():
        loss(case.predict(), case.target)
    assert not loss.average.state_dict()
    first = loss(case.predict(), case.target)
    torch.testing.assert_close(first, case.wrapped()(case.predict(), case.target))


def test_the_average_survives_saving(tmp_path: Path) -> None:
    case = Case("classes", torch.float32)
    first = case.smart(proximal=2.0)
    for _ in range(2):
        value = first(case.predict(), case.target)
        with torch.no_grad():
            for parameter, gradient in zip(case.parameters, case.gradients(value), strict=True):
                parameter.sub_(0.05 * gradient)
    save_folder(tmp_path / "saved", module_state(first, "loss."), {})
    second = case.smart(proximal=2.0)
    load_module_state(second, load_file(tmp_path / "saved" / "tensors.safetensors"), "loss.")
    for loss in (first, second):
        bind_generator(loss, torch.Generator().manual_seed(3))
    assert second.average.state_dict().keys() == first.average.state_dict().keys()
    assert first(case.predict(), case.target).equal(second(case.predict(), case.target))


class InterruptedRunError(Exception):
    """Stands for a worker that is killed."""


def test_a_run_with_a_moving_average_resumes_bit_for_bit(tmp_path: Path) -> None:
    resolved = json.loads(json.dumps(spec({"name": "smart", "proximal": 1.0}, combiner="pcgrad")))
    told: list[Event] = []

    def interrupt(event: Event) -> None:
        told.append(event)
        if event.what == "epoch" and event.facts["epoch"] == 3:
            raise InterruptedRunError

    train(Job("x", "x", 0, resolved, str(tmp_path / "whole")), ignore)
    broken = Job("x", "x", 0, resolved, str(tmp_path / "broken"))
    with pytest.raises(InterruptedRunError):
        train(broken, interrupt)
    with pytest.raises(InterruptedRunError):  # it goes on in the third epoch, which tells of itself again
        train(broken, interrupt)
    assert [event.what for event in told if event.what in ("started", "resumed")] == ["started", "resumed"]
    train(broken, ignore)
    ours, theirs = (
        load_file(tmp_path / way / "cells" / "x" / "best" / "tensors.safetensors") for way in ("whole", "broken")
    )
    assert any("average" in name for name in ours)
    assert ours.keys() == theirs.keys()
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())
