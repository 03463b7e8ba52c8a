"""The tutorial is executed as it is, by a real kernel, with worker processes."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parents[3] / "runs" / "docs" / "pages" / "tutorial.ipynb"


def run_notebook(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute all cells in a folder, as a user does: no option of the tests' own reaches the kernel."""
    monkeypatch.setenv("TASKLOOM_ENGINE", "local")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()


def test_the_tutorial_runs_and_shows_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "outputs are made, not stored"
    run_notebook(notebook, tmp_path, monkeypatch)
    shown = {cell.source: [each for each in cell.outputs if each.output_type == "execute_result"] for cell in cells}
    for question in ("small.plan()", "small.run()", "small.claims()", "small.effects()", "small.seeds_needed()"):
        ((answer,),) = [outputs for source, outputs in shown.items() if source.endswith(question)]
        assert "<table>" in answer.data["text/html"], question
        assert "pcgrad" in answer.data["text/plain"], question
    ((again,),) = [outputs for source, outputs in shown.items() if source.endswith(".outcome")]
    assert re.search(r"finished=0, cached=6", again.data["text/plain"])
    assert (tmp_path / "taskloom-runs" / "ledger.sqlite").is_file()
