"""The study's page says what its archive says: every command on it is carried out, and prints what the page shows."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

STUDY = Path(__file__).parents[3] / "runs" / "study"
PAGE = (STUDY.parent / "docs" / "pages" / "study.md").read_text(encoding="utf-8")
#: Blocks that begin with a command, which is what follows "$".
SHOWN = re.findall(r"^```text\n\$ taskloom (.+)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "registry"
    done = CliRunner().invoke(cli, ["import", str(STUDY / "results.zip"), "--registry", str(folder)])
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_the_page_shows_is_what_the_command_prints(registry: Path, command: str, printed: str) -> None:
    done = CliRunner().invoke(cli, [*shlex.split(command), "--registry", str(registry)])
    assert done.exit_code == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == printed.splitlines()


def test_the_commands_of_the_page_plan_the_rows_of_the_archive(
    registry: Path, short_course_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STUDY.parents[1])
    with Ledger.open(registry, create=False) as ledger:
        archived = {
            grid.name: {(row.label, row.seed): row.cell.id for row in grid.cells if row.cell.status == "finished"}
            for grid in ledger.grids()
        }
    (script,) = [block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) if "common=" in block]
    print_words = 'taskloom() { for word in "$@"; do printf \'%s\\t\' "$word"; done; echo; }\n'
    lines = subprocess.run(["bash", "-c", print_words + script], check=True, capture_output=True, text=True).stdout
    assert lines.count("\n") == 9
    for line in lines.splitlines():
        words = line.replace("\t--threads\t1\t", "\t").split("\t")[1:-1]  # how it is run, which a plan does not ask
        options = [str(short_course_data.parent) if word == "DIR" else word for word in words]
        plan = CliRunner().invoke(cli, ["plan", *options, "--registry", str(registry), "--json"])
        assert plan.exit_code == 0, plan.stderr
        cells = archived.pop(words[words.index("--name") + 1])  # a cell may have further rows, which no command names
        assert {cells[cell["label"], cell["seed"]] for cell in json.loads(plan.stdout)["cells"]} == {*cells.values()}
    assert not archived


def test_every_claim_that_was_promised_is_answered_with_three_seeds() -> None:
    promised = {"M1", "M2", "M4", *(f"C{n}" for n in range(1, 5)), *(f"T{n}" for n in range(2, 8))}
    promised |= {"L2", "L3", "L4", "R1", "R5", "R6", "R9", "X1", "X2"}
    answered = [
        (re.search(r"  ([A-Z]\d+)[: ]", line), re.search(r"\]\s+(?:<?[\d.]+)\s+(\d+)\b", line))
        for _, printed in SHOWN
        for line in printed.splitlines()
    ]
    seeds = {claim[1]: int(number[1]) for claim, number in answered if claim and number}
    assert promised - set(seeds) == set()
    assert set(seeds.values()) == {3}
