"""What is no regular file: a device or a pipe never ends, and a link may lead anywhere."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_law import taskloom

from taskloom.core import DataError, WeightsError
from taskloom.core.work import LOG, OLD_LOG, append_log, rotate_log
from taskloom.plugins.datasets.cs224n import CS224N
from taskloom.plugins.datasets.nli import SICK, SNLI
from taskloom.plugins.datasets.table import Table
from taskloom.plugins.encoders.folders import find_folder, fingerprint_of
from taskloom.plugins.engines.worker import redirect_output


@pytest.fixture(params=["/dev/zero", "/dev/urandom", "pipe", "link"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A device, a pipe without a writer, or a link to a device."""
    if request.param == "pipe":
        os.mkfifo(tmp_path / "pipe")
    elif request.param == "link":
        (tmp_path / "link").symlink_to("/dev/zero")
    return tmp_path / request.param


FILES = {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}
DATA: dict[str, Callable[[Path], Any]] = {
    "table": lambda folder: Table(
        **{split: str(folder / name) for split, name in FILES.items()}, text="text", label="label", classes=2
    ),
    "cs224n": lambda folder: CS224N(task="sst", dir=str(folder), **FILES),
    "sick": lambda folder: SICK(task="entailment", dir=str(folder)),
    "snli": lambda folder: SNLI(task="entailment", dir=str(folder)),
}
NAMES = [*FILES.values(), "SICK.txt", *(f"snli_1.0_{split}.jsonl" for split in FILES)]


@pytest.mark.parametrize("name", DATA)
def test_data(name: str, endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for file in NAMES:
        (folder / file).symlink_to(endless)
    data_set = DATA[name](folder)
    for read in (lambda: data_set.load("train"), data_set.fingerprint):
        with pytest.raises(DataError, match="cannot be read: it is not a regular file"):
            read()


@pytest.mark.parametrize("command", ["table", "run"])
def test_a_ledger(command: str, endless: Path, theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "ledger.sqlite").symlink_to(endless)
    assert "ledger.sqlite is not a regular file" in refused(command, theirs / "mine.json", tmp_path / "r")


def refused(*arguments: object) -> str:
    """What a command says that is refused; the last argument is its registry."""
    *command, registry = arguments
    said = taskloom(*command, *(["--registry", registry] if registry else []))
    assert (said.exit_code, type(said.exception)) == (2, SystemExit)
    return said.stderr


def test_a_file_that_cannot_be_read_to_its_end(theirs: Path) -> None:
    """Linux refuses to read a process's memory at 0, with the error of a broken disk."""
    request = ["predict", "mine", "--task", "sst", "--format", "csv", "--input", "/proc/self/mem"]
    assert "mem cannot be read to its end: Input/output error" in refused(*request, theirs / "registry")


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("text,label\nfine,1\nbad,0\n")
    for name in FILES.values():
        (tmp_path / name).symlink_to("real.csv")
    table = DATA["table"](tmp_path)
    assert len(table.load("train")) == 2
    assert table.fingerprint()


def test_archive(endless: Path, tmp_path: Path) -> None:
    said = refused("import", endless, tmp_path / "r")
    assert said == f"Error: {endless} cannot be read: it is not a regular file\n"
    assert not (tmp_path / "r").exists()


def test_input(endless: Path, theirs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    said = refused("predict", "mine", "--task", "sst", "--input", endless, "--out", out, theirs / "registry")
    assert f"--input {endless} cannot be read: it is not a regular file (--input - reads stdin)" in said
    assert not out.exists()


def test_grid(endless: Path, tmp_path: Path) -> None:
    for command in ("run", "table", "validate"):
        refused(command, endless, tmp_path / "r" if command != "validate" else None)


def test_weights(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").symlink_to(endless)
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        find_folder(str(folder))
    with pytest.raises(WeightsError, match="not a regular file"):
        fingerprint_of([folder / "config.json"])


@pytest.mark.parametrize(("name", "kind"), [(LOG, "link"), (OLD_LOG, "link"), (LOG, "pipe")])
def test_what_stands_in_the_place_of_a_log_is_not_written_to_and_not_waited_for(
    name: str, kind: str, tmp_path: Path
) -> None:
    cell, precious = tmp_path / "cell", tmp_path / "precious"
    cell.mkdir()
    precious.write_bytes(b"x" * 100)
    if kind == "link":
        (cell / name).symlink_to(precious)
    else:
        os.mkfifo(cell / name)
    append_log(cell, "a line that is long enough")
    rotate_log(cell, limit=10)
    with redirect_output(cell):
        os.write(1, b"printed")
    assert precious.read_bytes() == b"x" * 100
    assert name == OLD_LOG or not (cell / OLD_LOG).exists()


def test_a_cell_is_shown_without_what_a_link_in_the_place_of_its_log_leads_to(
    copy: Callable[[], Path], tmp_path: Path
) -> None:
    registry = copy()
    (tmp_path / "secret").write_text("a secret\n")
    cell = next((registry / "cells").iterdir())
    (cell / LOG).unlink(missing_ok=True)
    (cell / LOG).symlink_to(tmp_path / "secret")
    said = taskloom("cells", cell.name, "--registry", registry)
    assert said.exit_code == 0
    assert "a secret" not in said.output
