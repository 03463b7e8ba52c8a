"""Predictions of finished cells: the same as the run's own, and the very files that the course wants."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from small_runs import generated, run_grid

from taskloom.core import DataSet, Event
from taskloom.plugins.datasets.cs224n import CS224N
from taskloom.plugins.datasets.generated import Generated
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import load_examples, read_scores
from taskloom.runs.cli import cli
from taskloom.runs.grid.plan import Plan
from taskloom.runs.grid.planned import PlannedCell

ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
PAIR = {"name": "shared_layer", "head": {"name": "linear", "reads": "joint", "layout": "concatenated"}}


MARGIN = {"name": "dynamic_margin", "per_sample": True, "positive_from": 3}
TASKS: dict[str, Any] = {
    "sst": generated("sentiment", 48, 40, head={"name": "shared_layer", "head": "linear"}),
    "para": generated("paraphrase", 48, 40, head=PAIR, loss="binary_cross_entropy"),
    "sts": generated("similarity", 48, 40, head={"name": "cosine", "pooling": "mean"}, loss=MARGIN, metric="pearson"),
    "nli": generated("entailment", 48, 40, head={"name": "embedding", "reads": "triple"}, loss="simcse"),
}

Invoke = Callable[..., Result]


def train(folder: Path, base: dict[str, Any], **rest: Any) -> Plan:
    grid = {"base": {"encoder": ENCODER, **base}, **rest}
    plan, outcome, _ = run_grid(folder / "registry", grid, name="mine")
    assert outcome.failed == 0
    return plan


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    """A registry with a grid of two rows and two seeds on generated text."""
    folder = tmp_path_factory.mktemp("predict")
    base = {"tasks": TASKS, "stages": [{"epochs": 2, "optimizer": {"lr": 0.01}}]}
    cells = [{"label": "whole"}, {"label": "frozen", "set": {"stages.0.frozen": True}}]
    return folder / "registry", train(folder, base, cells=cells, seeds=[0, 1])


@pytest.fixture
def predict(trained: tuple[Path, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object, registry: Path = trained[0]) -> Result:
        return CliRunner().invoke(cli, ["predict", "--registry", str(registry), *map(str, arguments)])

    return invoke


def planned(id: str, spec: dict[str, Any]) -> PlannedCell:
    return PlannedCell(id=id, label=id, seed=0, status="new", spec=spec, versions={}, stage_keys=())


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not list(Path().glob("predictions/*"))
    return result.stderr


def test_dev_predictions_are_those_of_the_run_to_the_last_digit(predict: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    assert len({cell.id for cell in plan.cells}) == 4
    for cell in plan.cells:
        result = predict(cell.id, "--split", "dev", "--format", "jsonl", "--out", cell.id)
        assert result.exit_code == 0
        assert len(list(Path(cell.id).iterdir())) == 3
        stored = read_scores(registry / "cells" / cell.id / "scores-dev.safetensors")
        assert list(stored.tasks) == ["sst", "para", "sts"]
        for task, facts in stored.tasks.items():
            examples = load_examples(registry, facts.examples)
            columns = examples.ids, stored.read(task, "predicted"), examples.expected
            expected = [
                {"id": id, "predicted": float(predicted), "expected": float(label)}
                for id, predicted, label in zip(*columns, strict=True)
            ]
            lines = Path(cell.id, f"predictions-{task}-dev.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in lines] == expected
    values = {(one / "predictions-sts-dev.jsonl").read_text() for one in Path().iterdir()}
    assert len(values) == 4  # not one model four times


def test_a_plain_table_for_data_of_ones_own(predict: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    cell = plan.cells[0].id
    result = predict(cell[:10], "--split", "dev")
    assert result.exit_code == 0
    for task in ("sst", "para", "sts"):
        assert f"predictions/{task}-dev-output.csv" in result.stdout
        with Path(f"predictions/{task}-dev-output.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        stored = read_scores(registry / "cells" / cell / "scores-dev.safetensors")
        examples = load_examples(registry, stored.tasks[task].examples)
        assert [row["id"] for row in rows] == list(examples.ids)
        assert [float(row["prediction"]) for row in rows] == stored.read(task, "predicted").tolist()
        assert all(row["prediction"].isdecimal() for row in rows) == (task != "sts")


def test_the_test_split_is_the_default_tasks_can_be_chosen_and_the_registry_stays_as_it_is(
    predict: Invoke, trained: tuple[Path, Plan]
) -> None:
    def state() -> dict[Path, int]:
        files = (path for path in trained[0].rglob("*") if "ledger" not in path.name)
        return {path: path.stat().st_mtime_ns for path in files}

    before = state()
    assert predict(trained[1].cells[0].id, "--task", "sts", "--out", "a/b").exit_code == 0
    assert state() == before
    (path,) = Path("a/b").iterdir()
    assert path.name == "sts-test-output.csv"
    assert path.read_text().splitlines()[1].startswith("similarity-test-0,")


def test_of_a_grid_the_best_finished_cell_that_fits(predict: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    with Ledger.open(registry, create=False) as ledger:
        places = ledger.grid("mine").cells
    scores = {place.cell.id: place.cell.scores["overall"] for place in places}

    def used(*arguments: object) -> str:
        result = predict("mine", "--task", "sts", *arguments)
        assert result.exit_code == 0, result.stderr
        (cell,) = [one.id for one in plan.cells if one.id.startswith(result.stderr.split()[1].rstrip(":"))]
        return cell

    assert used() == max(scores, key=lambda cell: scores[cell])
    for label in ("whole", "frozen"):
        of_row = {place.seed: place.cell.id for place in places if place.label == label}
        assert used("--row", label) == max(of_row.values(), key=lambda cell: scores[cell])
        assert [used("--row", label, "--seed", seed) for seed in (0, 1)] == [of_row[0], of_row[1]]


def test_cells_that_are_not_finished(predict: Invoke, tmp_path: Path) -> None:
    cell = planned("aa", {"tasks": {"sst": {}}, "stages": [{"epochs": 2}], "seed": 0})
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        ledger.record_grid("mine", {}, [cell])
        assert "only a finished cell" in refused(predict("a", registry=tmp_path / "r"))
        ledger.write(Event("started", "aa", {}))
        ledger.write(Event("failed", "aa", {"reason": "no memory"}))
    assert "failed: no memory" in refused(predict("aa", registry=tmp_path / "r"))
    assert "is finished" in refused(predict("mine", registry=tmp_path / "r"))


# What may be wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mien"], "did you mean 'mine'?"),
        (["quickstart"], "was not run"),
        (["mine", "--row", "forzen"], "did you mean 'frozen'?"),
        (["mine", "--seed", "7"], "(seeds: 0, 1)"),
        (["mine", "--registry", "none"], "no registry in"),
        (["mine", "--task", "stst"], "no task 'stst'; did you mean 'sts'?"),
        (["mine", "--task", "nli"], "predicts nothing: its head gives only vectors (tasks that do: sst, para, sts)"),
        (["mine", "--out", "file/inner"], "Not a directory"),
        (["mine", "--out", "x" * 300], "File name too long"),
        (["mine", "--out", "registry/cells/new"], "inside the registry"),
        (["mine", "--data", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_requests_that_cannot_be_met(
    predict: Invoke, trained: tuple[Path, Plan], arguments: list[str], words: str
) -> None:
    Path("file").touch()
    Path("registry").symlink_to(trained[0])
    assert words in refused(predict(*arguments))
    assert not Path("registry/cells/new").exists()


def test_weights_that_are_gone_damaged_or_of_another_shape(
    predict: Invoke, trained: tuple[Path, Plan], tmp_path: Path
) -> None:
    copy, cell = tmp_path / "copy", trained[1].cells[0].id
    shutil.copytree(trained[0], copy)
    best = copy / "cells" / cell / "best"
    with Ledger.open(copy, create=False) as ledger:
        spec, scores = ledger.cell(cell).spec, ledger.cell(cell).scores
        wide = {**spec, "encoder": {**spec["encoder"], "width": 32}}
        gone = {**spec, "tasks": {"sst": {**spec["tasks"]["sst"], "head": {"name": "elsewhere"}}}}
        changed = [planned("wide", wide), planned("gone", gone)]
        ledger.record_grid("changed", {}, changed)
        for changed_cell in changed:
            ledger.write(Event("started", changed_cell.id, {"versions": {"taskloom": "0.0.1"}}))
            ledger.write(Event("finished", changed_cell.id, {"scores": scores, "seconds": 1.0}))
    shutil.copytree(best, copy / "cells" / "wide" / "best")
    message = refused(predict("wide", registry=copy))
    assert "do not fit" in message
    assert "trained with taskloom 0.0.1" in message
    assert "no head 'elsewhere'" in refused(predict("gone", registry=copy))

    tensors = best / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert "best is damaged" in refused(predict(cell, registry=copy))
    shutil.rmtree(best)
    assert "its weights are gone" in refused(predict(cell, registry=copy))


# The course's files


def text_of(data: DataSet, ids: tuple[str, ...], values: NDArray[np.float32]) -> str:
    return data.submission(ids, values.astype(np.float64))


@pytest.mark.parametrize(
    ("task", "header", "written"),
    [
        ("sst", "Predicted_Sentiment", ["3", "0"]),
        ("cfimdb", "Predicted_Sentiment", ["1", "0"]),
        ("para", "Predicted_Is_Paraphrase", ["1.0", "0.0"]),
        ("sts", "Predicted_Similiary", ["2.5", "0.1"]),
    ],
)
def test_the_course_files_character_by_character(task: str, header: str, written: list[str]) -> None:
    data, (first, second) = CS224N(task=task, dir="nowhere"), written  # type: ignore[arg-type]
    text = text_of(data, ("f00", "ba2"), np.array(written, np.float32))
    assert text == f"id \t {header} \nf00 , {first} \nba2 , {second} \n"
    assert data.submission_name("whatever it is called", "dev") == f"{task}-dev-output.csv"


def test_a_single_precision_number_is_written_so_that_it_can_be_read_back() -> None:
    values = (np.random.default_rng(0).random(500) * 5).astype(np.float32)
    lines = text_of(CS224N(task="sts", dir="nowhere"), tuple(map(str, range(500))), values).splitlines()[1:]
    assert [np.float32(line.split(" , ")[1]) for line in lines] == values.tolist()
    assert max(map(len, lines)) < 20  # the digits of a float32, not of a float64


#: A data set of somebody else's, whose predictions are handed in as JSON.
HANDED_IN = """
import json
from taskloom.core import hookimpl
from taskloom.plugins.datasets.generated import Generated
class Contest(Generated):
    '''Generated text for a contest.'''
    name = "contest"
    def submission_name(self, task, split): return f"contest-{split}.json"
    def submission(self, ids, predicted): return json.dumps(dict(zip(ids, self.labels.decode(predicted))))
@hookimpl
def taskloom_components(): return [Contest]
"""


def test_a_plugin_says_how_predictions_for_its_data_are_handed_in(
    install: Callable[..., None], tmp_path: Path, predict: Invoke
) -> None:
    install("contest", HANDED_IN)
    task = {"data": {"name": "contest", "task": "sentiment", "size": 8, "dev_size": 4, "test_size": 3}}
    train(tmp_path, {"tasks": {"sst": task}, "stages": [{"epochs": 1}]}, seeds=[0])
    result = predict("mine", registry=tmp_path / "registry")
    assert result.exit_code == 0, result.stderr
    (written,) = tmp_path.rglob("contest-test.json")
    assert set(json.loads(written.read_text()).values()) <= {0, 1, 2, 3, 4}
    assert len(json.loads(written.read_text())) == 3


def test_ids_with_commas_and_quotes_survive_in_a_plain_table() -> None:
    text = text_of(Generated(task="sentiment"), ("a,b", 'say "x"'), np.array([1, 2], np.float32))
    assert list(csv.reader(text.splitlines())) == [["id", "prediction"], ["a,b", "1"], ['say "x"', "2"]]


def course_task(task: str, folder: Path, **rest: Any) -> dict[str, Any]:
    return {"data": {"name": "cs224n", "task": task, "dir": str(folder), "limit": 16}, **rest}


def ids_in(path: Path) -> list[str]:
    """The ids of a course file by other means than ours: the field of 25 hexadecimal digits in each line."""
    found = [re.search(r"\b[0-9a-f]{20,}\b", line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [match.group() for match in found if match]


def test_submission_files_for_the_real_unlabelled_test_sets(course_data: Path, tmp_path: Path, predict: Invoke) -> None:
    tasks = {
        "sst": course_task("sst", course_data),
        "para": course_task("para", course_data, head={"name": "linear", "reads": "pair"}, loss="binary_cross_entropy"),
        "similarity": course_task("sts", course_data, head="cosine", loss="mse", metric="pearson"),
    }
    plan = train(tmp_path, {"tasks": tasks, "stages": [{"epochs": 1}]})
    cell, registry = plan.cells[0].id, tmp_path / "registry"
    result = predict(cell, registry=registry)
    assert result.exit_code == 1
    assert "para not written: no file 'quora-test-student.csv'" in result.stderr
    assert sorted(path.name for path in Path("predictions").iterdir()) == ["sst-test-output.csv", "sts-test-output.csv"]
    for task, source, value in (
        ("sst", "ids-sst-test-student.csv", r"[0-4]"),
        ("sts", "sts-test-student.csv", r"-?\d+\.\d+(e-\d+)?"),
    ):
        _, *lines = Path(f"predictions/{task}-test-output.csv").read_text().splitlines()
        assert all(re.fullmatch(rf"\w+ , {value} ", line) for line in lines)
        assert [line.split()[0] for line in lines] == ids_in(course_data / source)
        assert len(lines) > 1000

    shutil.rmtree("predictions")
    assert "nothing was written" in refused(predict(cell, "--task", "para", registry=registry))


def test_test_files_may_lie_apart_from_what_was_trained_on(tmp_path: Path, predict: Invoke) -> None:
    def write(folder: str, name: str, rows: int, *, labelled: bool) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        head = "\tid\tsentence\tsentiment\n" if labelled else "\tid\tsentence\n"
        lines = [f"{row}\t{row:025x}\ta plain film number {row}" + f"\t{row % 5}" * labelled for row in range(rows)]
        (tmp_path / folder / name).write_text(head + "\n".join(lines) + "\n")

    write("data", "ids-sst-train.csv", 20, labelled=True)
    write("data", "ids-sst-dev.csv", 10, labelled=True)
    twice = {"sst": course_task("sst", tmp_path / "data"), "again": course_task("sst", tmp_path / "data")}
    plan = train(tmp_path, {"tasks": twice, "stages": [{"epochs": 0}]})
    cell, registry = plan.cells[0].id, tmp_path / "registry"
    assert "--format jsonl" in refused(predict(cell, registry=registry)), "both are sst-test-output.csv"
    one = (cell, "--task", "again")
    assert "no file 'ids-sst-test-student.csv'" in refused(predict(*one, registry=registry))

    write("new/cs224n", "ids-sst-test-student.csv", 200, labelled=False)
    with (tmp_path / "new/cs224n/ids-sst-test-student.csv").open("a") as file:
        file.write(f"200\t{200:025x}\t\n")  # no sentence
    result = predict(*one, "--data", "new", registry=registry)
    assert result.exit_code == 0
    assert "ids-sst-test-student.csv, line 202:" in result.stderr
    lines = Path("predictions/sst-test-output.csv").read_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"{row:025x}" for row in range(200)]
