"""What a person sees of an answer: text in a terminal, HTML in a notebook, a data frame."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from recorded import Row, record

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.artifacts import replacing
from taskloom.runs import Grid

EVIL = "<script>alert(1)</script>&\x1b[2J"


class Tags(HTMLParser):
    """The names of all elements of a page, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """A grid whose labels and claims are what somebody might write to harm a reader."""
    rows = [Row("sum"), Row(EVIL, 1.3, set={"stages.0.combiner": {"name": EVIL}})]
    claims = [{"says": f"{EVIL} wins", "better": EVIL, "than": "sum"}]
    folder = tmp_path_factory.mktemp("answers") / "registry"
    return Grid("mine", registry=record(folder, rows, name="mine", baseline="sum", claims=claims))


def answers(grid: Grid) -> dict[str, Any]:
    cell = grid.cell("sum", seed=0)
    return {
        "table": grid.table(),
        "claims": grid.claims(),
        "effects": grid.effects(),
        "seeds": grid.seeds_needed(),
        "cells": grid.cells(),
        "errors": grid.errors(EVIL),
        "compare": grid.compare("sum", EVIL),
        "predictions": cell.predictions("para"),
        "curves": cell.curves(),
    }


def test_a_notebook_shows_tables_in_which_nothing_is_markup_but_ours(grid: Grid) -> None:
    for name, answer in answers(grid).items():
        page = answer._repr_html_()
        assert set(Tags(page).names) <= {"table", "thead", "tbody", "tr", "th", "td", "b", "p", "small", "br", "pre"}
        assert "\x1b" not in page, name
    for name in ("table", "claims", "effects", "seeds"):
        page = answers(grid)[name]._repr_html_()
        assert "table" in Tags(page).names
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_terminal_shows_text_that_does_not_steer_it(grid: Grid) -> None:
    for answer in answers(grid).values():
        assert "\x1b" not in repr(answer)
        assert str(answer) in repr(answer) or "\x1b" in str(answer)


def test_a_data_frame_has_a_row_for_each(grid: Grid) -> None:
    frames = {name: answer.to_pandas() for name, answer in answers(grid).items()}
    assert list(frames["table"]["label"]) == ["sum", EVIL]
    table = grid.table().found
    assert frames["table"]["overall mean"].tolist() == [row.figures["overall"].mean for row in table.rows]
    assert list(frames["claims"]["answer"]) == [claim.answer for claim in grid.claims().found]
    assert len(frames["effects"]) == len(grid.effects().found.main) == 1
    assert len(frames["cells"]) == 6
    assert len(frames["predictions"]) == 200
    assert frames["predictions"]["label"].tolist() == grid.cell("sum", 0).predictions("para").found.expected.tolist()
    assert list(frames["compare"]["task"]) == ["sst", "para", "sts"]
    assert set(frames["curves"]["task"]) >= {"sst", "overall"}
    assert len(frames["errors"])


def test_without_pandas_it_says_what_to_install(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as Python itself marks what cannot be imported
    with pytest.raises(TaskloomError, match=r"pip install 'taskloom\[pandas\]'"):
        grid.table().to_pandas()


def test_a_table_comes_in_every_format_of_the_command_line(grid: Grid) -> None:
    made = grid.table()
    assert made.format("latex").startswith("\\begin{tabular}")
    assert made.format("plain") == str(made)
    with pytest.raises(TaskloomError, match="should be one of plain"):
        made.format("docx")


def test_files_are_written_where_asked(tmp_path: Path) -> None:
    registry = record(tmp_path / "registry", [Row("sum"), Row("pcgrad")], name="mine", baseline="sum")
    grid = Grid("mine", registry=registry)
    page = grid.report(tmp_path / "page.html")
    assert page.found.read_bytes()
    assert str(page).startswith(f"{tmp_path / 'page.html'} (")
    grid.plot(tmp_path / "forest.svg")
    assert (tmp_path / "forest.svg").read_bytes()
    with pytest.raises(TaskloomError, match="cannot be written"):
        grid.report(tmp_path / "none" / "page.html")


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own; and what is no file is not replaced by one."""
    registry = record(tmp_path / "registry", [Row("sum"), Row("pcgrad")], name="mine", baseline="sum")
    old = Grid("mine", registry=registry).report(tmp_path / "page.html").found.read_bytes()
    lines = [
        "import resource, signal; from taskloom.runs import Grid",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))",
        f"Grid('mine', registry={str(registry)!r}).report({str(tmp_path / 'page.html')!r})",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert "page.html cannot be written: File too large; choose another file" in done.stderr
    assert (tmp_path / "page.html").read_bytes() == old
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as part:
        part.write_bytes(b"here")
    assert os.read(reader, 9) == b"here"
    os.close(reader)
