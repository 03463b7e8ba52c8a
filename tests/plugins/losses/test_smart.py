"""SMART: its perturbation, its gradient, what it costs, and the moving average of its proximal term."""

import weakref
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from taskloom.core import (
    Head,
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
    run_program,
)
from taskloom.core.testing import check
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.plugins.heads.cosine import Cosine
from taskloom.plugins.heads.linear import Linear
from taskloom.plugins.losses.binary_cross_entropy import BinaryCrossEntropy
from taskloom.plugins.losses.cosine_embedding import CosineEmbedding
from taskloom.plugins.losses.cross_entropy import CrossEntropy
from taskloom.plugins.losses.dynamic_margin import DynamicMargin
from taskloom.plugins.losses.mse import MSE
from taskloom.plugins.losses.smart import MovingAverage, Smart, divergence_of
from taskloom.plugins.losses.total import Total

Kind = Literal["classes", "logit", "score", "vectors"]
#: Of each kind of output what labels mean, the labels of three examples, and the loss that is wrapped.
CASES: dict[Kind, tuple[Labels, list[float], type[Loss]]] = {
    "classes": (Labels.of_classes(3), [0, 2, 1], CrossEntropy),
    "logit": (Labels.of_classes(2), [1, 0, 1], BinaryCrossEntropy),
    "score": (Labels.of_range(0, 5), [1.0, 4.5, 3.0], MSE),
    "vectors": (Labels.of_classes(2), [1, 0, 1], CosineEmbedding),
}
KINDS = list(CASES)
TOKENS = Tokens.pack([[1, 7, 8, 2], [1, 9, 2], [1, 5, 6, 7, 2], [1, 8, 2], [1, 6, 9, 9, 2], [1, 7, 2]])


class Case:
    """A tiny encoder and a head for three examples, with weights large enough for all to matter."""

    def __init__(self, kind: Kind, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        self.kind = kind
        self.labels, target, self.wrapped = CASES[kind]
        self.target = torch.tensor(target)
        self.encoder = MinBert(
            layers=1, width=4, heads=2, vocabulary=12, dropout=dropout, attention_dropout=dropout, pooling="mean"
        )
        self.encoder.build(generator=derive_generator(0, "encoder"))
        self.head: Head = Cosine(dropout=dropout) if kind == "vectors" else Linear(reads="pair", dropout=dropout)
        outputs = 3 if kind == "classes" else 1
        self.head.build(
            width=4,
            outputs=outputs,
            labels=self.labels,
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

    def smart(self, seed: int = 0, **options: Any) -> Smart:
        loss = Smart(loss=self.wrapped(), **options)
        loss.prepare(labels=self.labels, rows=3)
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
    loss = case.smart(noise=0.1, step=0.5, epsilon=0.3, bound=bound, ascent="symmetric")
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
    torch.testing.assert_close(run_program(loss.perturbation(prediction), prediction), expected, rtol=1e-4, atol=1e-6)


def test_a_token_without_gradient_keeps_a_finite_perturbation() -> None:
    case = Case("score")
    with torch.no_grad():
        for parameter in case.head.parameters():
            parameter.zero_()  # whatever is changed, the score stays
    prediction = case.predict()
    for bound in ("normalise", "project"):
        assert run_program(case.smart(bound=bound).perturbation(prediction), prediction).isfinite().all()


# The loss


def smart_pytorch() -> Any:
    reason = "install it with --no-deps: the stubs that it brings replace numpy's own types"
    return pytest.importorskip("smart_pytorch", reason=reason)


@pytest.mark.parametrize("kind", ["classes", "logit", "score"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("values", [(1e-5, 1e-3, 1e-5), (0.1, 0.5, 0.2)], ids=["paper", "large"])
@pytest.mark.parametrize("kl_target", ["detached", "attached"])
def test_it_is_smart_pytorchs(kind: Kind, steps: int, values: tuple[float, float, float], kl_target: str) -> None:
    """Value and gradient: by default with the library's own functions, attached with those of one half, added up."""
    peer = smart_pytorch()
    noise, step, epsilon = values
    case = Case(kind, torch.float32)
    prediction = case.predict()
    replay = replay_of(prediction)

    def both(logits: Tensor, others: Tensor, reduction: str) -> Tensor:
        halves: Tensor = peer.kl_loss(logits, others, reduction) + peer.kl_loss(others, logits, reduction)
        torch.testing.assert_close(halves, peer.sym_kl_loss(logits, others, reduction))
        return halves

    climbed, added = (peer.kl_loss, peer.sym_kl_loss) if kl_target == "detached" else (both, both)

    def apart(score: Tensor, other: Tensor, reduction: str) -> Tensor:
        if kind == "score":
            return functional.mse_loss(score, other, reduction="mean" if reduction == "batchmean" else reduction)
        if kind == "logit":
            score, other = (torch.stack([torch.zeros_like(s), s], 1) for s in (score, other))
        return (climbed if reduction == "sum" else added)(score, other, reduction)  # type: ignore[no-any-return]

    theirs = peer.SMARTLoss(
        lambda embedded: replay(embedded).score,
        lambda score, other: apart(score, other, "sum"),
        lambda score, other: apart(score, other, "batchmean"),
        num_steps=steps,
        step_size=step,
        epsilon=epsilon,
        noise_var=noise,
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        expected = case.wrapped()(prediction, case.target) + 5 * theirs(replay.embedded, prediction.score)
    options = {} if kl_target == "detached" else {"ascent": "symmetric", "kl_target": kl_target}
    loss = case.smart(11, noise=noise, step=step, epsilon=epsilon, steps=steps, **options)
    value = loss(case.predict(), case.target)
    torch.testing.assert_close(value, expected)
    for ours, other in zip(case.gradients(value), case.gradients(expected), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_the_librarys_divergence_of_a_single_logit_is_always_zero() -> None:
    """Which is why a logit is taken as one of two."""
    logits, others = (torch.randn(8, 1, generator=derive_generator(seed, "logits")) for seed in (0, 1))
    assert not smart_pytorch().sym_kl_loss(logits, others).any()
    assert divergence_of(logits[:, 0], others[:, 0], "kl").all()


@pytest.mark.parametrize("kind", ["classes", "logit"])
def test_attached_targets_double_the_gradient_of_a_fresh_head(kind: Kind) -> None:
    case = Case(kind)
    with torch.no_grad():
        for parameter in case.head.parameters():
            parameter.mul_(0.02)
    plain = case.gradients(case.wrapped()(case.predict(), case.target))

    def smoothness(kl_target: str) -> Tensor:
        """The gradient that the smoothness term adds, in all parameters."""
        whole = case.gradients(case.smart(kl_target=kl_target)(case.predict(), case.target))
        return torch.cat([(each - base).flatten() for each, base in zip(whole, plain, strict=True)])

    detached, attached = smoothness("detached"), smoothness("attached")
    assert detached.norm() > 0
    torch.testing.assert_close(attached.norm() / detached.norm(), torch.tensor(2.0).double(), rtol=0, atol=0.005)
    assert functional.cosine_similarity(attached, detached, dim=0) > 0.9999


@pytest.mark.parametrize("kl_target", ["detached", "attached"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_stops_the_gradient_where_a_kl_target_is_detached(kind: Kind, kl_target: str) -> None:
    """A squared difference has the gradient of its value, and so has the proximal term."""
    case = Case(kind)
    stops = kl_target == "detached" and kind in ("classes", "logit")
    loss = case.smart(kl_target=kl_target)
    wrapping = Total(losses=[loss])
    assert loss.stops_gradient == wrapping.stops_gradient == stops
    assert not case.smart(kl_target=kl_target, weight=0.0, proximal=1.0).stops_gradient


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


def test_of_two_classes_by_regression_the_number_is_no_logit() -> None:
    """The divergence of a value is the squared difference, whatever it is a value of."""
    one, other = (Prediction(torch.tensor(score), torch.zeros(2, 2, 3)) for score in ([0.2, 0.9], [0.4, 0.8]))
    found = []
    for labels in (Labels.of_classes(2), Labels.of_range(0, 1)):
        loss = Smart(loss=MSE())
        loss.prepare(labels=labels, rows=2)
        found.append(loss._distance(one, other))
    torch.testing.assert_close(found[0], torch.tensor([0.04, 0.01]))
    assert found[0].equal(found[1])


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


def test_expects_and_messages_are_those_of_the_wrapped_loss() -> None:
    assert [Case(kind).smart().expects for kind in KINDS] == ["classes", "score", "score", "vectors"]
    assert [Case(kind).smart().score_means for kind in KINDS] == [None, "logit", "value", None]
    with pytest.raises(TrainingError, match="labels from 0 to 1"):
        Smart(loss=BinaryCrossEntropy()).prepare(labels=Labels.of_range(0, 5), rows=3)

    inner = DynamicMargin(step=0.3)
    Smart(loss=inner).epoch_ended(epoch=3, score=0.5, overall=0.0)
    assert Smart(loss=inner).metrics() == inner.metrics() == {"margin": pytest.approx(-0.1)}


@pytest.mark.parametrize(
    ("wrapped", "kl_target"),
    [  # of values and vectors, whose divergence is no KL, the option changes nothing
        (CrossEntropy, "detached"),
        (CrossEntropy, "attached"),
        (BinaryCrossEntropy, "detached"),
        (BinaryCrossEntropy, "attached"),
        (MSE, "detached"),
        (CosineEmbedding, "detached"),
    ],
)
def test_it_keeps_the_laws_of_losses(wrapped: type[Loss], kl_target: str) -> None:
    check(Smart, loss=wrapped(), bound="project", proximal=1.0, kl_target=kl_target)


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
        run_program(case.smart(steps=2).perturbation(prediction), prediction)
    for handle in handles:
        handle.remove()
    assert "weight gradient" not in seen
    assert all(parameter.grad is None for parameter in case.parameters)
    assert not any(tensor.requires_grad and tensor.data_ptr() in weights for tensor in seen)


def test_what_an_ascent_step_keeps_is_gone_before_the_next_pass() -> None:
    case = Case("classes", dropout=0.1)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    counts: list[int] = []  # of what is kept for backward, when each pass begins

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()
            alive.add(self)

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        prediction = case.predict()
        run = replay_of(prediction).run
        run.register_forward_pre_hook(lambda *_: counts.append(len(alive)))  # type: ignore[attr-defined]
        value = case.smart(steps=3)(prediction, case.target)
    first, *rest = counts
    assert len(rest) == 3  # two more ascent steps and the last pass
    assert max(rest) <= first + 4  # the wrapped loss, the sum with δ: never another pass
    assert len(alive) > 1.7 * first  # and the last pass is kept, to be differentiated
    value.backward()


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


def test_evaluation_moves_no_average() -> None:
    case = Case("classes")
    loss = case.smart(weight=0.0, proximal=3.0)
    with torch.no_grad():
        loss(case.predict(), case.target)
    assert not loss.average.state_dict()


def test_half_precision_is_averaged_in_float32() -> None:
    """Where a step of 1 − m would be lost to rounding."""
    average, weight = MovingAverage(0.999), nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    average.update({"weight": weight})
    with torch.no_grad():
        weight.fill_(2.0)
    for _ in range(1000):
        average.update({"weight": weight})
    (kept,) = average.state_dict().values()
    torch.testing.assert_close(kept, torch.tensor([2 - 0.999**1000]))
