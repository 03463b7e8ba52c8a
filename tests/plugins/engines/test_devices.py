"""Where workers are placed: made-up machines in, slots out. The machine that runs this is only looked at once."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import RequestError
from taskloom.plugins.engines import devices
from taskloom.plugins.engines.devices import Inventory, Slot, assign_slots, inventory
from taskloom.plugins.engines.local import Local

TWO = Inventory(cores=8, cuda=("0", "1"))
BARE = Inventory(cores=6)


ROCM = Inventory(8, ("0", "1"), variable="HIP_VISIBLE_DEVICES")
MIG = Inventory(8, ("MIG-7a", "MIG-9c"))


def visible(slots: tuple[Slot, ...], variable: str = "CUDA_VISIBLE_DEVICES") -> list[str]:
    return ["" if (seen := slot.environment[variable]) == "-1" else seen for slot in slots]


@pytest.mark.parametrize(
    ("machine", "asked", "expected"),
    [
        (TWO, {}, ["0", "1"]),
        (TWO, {"cells_per_gpu": 2}, ["0", "1", "0", "1"]),
        (TWO, {"cells_per_gpu": 2, "workers": 3}, ["0", "1", "0"]),
        (TWO, {"devices": "cuda:1"}, ["1"]),
        (TWO, {"devices": "cuda:1,cuda:0"}, ["1", "0"]),
        (TWO, {"devices": "cuda"}, ["0", "1"]),
        (TWO, {"devices": "cpu:3"}, ["", "", ""]),
        (TWO, {"workers": 1}, ["0"]),
        (Inventory(4, ("3", "GPU-8f2")), {}, ["3", "GPU-8f2"]),
        (Inventory(4, ("3", "GPU-8f2")), {"devices": "cuda:1"}, ["GPU-8f2"]),
        (ROCM, {}, ["0", "1"]),
        (ROCM, {"devices": "cuda:1", "cells_per_gpu": 2}, ["1", "1"]),
        (ROCM, {"devices": "cpu:2"}, [""] * 2),
        (MIG, {}, ["MIG-7a", "MIG-9c"]),
        (MIG, {"devices": "cuda:1"}, ["MIG-9c"]),
        (Inventory(6, experimental="mps"), {}, [""] * 6),
        (BARE, {}, [""] * 6),
        (BARE, {"workers": 2}, [""] * 2),
        (BARE, {"devices": "cpu", "workers": 20}, [""] * 20),
        (Inventory(64), {}, [""] * 8),
    ],
)
def test_placement(machine: Inventory, asked: dict[str, Any], expected: list[str]) -> None:
    slots = assign_slots(machine, **asked)
    assert visible(slots, machine.variable) == expected
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        assert all(slot.environment[name] == str(slot.threads) for slot in slots)
    assert all(slot.device.startswith("cuda:") == bool(seen) for slot, seen in zip(slots, expected, strict=True))


@pytest.mark.parametrize(
    ("machine", "asked", "path", "message"),
    [
        (BARE, {"devices": "cuda:0"}, "devices", r"there is no cuda:0 on this machine \(no GPU; 6 cores\)"),
        (BARE, {"devices": "cuda"}, "devices", "there is no cuda on this machine"),
        (TWO, {"devices": "cuda:2"}, "devices", r"there is no cuda:2 .*\(cuda:0, cuda:1; 8 cores\)"),
        (TWO, {"devices": "cuda:0,cuda:0"}, "devices", "twice; --cells-per-gpu"),
        (TWO, {"devices": "cuda:0,cpu:1"}, "devices", "should be auto, .*Found 'cuda:0,cpu:1'"),
        (TWO, {"devices": "gpu"}, "devices", "should be auto, cpu, cpu:N .*Found 'gpu'"),
        (TWO, {"devices": "cpu:0"}, "devices", "Found 'cpu:0'"),
        (TWO, {"devices": "mps"}, "devices", "torch finds no mps on this machine; --devices cpu trains on"),
        (Inventory(4, experimental="mps"), {"devices": "xpu"}, "devices", "torch finds no xpu"),
        (Inventory(4, experimental="mps"), {"devices": "mps:1"}, "devices", "or mps or xpu .*Found 'mps:1'"),
        (Inventory(4, experimental="xpu"), {"devices": "cuda"}, "devices", "there is no cuda on this machine"),
        (TWO, {"devices": ""}, "devices", "Found ''"),
        (BARE, {"devices": "cpu:2,cpu"}, "devices", "cpu:N for N cells at once.*Found 'cpu:2,cpu'"),
        (TWO, {"workers": 5, "cells_per_gpu": 2}, "workers", "more than 2 GPUs with 2 cells each; --cells-per-gpu"),
        (TWO, {"workers": 0}, "workers", "at least 1. Found 0."),
        (TWO, {"threads": 0}, "threads", "at least 1. Found 0."),
        (BARE, {"workers": 33}, "workers", r"at most 32 here \(6 cores\). Found 33."),
        (BARE, {"cells_per_gpu": 2}, "cells_per_gpu", "no GPU is used here"),
        (BARE, {"devices": "cpu:2", "workers": 3}, "workers", "do not agree"),
    ],
)
def test_what_a_machine_cannot_give_is_refused(
    machine: Inventory, asked: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        assign_slots(machine, **asked)
    assert [problem.path for problem in caught.value.problems] == [path]


@given(
    cores=st.integers(1, 256),
    gpus=st.integers(0, 8),
    per_gpu=st.integers(1, 4),
    workers=st.none() | st.integers(1, 40),
    devices=st.sampled_from(["auto", "cpu"]),
)
def test_threads_are_divided_and_depend_on_nothing_else(
    cores: int, gpus: int, per_gpu: int, workers: int | None, devices: str
) -> None:
    machine = Inventory(cores, tuple(map(str, range(gpus))))
    asked = {"workers": workers, "devices": devices, "cells_per_gpu": per_gpu}
    try:
        slots = assign_slots(machine, **asked)
    except RequestError:
        return
    assert slots == assign_slots(machine, **asked)
    assert len({slot.threads for slot in slots}) == 1, "a cell's result would depend on the worker it gets"
    assert slots[0].threads == max(1, cores // len(slots))
    assert len({slot.name for slot in slots}) == len(slots)
    on_gpus = [slot.device for slot in slots if slot.device != "cpu"]
    counts = [on_gpus.count(device) for device in set(on_gpus)]
    assert not counts or max(counts) - min(counts) <= 1, "a GPU has two cells more than another"


@pytest.mark.parametrize(
    ("inherited", "count", "expected"),
    [
        (None, 2, ["0", "1"]),
        ("2,3", 2, ["2", "3"]),
        (" 3 , 1 ", 2, ["3", "1"]),
        ("GPU-8f2,GPU-1c0", 2, ["GPU-8f2", "GPU-1c0"]),
        ("2,3,7", 2, ["2", "3"]),  # CUDA stops at the first that is not there
        ("2,-1,3", 1, ["2"]),
        ("2", 2, ["0", "1"]),  # whatever counted them did not read the variable
        ("", 0, []),
        ("-1", 0, []),
        ("MIG-7a", 1, ["MIG-7a"]),
        ("MIG-7a,MIG-9c", 1, ["MIG-7a", "MIG-9c"]),  # a process can use one, but there is a process for each
        ("MIG-GPU-8f2/1/0, MIG-GPU-8f2/2/0", 1, ["MIG-GPU-8f2/1/0", "MIG-GPU-8f2/2/0"]),
        ("MIG-7a,0", 1, ["MIG-7a"]),
        ("MIG-7a,MIG-9c", 0, []),  # there is no driver
    ],
)
def test_devices_keep_the_names_that_this_process_was_given(
    inherited: str | None, count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = seen_by(monkeypatch, count, CUDA_VISIBLE_DEVICES=inherited)
    assert list(found.cuda) == expected
    if expected:
        assert visible(assign_slots(found, devices="cuda")) == expected, "a worker would use a GPU that is another's"
    assert visible(assign_slots(found, devices="cpu:1")) == [""]


@pytest.mark.parametrize(
    ("variables", "count", "expected"),
    [
        ({}, 2, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, 2, ["2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1"}, 1, ["3"]),  # HIP reads its own first
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2, ["2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, 2, ["0", "1"]),  # below HIP, which counts what is left from 0
        ({"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c", "HIP_VISIBLE_DEVICES": "2,0"}, 2, ["2", "0"]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, 0, []),
    ],
)
def test_on_rocm_the_variable_of_hip_is_read_and_set(
    variables: dict[str, str], count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.version.hip", "6.2")
    found = seen_by(monkeypatch, count, **variables)
    assert (list(found.cuda), found.variable) == (expected, "HIP_VISIBLE_DEVICES")
    if expected:
        slots = assign_slots(found, devices="cuda")
        assert visible(slots, "HIP_VISIBLE_DEVICES") == expected
        assert not any("CUDA_VISIBLE_DEVICES" in slot.environment for slot in slots), "HIP reads one of the two"


def seen_by(monkeypatch: pytest.MonkeyPatch, count: int, **variables: str | None) -> Inventory:
    """The inventory of a made-up machine where torch finds so many GPUs."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
        if (value := variables.get(name)) is not None:
            monkeypatch.setenv(name, value)
    return inventory()


def test_lists_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicts() -> int:
        raise RuntimeError("HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES")

    monkeypatch.setattr("torch.cuda.device_count", contradicts)
    with pytest.raises(RequestError, match="torch cannot count the GPUs: HIP_VISIBLE_DEVICES contains more"):
        inventory()


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_a_gpu_of_apple_or_intel_is_used_if_it_is_named(name: str) -> None:
    machine = Inventory(4, experimental=name)
    assert [slot.device for slot in assign_slots(machine)] == ["cpu"] * 4
    for text in (name, f"{name}:0"):
        (slot,) = assign_slots(machine, devices=text)
        assert (slot.name, slot.device, slot.threads) == (name, name, 4)
    pair = assign_slots(machine, devices=name, cells_per_gpu=2)
    assert [(slot.name, slot.share) for slot in pair] == [(f"{name}/0", 0.5), (f"{name}/1", 0.5)]


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_a_gpu_of_apple_or_intel_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr({"mps": "torch.backends.mps.is_available", "xpu": "torch.xpu.is_available"}[name], lambda: True)
    assert seen_by(monkeypatch, 0).experimental == name
    assert seen_by(monkeypatch, 1).experimental == "", "another GPU is used"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("300000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8), (None, 8), ("nonsense", 8)],
)
def test_a_container_has_the_cores_that_it_may_use(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    monkeypatch.setattr(devices, "QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert inventory().cores == expected


@pytest.mark.parametrize(
    ("variable", "asked", "threads"),
    [
        ("3", {}, 3),
        ("64", {}, 4),
        ("2,1", {}, 2),
        ("many", {}, 4),
        ("1", {"threads": 5}, 5),
    ],
)
def test_omp_num_threads_is_a_limit_unless_threads_are_given(
    variable: str, asked: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    machine = Inventory(cores=8, max_threads=inventory().max_threads)
    slots = assign_slots(machine, workers=2, **asked)
    assert [(slot.threads, slot.environment["OMP_NUM_THREADS"]) for slot in slots] == [(threads, str(threads))] * 2


def test_this_machine() -> None:
    found = inventory()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    engine = Local(devices="cpu:2", threads=3)
    engine.check()
    assert engine.free == 2
