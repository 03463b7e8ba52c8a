"""Memory that runs out is a state: the cell says with how many examples at a time, and fits with fewer."""

import errno
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ENCODER, NO_DROPOUT, generated, job_of

from taskloom.core import Event, OutOfMemory
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.cell import Run
from taskloom.runs.training.machine import annotate_oom
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import train

HEAD = {"name": "cosine", "dropout": 0.0}
RUN: dict[str, Any] = {
    "encoder": {**ENCODER, **NO_DROPOUT, "layers": 2, "width": 64, "vocabulary": 256},
    "tasks": {"sts": generated("similarity", 512, 2048, head=HEAD, loss="mse", metric="pearson")},
    "stages": [{"epochs": 1, "sampler": {"name": "round_robin", "batch_size": 512}, "optimizer": {"lr": 0.001}}],
}

#: Trains in a process whose memory is bounded; the driver's part, half of what did not fit, is done here.
SCRIPT = """
import json, os, resource, sys
import torch
from pathlib import Path
from taskloom.core import Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training import evaluate
from taskloom.runs.training.train import train

spec, folder = json.loads(sys.argv[1]), sys.argv[2]
small = {**spec, "tasks": {"sts": {**spec["tasks"]["sts"], "data": {**spec["tasks"]["sts"]["data"], "size": 8}}}}
train(Job("warm", "warm", 0, small, folder), lambda event: None)  # all that is loaded late is loaded now
evaluate.TOKENS = 10**9  # the whole dev set at once: too much
torch.backends.mkldnn.set_flags(False)  # whose layouts take less: the whole dev set might fit
release, halved = evaluate.release_memory, []
evaluate.release_memory = lambda: (halved.append(1), release())
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[3]) * 2**20
micro = None
while True:  # every attempt in a new process, as after a lost worker
    events = []
    reader, writer = os.pipe()
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        train(Job("cell", "cell", 0, spec, folder, micro_batch=micro), events.append)
        heard = [[event.what, event.facts] for event in events]
        os.write(writer, json.dumps([heard, len(halved)]).encode())
        os._exit(0)
    os.close(writer)
    attempt = os.fdopen(reader).read()
    os.wait()
    print(attempt, flush=True)
    what, facts = json.loads(attempt)[0][-1]
    if what != "oom" or facts["micro_batch"] == 1:
        break
    micro = facts["micro_batch"] // 2
"""


def in_bounds(spec: dict[str, Any], folder: Path, allowance: int) -> tuple[list[Any], int]:
    """The events of each attempt with so many MiB to spare, and how often the last one halved its dev batch."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(spec), str(folder), str(allowance)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},  # arenas reserve what nobody uses
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said_by = [json.loads(line) for line in done.stdout.splitlines()]
    return [events for events, _ in said_by], said_by[-1][1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux bounds a process's memory")
def test_a_batch_that_does_not_fit_is_worked_off_in_parts(tmp_path: Path) -> None:
    job = job_of(tmp_path / "free", RUN)
    for allowance in (80, 90, 100, 110):  # MiB; how much of it is lost to gaps differs from one run to the next
        attempts, halved = in_bounds(job.spec, tmp_path / f"bounded-{allowance}", allowance)
        if attempts[-1][-1][0] == "finished" and len(attempts) > 1:
            break
    assert halved >= 1  # and the dev set is scored in smaller batches
    *tries, (whats, facts) = [([what for what, _ in one], one[-1][1]) for one in attempts]
    assert len(tries) >= 1
    tried = [facts["micro_batch"] for _, facts in tries]
    assert tried == [512 // 2**place for place in range(len(tried))]
    for _, said in tries:
        assert said["task"] == "sts"
        assert said["batch"] == 512
        assert f"out of memory with {said['micro_batch']} examples of task 'sts' at a time" in said["reason"]
    assert whats[-1] == "finished"

    events: list[Event] = []
    train(job, events.append)
    (ours,) = [facts for what, facts in attempts[-1] if what == "epoch"]
    (theirs,) = [event.facts for event in events if event.what == "epoch"]
    assert ours["step"] == theirs["step"] == 1  # the same effective batch
    assert ours["losses"]["sts"] == pytest.approx(theirs["losses"]["sts"], rel=1e-4)
    assert facts["scores"]["sts"] == pytest.approx(events[-1].facts["scores"]["sts"], abs=1e-3)


def fail(error: Exception, held: list[Any]) -> None:
    large = torch.empty(0)  # stands for something that takes memory
    held.append(weakref.ref(large))
    raise error


def test_every_way_of_running_out_is_one_error() -> None:
    cpu = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried …")
    library = RuntimeError("could not create a primitive")  # what oneDNN says where there is no room for its buffers
    system = OSError(errno.ENOMEM, "Cannot allocate memory")
    held: list[Any] = []
    for error in (MemoryError(), cpu, library, system):
        with pytest.raises(OutOfMemory) as caught, annotate_oom("sst", micro_batch=4, batch=8):
            fail(error, held)
        found = caught.value
        assert (found.task, found.micro_batch, found.batch) == ("sst", 4, 8)
        assert held.pop()() is None  # although the error is still at hand
        assert str(found) == "out of memory with 4 examples of task 'sst' at a time (batch 8)"
    with pytest.raises(RuntimeError, match="shapes"), annotate_oom("sst", micro_batch=4, batch=8):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize(
    ("stage", "job", "expected"), [(None, None, None), (4, None, 4), (None, 3, 3), (4, 3, 3), (2, 3, 2)]
)
def test_the_smaller_of_what_stage_and_driver_say_counts(
    tmp_path: Path, stage: int | None, job: int | None, expected: int | None
) -> None:
    given = {"encoder": ENCODER, "tasks": {"sst": generated("sentiment")}, "stages": [{"micro_batch": stage}]}
    run = Run.build(job_of(tmp_path, given, micro_batch=job), lambda event: None, load_catalogue())
    assert StageState.build(run, 0).micro_batch == expected
