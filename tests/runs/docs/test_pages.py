"""What a newcomer reads and does: the quickstart is worth seeing, and every page's commands and snippets work.

A page is followed from top to bottom in a folder in which `taskloom run quickstart` has ended:

| block | what is done with it |
|---|---|
| `sh` | is run, and every command should end with 0 |
| `python` | is executed, with what the page's earlier blocks defined |
| `json` | "Write `file`:" before it writes the file; a grid should be valid |
| `text`, others | are looked at by nobody |

`<!-- not run: why -->` before a block says that it needs what a test has not: data, GPUs, a cluster.
"""

import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.expansion import expand
from taskloom.runs.grid.grid import read_grid

DOCS = Path(__file__).parents[3] / "runs" / "docs"
#: The pages that other tests follow, and those that are written by the program itself.
ELSEWHERE = (
    "how-to/plugin.md",
    "study.md",
    "reference/api.md",
    "reference/commands.md",
    "reference/components.md",
    "reference/interfaces.md",
)
PAGES = sorted(str(path.relative_to(DOCS / "pages")) for path in (DOCS / "pages").rglob("*.md"))
BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?(?P<before>[^\n]*)\n*^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
#: What every cell must reach: guessing gives 0.2 (five balanced classes), 0.5 (two) and 0 (a correlation).
REACHED = {"sst": 0.5, "para": 0.62, "sts": 0.3}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder in which the quickstart has run, and its table."""
    folder = tmp_path_factory.mktemp("quickstart")
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", "quickstart", "--format", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=540)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)["rows"]


def test_every_task_of_every_cell_is_clearly_above_chance(quickstart: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = quickstart
    assert [row["n"] for row in rows] == [3, 3, 3, 3]
    assert {row["label"] for row in rows} >= {"sum", "pcgrad", "cosine loss"}
    for row in rows:
        for task in (*REACHED, "overall"):
            assert set(row["metrics"][task]) >= {"mean", "sd", "n", "delta", "interval", "p", "verdict", "variance"}
    verdicts = {row["label"]: row["metrics"]["overall"]["verdict"] for row in rows}
    assert verdicts.pop("sum") is None, "which is the baseline"
    assert set(verdicts.values()) <= {"better", "worse", "equal", "open"}
    with Ledger.open(folder / "taskloom-runs", create=False) as ledger:
        cells = ledger.grid("quickstart").cells
    for place in cells:
        for task, reached in REACHED.items():
            assert place.cell.scores[task] > reached, (place.label, place.seed, task)
    claims = json.loads(
        in_this_process(["claims", "quickstart", "--json", "--registry", str(folder / "taskloom-runs")])
    )
    claims = claims["claims"]
    assert len(claims) == 2
    assert all(claim["written_before_the_run"] for claim in claims), "written down before the run"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_what_a_page_says_can_be_done(
    page: str, quickstart: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quickstart[0] / "taskloom-runs", tmp_path / "taskloom-runs")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for found in BLOCK.finditer((DOCS / "pages" / page).read_text(encoding="utf-8")):
        if not found["skip"]:
            follow(found["language"], found["text"], found["before"], space)


def test_rows_are_called_what_the_page_about_grids_says() -> None:
    page = (DOCS / "pages" / "reference" / "grids.md").read_text(encoding="utf-8")
    section = page.partition("## Names of rows")[2].partition("\n## ")[0]
    examples = re.findall(r"^\| `(\"[^`]+)` \| ([^:|]+)", section, re.MULTILINE)
    assert len(examples) == 6
    for keys, names in examples:
        grid = read_grid({"base": "quickstart", **json.loads(f"{{{keys}}}")}, Path("grid.json"))
        labels = [row.label for row in expand(grid, allow_large=True).variants]
        assert labels == re.findall("`([^`]+)`", names), keys


def test_the_python_of_the_readme_works(
    quickstart: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quickstart[0] / "taskloom-runs", tmp_path / "taskloom-runs")
    monkeypatch.chdir(tmp_path)
    (source,) = [
        found["text"]
        for found in BLOCK.finditer((DOCS.parents[1] / "README.md").read_text(encoding="utf-8"))
        if found["language"] == "python" and "Grid(" in found["text"]
    ]
    exec(compile(source, "<README>", "exec"), {})  # noqa: S102 - our own page


def follow(language: str, text: str, before: str, space: dict[str, Any]) -> None:
    """Do what one block says; ``before`` is the line of text above it."""
    if language == "sh":
        run(text)
    elif language == "python":
        exec(compile(text, "<page>", "exec"), space)  # noqa: S102 - our own page
    elif language == "json":
        named = re.search(r"Write `([^`]+)`:$", before)
        path = Path(named[1] if named else "block.json")
        path.write_text(text, encoding="utf-8")
        if named or {"base", "extends"} & set(json.loads(text)):
            in_this_process(["validate", str(path)])


def run(script: str) -> None:
    """A block of shell; plain commands of ours without another process, which would import torch again."""
    lines = [shlex.split(line, comments=True) for line in re.sub(r"\\\n\s*", "", script).splitlines()]
    if all(not line or (line[0] == "taskloom" and not {"|", ">", "<", "&&"} & set(line)) for line in lines):
        for line in filter(None, lines):
            in_this_process(line[1:])
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


def in_this_process(arguments: list[str]) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, f"taskloom {' '.join(arguments)}\n{result.output}"
    return result.stdout


def test_a_build_without_its_program_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(DOCS.parents[1] / ".ci" / "docs"), run_name="__main__")
    assert "pip install -e '.[docs]'" in capsys.readouterr().err


def test_the_site_builds_without_a_warning_and_has_every_page() -> None:
    done = subprocess.run(
        [sys.executable, DOCS.parents[1] / ".ci" / "docs"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in PAGES:
        place = "" if page == "index.md" else page.removesuffix(".md")
        assert (DOCS / "site" / place / "index.html").is_file(), page
    named = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES if f"{page}\n" not in named] == [], "pages that the navigation lacks"
