"""Work without torch for tests of engines: each function is what an engine runs for a job (see test_engines.py)."""

import os
import signal
import sys
import time
from pathlib import Path

from taskloom.core import Emit, Event, Job, OutOfMemory


def work(job: Job, emit: Emit) -> None:
    """Does what ``job.spec["do"]`` says."""
    emit(Event("started", job.cell, {"pid": os.getpid(), "environment": _environment(), "device": job.device}))
    do = job.spec["do"]
    if do == "hang":
        time.sleep(600)
    elif do == "wait":  # until it is asked to stop
        while not emit.stop_asked:
            time.sleep(0.01)
        emit(Event("interrupted", job.cell))
        return
    elif do == "deaf":  # says something now and then, and does not look
        while True:
            emit(Event("progress", job.cell, {}))
            time.sleep(0.01)
    elif do == "exit":
        os._exit(7)
    elif do == "crash":
        os.abort()
    elif do == "raise":
        raise ValueError("a plugin's defect")
    elif do == "memory":
        raise OutOfMemory("sst", micro_batch=job.micro_batch or 8, batch=8)
    elif do == "device":
        raise RuntimeError("CUDA error: device-side assert triggered\nand more")
    elif do == "talk":
        os.write(1, b"out of C\n")
        os.write(2, b"error of C\n")
        print("printed")
    elif do == "close":
        sys.stdout.close()
        sys.stderr.close()
    elif do == "ends its children":  # with SIGTERM, as soon as there are any: some that it forked, one that it executed
        import subprocess

        codes = set()
        for _ in range(20):
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        other = subprocess.Popen(["sleep", "600"])
        other.terminate()
        emit(Event("log", job.cell, {"message": f"{codes} {other.wait()}"}))
    elif do == "not json":
        emit(Event("log", job.cell, {"message": object()}))
    elif do == "child":  # leaves a process behind
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        emit(Event("log", job.cell, {"message": str(child.pid)}))
        time.sleep(600)
    elif do.startswith("fork"):
        _fork(job, emit, do)
    emit(Event("finished", job.cell, {"scores": {}, "best_epoch": 0, "seconds": 0.1, "peak_memory": 0}))
    emit(Event("log", job.cell, {"message": "nobody hears this"}))


def _fork(job: Job, emit: Emit, do: str) -> None:
    """Fork as a library of a component might."""
    import subprocess

    child = os.fork()
    if do == "fork and return":  # both go on with the work
        mark = Path(job.folder, "copy")
        if not child:
            mark.with_suffix(".part").write_text(str(os.getpid()))
            mark.with_suffix(".part").rename(mark)
        while not mark.exists():
            time.sleep(0.01)
        for _ in range(20 if child else 1):
            emit(Event("log", job.cell, {"message": "parent" if child else "child"}))
        return
    if not child:
        time.sleep(600)
        os._exit(0)
    other = subprocess.Popen(["sleep", "600"])
    emit(Event("log", job.cell, {"message": f"{child} {other.pid}"}))
    if do == "fork and exit":
        os._exit(5)
    if do == "fork and hang":
        time.sleep(600)


def _environment() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GOMP_SPINCOUNT", "CUBLAS_WORKSPACE_CONFIG")
    return {name: os.environ[name] for name in names if name in os.environ}
