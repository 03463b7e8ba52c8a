"""The wording of every command, in one file each under ``golden/``; other tests look at facts, not at wording.

``TASKLOOM_GOLDEN=write pytest tests/runs/cli/test_golden.py`` writes them anew: read the difference before you
commit it.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from recorded import Row, rebind, record

from taskloom.core import Event
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import TaskFacts, judge, save_examples, save_scores
from taskloom.runs.cli import cli
from taskloom.runs.grid.contents import read_split
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("TASKLOOM_GOLDEN") == "write"
TINY: dict[str, Any] = {
    "description": "Two combiners, one of them twice.",
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16}}},
        "stages": [{"epochs": 1}, {"epochs": 1, "optimizer": {"lr": 0.001}}],
    },
    "axes": {"stages.1.combiner": ["sum", "pcgrad"], "stages.1.optimizer.lr": {"lr 0.001": 0.001, "wild": 1e38}},
    "baseline": "sum, lr 0.001",
}
WRONG: dict[str, Any] = {
    **TINY,
    "base": {**TINY["base"], "encoder": {"name": "minbert", "widht": 3, "layers": 0}},
    "axes": {"stages.0.combiner": ["sum", "pcgard"], "stages.2.epochs": [1]},
    "seeds": [0, 0],
}
COMMANDS = {
    "run": [["run", "tiny.json", "--engine", "inline"], ["run", "tiny.jsn"], ["run", "tiny.json", "--engine", "lokal"]],
    "plan": [["plan", "tiny.json"], ["plan", "tiny.json", "--registry", "none", "--only", "sum*"]],
    "data": [["data", "tiny.json"], ["data", "wrong.json"]],
    "table": [
        ["table", "tiny"],
        ["table", "tiny", "--format", "github"],
        ["table", "tniy"],
        ["table", "margin-for-error", "--reported"],
        ["table", "mine", "--columns", "sst,sts,overall"],
        ["table", "single"],
    ],
    "claims": [["claims", "mine"], ["claims", "single"], ["claims", "tiny.json"]],
    "effects": [["effects", "mine"], ["effects", "mine", "--on", "stst"]],
    "budget": [["budget", "tiny"], ["budget", "tniy"]],
    "seeds": [["seeds", "mine"], ["seeds", "mine", "--queue"], ["seeds", "single"], ["seeds", "tiny.json"]],
    "compare": [
        ["compare", "sum", "pcgrad", "--limit", "1"],
        ["compare", "SINGLE", "SINGLE2", "--limit", "1"],
        ["compare", "sum", "pcgard"],
    ],
    "errors": [["errors", "sum", "--limit", "1"], ["errors", "tniy"]],
    "cells": [["cells", "tiny"], ["cells", "tiny", "--state", "failed"], ["cells", "FAILED"], ["cells", "zz"]],
    "explain": [["explain", "tiny.json"], ["explain", "changed.json"], ["explain", "FINISHED"], ["explain", "zz"]],
    "predict": [
        ["predict", "tiny", "--split", "dev", "--row", "pcgrad, lr 0.001"],
        ["predict", "FAILED"],
        ["predict", "tiny", "--row", "smu"],
    ],
    "export": [
        ["export", "tiny", "model", "--row", "pcgrad, lr 0.001"],
        ["export", "tiny", "model", "--format", "transformers"],
        ["export", "FAILED", "other"],
        ["export", "tiny", "model", "--format", "tflite"],
    ],
    "archive": [
        ["archive", "tiny", "out.zip"],
        ["archive", "tiny", "out.zip"],
        ["archive", "tiny"],
        ["archive", "tniy", "x.zip"],
    ],
    "import": [
        ["archive", "tiny", "out.zip"],
        ["import", "out.zip", "--registry", "theirs"],
        ["import", "out.zip", "--registry", "theirs"],
        ["import", "tiny.json"],
        ["import", "none.zip"],
    ],
    "report": [["report", "tiny"], ["report", "tniy"], ["report", "tiny", "-o", "none/report.html"]],
    "plot": [["plot", "tiny", "--kind", "conflicts", "-o", "x.pdf"], ["plot", "tiny", "-o", "x.doc"]],
    "grids": [["grids"]],
    "plugins": [["plugins", "pcgrad"], ["plugins", "--kind", "metric"], ["plugins", "pcgard"]],
    "validate": [["validate", "tiny.json"], ["validate", "wrong.json"], ["validate", "tniy.json"]],
    "schema": [["schema", "--out", "grid.schema.json"]],
    "selftest": [["selftest", "--devices", "gpu"]],
    "new-plugin": [["new-plugin", "focal", "--kind", "loss"], ["new-plugin", "focal", "--kind", "loss"]],
}
#: What differs from one machine or moment to the next.
VARIABLE = {
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?": "TIME",
    r"\b[0-9a-f]{12,64}\b": "ID",
    r"\b\d+(\.\d+)? (MiB|GiB)\b": "N MiB",  # of a process that may have run other tests before
    r"\b\d+(\.\d+)? (s|ms|min|kB)\b": r"N \2",
    r"\b(taskloom|torch|python|numpy|scipy) \d+(\.\d+)+\S*": r"\1 VERSION",
    r"\b\d+\.\d+\.\d+\b": "VERSION",
    r"(VERSION +taskloom +)\d+": r"\1N",  # the milliseconds of an import
    r"(README\.md +)\d+": r"\1N",  # it holds the versions
    r"(sst|overall) -?\d\.\d{3}": r"\1 N",
    r"(?m)^(pcgrad, lr 0\.001 +1 ).*": r"\1 FIGURES",  # of a cell that is really trained
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with grids, and a registry in which one of them has a cell in most states; nothing was trained."""
    monkeypatch.chdir(tmp_path)
    changed = {**TINY, "name": "tiny", "base": {**TINY["base"], "selection": "last"}}
    for name, grid in (("tiny", TINY), ("changed", changed), ("wrong", WRONG)):
        Path(f"{name}.json").write_text(json.dumps(grid))
    plan = make_plan(load_grid("tiny.json"), load_catalogue(), None)
    finished, failed, interrupted, _ = (cell.id for cell in plan.cells)
    with Ledger.open("taskloom-runs", create=True) as ledger:
        ledger.record_grid("tiny", plan.grid.raw, plan.cells)
        for cell in (finished, failed, interrupted):
            ledger.write(Event("started", cell, {"device": "cpu", "worker": "cpu:0"}))
            epoch = {"stage": 0, "epoch": 1, "losses": {"sst": 1.5}, "scores": {"sst": 0.5, "overall": 0.5}}
            ledger.write(Event("epoch", cell, {**epoch, "seconds": 2.0}))
        scores = {"sst": 0.75, "overall": 0.75}
        ledger.write(Event("finished", finished, {"scores": scores, "seconds": 2.5, "best_epoch": 1}))
        ledger.write(Event("failed", failed, {"reason": "the loss 'cross_entropy' of task 'sst' is nan"}))
        ledger.write(Event("interrupted", interrupted, {}))
    Path("ids.json").write_text(json.dumps({"FINISHED": finished[:9], "FAILED": failed[:9]}))
    return tmp_path


def record_predictions(folder: Path) -> dict[str, str]:
    """A registry with predictions in place of the other one; returns what its cells are called in ``COMMANDS``."""
    shutil.rmtree(folder / "taskloom-runs")
    gone = folder / "gone.csv"
    gone.write_text("text,y\n" + "".join(f"text {number},{number / 12:.1f}\n" for number in range(60)))
    data: dict[str, dict[str, Any]] = {
        "sst": {"name": "generated", "task": "sentiment", "dev_size": 60},
        "para": {"name": "generated", "task": "paraphrase", "dev_size": 60},
        "sts": {"name": "table", "train": "gone.csv", "dev": "gone.csv", "text": "text", "label": "y", "range": [0, 5]},
    }
    registry = record(folder / "taskloom-runs", [Row("sum"), Row("pcgrad", 1.4)], name="mine", data_sets=data)
    gone.unlink()
    with Ledger.open(registry, create=False) as ledger:
        cells = [place.cell.id for place in ledger.grid("mine").cells]
    return {"SINGLE": cells[0][:9], "SINGLE2": cells[4][:9]}


def keep_predictions() -> None:
    """Give the finished cell the predictions that its scores follow from: 12 of 16 are right."""
    artifacts = Artifacts("taskloom-runs")
    with Ledger.open("taskloom-runs", create=False) as ledger:
        (cell,) = [cell for cell in ledger.cells() if cell.status == "finished"]
        examples = save_examples(artifacts, read_split(cell.spec["tasks"]["sst"]["data"], "dev"))
        predicted = np.where(np.arange(16) < 12, examples.expected, (examples.expected + 1) % 5)
        judged, influence = judge(Accuracy(), predicted, examples.expected, 5)
        facts = TaskFacts(examples=examples.key, digest=examples.digests[-1], classes=5, **judged)
        columns = {"score": np.eye(5, dtype=np.float32)[predicted.astype(int)], "predicted": predicted}
        save_scores(artifacts.cell(cell.id), "dev", {"sst": facts}, {"sst": {**columns, "influence": influence}})
    rebind(Path("taskloom-runs"))


def record_findings() -> None:
    """Two grids with results that can be judged, beside the one that has none."""
    slow = {"stages.0.optimizer.lr": 0.0001}
    surgery = {"stages.0.combiner": "pcgrad"}
    rows = [Row("sum"), Row("pcgrad", 1.3, set=surgery), Row("slow", 0.97, set=slow)]
    rows.append(Row("both", 1.05, 0.3, {**surgery, **slow}))
    claims: list[dict[str, Any]] = [
        {"says": "PCGrad beats the summed loss", "better": "pcgrad", "than": "sum"},
        {"equal": "slow", "to": "sum", "within": 0.1},
        {"better": "slow", "than": "pcgrad", "on": "sts"},
        {"better": "both", "than": "slow", "on": "sst"},
    ]
    record(Path("taskloom-runs"), rows, name="mine", baseline="sum", margin=0.01, claims=claims)
    record(Path("taskloom-runs"), rows[:2], seeds=(0,), name="single", baseline="sum", claims=claims[:1])


def normalised(text: str, folder: Path) -> str:
    """Without what is variable; columns are as wide as two spaces, since that depends on it."""
    for pattern, name in {re.escape(str(folder)): "FOLDER", **VARIABLE}.items():
        text = re.sub(pattern, name, text)
    lines = (re.sub(r"-{3,}", "---", re.sub(r"(?<=\S) {2,}", "  ", line)).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if " waiting, " not in line)  # how often that comes is a matter of time


@pytest.mark.parametrize("command", COMMANDS)
def test_wording(command: str, folder: Path) -> None:
    ids = json.loads((folder / "ids.json").read_text())
    parts = []
    if command in ("table", "claims", "effects", "seeds"):
        record_findings()
    if command in ("compare", "errors"):  # which need predictions
        ids |= record_predictions(folder)
    if command in ("archive", "import"):
        keep_predictions()
    if command in ("predict", "export"):  # which need weights
        CliRunner().invoke(cli, ["run", "tiny.json", "--engine", "inline", "--registry", "taskloom-runs"])
    for arguments in [[command, "--help"], *COMMANDS[command]]:
        given = [ids.get(argument, argument) for argument in arguments]
        result = CliRunner().invoke(cli, given, prog_name="taskloom", env={"COLUMNS": "100"})
        assert not result.exception or isinstance(result.exception, SystemExit), result.exception
        shown = [f"$ taskloom {' '.join(arguments)}", result.stdout.rstrip()]
        shown += ["stderr:", result.stderr.rstrip()] if result.stderr else []
        shown += [f"exit code {result.exit_code}"] if result.exit_code else []
        text = "\n".join(shown)
        parts.append(text if "--help" in arguments else normalised(text, folder))
    path = GOLDEN / f"{command}.txt"
    if WRITE:
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    assert "\n\n".join(parts) + "\n" == path.read_text(encoding="utf-8")
