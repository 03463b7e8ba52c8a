"""A table fits the terminal that it is printed on, in colours; what is piped stays as it is."""

import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from recorded import Row, record

from taskloom.runs.cli import common

TASKLOOM = [sys.executable, "-m", "taskloom.runs.cli"]
TABLE = [*TASKLOOM, "table", "wide"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("wide")
    rows = [Row("sum"), Row("good", 1.6), Row("a worse row with a longer label", 0.4), Row("same", 1.05)]
    record(home / "taskloom-runs", rows, name="wide", baseline="sum", margin=0.1)
    return home


def on_terminal(home: Path, columns: int, *options: str, command: Sequence[str] = TABLE, **environment: str) -> str:
    """What a command prints on a real pseudo-terminal of a number of columns, up to the first note."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*command, *options], cwd=home, stdout=theirs, env={**kept, "TERM": "xterm", **environment}
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait() == 0
    return re.split("\n\n(?:Δ overall: |Differences are )", text.decode().replace("\r\n", "\n"))[0]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


def words(text: str) -> set[str]:
    return set(re.split(r"\s{2,}|\n", text))


def piped(home: Path, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [*TABLE, *options], cwd=home, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.partition("\n\nΔ overall: ")[0]


def test_every_figure_is_in_sight_at_every_width(home: Path) -> None:
    whole = plain(on_terminal(home, 400))
    assert "\n\n" not in whole
    for columns, number in ((80, 4), (140, 2)):
        text = plain(on_terminal(home, columns))
        tables = text.split("\n\n")
        assert max(map(len, text.splitlines())) <= columns
        assert len(tables) == number
        assert all(len(table.splitlines()) == len(whole.splitlines()) for table in tables)
        assert words(whole) - {""} <= words(text)
    assert plain(on_terminal(home, 400, COLUMNS="80")) == plain(on_terminal(home, 80))


@pytest.mark.parametrize(
    "command",
    [("cells", "wide"), ("seeds", "wide"), ("data", "quickstart"), ("compare", "sum", "good", "--grid", "wide")],
)
def test_listings_fit_too_and_every_row_keeps_its_name(command: Sequence[str], home: Path) -> None:
    whole, text = (on_terminal(home, columns, command=[*TASKLOOM, *command]) for columns in (400, 70))
    assert max(map(len, whole.splitlines())) > 70 >= max(map(len, text.splitlines()))
    assert words(whole) - {""} <= words(text)
    first, *further = [table.splitlines() for table in text.split("\n\n") if "---" in table]
    assert further
    for table in further:
        assert [re.split(r"\s{2,}", line)[0] for line in table] == [re.split(r"\s{2,}", line)[0] for line in first]


def test_colours_are_for_terminals_unless_somebody_says_otherwise(home: Path) -> None:
    shown = on_terminal(home, 400)
    assert "\x1b[32mbetter\x1b[0m" in shown
    assert "\x1b[31mworse\x1b[0m" in shown
    assert "\x1b[34mequal ±0.1\x1b[0m" in shown
    bare = piped(home)
    assert "\x1b" not in bare
    assert piped(home, COLUMNS="80") == bare
    assert "\x1b" not in on_terminal(home, 400, NO_COLOR="1")
    assert "\x1b" not in on_terminal(home, 400, "--color", "never")
    assert piped(home, "--color", "always") == shown
    assert on_terminal(home, 400, "--color", "always", NO_COLOR="1") == shown


def test_what_is_being_read_is_said_while_it_takes_long_and_not_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(common, "PATIENCE", 0.1)
    monkeypatch.setattr(common, "note", notes.append)
    handler = common._Slow()

    def report(level: int, message: str) -> None:
        handler.emit(logging.LogRecord("taskloom.data", level, "", 0, message, None, None))

    report(logging.INFO, "reading a small file")
    report(logging.DEBUG, "it was read")
    time.sleep(0.2)
    assert notes == []
    report(logging.INFO, "reading a large file")
    time.sleep(0.1)
    assert notes == ["reading a large file …"]


def test_quiet_drops_notes_and_verbose_has_every_report(tmp_path: Path) -> None:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "taskloom.runs.cli", "run", "quickstart", "--smoke", "--only", "sum"]
        environment = {**os.environ, "TASKLOOM_REGISTRY": str(tmp_path / options[-1])}
        done = subprocess.run(
            [*command, "--engine", "inline", *options], capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.startswith("     seeds") or "sum" in done.stdout
        return done.stderr

    assert run("-q") == ""
    reports = run("--verbose").splitlines()
    assert sum("sum, seed 0: " in line for line in reports) > 3
