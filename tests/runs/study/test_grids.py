"""The study's grids: their rows are the cells of the papers' grids, and their claims are theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.runs.cli import cli
from taskloom.runs.grid.grid import load_grid

STUDY = Path(__file__).parents[3] / "runs" / "study"
#: By paper, what its rows are run with: the study's grid, the settings, and the rows if the table has others, too.
COMMON = {"encoder.pooling": "cls", "stages.0.optimizer.lr": 1e-4, "stages.0.epochs": 1, "score.test": "false"}
ITERATIONS = "stages.0.sampler.iterations"
SURGERY = {
    "margin-for-error": ("2-surgery: baseline", "2-surgery: gradient surgery"),
    "cosine-surgery": (
        "control: linear heads, summed losses",
        "1-cosine-dropout: dropout 0.3",
        "2-surgery-dropout: dropout 0.3",
        "3-combined: cosine STS head + surgery",
    ),
    "finetuning-techniques": ("Multitask Learning", "Multitask Learning w/ GS"),
}
THOUSAND = COMMON | {ITERATIONS: 1000}
FINETUNING = "finetuning-techniques"
BLOCKS: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    *(("surgery", paper, THOUSAND, labels) for paper, labels in SURGERY.items()),
    ("losing", "losing-to-win", THOUSAND, ()),
    ("reading", FINETUNING, COMMON | {ITERATIONS: 333, "stages.0.combiner.second": "kept"}, ()),
    (
        "updates",
        FINETUNING,
        COMMON | {ITERATIONS: 333},
        ("Baseline", *SURGERY[FINETUNING], "Multitask Learning w/ GSE"),
    ),
    ("updates", FINETUNING, COMMON | {ITERATIONS: 666}, ("control: GS at 2x",)),
    ("updates", FINETUNING, COMMON | {ITERATIONS: 999}, ("control: Multitask Learning at 3x", "GSE w/ 3x Iterations")),
    ("smart", FINETUNING, COMMON | {ITERATIONS: 333}, ("Multitask Learning", "SMART Loss")),
    ("margins", "margin-for-error", COMMON | {ITERATIONS: 90, "stages.0.epochs": 10}, ()),
    ("frozen", "margin-for-error", COMMON, ("1-minbert: finetune / *", "control: frozen / *")),
    ("frozen", "margin-for-error", COMMON | {"stages.0.optimizer.lr": 1e-3}, ("1-minbert: frozen / *",)),
]
PAPERS = {(grid, paper) for grid, paper, *_ in BLOCKS}


def planned(grid: str, *options: str) -> dict[str, str]:
    """The identity of each row's cell."""
    plan = CliRunner().invoke(cli, ["plan", grid, *options, "--json", "--registry", "nowhere"])
    assert plan.exit_code == 0, plan.stderr
    return {cell["label"]: cell["id"] for cell in json.loads(plan.stdout)["cells"]}


@pytest.mark.parametrize(("grid", "paper", "settings", "rows"), BLOCKS)
def test_a_row_is_the_same_cell_as_in_its_papers_grid(
    grid: str, paper: str, settings: dict[str, Any], rows: tuple[str, ...], short_course_data: Path, minilm: Path
) -> None:
    file = STUDY / f"{grid}.json"
    labels = rows or tuple(cell.label.replace("[", "[[]") for cell in load_grid(str(file)).spec.cells)
    data = ["--data", str(short_course_data.parent)]
    options = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
    chosen = [word for label in labels for word in ("--only", label)]
    ids = planned(paper, *data, "--weights", "minilm", "--name", "table", *options, *chosen)
    assert len(ids) >= len(labels)
    assert ids.items() <= planned(str(file), *data).items()


@pytest.mark.parametrize(("grid", "paper"), sorted(PAPERS))
def test_figures_and_claims_are_those_of_the_papers(grid: str, paper: str) -> None:
    spec, original = load_grid(str(STUDY / f"{grid}.json")).spec, load_grid(paper).spec
    published = {cell.label: cell.reported for cell in original.cells}
    rows = {cell.label: cell.reported for cell in spec.cells}
    assert {label: rows[label] for label in rows if label in published} == {
        label: published[label] for label in published if label in rows
    }
    claims = [claim for claim in original.claims if {*claim.rows, *claim.than} <= set(rows)]
    assert claims, "a block is there to answer claims"
    assert [claim for claim in spec.claims if claim in claims] == claims


@pytest.mark.parametrize("file", sorted(STUDY.glob("*.json")), ids=lambda file: file.stem)
def test_a_row_that_is_not_a_papers_is_a_control(file: Path) -> None:
    papers = {paper for grid, paper in PAPERS if grid == file.stem}
    original = {cell.label for paper in papers for cell in load_grid(paper).spec.cells}
    if papers:
        others = {cell.label for cell in load_grid(str(file)).spec.cells} - original
        assert all(label.startswith("control: ") for label in others), others


def test_surgery_is_asked_pair_by_pair_and_over_all() -> None:
    spec = load_grid(str(STUDY / "surgery.json")).spec
    assert [cell.label for cell in spec.cells] == [label for labels in SURGERY.values() for label in labels]
    pairs = {pair for claim in spec.claims if claim.equal for pair in zip(claim.rows, claim.than, strict=True)}
    (over_all,) = {(claim.rows, claim.than) for claim in spec.claims if claim.says.startswith("X3")}
    assert set(zip(*over_all, strict=True)) == pairs, "each pair, and their mean"
    assert len(pairs) == 4
