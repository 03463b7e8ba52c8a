"""What `check` says of what it found: component, law and input, and each cause once."""

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mutants.base import Cosine, OneLayer, SquaredError
from mutants.losses import FORGETFUL, AtAnEdge, Wrapped
from mutants.plugins import components
from mutants.trackers import reads
from torch import Tensor, nn

from taskloom.core import Event, Job, Prediction
from taskloom.core.testing import KINDS_WITH_LAWS, broken_laws, check, engines, laws, untouched_randomness
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.losses import Smart, Total


def message_of(target: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check(target, **options)
    return str(caught.value)


class Shifted(OneLayer):
    """Moves with the size of the batch.

    Options:
        layers: how many
    """

    name = "shifted"

    def __init__(self, *, layers: int = 2) -> None:
        super().__init__()

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(super().forward(vectors).score + vectors.shape[1], vectors)


class OnTheHost(SquaredError):  # noqa: N818 - a loss
    """Weighs its examples with a tensor that is always on the CPU."""

    name = "on_the_host"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        weight = prediction.score * torch.arange(len(target)).clamp(1, 1)
        return super().forward(Prediction(weight, prediction.vectors), target)


class BatchTooSmall(SquaredError):  # noqa: N818 - a loss
    """Raises on one example."""

    name = "batch_too_small"
    separable = False

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        if len(target) == 1:
            raise RuntimeError("batch too small")
        return super().forward(prediction, target)


class RefusesAll(Cosine):
    """Takes nothing."""

    name = "refuses_all"

    def __call__(self, predicted: Any, expected: Any) -> float:
        raise ValueError("not these")


def test_a_violation_names_component_options_law_and_input() -> None:
    message = message_of(Shifted, layers=1)
    assert message.startswith("head 'shifted' (layers=1) breaks the law 'each example is scored by itself': with ")
    assert "3 outputs, labels of 3 classes: an example alone gets another score" in message


def test_a_violation_names_the_option_at_whose_edge_it_happens() -> None:
    class Edgy(AtAnEdge):
        __doc__ = AtAnEdge.__doc__
        wrong = "column"

    assert "(way='column') breaks the law 'it is one finite number" in message_of(Edgy)


def test_a_tensor_made_on_the_host_is_found_without_a_gpu_and_the_message_says_what_to_write() -> None:
    message = message_of(OnTheHost)
    assert "loss 'on_the_host' breaks the law 'it works on a gpu'" in message
    assert "found at least two devices" in message
    assert f"{__file__}, line {OnTheHost.forward.__code__.co_firstlineno + 1}" in message
    assert "torch.arange(n, device=target.device)" in message


def test_one_cause_is_reported_once_with_every_law_and_its_input() -> None:
    first, *rest = message_of(BatchTooSmall).splitlines()
    assert first.startswith("loss 'batch_too_small': 2 laws break for one reason: RuntimeError: batch too small (")
    assert re.search(r"test_check\.py, line \d+\)$", first)
    case = "with labels of 2 classes, 2 vectors per example"
    assert rest == [
        f"  'it is one finite number with a finite gradient': {case}, 1 example",
        f"  'the loss of a batch is not a sum': {case}",
    ]


def test_a_constructor_that_ends_the_program_breaks_laws_and_ends_nothing() -> None:
    class Leaves(Cosine):
        """Ends the program."""

        name = "leaves"

        def __init__(self) -> None:
            raise SystemExit(3)

    assert re.match(r"metric 'leaves': \d+ laws break for one reason: SystemExit: 3", message_of(Leaves))


def test_what_refuses_every_input_breaks_laws() -> None:
    assert "it refuses everything: labels of 5 classes (not these); " in message_of(RefusesAll)


def test_a_job_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(Inline):
        """Reports nothing of its jobs."""

        name = "deaf"

        def poll(self, seconds: float) -> list[Event]:
            return []

        def submit(self, job: Job) -> None:
            pass

    monkeypatch.setattr(engines, "LIMIT", 0.01)
    assert "after 0.01 s without an event, ('a',) have no 'end'" in message_of(Deaf)


def test_a_module_is_held_to_all_that_it_brings() -> None:
    bad = components(Cosine, Shifted, reads("epoch_ended", lambda facts: facts["loss"]))
    message = message_of(bad, shifted=[{}, {"layers": 1}])
    assert "head 'shifted' (layers=1) breaks the law" in message
    assert re.search(r"tracker 'mutant' .*a run, epoch_ended\(run of [0-9a-f]+, \{stage, epoch, .*'loss'", message)
    with pytest.raises(TypeError, match=r"no component 'cosin'; did you mean 'cosine'\? \(in the plugin: cosine, m"):
        check(bad, cosin={})


def test_an_option_that_is_required_is_given_by_the_caller() -> None:
    with pytest.raises(TypeError, match=r"Total requires options; give them: check\(Total, losses=…\)"):
        check(Total)
    check(components(Total, Smart), total={"losses": [SquaredError()]}, smart={"loss": SquaredError()})
    assert broken_laws(Wrapped, loss=FORGETFUL()) == ["its state survives saving"]


def test_what_wraps_a_loss_that_stops_its_gradient_says_so_too() -> None:
    class Stops(SquaredError):  # noqa: N818 - a loss
        stops_gradient = True

    for inner in (SquaredError(), Stops()):
        assert Total(losses=[SquaredError(), inner]).stops_gradient == inner.stops_gradient
        assert Smart(loss=inner).stops_gradient == inner.stops_gradient


@pytest.mark.parametrize("target", ["mse", [SquaredError], int])
def test_what_is_neither_component_nor_module_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match=r"a component class or a plugin's module\. Found"):
        check(target)


def test_a_law_can_be_called_by_itself() -> None:
    by_name = {law.name: law for law in laws("head")}
    by_name["it decides in the units of the labels"](Shifted, layers=1)
    with pytest.raises(AssertionError, match="breaks the law 'each example is scored by itself'"):
        by_name["each example is scored by itself"](Shifted, layers=1)
    with pytest.raises(ValueError, match="no kind 'losss'; did you mean 'loss'"):
        laws("losss")
    assert all(law.kind in (kind, "component") for kind in KINDS_WITH_LAWS for law in laws(kind))


@pytest.mark.parametrize(
    ("draw", "of"),
    [
        (lambda: nn.Linear(2, 2), "torch"),
        (lambda: (torch.manual_seed(0), torch.rand(1)), "torch"),
        (lambda: np.random.rand(), "numpy"),
        (lambda: np.random.seed(0), "numpy"),
        (lambda: random.seed(0), "Python"),
    ],
)
def test_global_draws_are_noticed(draw: Callable[[], Any], of: str) -> None:
    for _ in range(2):  # the second time, a seed that is set leaves the state as the first time left it
        with pytest.raises(AssertionError, match=f"global random state of {of} was touched"), untouched_randomness():
            draw()


def test_random_states_are_afterwards_as_before() -> None:
    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]

    before = states()
    with pytest.raises(ZeroDivisionError), untouched_randomness():
        raise ZeroDivisionError(torch.rand(1), np.random.rand(), random.random())
    assert states() == before
