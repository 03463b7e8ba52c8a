"""Figures for papers: real files of matplotlib, as wide as a column."""

import re
import sys
from pathlib import Path

import pytest
from recorded import Row, overview_in, record

from taskloom.core.errors import TaskloomError
from taskloom.runs.analysis.overview import Overview
from taskloom.runs.cli.report import FIGURES
from taskloom.runs.show import plots

SEEN = {"diagnostics": {"pairs": {"para+sst": {"cosine": -0.5, "conflicts": 0.75}}}, "train": {"sst": 0.75}}
ROWS = [Row("sum $x$", reported={"sst": 0.7}), Row("lr <0.1>", 1.6, set={"stages.0.optimizer.lr": 0.1})]
CLAIMS = [
    {"says": "the rate matters", "better": "lr <0.1>", "than": "sum $x$", "on": "overall"},
    {"says": "rows are alike", "better": "row 1", "than": "sum $x$", "on": "sst"},
    {"says": "rows are alike", "better": "row 1", "than": "sum $x$", "on": "sts"},
]


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    rows = [*ROWS, *(Row(f"row {number}", reported={"sst": 0.65}) for number in range(8))]
    spec = {"margin": 0.02, "claims": CLAIMS}
    return overview_in(record(tmp_path_factory.mktemp("made") / "r", rows, seeds=(0, 1), epochs=SEEN, **spec))


def test_there_is_a_figure_of_every_kind() -> None:
    assert tuple(plots.FIGURES) == FIGURES


@pytest.mark.parametrize("kind", [kind for kind in FIGURES if kind != "budget"])  # that of runs/api/test_budget.py
def test_a_figure_is_as_wide_as_a_column_and_names_what_it_shows(overview: Overview, kind: str) -> None:
    drawn = plots.draw(overview, kind, ".svg").decode()
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', drawn)
    assert width is not None
    assert float(width[1]) == pytest.approx(72 * plots.COLUMN * (2 if kind == "claims" else 1))
    texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", drawn))
    expected = {
        "forest": ["lr &lt;0.1&gt;", "better", "open", "difference to sum $x$ in overall"],
        "curves": ["sst", "overall", "sum $x$", "other rows", "epoch (thin lines: train)"],
        "bars": ["sst", "sts", "row 7", "diamonds"],
        "effects": ["stages.0.optimizer.lr", "better", "effect on overall"],
        "claims": ["the rate matters · overall", "holds", "rows are alike · sst", "sts", "open", "diamonds: published"],
        "conflicts": ["para and sst", "share of steps with a conflict", "row 0"],
        "confusion": ["sst", "para", "4–5", "predicted by sum $x$"],
    }
    for part in expected[kind]:
        assert part in texts


@pytest.mark.parametrize("suffix", [".pdf", ".png", ".svg"])
def test_the_same_numbers_give_the_same_file(overview: Overview, suffix: str) -> None:
    drawn = plots.draw(overview, "forest", suffix)
    assert drawn.startswith({".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])
    assert drawn == plots.draw(overview, "forest", suffix)


def test_what_cannot_be_drawn_is_said(overview: Overview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskloomError, match=r"\.pdf"):
        plots.draw(overview, "forest", ".doc")
    bare = overview_in(record(tmp_path / "r", [Row("a")], seeds=(0,)))
    for file in bare.results.registry.glob("cells/*/scores-dev.safetensors"):
        file.unlink()
    for kind in ("forest", "effects", "claims", "budget", "conflicts", "confusion"):
        with pytest.raises(TaskloomError):
            plots.draw(overview_in(tmp_path / "r"), kind, ".pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TaskloomError, match=r"taskloom\[plots\]"):
        plots.draw(overview, "forest", ".pdf")
