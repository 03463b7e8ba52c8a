"""The packaged grids of the five papers: their rows, figures and claims, and every cell runs."""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from taskloom.core import Pool, Sampler
from taskloom.core.specs import ClaimSpec, RunSpec, plain
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.expansion import Variant, copied, expand
from taskloom.runs.grid.grid import GridFile, load_grid
from taskloom.runs.grid.paths import PathError, assign

MARGIN, COSINE, TUNING, LOSING, ROBUST = (
    "margin-for-error",
    "cosine-surgery",
    "finetuning-techniques",
    "losing-to-win",
    "robust-embeddings",
)
#: Rows of each paper, controls aside.
PAPERS = {MARGIN: 11, COSINE: 21, TUNING: 16, LOSING: 7, ROBUST: 16}


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
    labels_of: dict[str, set[str]] = {}
    for label, key in pairs:
        labels_of.setdefault(key, set()).add(label)
    return [labels for labels in labels_of.values() if len(labels) > 1]


@pytest.mark.parametrize("name", PAPERS)
def test_rows_are_the_same_run_only_where_the_paper_says_so(name: str) -> None:
    pairs = ((label, json.dumps(row.spec, sort_keys=True)) for label, row in rows_of(name).items())
    assert groups(pairs) == SAME[name]


# Every cell runs


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_runs_in_a_smoke_run(name: str, tmp_path: Path) -> None:
    arguments = ["--smoke", "--engine", "inline", "--registry", str(tmp_path / "r"), "--format", "json"]
    done = CliRunner().invoke(cli, ["run", name, *arguments])
    assert done.exit_code == 0, done.stderr
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
    reported: dict[str, Any] = json.loads(path.read_text())
    return reported


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
            return stage["combiner"]["name"] if isinstance(stage["combiner"], dict) else stage["combiner"]
        case "margin" | "step":
            (value,) = {tasks[task]["loss"][setting] for task in ("para", "sts")}
            return value
    raise AssertionError(f"a setting that no cell is checked for: {setting}")


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


# What the papers claim, and what their rows differ in


def specs_of(name: str) -> dict[str, dict[str, Any]]:
    return {variant.label: variant.spec for variant in expand(load_grid(name)).variants}


def test_rows_with_and_without_the_ranking_loss_take_the_same_steps() -> None:
    samplers = [spec["stages"][-1]["sampler"] for label, spec in specs_of(LOSING).items() if label != "Default"]
    assert {(sampler["batch_size"], sampler["iterations"]) for sampler in samplers} == {(8, "largest")}
    assert all("one_positive" not in str(sampler) or sampler["run_out"] == "as_shuffled" for sampler in samplers)


def test_all_margins_steps_and_directions_of_the_dynamic_margin_are_rows() -> None:
    losses = [
        spec["tasks"]["sts"]["loss"]
        for label, spec in specs_of(MARGIN).items()
        if label.startswith("3-margin: dynamic")
    ]
    tried = [(loss["margin"], loss["step"], loss.get("direction", "down")) for loss in losses]
    assert sorted(tried) == sorted(product([0, 0.25, 0.5], [0.05, 0.1, 0.2], ["down", "up"]))


@pytest.mark.parametrize(("larger", "smaller"), [("8 MT-DNN + PH + CL", "7 MT-DNN + PH + CL"), ("5 RR*", "4 RR*")])
def test_rows_of_different_batch_sizes_go_through_the_same_data(larger: str, smaller: str) -> None:
    sizes = {"sst": 854, "para": 14151, "sts": 604}  # a tenth of the paper's
    numbers = {task: np.arange(size) for task, size in sizes.items()}
    pools = {task: Pool(len(rows), None, rows, rows[:, None]) for task, rows in numbers.items()}
    rows, steps = {}, {}
    for pattern in (larger, smaller):
        (stages,) = [spec["stages"] for label, spec in specs_of(ROBUST).items() if fnmatchcase(label, pattern)]
        sampler = load_catalogue().make(Sampler, stages[0]["sampler"])
        sampler.prepare(pools, generator=torch.Generator())
        rows[pattern], steps[pattern] = Counter[str](), 0
        for group in sampler.epoch():
            rows[pattern].update({part.task: len(part.rows) for part in group})
            steps[pattern] += stages[0]["epochs"]
    for task in sizes:
        assert rows[larger][task] == pytest.approx(rows[smaller][task], abs=64), "up to a last batch"
    assert 2 * steps[larger] == pytest.approx(steps[smaller], rel=0.02)


def test_only_controls_and_rows_without_figures_have_none() -> None:
    silent = [cell.label for name in PAPERS for cell in load_grid(name).spec.cells if not cell.reported]
    others = [label for label in silent if not label.startswith("control: ")]
    dynamic = [label for label in others if label.startswith("3-margin: dynamic ")]
    assert len(dynamic) == 15
    assert sorted(set(others) - set(dynamic)) == ["5.1: MT-DNN + DPHA + CL + SimCSE, batch 32", "SMART Loss w/ GSE"]
    for name in PAPERS:
        for cell in load_grid(name).spec.cells:
            assert not cell.label.startswith("control: ") or cell.note, "a control says what it is for"


# Alternatives


def alternatives(name: str) -> Iterator[tuple[list[str], dict[str, Any], str]]:
    """What notes say can be run instead: the patterns of rows, the settings, and the words themselves."""
    spec = load_grid(name).spec
    word = r"(?:'[^']*'|[^\s']+)"
    for label, note in [("*", note) for note in spec.notes] + [(cell.label, cell.note) for cell in spec.cells]:
        for match in re.finditer(rf"(?:--(?:only|set) {word}\s?)+", note):
            words = shlex.split(match[0].rstrip(" .,:;"))
            options = [(option, value.rstrip(",.:;")) for option, value in zip(words[::2], words[1::2], strict=True)]
            settings = dict(value.split("=", 1) for option, value in options if option == "--set")
            rows = [value for option, value in options if option == "--only"]
            yield rows or [label], {path: parsed(value) for path, value in settings.items()}, match[0]


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@pytest.mark.parametrize("name", PAPERS)
def test_every_alternative_that_a_note_names_is_valid_and_changes_the_rows_it_is_for(name: str) -> None:
    catalogue, specs = load_catalogue(), specs_of(name)
    named = list(alternatives(name))
    assert len(named) >= 5
    for patterns, settings, words in named:
        chosen = [
            label for label in specs if any(label == pattern or fnmatchcase(label, pattern) for pattern in patterns)
        ]
        assert chosen, words
        for label in chosen:
            before = plain(RunSpec.model_validate(specs[label]))
            after = copied(before)
            try:
                for path, value in settings.items():
                    assign(after, path, value)
            except PathError:
                assert patterns == ["*"], f"{words}: {label} has no such path"
                continue
            resolved, problems = catalogue.resolve_run(after)
            assert not problems, f"{words}: {label}"
            assert patterns == ["*"] or resolved != catalogue.resolve_run(before)[0], f"{words}: nothing new in {label}"


# Claims

#: How many claims a paper has, by the letter of its claims.
CLAIMS = {MARGIN: ("M", 5), COSINE: ("C", 9), TUNING: ("T", 9), LOSING: ("L", 5), ROBUST: ("R", 12)}
EQUIVALENCES = {"C5", "C7", "C8", "C9", "R10", "R11"}


def claims_of(name: str) -> Iterator[tuple[str, bool, ClaimSpec]]:
    """The claims of a grid, each with its id and whether a control answers it."""
    for claim in load_grid(name).spec.claims:
        match = re.match(r"([A-Z]\d+)( \(control\))?: ", claim.says)
        assert match, claim.says
        yield match[1], bool(match[2]), claim


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_of_a_paper_is_in_its_grid(name: str) -> None:
    letter, count = CLAIMS[name]
    ids = list(dict.fromkeys(id for id, _, _ in claims_of(name)))
    assert ids == [f"{letter}{number}" for number in range(1, count + 1)], "all of them, in order"
    assert {id for id, _, claim in claims_of(name) if claim.equal} == {id for id in EQUIVALENCES if id[0] == letter}
    rows = [row for _, _, claim in claims_of(name) for row in (*claim.rows, *claim.than)]
    controls = [label for label in specs_of(name) if label.startswith("control: ")]
    assert set(controls) <= set(rows), "a control that answers nothing"


#: What the two rows of a clean claim may differ in. What the paper ran with more differences has a control.
CLEAN = {
    "M1": ["stages.0.combiner*"],
    "M2": ["tasks.para.loss.*", "tasks.sts.loss.*"],
    "M3": ["tasks.para.loss.margin", "tasks.sts.loss.margin", "tasks.para.loss.step", "tasks.sts.loss.step"],
    "M4": ["tasks.para.head.*", "tasks.sts.head.*", "tasks.para.loss*", "tasks.sts.loss*"],
    "M5 control": ["stages.0.frozen"],
    "C1": ["stages.0.combiner*"],
    "C2": ["tasks.sts.head.*"],
    "C3": ["tasks.sts.head.*", "stages.0.combiner*"],
    "C4": ["tasks.sts.head.*", "stages.0.combiner*"],
    "C5": ["tasks.*.head.dropout"],
    "C6": ["stages.0.epochs"],
    "C7": ["tasks.*.head.layers"],
    "C8": ["tasks.*.head.layers"],
    "C9": ["tasks.*.head.dropout", "tasks.*.head.layers", "stages.0.epochs"],
    "T1 control": ["stages.0.sampler.name", "stages.0.sampler.iterations"],
    "T2": ["stages.0.combiner*"],
    "T3 control": ["stages.0.combiner*", "stages.0.sampler.iterations"],
    "T4": ["tasks.sts.head.*", "tasks.sts.loss*"],
    "T5 control": ["tasks.sts.head.name", "tasks.sts.head.reads"],
    "T6": ["tasks.sts.head.pooling"],
    "T6 control": ["encoder.pooling"],
    "T7": ["tasks.*.loss*"],
    "T8": ["stages.0.sampler.iterations"],
    "T9": ["tasks.*.loss*"],
    "L1 control": ["stages.0.sampler.name"],
    "L2": ["tasks.sts.loss*"],
    "L3 control": ["tasks.sts.head.*", "tasks.sts.loss*"],
    "L4 control": ["tasks.para.loss*"],
    "L5 control": ["tasks.para.loss*"],
    "R1 control": ["stages.0.sampler.name"],
    "R2 control": ["tasks.*.head.*"],
    "R3 control": ["tasks.*.head.head.dropout"],
    "R4 control": ["stages.0.sampler.*"],
    "R5": ["stages.0.sampler.batch_size"],
    "R6": ["tasks.para.head.head.difference"],
    "R7 control": ["stages.0.sampler.weights*"],
    "R8": ["tasks.*.head.dropout"],
    "R9 control": ["stages.0.combiner*"],
    "R10 control": ["tasks.nli.*", "stages.*"],
    "R12 control": ["tasks.nli.*", "tasks.pairs.*", "stages.*"],
}
#: Confounded as the paper ran them, by design or because its controls are missing; R11 is about whole models.
CONFOUNDED = {"M5", "T1", "T3", "T5", "L1", "L3", "L4", "L5", "R1", "R3", "R4", "R7", "R10", "R11", "R12"}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}.{index}")
    else:
        yield path, value


@pytest.mark.parametrize("name", PAPERS)
def test_the_rows_of_a_clean_claim_differ_in_nothing_else(name: str) -> None:
    specs = {label: dict(leaves(spec)) for label, spec in specs_of(name).items()}
    seen = set()
    for id, control, claim in claims_of(name):
        key = f"{id} control" if control else id
        if key in CONFOUNDED:
            continue
        ((row,), (compared_with,)) = claim.rows, claim.than
        run, other = specs[row], specs[compared_with]
        differing = [path for path in run.keys() | other.keys() if run.get(path) != other.get(path)]
        assert differing, claim.says
        wrong = [path for path in differing if not any(fnmatchcase(path, allowed) for allowed in CLEAN[key])]
        assert not wrong, claim.says
        seen.add(key)
    letter, _ = CLAIMS[name]
    assert seen == {key for key in CLEAN if key[0] == letter}
