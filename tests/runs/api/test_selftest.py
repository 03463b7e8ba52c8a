"""The self-test: a sound device passes it, a broken one fails the right check, and it always ends with a page."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from taskloom.core.testing.device import PretendGPU
from taskloom.plugins.losses.cross_entropy import CrossEntropy
from taskloom.runs.api import selftest as tested
from taskloom.runs.api import selftest_probes as probes
from taskloom.runs.cli import cli

SMALL = {"tasks.*.data.size": 48, "tasks.*.data.dev_size": 24}
GPU = "cuda:0"
#: An engine of a third party that runs a cell where it is submitted: the emulated GPU belongs to one thread.
HERE = """
    from dataclasses import replace
    from pathlib import Path
    from taskloom.core import Engine, Event, Job, find_work, hookimpl, perform

    class Here(Engine):
        '''Runs every cell in the thread that submits it.'''

        name = "here"

        def __init__(self, *, devices: str = "cuda:0", cells_per_gpu: int = 1) -> None:
            self.device, self.events = devices.partition(":")[0], []

        def open(self, work: str, folder: Path) -> None:
            self.work = find_work(work)

        @property
        def free(self) -> int:
            return 1

        def submit(self, job: Job) -> None:
            perform(self.work, replace(job, device=self.device), self.events.append)

        def poll(self, seconds: float) -> list[Event]:
            events, self.events = self.events, []
            return events

        def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
            pass

        def close(self) -> None:
            pass

    @hookimpl
    def taskloom_components():
        return [Here]
"""

CHECKS = dict(tested.CHECKS)
needs_emulation = pytest.mark.skipif(not PretendGPU.possible(), reason="this torch has no backends in Python")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SIZES", {**tested.SIZES, **SMALL})


@pytest.fixture
def here(small: None, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> None:
    """Every run is in this process and in this thread."""
    install("here", HERE)
    for module in (tested, probes):
        monkeypatch.setattr(module, "ENGINE", "here")


@cache
def _on_gpu(folders: pytest.TempPathFactory) -> tested.Trial:
    """One trial for all tests, whose reference runs they share."""
    return tested.Trial(GPU, folders.mktemp("gpu"))


def finding(check: Callable[[tested.Trial], str], trial: tested.Trial) -> tested.Finding:
    result = tested.run_check("a check", check, trial)
    print(result)
    return result


def test_a_sound_cpu_passes_and_the_page_says_what_was_not_tried(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those checks that need few processes; ``test_the_whole_on_this_machine`` has all."""
    left_out = {tested.trains_in_bfloat16, tested.steps_like_transformers, tested.repeats}
    monkeypatch.setattr(tested, "CHECKS", tuple(pair for pair in tested.CHECKS if pair[1] not in left_out))
    run = CliRunner().invoke(cli, ["selftest", "--devices", "cpu", "--json"])
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    assert answer["failed"] == []
    found = {one["name"]: one for one in answer["findings"]}
    tried = {"killed and resumed: the same bits", "several cells on one device"}
    assert {name for name, one in found.items() if one["status"] == "passed"} == tried
    assert all(one["measured"].startswith("no GPU: ") for name, one in found.items() if name not in tried)
    assert "worker killed after epoch 2 of 4, then resumed" in found["killed and resumed: the same bits"]["measured"]
    assert answer["versions"]["torch"] == torch.__version__
    assert len(run.stderr.splitlines()) == len(found), "a line of progress for each check"


def test_a_crash_is_a_finding_with_its_signal_and_advice(small: None, tmp_path: Path, install: Any) -> None:
    install("crash", CRASH)
    trial = tested.Trial("cpu", tmp_path)
    crashed = finding(tested.trains_in_bfloat16, trial)
    assert crashed.status == "failed"
    assert "(SIGILL)" in crashed.measured
    assert "ONEDNN_MAX_CPU_ISA" in crashed.measured


#: A plugin that dies of an illegal instruction in every process but this one, as bfloat16 does on some machines.
CRASH = f"""
    import os, signal
    if os.getpid() != {os.getpid()}:
        os.kill(os.getpid(), signal.SIGILL)
    from taskloom.core import hookimpl
    @hookimpl
    def taskloom_components():
        return []
"""


def test_whatever_a_check_raises_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(trial: tested.Trial) -> str:
        raise ZeroDivisionError("a defect")

    def cannot(trial: tested.Trial) -> str:
        raise tested.NotTriedError("no GPU")

    monkeypatch.setattr(tested, "CHECKS", (("breaks", breaks), ("cannot", cannot), ("works", lambda trial: "fine")))
    run = CliRunner().invoke(cli, ["selftest", "--devices", "cpu"])
    assert run.exit_code == 1
    assert "taskloom selftest: 1 passed, 1 failed, 1 not tried" in run.stdout
    assert "ZeroDivisionError: a defect" in run.stdout
    assert "Traceback" not in run.output
    assert max(map(len, run.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    ("devices", "words"), [("gpu", "should be auto, cpu, "), ("cuda:7", "there is no cuda:7"), ("mps", "no mps")]
)
def test_a_device_that_is_not_there_is_refused(devices: str, words: str) -> None:
    run = CliRunner().invoke(cli, ["selftest", "--devices", devices])
    assert (run.exit_code, run.stdout) == (2, "")
    assert words in run.stderr


def test_a_device_whose_results_change_from_run_to_run_is_found(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tested.Trial("cpu", tmp_path)
    assert finding(tested.repeats, trial).status == "passed"
    sound = CrossEntropy.forward

    def noisy(self: Any, prediction: Any, target: Any) -> Any:
        return sound(self, prediction, target) * (1 + 1e-6 * int.from_bytes(os.urandom(1)))

    monkeypatch.setattr(CrossEntropy, "forward", noisy)
    other = tested.Trial("cpu", tmp_path / "noisy")
    broken = finding(tested.repeats, other)
    assert broken.status == "failed"
    assert "row 'sum' differs from epoch 1 on" in broken.measured


@needs_emulation
def test_on_an_emulated_gpu_scores_are_those_of_the_cpu_twice_the_same(here: None, tmp_path: Path) -> None:
    with PretendGPU():
        trial = tested.Trial(GPU, tmp_path)
        assert finding(tested.agrees_with_cpu, trial).status == "passed"
        assert finding(tested.repeats, trial).status == "passed"
        (row, _) = trial.reference.values()
        assert row.record.device == "gpu", "it was trained there"


@needs_emulation
def test_a_gpu_whose_results_differ_from_the_cpus_is_found(here: None, tmp_path: Path) -> None:
    def wrong(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any], line: str) -> None:
        if operator.__name__.startswith("gelu.") and not torch.is_grad_enabled():
            arguments[0].mul_(-1)

    with PretendGPU(wrong):
        trial = tested.Trial(GPU, tmp_path)
        broken = finding(tested.agrees_with_cpu, trial)
        assert broken.status == "failed"
        assert "allowed" in broken.measured
        assert finding(tested.repeats, trial).status == "passed", "it is wrong in the same way each time"


@needs_emulation
def test_memory_that_runs_out_is_recovered_from(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an emulated GPU whose memory is the largest tensor that an operator reads."""
    monkeypatch.setattr(probes, "LARGE", {**SMALL, "stages.*.epochs": 1, "stages.*.sampler.batch_size": 32})
    memory = {"peak": 0.0, "limit": 1e9}
    table = 4096  # rows of the word table, which is there whatever the batch

    def allocate(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any], line: str) -> None:
        tensors = [tensor for tensor in arguments if isinstance(tensor, torch.Tensor) and tensor.dim()]
        rows = max((tensor.shape[0] for tensor in tensors if tensor.shape[0] < table), default=0)
        memory["peak"] = max(memory["peak"], rows)
        if rows > memory["limit"]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    functions: dict[str, Any] = {
        "mem_get_info": lambda: (table, table),
        "max_memory_allocated": lambda: memory["peak"],
        "reset_peak_memory_stats": lambda: memory.update(peak=0),
        "set_per_process_memory_fraction": lambda share: memory.update(limit=share * table),
    }
    with PretendGPU(allocate) as gpu, pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            # By device, not by name: torch remembers the module of "cuda" from before there was an emulated GPU.
            for module in (torch.cuda, torch.get_device_module(gpu.device)):
                patch.setattr(module, name, function, raising=False)
        measured = probes.memory(gpu.device, tmp_path)
    assert "out of memory with 32 examples at a time" in measured
    print(measured)


@pytest.mark.slow
def test_the_whole_on_this_machine() -> None:
    answer = tested.selftest("cpu")
    print(answer)
    statuses = {finding.name: finding.status for finding in answer.found.findings}
    assert [name for name, status in statuses.items() if status == "not tried"] == [
        "the same scores as on the CPU",
        "a checkpoint goes on elsewhere",
        "out of memory and recovered",
    ]
    assert answer.found.failed == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_a_gpu_passes(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    result = finding(CHECKS[name], _on_gpu(tmp_path_factory))
    assert result.status == "passed", result.measured
