"""The ledger's file: who may open it, what is refused, damage, and what happens while another process holds it."""

import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from drivers import planned
from hypothesis import given, settings
from hypothesis import strategies as st

from taskloom.core import Event, RegistryError
from taskloom.registry.results import file
from taskloom.registry.results.errors import HeldUpError
from taskloom.registry.results.file import FILE, SCHEMA, STEPS
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli


def fill(ledger: Ledger) -> None:
    """Something in every table: one cell of two is finished."""
    ledger.record_grid("grid", {"base": {}}, [planned("aa01"), planned("aa02")])
    ledger.write(Event("started", "aa01", {"versions": {"torch": "2"}}))
    for number in range(1, 9):
        ledger.write(Event("epoch", "aa01", {"stage": 0, "epoch": number, "scores": {"sst": 0.5}}))
    ledger.write(Event("stage", "aa01", {"index": 0, "key": "cafe", "seconds": 3.0}))
    ledger.write(Event("finished", "aa01", {"scores": {"sst": 0.5, "overall": 0.5}}))


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        fill(ledger)
    return tmp_path / "registry"


def refusal(folder: Path, *, create: bool = True) -> str:
    with pytest.raises(RegistryError) as caught:
        Ledger.open(folder, create=create)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("version", [1, min(STEPS) - 1, SCHEMA + 1])
def test_another_ledger_version_is_refused_with_both_versions(tmp_path: Path, version: int) -> None:
    Ledger.open(tmp_path, create=True).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    before = (tmp_path / FILE).read_bytes()
    for create in (True, False):
        message = refusal(tmp_path, create=create)
        assert f"has ledger version {version};" in message
        assert f"reads versions {min(STEPS)} to {SCHEMA}" in message
        assert "--registry" in message
        assert ("Upgrade taskloom" in message) == (version > SCHEMA)
    assert (tmp_path / FILE).read_bytes() == before


def test_reading_makes_nothing(tmp_path: Path) -> None:
    assert "nothing was run there yet" in refusal(tmp_path / "none", create=False)
    assert "nothing was run there yet" in refusal(tmp_path, create=False)
    assert Ledger.find(tmp_path / "none") is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot be made" in refusal(folder)
        refusal(folder, create=False)

    (tmp_path / "folder" / FILE).mkdir(parents=True)
    assert "is not a regular file" in refusal(tmp_path / "folder")

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / FILE).write_text("this is not a database, but long enough to be looked at " * 20)
    assert "not a database" in refusal(tmp_path / "text")

    (tmp_path / "other").mkdir()
    database = sqlite3.connect(tmp_path / "other" / FILE)
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = (tmp_path / "other" / FILE).read_bytes()
    assert "has ledger version 0" in refusal(tmp_path / "other")
    assert (tmp_path / "other" / FILE).read_bytes() == before


def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()  # what a process killed between open and the first commit leaves
    assert "nothing was run there yet" in refusal(tmp_path, create=False)
    with Ledger.open(tmp_path, create=True) as ledger:
        assert ledger.grids() == ()


QUESTIONS: list[Callable[[Ledger], object]] = [
    Ledger.grid_names,
    Ledger.grids,
    Ledger.cells,
    Ledger.states,
    lambda ledger: ledger.cell("aa01"),
    lambda ledger: ledger.epochs("aa01"),
    lambda ledger: ledger.stages("aa01"),
    lambda ledger: ledger.attempts("aa01"),
    lambda ledger: ledger.history_of("grid"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """The file of a ledger, and where it is not empty: at both ends of each page."""
    folder = tmp_path_factory.mktemp("sound")
    with Ledger.open(folder, create=True) as ledger:
        fill(ledger)
    content = (folder / FILE).read_bytes()
    return content, [at for at, byte in enumerate(content) if byte]


@settings(max_examples=300)
@given(place=st.floats(0, 1, exclude_max=True), junk=st.binary(min_size=1, max_size=60))
def test_any_damage_is_a_message_or_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, sound: tuple[bytes, list[int]], place: float, junk: bytes
) -> None:
    folder, (content, used) = tmp_path_factory.mktemp("damaged"), sound
    at = used[int(place * len(used))]
    (folder / FILE).write_bytes(content[:at] + junk + content[at + len(junk) :])
    said = []
    try:
        with Ledger.open(folder, create=False) as ledger:
            for ask in QUESTIONS:
                try:
                    ask(ledger)
                except RegistryError as error:
                    said.append(str(error))
    except RegistryError as error:
        said.append(str(error))
    assert all("\n" not in message and len(message) < 500 + len(str(folder)) for message in said)


def test_a_disk_that_takes_nothing_leaves_the_ledger_readable(registry: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as a quota would: there is room, and not for us
    try:
        with pytest.raises(HeldUpError, match="cannot be used at present"):
            Ledger.open(registry, create=True)
        with Ledger.open(registry, create=False) as read:
            assert read.states() == {"aa01": "finished"}
            with pytest.raises(HeldUpError, match="cannot be used at present"):
                read.write(Event("failed", "aa02", {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with Ledger.open(registry, create=False) as written:
        written.write(Event("failed", "aa02", {}))


# Registries that may be read and not written


READER = """
import os, sys
from taskloom.core import Event, RegistryError
from taskloom.registry.results.ledger import Ledger

if os.geteuid() == 0:  # root may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with Ledger.open(sys.argv[1], create=False) as ledger:
        print(sorted(ledger.states().items()))
        ledger.write(Event("failed", "aa01", {}))
except RegistryError as error:
    print(error)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def answers(folder: Path) -> list[str]:
    """What a process prints that may not write to the folder."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    assert not done.stderr
    return done.stdout.splitlines()


KILLED = """
import os, signal, sys
from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger

Ledger.open(sys.argv[1], create=False).write(Event("started", "aa02", {}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_without_rights_sees_what_was_written_last(shared: Path) -> None:
    """While a run writes, after it is closed, and after it was killed."""
    with Ledger.open(shared, create=True) as ledger:
        fill(ledger)
        assert (shared / f"{FILE}-wal").stat().st_size, "it is not in the ledger's own file yet"
        assert_read(shared, "[('aa01', 'finished')]")
    assert sorted(path.name for path in shared.iterdir()) == [FILE, "lock"]
    assert_read(shared, "[('aa01', 'finished')]")
    assert subprocess.run([sys.executable, "-c", KILLED, str(shared)]).returncode == -signal.SIGKILL
    assert_read(shared, "[('aa01', 'finished'), ('aa02', 'interrupted')]")
    (shared / f"{FILE}-shm").unlink()  # a copy that left it behind
    (said,) = answers(shared)
    assert said.startswith(f"{shared / FILE} cannot be opened"), "and not an older state"


def assert_read(shared: Path, expected: str) -> None:
    states, refused = answers(shared)
    assert states == expected
    assert re.search(
        r"cannot be written: you need permission .* choose one that you may write to with --registry", refused
    )


# A ledger that another process holds


HOLDER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement).fetchall()
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def held(registry: Path, *statements: str) -> Iterator[None]:
    """Another process holds the ledger until the block ends."""
    command = [sys.executable, "-c", HOLDER, str(registry / FILE), *(statements or ("BEGIN EXCLUSIVE",))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_writer_that_waits_in_vain_says_one_sentence_and_writes_nothing(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "TIMEOUT", 0.2)
    with Ledger.open(registry, create=True) as ledger:
        with held(registry):
            for write in (
                lambda: ledger.write(Event("started", "aa02", {})),
                lambda: ledger.record_grid("other", {}, [planned("cc")]),
            ):
                with pytest.raises(RegistryError, match="is locked: another process holds it") as caught:
                    write()
                assert "\n" not in str(caught.value)
            assert ledger.states() == {"aa01": "finished"}
        ledger.write(Event("started", "aa02", {}))  # and later it goes on


def test_commands_that_read_answer_while_the_ledger_is_held(registry: Path) -> None:
    with held(registry):
        for command in (["cells"], ["table", "grid"], ["grids"]):
            done = CliRunner().invoke(cli, [*command, "--registry", str(registry)])
            assert done.exit_code == 0, done.output
            assert "grid" in done.output or "0.5" in done.output


def test_who_locks_out_readers_too_is_reported(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "TIMEOUT", 0.2)
    alone = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "UPDATE grids SET spec = spec", "COMMIT")
    with held(registry, *alone), pytest.raises(RegistryError, match="is locked: another process holds it"):
        Ledger.open(registry, create=False).states()
    with Ledger.open(registry, create=False) as ledger:
        assert ledger.states() == {"aa01": "finished"}
