"""A worker process of the local engine.

    python -m taskloom.plugins.engines.worker CONNECTION DRIVER WORK THREADS DEVICE SHARE

It imports torch once, then runs one cell after another. Jobs arrive as JSON through the connection, whose file
descriptor is the first argument, and events go back the same way; ``DRIVER`` is a process id, shown in process lists.
When the other end closes, the driver is gone: the worker and everything it started end at once, because another driver
may resume the cell. Processes that a component forks are not part of the cell: they have no connection to the driver
and end with the worker.
"""

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from taskloom.core import DeviceError, Emit, Event, Job, Work, find_work, perform
from taskloom.core.work import is_out_of_memory, open_log

#: Signals that are sent to all processes of a job: by a terminal, systemd or Slurm.
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: The part of a GPU's memory that its cells share; the rest is CUDA's own in each process.
FOR_CELLS = 0.9


class Driver:
    """The worker's end of the connection; the ``Emit`` of its cells."""

    def __init__(self, connection: Connection) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.stop_asked = False
        self._connection = connection
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    def __call__(self, event: Event) -> None:
        self._connection.send_bytes(json.dumps(vars(event)).encode())

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = json.loads(self._connection.recv_bytes())
                self.stop_asked = message == "stop"
                if not self.stop_asked:
                    self.jobs.put(Job(**message))
        os.killpg(0, signal.SIGKILL)  # this process too


def main() -> None:
    descriptor, _, work, threads, device, share = sys.argv[1:]
    for number in SIGNALS:  # the driver receives them too, and decides what they mean
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the programs a component starts would inherit
        signal.siginterrupt(number, False)
    _end_with_driver()
    _stay_as_nice()
    faulthandler.enable(2)  # a crash is described in the log of the cell
    os.set_inheritable(int(descriptor), False)
    connection = Connection(int(descriptor))
    _separate_copies(connection)
    driver = Driver(connection)
    function = logged_work(work, int(threads), device, float(share))
    while True:
        perform(function, driver.jobs.get(), driver)


def _stay_as_nice() -> None:
    """Give the driver's niceness to the worker's session.

    A desktop's Linux shares processors among sessions before it looks at processes (``man 7 sched``, "autogroup"), and
    every worker has a session of its own: ``nice taskloom run`` would leave the workers as greedy as ever.
    """
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))


def logged_work(name: str, threads: int, device: str, share: float) -> Work:
    """The work of that name, confined to its threads and share of a device, with its output in the cell's log."""

    def work(job: Job, emit: Emit) -> None:
        with redirect_output(job.cell_folder()):
            function = find_work(name)  # here, so that an error in its import is the cell's
            if device != "cpu" or "torch" in sys.modules:
                confine(threads, device, share)
            function(replace(job, device=device), emit)

    return work


def confine(threads: int, device: str, share: float) -> None:
    """Limit torch to this process's threads and share of a device; ``DeviceError`` if it cannot use the device."""
    import torch

    torch.set_num_threads(threads)
    if device == "cpu":
        return
    try:
        torch.empty(1, device=device)
        if share < 1:
            torch.get_device_module(device).set_per_process_memory_fraction(share * FOR_CELLS)
    except Exception as error:  # no driver, a torch without CUDA, a GPU that another process has for itself
        if is_out_of_memory(error):
            raise
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DeviceError(f"torch cannot use the GPU that this worker was given ({cause})") from None


@contextmanager
def redirect_output(folder: Path) -> Iterator[None]:
    """Send this process's output to a cell's log, including that of C libraries and crash reports.

    Python's streams are replaced, so that a component that closes them does no harm.
    """
    try:
        log = open_log(folder)
    except OSError:  # a full disk, or a link in its place: the output is lost, not the cell
        log = os.open(os.devnull, os.O_WRONLY)
    before = [os.dup(1), os.dup(2)]
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    out, error = (os.fdopen(number, "w", 1, "utf-8", "replace", closefd=False) for number in (1, 2))
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield
    finally:
        for number, stream, saved in zip((1, 2), (out, error), before, strict=True):
            with suppress(OSError, ValueError):  # a full disk; the component has closed it
                stream.flush()
            os.dup2(saved, number)
            os.close(saved)


def _end_with_driver() -> None:
    """Let the kernel kill this process group when the driver ends, which closes the other end of our standard input.

    The thread that listens does so too, but not while a C library holds the interpreter's lock, as shown by
    test_workers_end_with_their_driver. Linux only.
    """
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        lifeline = os.dup(0)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a component that reads its standard input finds nothing there
    os.close(nothing)


def _separate_copies(connection: Connection) -> None:
    """Disconnect forked processes from the driver, and let signals end them.

    Signals are blocked during the fork: a copy must not receive one before its handlers are reset (shown by
    test_signals_to_the_whole_job_leave_the_workers_to_the_driver).
    """

    def reset() -> None:
        connection.close()  # the driver sees the end of this connection when the worker ends, not when the copy does
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
        after_in_child=reset,
    )


if __name__ == "__main__":
    main()
