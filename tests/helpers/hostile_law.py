"""The law: a command ends in one sentence, or in a table in which every figure follows from the predictions."""

import hashlib
import json
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from taskloom.runs.cli import cli

METRICS: dict[str, Callable[..., float]] = {
    "sst": lambda predicted, expected: float(np.mean(predicted == expected)),
    "sts": lambda predicted, expected: float(np.corrcoef(predicted, expected)[0, 1]),
}


def taskloom(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="taskloom")


def is_one_sentence(done: Result) -> bool:
    """Whether a command was refused with one line, and not with a traceback."""
    if done.exit_code == 0:
        return False
    assert done.exit_code == 2, (done.output, repr(done.exception))
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    return True


def contents(registry: Path) -> dict[str, Any]:
    """All that a registry holds: its files, and its ledger as SQL."""
    files = {str(path.relative_to(registry)): path for path in registry.rglob("*") if path.is_file()}
    held: dict[str, Any] = {name: path.read_bytes() for name, path in files.items() if "ledger" not in name}
    if (registry / "ledger.sqlite").exists():
        with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
            held["ledger"] = sorted(database.iterdump())
    return held


def computed(registry: Path, cell: str, split: str) -> dict[str, float]:
    """The scores that a cell's predictions give; its influence values are checked on the way."""
    from safetensors import safe_open

    path = registry / "cells" / cell / f"scores-{split}.safetensors"
    arrays, scores = load_file(path), {}
    with safe_open(path, framework="np") as file:
        facts = json.loads(file.metadata()["tasks"])
    for task, metric in METRICS.items():
        expected = load_file(registry / "examples" / f"{facts[task]['examples']}.safetensors")["expected"].astype(float)
        predicted = arrays[f"{task}.predicted"]
        scores[task] = metric(predicted, expected)
        if task == "sst":
            moves = (predicted == expected) - scores[task]
        else:
            x, y = ((values - values.mean()) / values.std() for values in (predicted, expected))
            moves = x * y - scores[task] * (x**2 + y**2) / 2
        np.testing.assert_allclose(arrays[f"{task}.influence"], moves, atol=1e-9)
    return {**scores, "overall": float(np.mean([*scores.values()]))}


def check_table(registry: Path, grid: str = "mine") -> int:
    """Read the tables of dev and test scores; returns how many figures of them followed from the predictions."""
    figures = 0
    for split in ("dev", "test"):
        shown = taskloom("table", grid, "--split", split, "--format", "json", "--registry", registry)
        if is_one_sentence(shown):
            continue
        with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
            places = database.execute("SELECT label, seed, cell FROM grid_cells WHERE grid = ?", [grid]).fetchall()
        for row in json.loads(shown.stdout)["rows"]:
            missing = {entry["seed"] for entry in row["missing"]}
            cells = [cell for label, seed, cell in places if label == row["label"] and seed not in missing]
            scores = [computed(registry, cell, split) for cell in cells]
            for task in ("sst", "sts", "overall"):
                figure = row["metrics"].get(task, {"n": 0})
                if figure["n"]:
                    assert figure["n"] == len(cells), row
                    np.testing.assert_allclose(figure["mean"], np.mean([score[task] for score in scores]), atol=2e-6)
                    figures += 1
    return figures


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """An archive with other contents, whose digests are right again, as somebody makes it who knows how."""
    with zipfile.ZipFile(source) as file:
        files = {name: file.read(name) for name in file.namelist()}
    stated = json.loads(files.pop("archive.json"))
    del files["archive.sha256"]
    change(stated, files)
    stated["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    text = json.dumps(stated).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive.json", text)
        file.writestr("archive.sha256", hashlib.sha256(text).hexdigest())
        for name, content in files.items():
            file.writestr(name, content)
    return target


def refused(archive: Path, registry: Path) -> str:
    """The sentence with which an import is refused; the registry is as it was, or still not there."""
    before = contents(registry) if registry.exists() else None
    done = taskloom("import", archive, "--registry", registry)
    assert is_one_sentence(done), done.output
    assert (contents(registry) if registry.exists() else None) == before
    assert done.stderr.count("\n") == 1
    return done.stderr
