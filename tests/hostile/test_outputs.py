"""Where outputs may go: never into a registry, over what is read, or, unless forced, over a file of another kind."""

import json
import sqlite3
import zipfile
from pathlib import Path

import pytest
from hostile_law import taskloom

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.outputs import kind_of, output
from taskloom.runs.api.grid import Grid

ROWS = "".join(f"{number},good film {number},{'yes' if number % 2 else 'no'}\n" for number in range(16))
DATA = {"name": "table", "text": "text", "label": "label", "classes": ["no", "yes"], "id": "id"}
GRID = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {**DATA, "train": "train.csv", "dev": "dev.csv"}}},
        "stages": [{"epochs": 0}],
    },
    "cells": [{"label": "a"}, {"label": "b", "set": {"encoder.layers": 2}}],
    "seeds": [0, 1],
    "baseline": "a",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a grid and its results."""
    home = tmp_path_factory.mktemp("outputs")
    for name in ("train.csv", "dev.csv"):
        (home / name).write_text(f"id,text,label\n{ROWS}")
    (home / "G.json").write_text(json.dumps(GRID))
    Grid(home / "G.json", registry=home / "R").run(progress=False)
    return home


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".sqlite-wal", ".sqlite-shm")
    }


SCORES = "scores-dev.safetensors"
INSIDE, READ, OTHER = "is inside the registry", "is a file that this command reads", "choose another file"
REFUSED = {
    "the ledger by a report": (["report", "G.json", "-o", "R/ledger.sqlite", "--force"], INSIDE),
    "the ledger by a schema": (["schema", "--out", "R/ledger.sqlite", "--force"], INSIDE),
    "the ledger by a table": (["table", "G.json", "-o", "R/ledger.sqlite", "--force"], INSIDE),
    "a new file among the cells": (["plot", "G.json", "-o", "R/cells/forest.svg"], INSIDE),
    "a plugin in the registry": (["new-plugin", "hostile", "--kind", "loss", "--into", "R"], INSIDE),
    "an archive in the registry": (["archive", "G.json", "R/results.zip"], INSIDE),
    "a score file by a report": (["report", "G.json", "-o", f"copies/{SCORES}"], "is a safetensors file"),
    "a ledger's copy by a report": (["report", "G.json", "-o", "copies/old.sqlite"], "is an SQLite database"),
    "the grid by its report": (["report", "G.json", "-o", "G.json", "--force"], READ),
    "the grid by its table": (["table", "G", "--format", "json", "-o", "G.json", "--force"], READ),
    "another grid by a table": (["table", "G.json", "--format", "json", "-o", "other.json"], "JSON that begins with"),
    "another grid by the schema": (["schema", "--out", "other.json"], "is a JSON schema"),
    "the training data by a table": (["table", "G.json", "--format", "csv", "-o", "train.csv", "--force"], READ),
    "other data by a table": (["table", "G.json", "--format", "csv", "-o", "other.csv"], "begins with 'id,text,label'"),
    "a README by a table": (["table", "G.json", "--format", "github", "-o", "README.md"], "begins with '# Mine'"),
    "somebody's notes by a table's": (["table", "G.json", "--format", "csv", "-o", "t.csv"], "begins with 'my notes'"),
    "a text by an archive": (["archive", "G.json", "text.zip", "--replace"], "text that begins with 'no zip'"),
    "data by predictions": (
        ["predict", "G.json", "--input", "new.csv", "--out", "other.csv"],
        "and the output is text that begins with 'id,text,prediction",
    ),
    "the input by predictions": (["predict", "G.json", "--input", "new.csv", "--out", "new.csv", "--force"], READ),
    "a text by a submission": (
        ["predict", "G.json", "--split", "dev", "--out", "submission"],
        "begins with 'somebody else wrote this'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_output_must_not_replace_stays(folder: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "copies").mkdir(exist_ok=True)
    (folder / "submission").mkdir(exist_ok=True)
    (folder / "copies" / SCORES).write_bytes(next((folder / "R" / "cells").rglob(SCORES)).read_bytes())
    with sqlite3.connect(folder / "R" / "ledger.sqlite") as ledger, sqlite3.connect("copies/old.sqlite") as copy:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.backup(copy)
    ledger.close()
    copy.close()
    for name, text in {
        "other.json": json.dumps({"$schema": "./grid.schema.json", **GRID}),
        "other.csv": f"id,text,label\n{ROWS}",
        "new.csv": "id,text\n1,a film\n",
        "README.md": "# Mine\n",
        "t.csv.notes.txt": "my notes\n",
        "text.zip": "no zip",
        "submission/sst-dev-output.csv": "somebody else wrote this",
    }.items():
        Path(name).write_text(text)
    Path("t.csv").unlink(missing_ok=True)
    before = contents(folder)
    arguments, message = REFUSED[case]
    result = taskloom(*arguments, *([] if arguments[0] in ("schema", "new-plugin") else ["--registry", "R"]))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert ("--force" in result.stderr) == (message not in (INSIDE, READ) and arguments[0] != "archive")
    assert contents(folder) == before


def test_an_output_replaces_one_of_its_kind_and_any_file_if_forced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands: list[list[str | Path]] = [
        ["report", folder / "G.json", "-o", "out"],
        ["plot", folder / "G.json", "-o", "out.svg"],
        ["plot", folder / "G.json", "-o", "out.png"],
        ["plot", folder / "G.json", "-o", "out.pdf"],
        ["schema", "--out", "out.json"],
        *(["table", folder / "G.json", "-o", f"out.{form}", "--format", form] for form in ("csv", "json", "latex")),
        ["predict", folder / "G.json", "--input", folder / "dev.csv", "--out", "out.jsonl"],
        ["predict", folder / "G.json", "--split", "dev", "--out", "folder"],
    ]
    for command in commands:
        options = [] if command[0] == "schema" else ["--registry", folder / "R"]
        assert taskloom(*command, *options).exit_code == 0
        assert taskloom(*command, *options).exit_code == 0, "over an earlier one of its own"
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.write_text("the words of somebody else")
        assert taskloom(*command, *options).exit_code == 2
        assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"the words of somebody else"}
        assert taskloom(*command, *options, "--force").exit_code == 0
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.unlink()


def test_python_refuses_and_forces_alike(folder: Path, tmp_path: Path) -> None:
    grid, page = Grid(folder / "G.json", registry=folder / "R"), tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(TaskloomError, match="force=True"):
        grid.report(page)
    with pytest.raises(TaskloomError, match="force=True"):
        grid.plot(page.rename(tmp_path / "page.svg"))
    assert grid.plot(tmp_path / "page.svg", force=True).found.read_text().startswith("<?xml")
    for path in (folder / "G.json", folder / "dev.csv"):
        with pytest.raises(TaskloomError, match=READ):
            grid.report(path, force=True)
    with pytest.raises(TaskloomError, match=INSIDE):
        grid.best().export(folder / "R" / "model", "transformers")


def test_a_link_into_the_registry_and_a_moved_grid_are_seen_through(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").symlink_to(folder / "R" / "ledger.sqlite")
    (tmp_path / "G.json").symlink_to(folder / "G.json")
    for name, message in (("page.html", INSIDE), ("G.json", READ)):
        result = taskloom("report", folder / "G.json", "-o", tmp_path / name, "--force", "--registry", folder / "R")
        assert result.exit_code == 2
        assert message in result.stderr


def test_the_kind_of_a_file_is_read_off_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    assert kind_of(path) == "a zip archive"
    for content, kind in {
        b"\n <!DOCTYPE html><svg>": "an HTML page",
        b'<?xml version="1.0"?>\n<svg>': "an SVG image",
        b'{"$schema": "https://json-schema.org/draft/2020-12/schema"}': "a JSON schema",
        b'{"$schema": "./grid.schema.json"}': "JSON that begins with '$schema'",
        b'[{"a": 1}]': "JSON that begins with 'a'",
        b"\xef\xbb\xbfa,b\r\n1,2": "text that begins with 'a,b'",
        b"\x08\0\0\0\0\0\0\0{": "a safetensors file",
        b"\0\0": "binary data",
        b" \n": "an empty file",
    }.items():
        path.write_bytes(content)
        assert kind_of(path) == kind


def test_devices_and_empty_files_take_any_output(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path / "empty", Path("/dev/null")):
        with output(path) as part:
            part.write_text("words")
    assert (tmp_path / "empty").read_text() == "words"
