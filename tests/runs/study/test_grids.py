"""The study's grids: their rows are the cells of the papers' grids, and their claims are theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.runs.cli import cli
from taskloom.runs.grid.grid import load_grid

STUDY = Path(__file__).parents[3] / "runs" / "study"
GRID, LOSING = STUDY / "surgery.json", STUDY / "losing.json"
ROWS = {
    "margin-for-error": ("2-surgery: baseline", "2-surgery: gradient surgery"),
    "cosine-surgery": (
        "control: linear heads, summed losses",
        "1-cosine-dropout: dropout 0.3",
        "2-surgery-dropout: dropout 0.3",
        "3-combined: cosine STS head + surgery",
    ),
    "finetuning-techniques": ("Multitask Learning", "Multitask Learning w/ GS"),
}


def planned(grid: str, *options: str) -> dict[str, str]:
    """The identity of each row's cell."""
    plan = CliRunner().invoke(cli, ["plan", grid, *options, "--json", "--registry", "nowhere"])
    assert plan.exit_code == 0, plan.stderr
    return {cell["label"]: cell["id"] for cell in json.loads(plan.stdout)["cells"]}


@pytest.mark.parametrize("paper", [*ROWS, "losing-to-win"])
def test_a_row_is_the_same_cell_as_in_its_papers_grid(paper: str, short_course_data: Path, minilm: Path) -> None:
    grid = GRID if paper in ROWS else LOSING
    labels = ROWS.get(paper) or [cell.label for cell in load_grid(str(LOSING)).spec.cells]
    data = ["--data", str(short_course_data.parent)]
    common = {
        "encoder.pooling": "cls",
        "stages.0.optimizer.lr": json.loads(grid.read_text())["base"]["stages"][0]["optimizer"]["lr"],
        "stages.0.epochs": 1,
        "stages.0.sampler.iterations": 1000,
        "score.test": "false",
    }
    options = [word for path, value in common.items() for word in ("--set", f"{path}={value}")]
    chosen = [word for label in labels for word in ("--only", label)]
    ids = planned(paper, *data, "--weights", "minilm", "--name", "table", *options, *chosen)
    assert set(ids) == set(labels)
    assert ids.items() <= planned(str(grid), *data).items()


def test_rows_figures_and_claims_are_those_of_the_papers() -> None:
    spec = load_grid(str(GRID)).spec
    cells = {cell.label: cell for cell in spec.cells}
    assert list(cells) == [label for labels in ROWS.values() for label in labels]
    papers: list[Any] = []
    for paper, labels in ROWS.items():
        original = load_grid(paper).spec
        assert {cell.label: cell.reported for cell in original.cells if cell.label in labels}.items() <= {
            label: cell.reported for label, cell in cells.items()
        }.items()
        papers += [claim for claim in original.claims if {*claim.rows, *claim.than} <= set(labels)]
    assert [claim for claim in spec.claims if claim.better and len(claim.than) == 1] == papers
    pairs = {pair for claim in spec.claims if claim.equal for pair in zip(claim.rows, claim.than, strict=True)}
    (over_all,) = {(claim.rows, claim.than) for claim in spec.claims if claim.says.startswith("X3")}
    assert set(zip(*over_all, strict=True)) == pairs, "each pair, and their mean"
    assert len(pairs) == 4


def test_losing_to_win_keeps_its_claims() -> None:
    spec, original = load_grid(str(LOSING)).spec, load_grid("losing-to-win").spec
    labels = {cell.label for cell in spec.cells}
    assert list(spec.claims) == [claim for claim in original.claims if {*claim.rows, *claim.than} <= labels]
    assert len(spec.claims) == 11
    published = {cell.label: cell.reported for cell in original.cells}
    assert {cell.label: cell.reported for cell in spec.cells} == {label: published[label] for label in labels}
