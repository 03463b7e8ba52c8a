"""SMART: a loss that also penalizes a lack of smoothness around each input."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from taskloom.core import Expects, Labels, Loss, LossProgram, Prediction, Replay, ReplayRequest, run_program
from taskloom.plugins.similarity import at_least_float32


class Smart(Loss):
    """Adds to a loss how much the prediction changes under the worst small change of the input embeddings.

    L + λ · 1/B Σᵢ D(f(e)ᵢ, f(e + δ)ᵢ). δ begins as Gaussian noise times σ; ``steps`` times the gradient g of
    Σᵢ D with respect to δ (f(e) held fixed) moves it, the norm being that of each token:
    ``bound: "normalise"`` δ ← (δ + η·g) / (‖δ + η·g‖∞ + ε), so ε only guards the division and ‖δ‖∞ is near 1;
    ``bound: "project"`` δ ← δ + η·g/‖g‖∞, clipped to ‖δ‖∞ ≤ ε.
    The first is what the public implementations compute, the second the algorithm as it is printed; they differ by
    orders of magnitude. δ is then a constant.

    D is the symmetrised Kullback-Leibler divergence for classes, one logit of two classes being the two logits
    (0, s), and the squared difference for any other number. Where the wrapped loss looks at vectors only, it is their
    mean squared difference.

    With P = f(e)ᵢ and Q = f(e + δ)ᵢ the target of each half of the divergence is a constant (sg, stop-gradient), as in
    the public implementations: KL(sg(P)‖Q) + KL(sg(Q)‖P), whose gradient is p − q in the logits of P and q − p in
    those of Q. ``kl_target: "attached"`` is the gradient of D itself, twice that for small changes, so that λ counts
    double. Squared differences have their full gradient either way. In the ascent only KL(P‖Q) is climbed, or with
    ``ascent: "symmetric"`` D itself.

    ``proximal`` adds β · 1/B Σᵢ D(f(e; θ)ᵢ, f(e; θ̃)ᵢ), θ̃ ← m θ̃ + (1 − m) θ being a moving average of encoder and
    head: one more forward pass, and a copy of the trained weights for each task that has it. The average is state, and
    the gradient that of D itself.

    Reads: what the wrapped loss reads. Outside of training only the wrapped loss counts.

    Options:
        loss: the loss to be wrapped
        weight: λ, the weight of the smoothness term; 0 leaves it out
        step: η, the length of an ascent step
        epsilon: ε, the guard of the division ("normalise") or the largest change ("project")
        noise: σ, the size of the noise that δ begins as
        steps: ascent steps
        bound: "normalise" or "project", see above
        ascent: "one_way" climbs one half of D, "symmetric" D itself, see above
        kl_target: whether the target of each half of the KL divergence is "detached" or "attached", see above
        divergence: "auto" as above; "kl" or "squared_error" whatever the labels are
        proximal: β, the weight of the Bregman proximal point term; 0 leaves it out
        momentum: m, how slowly the average of the proximal term follows

    Siblings: ``total`` adds losses that need no second forward pass.

    Reference: Jiang et al., "SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through
    Principled Regularized Optimization", ACL 2020.

    Example:
        {"tasks": {"sst": {"loss": {"name": "smart", "loss": "cross_entropy", "weight": 5}}}}
    """

    name = "smart"
    revision = 2  # since 0.3 the target of each half of the divergence is detached
    expects: Expects  # that of the wrapped loss

    def __init__(
        self,
        *,
        loss: Loss,
        weight: NonNegativeFloat = 5.0,
        step: PositiveFloat = 1e-3,
        epsilon: PositiveFloat = 1e-5,
        noise: PositiveFloat = 1e-5,
        steps: Annotated[int, Field(ge=1)] = 1,
        bound: Literal["normalise", "project"] = "normalise",
        ascent: Literal["one_way", "symmetric"] = "one_way",
        kl_target: Literal["detached", "attached"] = "detached",
        divergence: Literal["auto", "kl", "squared_error"] = "auto",
        proximal: NonNegativeFloat = 0.0,
        momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99,
    ) -> None:
        super().__init__()
        if divergence == "kl" and loss.expects == "vectors":
            raise ValueError(f"divergence 'kl' needs a score. Found loss {loss.name!r}, which looks at vectors only.")
        self.loss = loss
        self.expects, self.score_means, self.vectors = loss.expects, loss.score_means, loss.vectors
        self.replays = True
        self.separable = loss.separable  # δ and D of an example do not depend on the others
        self.weight, self.step, self.epsilon, self.noise = weight, step, epsilon, noise
        self.steps = steps
        self.bound = bound
        self.ascent = ascent
        self.kl_target = kl_target
        self.divergence = divergence
        self.proximal = proximal
        self.average = MovingAverage(momentum)
        self.generator: torch.Generator | None = None
        self.labels = Labels.of_range(0, 0)

    @property
    def stops_gradient(self) -> bool:  # type: ignore[override]
        """Known once labels are: with a single score they determine the divergence."""
        detached = self.kl_target == "detached" and self._kind == "kl" and self.weight > 0
        return self.loss.stops_gradient or detached

    def prepare(self, *, labels: Labels, rows: int) -> None:
        self.labels = labels
        self.loss.prepare(labels=labels, rows=rows)

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        self.loss.epoch_ended(epoch=epoch, score=score, overall=overall)

    def metrics(self) -> dict[str, float]:
        return self.loss.metrics()

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return run_program(self.program(prediction, target), prediction)

    def program(self, prediction: Prediction, target: Tensor) -> LossProgram:
        total: Tensor = self.loss(prediction, target)
        if not self.training or not (self.weight or self.proximal):
            return total
        assert prediction.replay is not None, "a run's predictions can be replayed"
        replay = prediction.replay
        if self.weight:
            delta = yield from self.perturbation(prediction)
            changed = yield ReplayRequest((replay.embedded + delta).to(replay.embedded.dtype))  # [N, d]
            total = total + self.weight * self._distance(prediction, changed, self.kl_target == "detached").mean()
        if self.proximal:
            # Evaluating a loss is not a training step, and all micro-batches of a batch are one step.
            if torch.is_grad_enabled() and prediction.part == 0:
                self.average.update(replay.parameters)
            with torch.no_grad():
                averaged = replay(parameters=self.average.values(replay.parameters))
            total = total + self.proximal * self._distance(prediction, averaged).mean()
        return total

    def perturbation(self, prediction: Prediction) -> LossProgram:
        """δ, at least in float32, [N, d]. Only gradients with respect to δ are computed; none is accumulated."""
        start = cast(Replay, prediction.replay).embedded.detach()
        fixed = Prediction(prediction.score.detach(), prediction.vectors.detach())
        # Always drawn in float32, so that a seed means the same noise in every precision.
        drawn = torch.randn(start.shape, generator=self.generator, device=start.device, dtype=torch.float32)
        delta = self.noise * drawn.to(at_least_float32(start).dtype)  # [N, d]
        for _ in range(self.steps):
            ascent = yield ReplayRequest(
                (start + delta).to(start.dtype),
                lambda changed: self._distance(changed, fixed, self.ascent == "one_way").sum(),
            )
            gradient = ascent.to(delta.dtype)
            if self.bound == "normalise":
                moved = delta + self.step * gradient
                delta = moved / (_largest(moved) + self.epsilon)
            else:
                tiny = torch.finfo(gradient.dtype).tiny  # a token that changes nothing has a gradient of zero
                moved = delta + self.step * (gradient / _largest(gradient).clamp_min(tiny))
                delta = moved.clamp(-self.epsilon, self.epsilon)
        return delta

    def _distance(self, p: Prediction, q: Prediction, detached: bool = False) -> Tensor:
        """The divergence of each example, [B]; see :func:`divergence_of`."""
        if self.expects == "vectors":
            return divergence_of(p.vectors.transpose(0, 1), q.vectors.transpose(0, 1), self._kind)  # [B, S, d]
        return divergence_of(p.score, q.score, self._kind, detached=detached)  # [B, C] or [B]

    @property
    def _kind(self) -> str:
        classes = self.expects == "classes" or (self.score_means == "logit" and self.labels.classes == 2)
        return ("kl" if classes else "squared_error") if self.divergence == "auto" else self.divergence


def _largest(rows: Tensor) -> Tensor:
    """‖·‖∞ of each row, [N, d] → [N, 1]."""
    return rows.abs().amax(1, keepdim=True)


def divergence_of(x: Tensor, y: Tensor, kind: str, *, detached: bool = False) -> Tensor:
    """The divergence of each example, symmetric in its arguments, at least in float32: [B, …], [B, …] → [B].

    "kl" is KL(P‖Q) + KL(Q‖P) = Σ (p − q)(log p − log q). A single logit s is the two logits (0, s), which makes the
    sum (σ(s) − σ(t))(s − t). With p − q ``detached`` the gradient is that of KL(sg(P)‖Q) + KL(sg(Q)‖P); if Q is a
    constant, that of KL(Q‖P) alone.

    >>> divergence_of(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]]), "kl")  # (σ(1) − σ(0)) · 1
    tensor([0.2311])
    """
    x, y = at_least_float32(x), at_least_float32(y)
    if kind == "squared_error":
        return (x - y).square().flatten(1).mean(1) if x.dim() > 1 else (x - y).square()
    if x.dim() == 1:
        difference, log_ratio = x.sigmoid() - y.sigmoid(), x - y
    else:
        log_p, log_q = x.log_softmax(-1), y.log_softmax(-1)
        difference, log_ratio = log_p.exp() - log_q.exp(), log_p - log_q
    terms = (difference.detach() if detached else difference) * log_ratio
    return terms.sum(-1) if x.dim() > 1 else terms


class MovingAverage(nn.Module):
    """θ̃ ← m θ̃ + (1 − m) θ of the parameters that are being trained; it begins as a copy of them.

    The averages are buffers, registered with the first parameters seen or with a saved state: they are saved, restored
    and moved between devices like any others. Half precision is averaged in float32, where a step of 1 − m is not lost
    to rounding.
    """

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Move the average of every trained parameter towards its current value."""
        for name, parameter in parameters.items():
            if not parameter.requires_grad:
                continue
            current = at_least_float32(parameter.detach())
            average = self._buffers.get(_key(name))
            if average is None:
                self.register_buffer(_key(name), current.clone())
            else:
                average = self._buffers[_key(name)] = average.to(current.device)
                average.lerp_(current, 1 - self.momentum)

    def values(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """The averages to use instead of the trained parameters, by name."""
        trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        averages = {name: self._buffers.get(_key(name)) for name in trained}
        return {name: average.to(trained[name]) for name, average in averages.items() if average is not None}

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, tensor in state_dict.items():
            key = name.removeprefix(prefix)
            if name.startswith(prefix) and key not in self._buffers:
                self.register_buffer(key, torch.empty_like(tensor))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _key(name: str) -> str:
    """A parameter's name as that of a buffer, which must not contain a dot."""
    return name.replace(".", "/")
