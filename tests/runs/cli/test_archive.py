"""``taskloom archive`` and ``taskloom import``: what arrives is what was sent, and nothing else gets in."""

import getpass
import hashlib
import io
import json
import re
import shutil
import socket
import sqlite3
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load, save

from taskloom.registry.results.archive import MOST
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import IMPORTED
from taskloom.runs.cli import cli
from taskloom.runs.grid.identity import digest

SIZES = {"size": 32, "dev_size": 24, "test_size": 8}
GRID: dict[str, Any] = {
    "name": "mine",
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", **SIZES}},
            "sts": {
                "data": {"name": "generated", "task": "similarity", **SIZES},
                "head": "cosine",
                "loss": "mse",
                "metric": ["pearson", "spearman"],
            },
        },
        "stages": [{"epochs": 1}, {"epochs": 2}],
        "overall": {"name": "normalised", "weights": {"sts": 2}},
        "score": {"test": True},
    },
    "axes": {"stages.1.combiner": ["sum", "pcgrad"], "stages.1.optimizer.lr": {"slow": 0.001, "wild": 1e38}},
    "baseline": "sum, slow",
    "claims": [{"says": "surgery helps", "better": "pcgrad, slow", "than": "sum, slow"}],
    "seeds": [0, 1],
}
SHOWN = [
    ["table", "mine"],
    ["table", "mine", "--format", "json"],
    ["table", "mine", "--metric", "macro_f1", "--format", "json"],
    ["claims", "mine", "--json"],
    ["effects", "mine", "--json"],
    ["seeds", "mine", "--json"],
    ["errors", "sum, slow", "--json"],
    ["compare", "sum, slow", "pcgrad, slow", "--json"],
]


def taskloom(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], prog_name="taskloom")


def done(*arguments: object) -> Result:
    result = taskloom(*arguments)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def state(registry: Path) -> tuple[list[str], dict[str, bytes]]:
    """All that a registry holds, but for who worked there."""
    with sqlite3.connect(registry / "ledger.sqlite") as database:
        lines = sorted(database.iterdump())
    files = {
        path.relative_to(registry): path for room in ("cells", "examples") for path in (registry / room).rglob("*")
    }
    return lines, {str(name): path.read_bytes() for name, path in files.items() if path.suffix == ".safetensors"}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a grid, the registry in which it was run (half of its cells failed), and its archive."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "mine.json").write_text(json.dumps(GRID))
    run = taskloom("run", folder / "mine.json", "--registry", folder / "registry")
    assert run.exit_code == 1, run.stderr
    with Ledger.open(folder / "registry", create=False) as ledger:
        ledger.add_look("mine")
    done("archive", "mine", folder / "results.zip", "--registry", folder / "registry")
    return folder


@pytest.fixture
def imported(theirs: Path, tmp_path: Path) -> Path:
    """A registry with nothing but the archive's results."""
    done("import", theirs / "results.zip", "--registry", tmp_path / "ours")
    return tmp_path / "ours"


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_what_is_imported_is_shown_byte_for_byte_as_before(theirs: Path, imported: Path, command: list[str]) -> None:
    expected, found = (done(*command, "--registry", registry).stdout for registry in (theirs / "registry", imported))
    line = re.search(r',?\s*"?(Imported, not run here: [^"\n]*)"?', found)
    assert line is not None, "but for a line that says so"
    assert found.replace(line[0], "", 1) == expected
    assert len(found) > 100


def test_what_is_recorded_arrives(theirs: Path, imported: Path) -> None:
    """But for the process that drove a cell, and for where it was."""

    def recorded(registry: Path) -> list[Any]:
        with Ledger.open(registry, create=False) as ledger:
            cells = [ledger.cell(place.cell.id) for place in ledger.grid("mine").cells]
            parts = [(ledger.epochs(cell.id), ledger.stages(cell.id)) for cell in cells]
            attempts = [replace(one, driver=None) for cell in cells for one in ledger.attempts(cell.id)]
            bare = [replace(cell, versions={k: v for k, v in cell.versions.items() if k != IMPORTED}) for cell in cells]
            assert all(cell.digests.keys() == {"dev", "test"} for cell in cells if cell.status == "finished")
            with ledger.snapshot() as db:
                looks = [row["moment"] for row in db.execute("SELECT moment FROM looks WHERE grid = 'mine'")]
            assert [len(looks), len(parts[0][0])] == [1, 3]
            return [bare, parts, attempts, looks, ledger.claims("mine"), ledger.grid("mine").written]

    assert recorded(imported) == recorded(theirs / "registry")


def test_a_report_names_the_archive(imported: Path, tmp_path: Path) -> None:
    done("report", "mine", "--registry", imported, "-o", tmp_path / "page.html")
    assert "results.zip" in (tmp_path / "page.html").read_text()


def test_the_same_results_make_the_same_bytes(theirs: Path, tmp_path: Path) -> None:
    done("archive", "mine", tmp_path / "again.zip", "--registry", theirs / "registry")
    assert (tmp_path / "again.zip").read_bytes() == (theirs / "results.zip").read_bytes()


def test_two_imports_are_as_good_as_one(theirs: Path, imported: Path) -> None:
    before = state(imported)
    again = done("import", theirs / "results.zip", "--registry", imported)
    assert "0 cells imported, 4 already here with the same result" in again.stdout
    assert state(imported) == before


def test_an_archive_has_predictions_and_no_weights_or_texts(theirs: Path) -> None:
    with zipfile.ZipFile(theirs / "results.zip") as file:
        names = file.namelist()
        text = b"".join(file.read(name) for name in names).decode("latin-1")
    assert sum(name.startswith("cells/") for name in names) == 8, "dev and test of four cells"
    assert not [name for name in names if "best" in name or "log" in name]
    assert "encoder.embeddings" not in text


def test_an_archive_names_no_folder_user_or_computer(tmp_path: Path) -> None:
    rows = "".join(f"a fine film {number},{number % 2}\n" for number in range(20))
    home = tmp_path / "folder of ours"
    home.mkdir()
    (home / "films.csv").write_text(f"text,y\n{rows}")
    path = str(home / "films.csv")
    data = {"name": "table", "train": path, "dev": path, "text": "text", "label": "y", "classes": 2}
    base = {**GRID["base"], "tasks": {"sst": {"data": data}}, "overall": "mean"}
    cells = [{"label": "fine"}, {"label": "wild", "set": {"stages.0.optimizer.lr": 1e38}}]
    (tmp_path / "g.json").write_text(json.dumps({"base": base, "cells": cells}))
    taskloom("run", tmp_path / "g.json", "--registry", tmp_path / "r")
    with Ledger.open(tmp_path / "r", create=False) as ledger, ledger.transaction() as db:
        why = f"{path} went away"
        db.execute("UPDATE cells SET reason = ? WHERE status = 'failed'", [why])
        db.execute("UPDATE attempts SET worker = ?, reason = ?", [f"{socket.gethostname()}:0", why])
    made = done("archive", "g", tmp_path / "g.zip", "--registry", tmp_path / "r")
    assert "1 of 2 cells finished" in made.stdout
    assert made.stderr == ""
    with zipfile.ZipFile(tmp_path / "g.zip") as file:
        text = file.read("archive.json").decode()
    assert "films.csv" in text, "the name of a file stays"
    for private in (str(tmp_path), "folder of ours", socket.gethostname(), f"/{getpass.getuser()}"):
        assert private not in text, private
    assert json.loads(text)["cells"][0]["attempts"][0]["driver"] is None
    done("import", tmp_path / "g.zip", "--registry", tmp_path / "elsewhere")


def test_a_run_takes_imported_cells_for_finished_and_adds_to_them(theirs: Path, imported: Path) -> None:
    before = state(imported)[1]
    run = done("run", theirs / "mine.json", "--registry", imported, "--only", "*slow", "--seeds", "0-2")
    assert "results.zip" not in run.stderr
    cells = json.loads(done("cells", "mine", "--registry", imported, "--json").stdout)["cells"]
    slow = {(cell["label"], cell["seed"]): cell for cell in cells if cell["label"].endswith("slow")}
    assert [len(slow), {cell["status"] for cell in slow.values()}] == [6, {"finished"}]
    assert {seed for (_, seed), cell in slow.items() if "imported from" in cell["versions"]} == {0, 1}
    after = state(imported)[1]
    assert {name: after[name] for name in before} == before


def test_cells_explain_and_predict_say_where_a_cell_came_from(imported: Path) -> None:
    with Ledger.open(imported, create=False) as ledger:
        cell = next(place.cell for place in ledger.grid("mine").cells if place.cell.status == "finished")
    assert cell.imported.startswith("results.zip (")
    for arguments in (["cells"], ["cells", cell.id], ["explain", cell.id]):
        assert "imported from" in done(*arguments, "--registry", imported).stdout
    refused = taskloom("predict", cell.id, "--registry", imported)
    assert refused.exit_code == 2
    assert "weights do not travel" in refused.stderr


def test_what_is_here_stays(theirs: Path, imported: Path) -> None:
    """Finished cells keep their scores and cells that were begun their checkpoints; what failed takes the result."""
    with Ledger.open(imported, create=False) as ledger:
        other, begun, failed, _ = (place.cell.id for place in ledger.grid("mine").cells if place.cell.scores)
        with ledger.transaction() as db:
            db.execute("UPDATE scores SET value = 0.125 WHERE cell = ? AND task = 'sst'", [other])
            db.execute("UPDATE cells SET status = 'interrupted' WHERE id = ?", [begun])
            db.execute("UPDATE cells SET status = 'failed', reason = 'x', versions = '{}' WHERE id = ?", [failed])
        result = done("import", theirs / "results.zip", "--registry", imported)
        assert f"1 cell of the archive: finished here with other scores, which stay ({other[:12]})" in result.stderr
        assert f"1 cell of the archive: begun here, and left to `taskloom run` ({begun[:12]})" in result.stderr
        assert result.stdout.startswith("1 cell imported, 1 already here with the same result")
        assert ledger.cell(other).scores["sst"] == 0.125
        assert ledger.cell(begun).status == "interrupted"
        assert (ledger.cell(failed).status, len(ledger.attempts(failed))) == ("finished", 2)
        assert ledger.cell(failed).imported


def test_the_same_grid_with_other_seeds_becomes_one(theirs: Path, tmp_path: Path) -> None:
    run = ["run", theirs / "mine.json", "--registry", tmp_path / "r", "--only", "sum, slow"]
    done(*run, "--seeds", "7")
    before = done("table", "mine", "--registry", tmp_path / "r", "--format", "json").stdout
    result = done("import", theirs / "results.zip", "--registry", tmp_path / "r")
    assert result.stdout.startswith("2 cells imported, 2 already here with the same result")
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        assert ledger.grid_names() == ["mine"]
        grid = ledger.grid("mine")
    finished = {(place.label, place.seed) for place in grid.cells if place.cell.status == "finished"}
    assert finished == {*((f"{name}, slow", seed) for name in ("sum", "pcgrad") for seed in (0, 1)), ("sum, slow", 7)}
    assert grid.added_seeds == [7]
    assert len(json.loads(before)["rows"]) == len({place.label for place in grid.cells})


def test_another_grid_of_the_same_name_keeps_it(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({**GRID, "axes": {}, "baseline": None, "claims": [], "seeds": [5]}))
    done("run", tmp_path / "mine.json", "--registry", tmp_path / "r")
    before = done("table", "mine", "--registry", tmp_path / "r").stdout
    for _ in range(2):
        result = done("import", theirs / "results.zip", "--registry", tmp_path / "r")
        with Ledger.open(tmp_path / "r", create=False) as ledger:
            ours, other = ledger.grid_names()
        assert f"Another grid 'mine' is here, which stays as it is; the archive's is called {other!r}" in result.stderr
    assert done("table", ours, "--registry", tmp_path / "r").stdout == before
    expected = json.loads(done("table", "mine", "--registry", theirs / "registry", "--format", "json").stdout)
    imported = json.loads(done("table", other, "--registry", tmp_path / "r", "--format", "json").stdout)
    assert imported["rows"] == expected["rows"]


# What is refused: with one message, and nothing written


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """An archive with other contents, whose digests are right again, as somebody makes it who knows how."""
    with zipfile.ZipFile(source) as file:
        files = {name: file.read(name) for name in file.namelist()}
    contents = json.loads(files.pop("archive.json"))
    del files["archive.sha256"]
    change(contents, files)
    contents["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    text = json.dumps(contents).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive.json", text)
        file.writestr("archive.sha256", hashlib.sha256(text).hexdigest())
        for name, data in files.items():
            file.writestr(name, data)
    return target


def first_finished(contents: dict[str, Any]) -> dict[str, Any]:
    return next(cell["record"] for cell in contents["cells"] if cell["record"]["status"] == "finished")


def better_score(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    first_finished(contents)["scores"]["sst"] = 0.99


def better_overall(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    first_finished(contents)["test"]["overall"] = 0.99


def other_spec(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    first_finished(contents)["spec"]["stages"][0]["epochs"] = 9


def other_facts(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    first_finished(contents)["facts"]["spec"]["stages"][0]["epochs"] = 9


def no_run(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    record = first_finished(contents)
    record["spec"] = record["facts"]["spec"] = {"tasks": 3, "seed": 0}
    record["id"] = digest(record["facts"])


def no_grid(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    contents["grids"][0]["spec"]["axes"] = 3


def other_seed(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    contents["grids"][0]["places"][0]["seed"] = 8


def other_version(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    contents["ledger"] = 3


def wrong_type(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    first_finished(contents)["seconds"] = "soon"


def leads_out(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    files["../x"] = b"x"


def code(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    files["cells/setup.py"] = b"import os"


def no_examples(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    del files[next(name for name in files if name.startswith("examples/"))]


def no_tensors(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    files[f"cells/{first_finished(contents)['id']}/scores-dev.safetensors"] = b"x" * 100


def fewer_labels(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.startswith("examples/"))
    arrays = load(files[name])
    files[name] = save({**arrays, "expected": arrays["expected"][:-1]})


def negative_text(contents: dict[str, Any], files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.startswith("examples/"))
    arrays = load(files[name])
    files[name] = save({**arrays, "texts": -1 - arrays["texts"]})


FORGED = {
    better_score: "the score is 0.99, but its predictions give",
    better_overall: "overall: the score is 0.99, but its predictions give",
    other_spec: "its specification is another one",
    other_facts: "is not the one that its specification, data and versions make",
    no_run: "spec of a CellRecord is",
    no_grid: "grid 'mine': axes",
    other_seed: "has no cell that fits",
    other_version: "ledger version 3; this taskloom reads version",
    wrong_type: "record.seconds: Input should be a valid number",
    leads_out: "it holds a file that is no part of an archive: '../x'",
    code: "it holds a file that is no part of an archive: 'cells/setup.py'",
    no_examples: "the archive lacks its examples",
    no_tensors: "scores-dev.safetensors cannot be read",
    fewer_labels: "a label and the numbers of its texts for each of",
    negative_text: "does not number its texts as they come",
}


def refused(archive: Path, folder: Path) -> str:
    """The message, on one line; neither the registry nor anything beside it was made."""
    before = sorted(folder.rglob("*"))
    result = taskloom("import", archive, "--registry", folder / "ours")
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert sorted(folder.rglob("*")) == before
    assert result.stderr.startswith(f"Error: {archive} cannot be ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("change", FORGED, ids=lambda change: change.__name__)
def test_what_does_not_agree_with_itself_is_refused(theirs: Path, tmp_path: Path, change: Any) -> None:
    same = rewritten(theirs / "results.zip", tmp_path / "same.zip", lambda contents, files: None)
    done("import", same, "--registry", tmp_path / "first")  # so that it is the change that is refused
    shutil.rmtree(tmp_path / "first")
    archive = rewritten(theirs / "results.zip", tmp_path / "forged.zip", change)
    assert FORGED[change] in refused(archive, tmp_path)


def test_an_edited_archive_is_refused(theirs: Path, tmp_path: Path) -> None:
    for edited in ("archive.json", "examples/"):
        target = tmp_path / "edited.zip"
        with zipfile.ZipFile(theirs / "results.zip") as file, zipfile.ZipFile(target, "w") as other:
            for name in file.namelist():
                other.writestr(name, file.read(name) + (b" " if name.startswith(edited) else b""))
        assert "is not as it was written" in refused(target, tmp_path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """Its entries all say that they are large; what they hold does not matter."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive.json", bytes(2**20))
        file.writestr("archive.sha256", b"")
    content = written.getvalue().replace((2**20).to_bytes(4, "little"), (MOST + 2**29).to_bytes(4, "little"))
    (tmp_path / "bomb.zip").write_bytes(content)
    assert "it would unpack to 2.5 GiB, and 2 GiB are allowed" in refused(tmp_path / "bomb.zip", tmp_path)


def test_what_is_no_archive_is_refused(theirs: Path, tmp_path: Path) -> None:
    content = (theirs / "results.zip").read_bytes()
    (tmp_path / "text.zip").write_text("no zip file")
    (tmp_path / "half.zip").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.zip").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("archive.json", "archive.sha256", "archive.json"):
            file.writestr(name, "{}")
    for name in ("text", "half", "empty"):
        assert "damaged, or no zip file" in refused(tmp_path / f"{name}.zip", tmp_path)
    assert "not an archive of taskloom's" in refused(tmp_path / "other.zip", tmp_path)
    assert "no part of an archive" in refused(tmp_path / "twice.zip", tmp_path)
    assert "No such file" in refused(tmp_path / "none.zip", tmp_path)
    assert "Is a directory" in refused(tmp_path, tmp_path)


def test_a_damaged_byte_is_refused_or_changes_nothing(theirs: Path, imported: Path, tmp_path: Path) -> None:
    """There are bytes that nothing depends on, such as the time that a zip file states."""
    content = (theirs / "results.zip").read_bytes()
    expected, broken = state(imported)[1], 0
    for place in range(0, len(content), len(content) // 60):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        (tmp_path / "damaged.zip").write_bytes(damaged)
        result = taskloom("import", tmp_path / "damaged.zip", "--registry", tmp_path / "damaged")
        assert result.exit_code in (0, 2), (place, result.exception)
        assert (tmp_path / "damaged").exists() == (result.exit_code == 0)
        if result.exit_code == 0:
            assert state(tmp_path / "damaged")[1] == expected
            shutil.rmtree(tmp_path / "damaged")
        broken += result.exit_code == 2
    assert broken > 30


def test_a_file_that_is_there_is_replaced_only_on_request(theirs: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as mine:
        mine.writestr("text", "mine")
    before = (tmp_path / "out.zip").read_bytes()
    archive = ["archive", "mine", tmp_path / "out.zip", "--registry", theirs / "registry"]
    result = taskloom(*archive)
    assert (result.exit_code, "--replace replaces it" in result.stderr) == (2, True)
    assert (tmp_path / "out.zip").read_bytes() == before
    done(*archive, "--replace")
    assert (tmp_path / "out.zip").read_bytes() != before
    assert zipfile.is_zipfile(tmp_path / "out.zip")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out.zip"]
    assert "such as results.zip" in taskloom("archive", "mine", "other", "--registry", theirs / "registry").stderr
