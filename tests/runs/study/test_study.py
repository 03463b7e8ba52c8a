"""The study's page says what its archives say: its tables, its figure, what its commands print, and its prose."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Registry
from taskloom.runs.cli import cli

STUDY = Path(__file__).parents[3] / "runs" / "study"
sys.path.insert(0, str(STUDY))
import summary  # noqa: E402

PAGES = STUDY.parent / "docs" / "pages"
PAGE = (PAGES / "study.md").read_text(encoding="utf-8")
#: Blocks that begin with a command, which is what follows "$".
SHOWN = re.findall(r"^```text\n\$ taskloom (.+)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
BLOCKS_AND_TABLES = re.compile(r"^```.*?^```$|^\|.*?$", re.MULTILINE | re.DOTALL)
PROSE = " ".join(BLOCKS_AND_TABLES.sub("", PAGE).split())
#: Figures of the prose that no archive prints: settings, limits, and 5 · sigmoid(20 · 0.3) = 4.99.
STATED = {"0.02", "0.1", "0.3", "0.4", "4.99"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return summary.import_archives(tmp_path_factory.mktemp("study") / "registry")


@pytest.fixture(scope="module")
def asked(registry: Registry) -> list[summary.Asked]:
    return summary.asked(registry)


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_the_page_shows_is_what_the_command_prints(registry: Registry, command: str, printed: str) -> None:
    done = CliRunner().invoke(cli, [*shlex.split(command), "--registry", str(registry.folder)])
    assert done.exit_code == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == printed.splitlines()


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(STUDY.parent)
    blocks = re.findall(r"(?<!-->\n)^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, "the others train"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", "-ec", *blocks]
    done = subprocess.run(
        script, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "study.svg").exists()
    assert list(tmp_path.glob("*.html"))


def test_the_tables_are_what_the_summary_prints(registry: Registry, asked: list[summary.Asked]) -> None:
    lines = summary.headlines(asked)
    for part in (summary.table(lines), summary.gradients(registry), summary.single_runs(registry)):
        assert f"\n{part}\n" in PAGE
    assert f"\n{summary.rows_of(registry)}\n" in PAGE
    assert summary.verdict(lines) in PROSE


def test_every_figure_of_the_prose_stands_in_a_table_or_block_of_the_page() -> None:
    """Which are held to the archives by the other tests."""
    known = STATED | set(_figures(" ".join(BLOCKS_AND_TABLES.findall(PAGE))))
    assert [figure for figure in _figures(PROSE) if figure not in known] == []


def _figures(text: str) -> list[str]:
    """The numbers with a decimal point, without their signs."""
    return re.findall(r"(?<![\w.])\d*\.\d+(?![\w.]*\.\d)", text)


def test_the_figure_is_what_the_summary_draws(asked: list[summary.Asked]) -> None:
    """Point by point: another matplotlib may write the same drawing in other words."""

    def points(drawing: str) -> list[float]:
        paths = " ".join(re.findall(r'\bd="([^"]*)"', drawing))
        return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", paths)]

    drawn = summary.drawn(asked, ".svg").decode()
    kept = (PAGES / "study.svg").read_text(encoding="utf-8")
    assert re.findall(r"<text[^>]*>([^<]*)</text>", kept) == re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert points(kept) == pytest.approx(points(drawn), abs=0.5)


@pytest.fixture(scope="module")
def split_data(course_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's data sets, from the course's."""
    folder = tmp_path_factory.mktemp("split")
    command = [sys.executable, str(STUDY / "split.py"), str(course_data.parent), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "study"


@pytest.mark.parametrize("table", [table for table in summary.TABLES if (STUDY / f"{table}.zip").exists()])
def test_a_further_seed_trains_new_cells_only(registry: Registry, table: str, split_data: Path, minilm: Path) -> None:
    with Ledger.open(registry.folder, create=False) as ledger:
        archived = ledger.grid(f"study-{table}").cells
    words = ["plan", str(STUDY / f"{table}.json"), "--name", f"study-{table}", "--data", str(split_data)]
    plan = CliRunner().invoke(cli, [*words, "--seeds", "+1", "--registry", str(registry.folder), "--json"])
    assert plan.exit_code == 0, plan.stderr
    status = {(cell["label"], cell["seed"]): cell["status"] for cell in json.loads(plan.stdout)["cells"]}
    (seed,) = {seed for _, seed in status} - {row.seed for row in archived}
    assert {cell for cell in status if cell[1] == seed} == {(row.label, seed) for row in archived}
    for cell, state in status.items():
        assert state == ("new" if cell[1] == seed else "finished"), cell
