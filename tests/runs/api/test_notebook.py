"""The tutorial is executed as it is, by a real kernel, with worker processes."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from long_run import LONG, PATIENCE, until_begun
from nbclient import NotebookClient

from taskloom.runs import Grid

TUTORIAL = Path(__file__).parents[3] / "runs" / "docs" / "pages" / "tutorial.ipynb"


def run_notebook(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute all cells in a folder, as a user does: no option of the tests' own reaches the kernel."""
    monkeypatch.setenv("TASKLOOM_ENGINE", "local")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()


def test_the_stop_button_leaves_a_checkpoint_and_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        run = f"from taskloom.runs import Grid; Grid({LONG!r}, name='long').run(progress=False)"
        request = client.execute(run, stop_on_error=False)  # else a kernel refuses what arrives just after an error
        until_begun(tmp_path / "taskloom-runs")
        manager.interrupt_kernel()
        # On a busy machine an answer to what was asked while the kernel started may come first.
        replies = iter(lambda: client.get_shell_msg(timeout=PATIENCE), None)
        reply = next(message["content"] for message in replies if message["parent_header"].get("msg_id") == request)
        assert (reply["ename"], reply["evalue"]) == ("InterruptedRun", "Interrupted. 0 cells finished, 1 unfinished.")
        assert client.execute_interactive("1 + 1", timeout=PATIENCE)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert Grid("long", registry=tmp_path / "taskloom-runs").cells().found[0].state == "interrupted"


def test_the_tutorial_runs_and_shows_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "outputs are made, not stored"
    run_notebook(notebook, tmp_path, monkeypatch)
    shown = {cell.source: [each for each in cell.outputs if each.output_type == "execute_result"] for cell in cells}
    asked = {"plan": "pcgrad", "run": "pcgrad", "claims": "surgery helps", "effects": "pcgrad", "seeds_needed": "mgda"}
    for question, expected in {f"small.{name}()": word for name, word in asked.items()}.items():
        ((answer,),) = [outputs for source, outputs in shown.items() if source.endswith(question)]
        assert "<table>" in answer.data["text/html"], question
        assert expected in answer.data["text/plain"], question
    ((again,),) = [outputs for source, outputs in shown.items() if source.endswith(".outcome")]
    assert re.search(r"finished=0, cached=6", again.data["text/plain"])
    assert (tmp_path / "taskloom-runs" / "ledger.sqlite").is_file()
