"""What plugins print while they are at work: it is told, briefly, whatever its size and wherever it may be kept."""

import os
import sys
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskloom.registry.installed.quiet import SHOWN, quiet


def naive(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    told = [f"x printed: {line[:200]}{'…' if len(line) > 200 else ''}" for line in lines[:SHOWN]]
    return told + ([f"x printed {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else [])


lines = st.sampled_from(["", " ", "one", "ö" * 199, "ö" * 200, "ö" * 201, "y" * 5_000])
printed = st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n", "\r", ""])), max_size=9)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(printed, st.booleans(), st.integers(1, 9_000))
def test_what_is_told_depends_on_the_text_alone(
    capfd: pytest.CaptureFixture[str], printed: list[tuple[str, str]], raw: bool, size: int
) -> None:
    text = "".join(map("".join, printed))
    said: list[str] = []
    with quiet("x", said.append):
        if raw:
            os.write(1, text.encode())
        else:
            for start in range(0, len(text), size):
                print(text[start : start + size], end="")
    assert said == naive(text)
    assert capfd.readouterr() == ("", "")


def test_it_takes_little_memory_however_much_is_printed() -> None:
    said: list[str] = []
    some = (b"x" * 999 + b"\n") * 100
    tracemalloc.start()
    try:
        with quiet("x", said.append):
            for _ in range(100):
                os.write(1, some)
                sys.stdout.write(some.decode())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said[-1] == f"x printed {20_000 - SHOWN} lines more"
    assert peak < 4 << 20, "of 20 MB"


def test_without_a_temporary_folder_it_goes_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        with suppress(ZeroDivisionError), quiet("x", said.append):
            print("printed")
            os.write(1, b"inside\n")
            said.append(str(1 / 0))
    os.write(1, b"outside\n")
    assert said == ["x printed: printed"]
    assert capfd.readouterr() == ("outside\n", "inside\n")
