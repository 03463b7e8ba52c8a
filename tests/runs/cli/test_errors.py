"""``taskloom compare`` and ``taskloom errors``: what A and B may be, what is printed, and what it costs."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded import Row, record

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

Invoke = Callable[..., Result]
RUDE = "\x1b[2J\x07rude\x9b text\nof two lines \u202eand more"
NAMES = ["no\x1b[1m", "yes"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two grids; each has a row 'twin'. Texts and names of classes would steer a terminal."""
    folder = tmp_path_factory.mktemp("cli")
    with (folder / "para.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("id", "a", "b", "label"), *((f"{n}\x1b", f"{RUDE} {n}", "b", NAMES[n % 2]) for n in range(60))]
        )
    path = str(folder / "para.csv")
    para = {
        "name": "table",
        "train": path,
        "dev": path,
        "text": ["a", "b"],
        "label": "label",
        "id": "id",
        "classes": NAMES,
    }
    data = {"para": para, "sst": {"name": "generated", "task": "sentiment", "dev_size": 40}}
    data["sts"] = {"name": "generated", "task": "similarity", "dev_size": 40}
    rows = [Row("twin", 0.1), Row("better", 0.6), Row("broken")]
    broken = {("broken", seed): "it broke" for seed in range(3)}
    record(folder / "r", rows, examples=40, name="one", data_sets=data, failed={**broken, ("better", 2): "it broke"})
    return record(folder / "r", [Row("twin"), Row("only two")], seeds=(0,), examples=40, name="two", data_sets=data)


@pytest.fixture
def taskloom(registry: Path) -> Invoke:
    return lambda *arguments: CliRunner().invoke(cli, [*map(str, arguments), "--registry", str(registry)])


def cell(registry: Path, grid: str, label: str, seed: int = 0) -> str:
    with Ledger.open(registry, create=False) as ledger:
        return next(place.cell.id for place in ledger.grid(grid).cells if (place.label, place.seed) == (label, seed))


def test_rows_and_cells_are_found_by_what_the_user_types(taskloom: Invoke, registry: Path) -> None:
    for arguments, names in {
        ("better", cell(registry, "one", "twin", 1)[:8]): ("'better' of grid 'one', seed 1 of 0, 1, 2", "'twin'"),
        ("twin", "better", "--grid", "one"): (
            "'twin' of grid 'one', seeds 0, 1",
            "'better' of grid 'one', seeds 0, 1 of 0, 1, 2",
        ),
        ("only two", "better"): ("'only two' of grid 'two', seed 0", "'better' of grid 'one', seed 0 of 0, 1, 2"),
    }.items():
        done = taskloom("compare", *arguments)
        assert done.exit_code == 0, done.output
        assert all(name in done.stdout for name in names)


def test_a_wrong_request_gets_one_sentence(taskloom: Invoke, registry: Path, tmp_path: Path) -> None:
    for arguments, facts in {
        ("errors", "twin"): ("one, two", "--grid"),
        ("errors", "beter"): ("'better'",),
        ("errors", "only two", "--grid", "one"): ("'only two'",),
        ("errors", "twin", "--grid", "three"): ("'three'",),
        ("errors", "broken"): ("no finished seed", "taskloom cells one"),
        ("errors", cell(registry, "one", "broken")[:9]): ("it broke",),
        ("errors", ""): ("''",),
        ("errors", "better", "--data", str(tmp_path / "no")): ("--data",),
        ("compare", "better", "better"): ("same models",),
    }.items():
        done = taskloom(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert all(fact in done.stderr for fact in facts), done.stderr


@pytest.mark.parametrize("arguments", [["compare", "twin", "better", "--grid", "one"], ["errors", "better"]])
def test_texts_never_steer_the_terminal(taskloom: Invoke, arguments: list[str]) -> None:
    done = taskloom(*arguments)
    assert done.exit_code == 0, done.output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", done.stdout)
    assert r"\u001b[2J\u0007rude\u009b text of two lines \u202eand more" in done.stdout
    found = json.loads(taskloom(*arguments, "--json").stdout)
    assert found["tasks"][1]["classes"] == NAMES


def test_json_has_every_figure(taskloom: Invoke) -> None:
    found = json.loads(taskloom("compare", "twin", "better", "--grid", "one", "--limit", "3", "--json").stdout)
    assert found["seeds"] == [[0, 0], [1, 1]]
    assert [task["task"] for task in found["tasks"]] == ["sst", "para", "sts"]
    for task in found["tasks"]:
        low, high = task["interval"]
        assert low <= task["delta"] <= high
        assert task["delta"] == pytest.approx(task["b"] - task["a"])
        assert len(task["better"]["examples"]) <= 3
    example = found["tasks"][0]["better"]["examples"][0]
    assert example["label"] in example["predicted"][1]
    errors = json.loads(taskloom("errors", "better", "--limit", "2", "--json").stdout)
    assert [len(task["worst"]) for task in errors["tasks"]] == [2, 2, 2]
    assert sum(map(sum, errors["tasks"][0]["confusion"]["counts"])) == 2 * 40


LIGHT = """
import json, sys
from taskloom.runs.cli import cli
for arguments in json.loads(sys.argv[1]):
    cli(arguments, standalone_mode=False)
assert "torch" not in sys.modules
"""


def test_no_torch_is_imported(registry: Path) -> None:
    commands = [["compare", "twin", "better", "--grid", "one"], ["errors", "better"]]
    given = json.dumps([[*command, "--registry", str(registry)] for command in commands])
    done = subprocess.run([sys.executable, "-c", LIGHT, given], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ids are shown" not in done.stdout
