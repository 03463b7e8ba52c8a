"""The packaged grids of the five papers: every reported row a cell with the paper's settings, and every cell runs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.expansion import Variant, expand
from taskloom.runs.grid.grid import GridFile, load_grid

#: Rows of each paper, controls aside.
PAPERS = {
    "margin-for-error": 11,
    "cosine-surgery": 21,
    "finetuning-techniques": 16,
    "losing-to-win": 7,
    "robust-embeddings": 16,
}
COMMAND = [sys.executable, "-m", "taskloom.runs.cli"]


def rows_of(name: str) -> dict[str, Variant]:
    return {variant.label: variant for variant in expand(load_grid(name)).variants}


def reported_rows(name: str) -> dict[str, Variant]:
    """Rows of the paper's tables; beside them there are controls, and models that it describes without figures."""
    listed = {cell.label for cell in load_grid(name).spec.cells if cell.reported} | {"SMART Loss w/ GSE"}
    return {label: row for label, row in rows_of(name).items() if label in listed}


def test_together_they_hold_71_reported_rows() -> None:
    assert {name: len(reported_rows(name)) for name in PAPERS} == PAPERS
    assert sum(PAPERS.values()) == 71


@pytest.mark.parametrize("name", ["quickstart", *PAPERS])
def test_equal_means_the_same_in_a_table_and_in_a_claim(name: str) -> None:
    spec = load_grid(name).spec
    assert spec.margin == 0.02
    assert {claim.within for claim in spec.claims} <= {None, spec.margin}


#: Rows of a paper that are one and the same run.
SAME = {
    "margin-for-error": [{"3-margin: dynamic 0 step 0.05", "4-test: dynamic 0 step 0.05 + surgery"}],
    "cosine-surgery": [
        {"1-cosine-dropout: dropout 0.3", "1-cosine-epochs: 10 epochs", "1-cosine-layers: none"},
        {"2-surgery-dropout: dropout 0.3", "2-surgery-epochs: 10 epochs", "2-surgery-layers: none"},
    ],
    "finetuning-techniques": [
        {f"{prefix}{label} w/ 3x Iterations" for prefix in ("", "2-test: ")}
        for label in ("GSE", "Cosine Similarity (2d+1 features)", "SMART Loss")
    ],
    "losing-to-win": [{"Multitask + MSE", "2-test: Multitask + MSE"}],
    "robust-embeddings": [{"14 MT-DNN + DPHA + CL", "3-test: MT-DNN + DPHA + CL (14)"}],
}


def groups(pairs: Iterator[tuple[str, str]]) -> list[set[str]]:
    """Labels that share a key, where several do."""
    found: dict[str, set[str]] = {}
    for label, key in pairs:
        found.setdefault(key, set()).add(label)
    return [labels for labels in found.values() if len(labels) > 1]


@pytest.mark.parametrize("name", PAPERS)
def test_rows_are_the_same_run_only_where_the_paper_says_so(name: str) -> None:
    pairs = ((label, json.dumps(row.spec, sort_keys=True)) for label, row in rows_of(name).items())
    assert groups(pairs) == SAME[name]


# Every cell runs


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_runs_in_a_smoke_run(name: str, tmp_path: Path) -> None:
    arguments = ["run", name, "--smoke", "--registry", str(tmp_path / "r"), "--format", "json"]
    done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["label"] for row in rows] == list(rows_of(name))
    for row in rows:
        assert row["n"] == 1
        holes = [hole["why"] for hole in row["missing"]]
        assert all("has no task" in why or "was not measured" in why for why in holes)
        assert set(row["metrics"]) >= {"sst", "para", "sts", "overall"}
        if not re.search(r"1-minbert|control: frozen|alone", row["label"]):  # one task
            assert all(row["metrics"][column]["n"] == 1 for column in ("sst", "para", "sts", "overall"))
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        assert ledger.grid_names() == [f"{name}-smoke"]
    answered = CliRunner().invoke(cli, ["claims", f"{name}-smoke", "--json", "--registry", str(tmp_path / "r")])
    assert answered.exit_code == 0, answered.stderr
    claims = json.loads(answered.stdout)["claims"]
    assert [claim["says"] for claim in claims] == [claim.says for claim in load_grid(name).spec.claims]
    # A smoke run has one epoch, whatever its row says: rows that differ in epochs alone are one run.
    alike = [claim["says"] for claim in claims if "one and the same run" in claim.get("why", "")]
    assert all(re.search(r"epochs", said) for said in alike)
    assert all(claim["interval"] is not None for claim in claims if claim["says"] not in alike), "all can be compared"


# Against the list of what the papers report


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """What the five papers report, from the file that lies beside the real data where these are developed."""
    folder = os.environ.get("TASKLOOM_DATA")
    path = Path(folder or ".").resolve().parent / "papers" / "reported.json"
    if not folder or not path.is_file():
        pytest.skip("the list of reported figures: papers/reported.json beside the folder that TASKLOOM_DATA names")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def listed_rows(paper: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, table in paper["tables"].items():
        for row in table["rows"]:
            yield name, table, row


def cell_of(grid: GridFile, table: str, label: str) -> Any:
    """The cell of a row: its label with the table before it, or alone."""
    cells = {cell.label: cell for cell in grid.spec.cells}
    return cells.get(f"{table}: {label}") or cells[label]


@pytest.mark.parametrize("name", PAPERS)
def test_every_reported_row_is_a_cell_with_exactly_its_figures(name: str, listed: dict[str, Any]) -> None:
    grid, seen = load_grid(name), []
    for table, facts, row in listed_rows(listed[name]):
        cell = cell_of(grid, table, row["label"])
        seen.append(cell.label)
        figures = {key: row[key] for key in ("sst", "para", "sts", "overall") if key in row}
        if "value" in row:
            figures[row["label"].split(" / ")[1]] = row["value"]
            assert f"{row['handout']:.3f} (sd {row['handout_sd']:.3f})" in cell.note
        assert cell.reported == figures
        assert cell.reported_train == row.get("train", {})
        assert cell.split == facts["split"]
        assert ("memory" in cell.note) == row.get("out_of_memory", False)
    assert sorted(seen) == sorted(reported_rows(name)), "and no cell more"


@pytest.mark.parametrize("name", PAPERS)
def test_cells_have_the_settings_of_their_rows(name: str, listed: dict[str, Any]) -> None:
    rule = "normalised" if listed[name]["overall"].startswith("normalised") else "mean"
    grid, variants = load_grid(name), rows_of(name)
    for table, _, row in listed_rows(listed[name]):
        spec = variants[cell_of(grid, table, row["label"]).label].spec
        assert spec["overall"] == {"name": rule, "weights": {}}
        for setting, value in row.get("settings", {}).items():
            assert setting_of(spec, setting, row["label"]) == value, (row["label"], setting)


def setting_of(spec: dict[str, Any], setting: str, label: str) -> Any:
    """What a run has for a setting of the list."""
    stage = spec["stages"][-1]
    sampler, tasks = stage["sampler"], spec["tasks"]
    match setting:
        case "epochs":
            return stage["epochs"] * (0.5 if sampler.get("iterations") == "0.5x" else 1)
        case "batch":
            return sampler["batch_size"]
        case "order":
            return sampler.get("order") or stage["tasks"]
        case "weights":
            if sampler["name"] == "round_robin":  # surgery has every task in a step, so the loss carries the weight
                return {"para": tasks["para"]["loss"]["weights"][0]}
            return sampler["weights"]
        case "dropout":
            (dropout,) = {tasks[task]["head"]["dropout"] for task in stage.get("tasks") or ("sst", "para", "sts")}
            return dropout
        case "combiner":
            return named(stage["combiner"])
        case "margin" | "step":
            (value,) = {tasks[task]["loss"][setting] for task in ("para", "sts")}
            return value
    raise AssertionError(f"a setting that no cell is checked for: {setting}")


def named(component: Any) -> str:
    return str(component["name"] if isinstance(component, dict) else component)


def test_rows_name_the_technique_that_they_are_about() -> None:
    robust = reported_rows("robust-embeddings")
    for label, row in robust.items():
        heads = {task: row.spec["tasks"][task]["head"] for task in ("sst", "para", "sts")}
        shared = "+ CL" in label
        assert {named(head) == "shared_layer" for head in heads.values()} == {shared}
        if "PH" in label:
            para, sts = (heads[task]["head"] if shared else heads[task] for task in ("para", "sts"))
            assert para.get("difference", False) == ("DPH" in label)
            assert (para.get("activation", "none") != "none") == ("DPHA" in label)
            assert (sts == para) == ("(PD)" not in label)
        sampler = named(row.spec["stages"][-1]["sampler"])
        assert (sampler == "ordered") == ("RR" in label)
        assert (sampler == "mixed") == ("MT-DNN" in label and "GS" not in label)
        assert (named(row.spec["stages"][0]["combiner"] if "GS" in label else "sum") == "pcgrad") == ("GS" in label)
        assert ("nli" in row.spec["tasks"]) == ("SimCSE" in label)
    for label, row in reported_rows("finetuning-techniques").items():
        losses = {named(row.spec["tasks"][task]["loss"]) for task in ("sst", "para", "sts")}
        assert (losses == {"smart"}) == ("SMART" in label)
        assert (named(row.spec["tasks"]["sts"]["head"]) == "cosine_features") == ("2d+1" in label)
        assert (row.spec["tasks"]["sts"]["head"].get("pooling") == "mean") == ("Mean Pooling" in label)
        assert (row.spec["stages"][0]["sampler"]["iterations"] == "3x") == ("3x" in label)
        assert (named(row.spec["stages"][0]["sampler"]) == "alternating") == (label == "Baseline")
        combiner = named(row.spec["stages"][0]["combiner"])
        assert (combiner == "gse") == ("GSE" in label or "Cosine" in label)
        assert (combiner == "pcgrad") == label.endswith("w/ GS")


# On the real data


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_is_valid_with_the_real_data_and_real_weights(
    name: str, course_data: Path, sick_data: Path, minilm: Path
) -> None:
    options = ["--data", str(course_data.parent), "--weights", "minilm", "--name", "with-minilm"]
    result = CliRunner().invoke(cli, ["plan", name, *options, "--json", "--registry", "nowhere"])
    assert result.exit_code == 0, result.stderr
    cells = json.loads(result.stdout)["cells"]
    assert [cell["label"] for cell in cells] == list(rows_of(name))
    assert groups((cell["label"], cell["id"]) for cell in cells) == SAME[name], "one identity, trained once"
    assert {cell["spec"]["encoder"]["weights"] for cell in cells} == {"minilm"}
    assert CliRunner().invoke(cli, ["validate", name, *options]).exit_code == 0
