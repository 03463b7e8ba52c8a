"""The worker's part of an engine: a cell's log, and the one event that ends a job."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from taskloom.core import DeviceError, Event, Job, is_out_of_memory, perform
from taskloom.core.work import append_log, device_failure, rotate_log
from taskloom.plugins.engines.worker import redirect_output


def test_a_log_is_bounded_and_its_end_kept_whoever_writes_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker prints, the driver appends, an attempt that was given up still prints; rotated at every event."""
    limit, line = 5_000, 0
    (tmp_path / "log.txt").touch()
    given_up = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_APPEND)
    with redirect_output(tmp_path):
        for event in range(30):
            for _ in range(event % 4):
                os.write(1, b"%05d by C\n" % line)
                print(f"{line + 1:05d} by Python", "x" * 300)
                append_log(tmp_path, f"{line + 2:05d} by the driver")
                os.write(given_up, b"%05d by another process\n" % (line + 3))
                line += 4
            rotate_log(tmp_path, limit)
        print("at the end", end="")
    os.write(1, b"outside\n")
    os.close(given_up)
    old, new = ((tmp_path / name).read_text() for name in ("log-old.txt", "log.txt"))
    assert len(old) <= limit
    assert len(new) <= limit
    kept = [int(line[:5]) for line in (old + new).splitlines()[1:-1]]
    assert kept == list(range(line - len(kept), line)), "the newest lines are kept in order"
    assert len(kept) < line, "the bound was put to the test"
    assert new.endswith("at the end")
    assert capfd.readouterr().out == "outside\n"


def test_a_text_larger_than_a_log_is_cut(tmp_path: Path) -> None:
    append_log(tmp_path, "x" * 9_999 + "end")
    rotate_log(tmp_path, 1_000)
    append_log(tmp_path, "after")
    assert (tmp_path / "log-old.txt").read_text() == "x" * 996 + "end\n"
    assert (tmp_path / "log.txt").read_text() == "after\n"


def test_an_end_is_the_end(tmp_path: Path) -> None:
    class Emit:
        stop_asked = False

        def __init__(self) -> None:
            self.events: list[Event] = []

        def __call__(self, event: Event) -> None:
            json.dumps(vars(event))
            self.events.append(event)

    def raises_after(one: Job, emit: Any) -> None:
        emit(Event("finished", one.cell))
        raise RuntimeError("too late")

    def not_json(one: Job, emit: Any) -> None:
        emit(Event("finished", one.cell, {"scores": object()}))

    def full(one: Job, emit: Any) -> None:
        raise OSError(28, "No space left on device", "checkpoint")

    def allocates(one: Job, emit: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    for work, what in ((raises_after, "finished"), (not_json, "failed"), (full, "failed"), (allocates, "oom")):
        emit = Emit()
        perform(work, Job("c", "c", 0, {}, str(tmp_path), attempt=5), emit)
        assert [(event.what, event.attempt) for event in emit.events] == [(what, 5)]
        assert emit.events[0].facts.get("disk_full", False) is (work is full)


def accelerator(text: str) -> Exception:
    """As torch raises it: with a number, and with advice on further lines."""
    error: Exception = torch.AcceleratorError(f"{text}\nCUDA kernel errors might be asynchronously reported …", 710)
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
        accelerator("CUDA error: out of memory"),
        accelerator("HIP error: out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
        RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("miopenStatusAllocFailed"),
        RuntimeError("CUDA error: rocblas_status_memory_error when calling `rocblas_sgemm(…)`"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError(),
    ],
    ids=str,
)
def test_every_device_says_in_its_own_words_that_memory_ran_out(error: Exception, tmp_path: Path) -> None:
    assert is_out_of_memory(error)
    assert end_of(error, tmp_path).what == "oom"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (accelerator("CUDA error: device-side assert triggered"), "CUDA error: device-side assert triggered"),
        (accelerator("HIP error: unspecified launch failure"), "HIP error: unspecified launch failure"),
        (accelerator("a failure of tomorrow"), "a failure of tomorrow"),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nmore"),
            "an illegal memory access was enc",
        ),
        (RuntimeError("CUDA error: unspecified launch failure"), "unspecified launch failure"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "uncorrectable ECC error encountered"),
        (RuntimeError("CUDA driver error: unknown error"), "CUDA driver error: unknown error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), "CUBLAS_STATUS_EXEC"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "CUDNN_STATUS_EXECUTION_FAILED"),
        (RuntimeError("miopenStatusUnknownError"), "miopenStatusUnknownError"),
    ],
    ids=str,
)
def test_a_device_that_failed_loses_the_worker_not_the_cell(error: Exception, said: str, tmp_path: Path) -> None:
    end = end_of(error, tmp_path)
    assert (end.what, end.facts["unusable"]) == ("lost", False)
    assert end.facts["reason"].startswith("its device failed: ")
    assert said in end.facts["reason"]
    assert "\n" not in end.facts["reason"]
    assert "test_work.py" in end.facts["traceback"]
    hidden = ValueError("a component's own words")
    hidden.__context__ = error  # it was caught, and the process is no better for that
    assert end_of(hidden, tmp_path).facts["reason"] == end.facts["reason"]


def test_what_has_nothing_to_do_with_the_device_is_a_failure(tmp_path: Path) -> None:
    for error in (RuntimeError("shapes do not fit"), ValueError("CUDA error: somebody's words"), KeyError("HIP error")):
        assert device_failure(error) == ""
        assert end_of(error, tmp_path).what == "failed"
    refused = end_of(DeviceError("torch cannot use the GPU"), tmp_path)
    assert (refused.what, refused.facts["unusable"], refused.facts["reason"]) == (
        "lost",
        True,
        "torch cannot use the GPU",
    )


def end_of(error: BaseException, folder: Path) -> Event:
    """How a job ends whose work raises this."""
    events: list[Event] = []

    def work(job: Job, emit: Any) -> None:
        raise error

    perform(work, Job("c", "c", 0, {}, str(folder)), events.append)  # type: ignore[arg-type]
    (event,) = events
    return event
