"""Where `run` is called from: a script without a guard, another thread, a program that is interrupted."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from long_run import LONG, PATIENCE, until_begun

from taskloom.runs import Grid
from taskloom.runs.api.run import InterruptedRun
from taskloom.runs.driver.signals import Stop


def test_a_script_needs_no_guard_and_ctrl_c_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Worker processes do not import the script: it is run once, to its end."""
    script = tmp_path / "script.py"
    script.write_text(
        "from taskloom.runs import Grid\n"
        f"grid = Grid({LONG!r}, name='long', registry='registry')\n"
        "with open('runs', 'a') as file: file.write('once ')\n"
        "try:\n"
        "    grid.run(engine='local', workers=1)\n"
        "except KeyboardInterrupt as error:\n"
        "    print(error)\n"
    )
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, **pipes) as process:
        until_begun(tmp_path / "registry")
        process.send_signal(signal.SIGINT)
        said, progress = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, "Interrupted. 0 cells finished, 1 unfinished.\n"), progress
    assert (tmp_path / "runs").read_text() == "once "
    assert "the running cells write a checkpoint" in progress
    cell = Grid("long", registry=tmp_path / "registry").cells().found[0]
    assert cell.state == "interrupted"
    assert Grid("long", registry=tmp_path / "registry").plan().found.cells[0].status == "interrupted"


def test_a_thread_runs_a_grid_and_stops_it(tmp_path: Path) -> None:
    stop, ended = Stop(), []

    def work() -> None:
        try:
            Grid(LONG, name="long", registry=tmp_path).run(progress=False, stop=stop)
        except InterruptedRun as error:
            ended.append(error)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    thread = threading.Thread(target=work)
    thread.start()
    until_begun(tmp_path)
    stop()
    thread.join(PATIENCE)
    assert [error.outcome.interrupted for error in ended] == [1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_the_third_ctrl_c_is_an_exception_not_the_end_of_the_program() -> None:
    from taskloom.runs.api.run import interrupt

    stop = Stop(asked=2, end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)
