"""Every built-in component gives the committed results, or its revision is another."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gate_file
import pytest
import torch
from gate_file import Recorded, complaints, outdated, unexplained, written_anew
from gate_runs import Measured, built_in, measure, without_run
from torch import nn

from taskloom.core import Group, new_linear
from taskloom.core.overall import Overall
from taskloom.plugins.combiners.pcgrad import PCGrad
from taskloom.plugins.heads.linear import Linear
from taskloom.plugins.heads.parts import learnable_layers
from taskloom.plugins.losses.mse import MSE
from taskloom.plugins.losses.smart import Smart
from taskloom.plugins.samplers.mixed import Mixed
from taskloom.runs.training import machine, stage
from taskloom.runs.training.stage import StageState


@pytest.fixture(scope="module")
def results() -> dict[str, Measured]:
    """The tiny runs of everything that is built in."""
    assert not without_run()
    return {key: measure(key) for key in (*built_in(), "trainer")}


@pytest.fixture(scope="module")
def recorded(results: dict[str, Measured]) -> Recorded:
    """The committed file; with TASKLOOM_GATE=write it is written first."""
    if os.environ.get("TASKLOOM_GATE") == "write":
        try:
            gate_file.write(written_anew(gate_file.load(), results))
        except ValueError as error:
            pytest.fail(str(error))
    return gate_file.load()


def test_results_are_the_committed_ones_or_a_revision_is_raised(
    recorded: Recorded, results: dict[str, Measured]
) -> None:
    assert complaints(recorded, results) == []


# A change of results is seen, and put down to what changed


def rate(monkeypatch: pytest.MonkeyPatch) -> None:
    original = StageState.learning_rate.fget
    monkeypatch.setattr(StageState, "learning_rate", property(lambda state: 1.05 * original(state)))


def warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "rate_factor", lambda step, steps, schedule: 1.0)


def clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda parameters, most: torch.zeros(()))


def overall_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Overall.score
    monkeypatch.setattr(Overall, "score", lambda self, *rest: original(replace(self, weights={}), *rest))


def projection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PCGrad, "_coefficients", lambda self, gramian: gramian.new_ones(len(gramian)))


def loss_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MSE.compare
    monkeypatch.setattr(MSE, "compare", lambda self, score, goal: 1.02 * original(self, score, goal))


def smoothness(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Smart._distance
    monkeypatch.setattr(Smart, "_distance", lambda self, *rest: 0 * original(self, *rest))


def bias(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_layers(self: Linear, width: int, generator: torch.Generator) -> None:
        inputs = 2 * width if self.reads == "pair" else width
        self.front = learnable_layers(inputs, self.layers, self.dropout, generator, self.activation)
        self.last = new_linear(inputs, self.outputs, generator, bias=False)

    monkeypatch.setattr(Linear, "make_layers", make_layers)


def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mixed.group

    def reversed_group(self: Mixed, step: int) -> Group:
        return original(self, self.steps - 1 - step)

    monkeypatch.setattr(Mixed, "group", reversed_group)


MUTANTS = [
    (rate, "the trainer", ["head linear", "loss mse", "trainer"]),
    (warmup, "the trainer", ["trainer"]),
    (clipping, "the trainer", ["trainer"]),
    (overall_weights, "the trainer", ["trainer"]),
    (projection, "combiner 'pcgrad'", ["combiner pcgrad", "combiner sum"]),
    (loss_scale, "loss 'mse'", ["loss mse", "head cosine_features", "head cosine", "head linear"]),
    (smoothness, "loss 'smart'", ["loss smart", "loss cross_entropy"]),
    (bias, "head 'linear'", ["head linear", "head cosine", "loss cross_entropy", "loss binary_cross_entropy"]),
    (turns, "sampler 'mixed'", ["sampler mixed", "sampler round_robin"]),
]


@pytest.mark.parametrize(("mutate", "culprit", "keys"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_changed_code_fails_and_is_named(
    mutate: Callable[[pytest.MonkeyPatch], None],
    culprit: str,
    keys: list[str],
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    (sentence,) = unexplained(recorded, {key: measure(key) for key in keys})
    assert sentence.startswith(f"the results of {culprit} changed (")


# What is no change

#: Of each kind what rounding disturbs most: solvers, small differences of large numbers, long sums.
DELICATE = [
    "encoder minbert",
    "head shared_layer",
    "head both_orders",
    "loss smart",
    "loss simcse",
    "sampler sequential",
    "combiner cagrad",
    "combiner gse",
    "combiner nash_mtl",
    "combiner pcgrad",
    "data cs224n",
    "metric spearman",
    "trainer",
]


def test_another_number_of_threads_gives_the_same_results(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "fitting_threads", lambda spec: nullcontext())  # one for a small encoder otherwise
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measured = {key: measure(key) for key in ("encoder minbert", "loss smart")}
    finally:
        torch.set_num_threads(threads)
    assert unexplained(recorded, measured) == []


def test_another_processor_gives_the_same_results(recorded: Recorded) -> None:
    """Kernels of older processors add up in another order."""
    code = (
        "import json, sys, gate_file, gate_runs\n"
        "measured = {key: gate_runs.measure(key) for key in json.loads(sys.argv[1])}\n"
        "print(json.dumps(gate_file.unexplained(json.loads(sys.argv[2]), measured)))"
    )
    path = os.pathsep.join([str(Path(gate_file.__file__).parent), os.environ.get("PYTHONPATH", "")])
    older = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(DELICATE), json.dumps(recorded)],
        env={**os.environ, **older},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


# What is said, and what may be written


ENTRY = Measured(1, {"margin": 0.5}, {"loss of a": 1.0}, frozenset({"loss x", "trainer"}), "`revision` in plugins/x.py")
KNOWN: Recorded = {"loss x": {"revision": 1, "defaults": {"margin": 0.5}, "digest": {"loss of a": 1.0}}}


def test_changed_result_says_what_to_do_and_is_not_written() -> None:
    changed = {"loss x": replace(ENTRY, digest={"loss of a": 1.1})}
    assert complaints(KNOWN, changed) == [
        "the results of loss 'x' changed (loss of a: 1 → 1.1) and its revision is still 1: if that is meant, raise "
        "`revision` in plugins/x.py and write the file anew with `TASKLOOM_GATE=write pytest -n 0 tests/runs/gate`; "
        "if not, it is a defect"
    ]
    with pytest.raises(ValueError, match=r"^nothing was written; the results of loss 'x' changed"):
        written_anew(KNOWN, changed)


def test_changed_default_says_what_to_do_and_is_not_written() -> None:
    changed = {"loss x": replace(ENTRY, defaults={"margin": 0.2})}
    (sentence,) = complaints(KNOWN, changed)
    assert sentence.startswith("the default of option 'margin' of loss 'x' changed (0.5 → 0.2) and its revision is")
    with pytest.raises(ValueError, match="nothing was written"):
        written_anew(KNOWN, changed)


def test_raised_revision_lets_another_result_be_written() -> None:
    raised = {"loss x": replace(ENTRY, revision=2, defaults={"margin": 0.2}, digest={"loss of a": 1.1})}
    (sentence,) = complaints(KNOWN, raised)
    assert sentence.startswith("the revision of loss 'x' is 2, and results.json has 1: write the file anew")
    anew = written_anew(KNOWN, raised)
    assert anew["loss x"] == {"revision": 2, "defaults": {"margin": 0.2}, "digest": {"loss of a": 1.1}}
    assert complaints(anew, raised) == []


def test_raised_revision_explains_the_runs_that_use_it() -> None:
    other = replace(ENTRY, uses=frozenset({"loss x", "head y", "trainer"}), digest={"loss of a": 1.1})
    known = {**KNOWN, "head y": KNOWN["loss x"]}
    assert unexplained(known, {"loss x": replace(ENTRY, revision=2), "head y": other}) == []
    (sentence,) = unexplained(known, {"loss x": ENTRY, "head y": other})
    assert sentence.startswith("the results of head 'y' changed")


@pytest.mark.parametrize(
    ("known", "measured", "beginning"),
    [
        ({}, {"loss x": ENTRY}, "loss 'x' is not in results.json: write"),
        (KNOWN, {}, "results.json has loss 'x', which is not built in any more: write"),
        (
            KNOWN,
            {"loss x": replace(ENTRY, defaults={"margin": 0.5, "step": 1})},
            "option 'step' of loss 'x' is new, and",
        ),
        (KNOWN, {"loss x": replace(ENTRY, defaults={})}, "option 'margin' of loss 'x' is gone, and"),
    ],
)
def test_what_comes_and_goes_is_written_anew(known: Recorded, measured: dict[str, Measured], beginning: str) -> None:
    (sentence,) = outdated(known, measured)
    assert sentence.startswith(beginning)
    assert complaints(written_anew(known, measured), measured) == []


def test_revision_only_grows() -> None:
    lower: dict[str, Any] = {"loss x": {**KNOWN["loss x"], "revision": 2}}
    assert unexplained(lower, {"loss x": ENTRY}) == ["the revision of loss 'x' is 1 and was 2: a revision only grows"]


def test_rounding_is_no_change_and_keeps_the_file() -> None:
    digest: dict[str, float | str] = {"loss of a": 1.0, "score of a": 0.0, "change of b": 2.0, "drift of b": 0.0}
    known = {"loss x": {**KNOWN["loss x"], "digest": digest}}
    near = {"loss of a": 1.001, "score of a": 0.001, "change of b": 2.001, "drift of b": 0.003}
    measured = {"loss x": replace(ENTRY, digest=near)}
    assert complaints(known, measured) == []
    assert written_anew(known, measured) == known
