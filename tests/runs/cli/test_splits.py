"""The split that is reported: every question can be asked of dev, test or train, and looks at test are counted."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from recorded import METRICS, Row, record

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli import cli

ROWS = [
    Row("sum", set={"stages.0.combiner": {"name": "sum"}}),
    Row("pcgrad", 1.5, set={"stages.0.combiner": {"name": "pcgrad"}}),
]
AXES = {"stages.0.combiner": ["sum", "pcgrad"]}
CLAIMS = [{"better": "pcgrad", "than": "sum"}]


def run(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, [*arguments, "--registry", str(folder)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A grid of axes, which has no rows to say a split of."""
    return record(tmp_path / "r", ROWS, baseline="sum", axes=AXES, claims=CLAIMS, test=True)


def test_every_question_is_answered_on_test(scored: Path, tmp_path: Path) -> None:
    with Ledger.open(scored, create=False) as ledger:
        cells = {(cell.label, cell.seed): cell.cell for cell in ledger.grid("made").cells}
    means = {
        (label, column): np.mean([cells[label, seed].test[column] for seed in range(3)])
        for label in ("sum", "pcgrad")
        for column in (*METRICS, "overall")
    }
    dev = np.mean([cells["sum", seed].scores["sst"] for seed in range(3)])
    assert abs(means["sum", "sst"] - dev) > 0.001

    text = run(scored, "table", "made", "--split", "test").stdout
    for label in ("sum", "pcgrad"):
        assert re.search(rf"^{label} +3 +{means[label, 'sst']:.3f} ± ", text, re.MULTILINE), "no (test) in every row"
    assert "Scores are on test." in text
    answer = json.loads(run(scored, "table", "made", "--split", "test", "--format", "json").stdout)
    assert {row["split"] for row in answer["rows"]} == {"test"}
    delta = answer["rows"][1]["metrics"]["overall"]["delta"]
    assert delta == pytest.approx(means["pcgrad", "overall"] - means["sum", "overall"])
    assert answer["rows"][1]["metrics"]["overall"]["interval"] is not None

    (claim,) = json.loads(run(scored, "claims", "made", "--split", "test", "--json").stdout)["claims"]
    (effect,) = json.loads(run(scored, "effects", "made", "--split", "test", "--json").stdout)["main"]
    assert claim["delta"] == effect["delta"] == delta
    for task in json.loads(run(scored, "compare", "sum", "pcgrad", "--split", "test", "--json").stdout)["tasks"]:
        assert task["a"] == pytest.approx(means["sum", task["task"]])
        assert task["delta"] == pytest.approx(means["pcgrad", task["task"]] - means["sum", task["task"]])
    errors = json.loads(run(scored, "errors", "sum", "--split", "test", "--json").stdout)
    assert errors["split"] == "test"
    for task in errors["tasks"]:
        assert np.mean(task["scores"]) == pytest.approx(means["sum", task["task"]])
    page = tmp_path / "page.html"
    run(scored, "report", "made", "--split", "test", "-o", str(page))
    assert "on test; under it the difference" in page.read_text()
    assert f">{means['sum', 'sst']:.3f}<" in page.read_text()
    run(scored, "plot", "made", "--split", "test", "-o", str(tmp_path / "forest.svg"))
    grid = Grid("made", registry=scored)
    assert json.loads(grid.table(split="test").format("json"))["rows"] == answer["rows"]
    assert grid.cell("sum", 0).predictions("sst", split="test").found.decided.shape == (1, 200)
    assert grid.cell("sum", 0).errors(split="test").as_json()["split"] == "test"


def test_dev_says_that_there_are_test_scores_and_counts_no_look(scored: Path) -> None:
    for _ in range(2):
        text = run(scored, "table", "made").stdout
    assert "There are test scores, too: `taskloom table made --split test` shows them" in text
    assert "looked at" not in text
    assert "There are test scores" not in run(scored, "table", "made", "--split", "test").stdout


def test_each_question_about_test_is_a_look(scored: Path, tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    questions = (
        ["table", "made"],
        ["claims", "made"],
        ["effects", "made"],
        ["compare", "sum", "pcgrad"],
        ["errors", "sum"],
        ["report", "made", "-o", page],
        ["plot", "made", "-o", str(tmp_path / "forest.svg")],
    )
    for number, question in enumerate(questions, start=1):
        text = run(scored, *question, "--split", "test").stdout
        assert (f"were looked at {number} times" in text) == (number > 1), question


READER = """
import os, sys
from click.testing import CliRunner
from taskloom.runs.cli import cli

question = ["table", "made", "--registry", sys.argv[1]]
CliRunner().invoke(cli, question)  # imports all that it needs, which another user may not be able to read
if os.geteuid() == 0:  # root may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
done = CliRunner().invoke(cli, [*question, "--split", "test"])
print(done.output)
sys.exit(done.exit_code)
"""


def test_a_registry_that_may_only_be_read_still_answers() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = record(Path(temporary) / "r", ROWS, baseline="sum", axes=AXES, test=True)
        for path in (Path(temporary), *Path(temporary).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True)
        for path in (Path(temporary), *Path(temporary).rglob("*")):
            path.chmod(0o755)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "That the test scores were looked at could not be written down." in done.stdout
        assert "Scores are on test." in done.stdout


def test_train_shows_the_sample_after_the_best_epoch(tmp_path: Path) -> None:
    folder = record(tmp_path / "r", ROWS, baseline="sum", axes=AXES, epochs={"train": {"sst": 0.875, "overall": 0.875}})
    text = run(folder, "table", "made", "--split", "train", "--columns", "sst,overall").stdout
    assert re.search(r"^sum +3 +0\.875 ± 0\.000", text, re.MULTILINE)
    assert "Scores are on train, of a sample, after the best epoch." in text
    assert "their predictions are not in the registry" in text, "so there is no interval"
    refused = run(folder, "errors", "sum", "--split", "train", code=2).stderr
    assert "predictions for the training data are not kept" in refused


def test_a_split_that_was_not_scored_is_said_with_what_to_do(tmp_path: Path) -> None:
    folder = record(tmp_path / "r", ROWS, baseline="sum", axes=AXES)
    for question in (["table", "made"], ["claims", "made"], ["effects", "made"], ["report", "made", "-o", "x.html"]):
        refused = run(folder, *question, "--split", "test", code=2).stderr
        assert 'no cell of \'made\' has test scores: test was not scored; a run with "score": {"test": true}' in refused
    assert '"score": {"test": true}' in run(folder, "errors", "sum", "--split", "test", code=2).stderr
    assert not Path("x.html").exists()


# What travels with the numbers


def test_what_stands_below_a_table_travels_with_its_numbers(tmp_path: Path) -> None:
    rows = [Row("a"), Row("lost", skill=-1.0), Row("gone", skill=-1.0)]
    claims = [{"better": "lost", "than": "gone", "on": "sst"}, {"better": "a", "than": "lost"}]
    folder = record(tmp_path / "r", rows, baseline="a", claims=claims, margin=0.3)
    table = run(folder, "table", "made").stdout
    (remark,) = [line for line in table.splitlines() if "untrained on sst" in line]
    for command in (["claims", "made"], ["effects", "made"], ["seeds", "made"], ["compare", "a", "lost"]):
        assert "untrained on sst" in run(folder, *command).stdout, command
        assert any("untrained on sst" in line for line in json.loads(run(folder, *command, "--json").stdout)["checks"])
    assert "untrained on sst" in run(folder, "errors", "lost").stdout
    assert remark in json.loads(run(folder, "table", "made", "--format", "json").stdout)["checks"]
    grid = Grid("made", registry=folder)
    for answer in (grid.table(), grid.claims(), grid.effects(), grid.seeds_needed(), grid.compare("a", "lost")):
        assert any("untrained on sst" in line for line in answer.to_pandas().attrs["checks"])
        assert "untrained on sst" in answer._repr_html_()
    file = tmp_path / "table.csv"
    run(folder, "table", "made", "--format", "csv", "-o", str(file))
    assert remark in (tmp_path / "table.csv.notes.txt").read_text()
    assert file.read_text().startswith("label,")
    assert remark in run(folder, "table", "made", "--format", "csv").stderr
    page = tmp_path / "page.html"
    run(folder, "report", "made", "-o", str(page))
    assert "untrained on sst" in page.read_text()

    first, second = json.loads(run(folder, "claims", "made", "--json").stdout)["claims"]
    assert first["answer"] == "untrained", "not equal, though both are within the margin"
    assert first["verdict"] == "untrained"
    assert second["answer"] in ("holds", "untrained")


def test_a_claim_whose_published_size_the_interval_leaves_out_is_not_that_large(tmp_path: Path) -> None:
    rows = [Row("a", reported={"sst": 0.4}), Row("b", reported={"sst": 0.9}), Row("c", reported={"sst": 0.41})]
    claims = [{"better": row, "than": "a", "on": "sst"} for row in ("b", "c")]
    folder = record(tmp_path / "r", rows, claims=claims)
    large, small = json.loads(run(folder, "claims", "made", "--json").stdout)["claims"]
    assert (large["answer"], large["verdict"]) == ("not that large", "open")
    assert large["interval"][1] < large["reported"]
    assert small["answer"] == "open"
    assert small["interval"][0] <= small["reported"] <= small["interval"][1]


def test_one_seed_says_so_and_asks_for_more(tmp_path: Path) -> None:
    folder = record(
        tmp_path / "r",
        [Row("a"), Row("far", 3.0)],
        seeds=[0],
        baseline="a",
        margin=0.5,
        claims=[{"better": "far", "than": "a"}],
    )
    assert re.search(r"^far .* one seed ", run(folder, "table", "made").stdout, re.MULTILINE)
    assert re.search(r"^one seed .* 2 more seeds ", run(folder, "claims", "made").stdout, re.MULTILINE)
    assert "one seed" in run(folder, "compare", "a", "far").stdout
