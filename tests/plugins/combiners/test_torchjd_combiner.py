"""The adapter to TorchJD: every aggregator gives what TorchJD gives on the explicit Jacobian."""

import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torchjd import aggregation as peer

from taskloom.core import RequestError
from taskloom.core.testing import Law, laws
from taskloom.core.testing.combiners import SmallStep
from taskloom.plugins.combiners import TorchJD

#: Every aggregator, with options where it needs some or has vectors among them.
AGGREGATORS: dict[str, dict[str, Any]] = {
    "AlignedMTL": {"scale_mode": "rmse"},
    "CAGrad": {"c": 0.4},
    "ConFIG": {},
    "Constant": {"weights": [1, 2, 0.5]},
    "DualProj": {"pref_vector": [1.0, 2.0, 3.0]},
    "ExcessMTL": {},
    "FairGrad": {"alpha": 2.0},
    "GradDrop": {"leak": [0.0, 0.1, 0.2]},
    "GradVac": {},
    "IMTLG": {},
    "Krum": {"n_byzantine": 0},
    "MGDA": {},
    "Mean": {},
    "NashMTL": {"update_weights_every": 2},
    "PCD": {"tau": 0.9},
    "PCGrad": {},
    "Random": {},
    "Sum": {},
    "TrimmedMean": {"trim_number": 1},
    "UPGrad": {},
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Recorded(SmallStep):
    """Remembers what reached the shared parameters, as one row."""

    def apply(self) -> None:
        self.update = torch.cat([p.grad.reshape(-1) for p in self.shared if p.grad is not None])
        super().apply()


def jacobian_of(step: SmallStep) -> Tensor:
    rows = []
    for task in step.tasks:
        gradients = torch.autograd.grad(step.loss(task), step.shared)
        rows.append(torch.cat([gradient.to_dense().reshape(-1) for gradient in gradients]))
    return torch.stack(rows)  # [T, n]


def prepared(name: str, seed: int = 1) -> TorchJD:
    combiner = TorchJD(aggregator=name, options=AGGREGATORS[name])
    combiner.prepare(tasks=SmallStep(3).tasks)
    combiner.generator = seeded(seed)
    return combiner


@pytest.mark.parametrize("name", AGGREGATORS)
def test_it_gives_what_torchjd_gives(name: str) -> None:
    """Over three steps, so that what an aggregator remembers counts too."""
    options = AGGREGATORS[name].items()
    arguments = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in options}
    theirs = getattr(peer, name)(**arguments, **({"n_tasks": 3} if name == "NashMTL" else {}))
    combiner, step, seeds = prepared(name, 9), Recorded(3), seeded(9)
    for _ in range(3):
        jacobian = jacobian_of(step)
        heads = {task: torch.autograd.grad(step.loss(task), step.heads[task])[0] for task in step.tasks}
        combiner.update(step)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(int(torch.randint(2**62, (), generator=seeds)))
            expected = theirs(jacobian)
        torch.testing.assert_close(step.update, expected, rtol=1e-3, atol=2e-4)
        for task, gradient in heads.items():  # heads get the whole gradient
            torch.testing.assert_close(step.seen[-1][task], gradient)


def test_it_knows_every_aggregator() -> None:
    bases = {"Aggregator", "WeightedAggregator", "GramianWeightedAggregator"}
    every = {name for name in peer.__all__ if issubclass(getattr(peer, name), peer.Aggregator)}
    assert set(AGGREGATORS) == every - bases


@pytest.mark.parametrize("law", laws("combiner"), ids=str)
@pytest.mark.parametrize("name", ["PCGrad", "Random", "GradDrop", "GradVac", "ExcessMTL"])
def test_conformance(name: str, law: Law) -> None:
    law(TorchJD, aggregator=name, options={"n_warmup_steps": 4} if name == "ExcessMTL" else {})


@pytest.mark.parametrize("law", [law for law in laws("combiner") if "survives saving" in law.name], ids=str)
@pytest.mark.parametrize("name", ["PCD", "NashMTL"])
def test_what_it_remembers_survives_saving(name: str, law: Law) -> None:
    law(TorchJD, aggregator=name, options=AGGREGATORS[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": "UPGrid"}, r"no aggregator 'UPGrid'; did you mean 'UPGrad'\? \(in TorchJD: AlignedMTL, "),
        ({"aggregator": "Aggregator"}, "no aggregator 'Aggregator'"),
        ({"aggregator": "UPGradWeighting"}, "no aggregator 'UPGradWeighting'"),
        ({"aggregator": "CAGrad"}, r"TorchJD's CAGrad cannot be made: .* 'c'"),
        ({"aggregator": "CAGrad", "options": {"c": -1.0}}, r"TorchJD's CAGrad cannot be made: c must be non-negative"),
        ({"options": {"pref": 1.0}}, r"TorchJD's UPGrad cannot be made: .* 'pref'"),
    ],
)
def test_it_refuses_what_torchjd_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchJD(**options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("UPGrad", {"pref_vector": [1.0]}), ("Krum", {"n_byzantine": 1}), ("UPGrad", {"projector": 3})],
)
def test_it_finds_before_training_what_does_not_fit_the_tasks(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=rf"combiner 'torchjd': 1 error\n  options: TorchJD's {name} with 2 tasks: "):
        TorchJD(aggregator=name, options=options).prepare(tasks=["a", "b"])


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ValueError, match=r"needs the package torchjd: pip install 'taskloom\[torchjd\]'"):
        TorchJD()
