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
from small_runs import run_grid

from taskloom.core import Event, Examples
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.plan import Plan, PlannedCell
from taskloom.runs.training.submission import course_file, file_name, table

ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
PAIR = {"name": "shared_layer", "head": {"name": "linear", "reads": "pair"}}


def generated(task: str, **rest: Any) -> dict[str, Any]:
    return {"data": {"name": "generated", "task": task, "size": 48, "dev_size": 40, "test_size": 30}, **rest}


TASKS: dict[str, Any] = {
    "sst": generated("sentiment", head={"name": "shared_layer", "head": "linear"}),
    "para": generated("paraphrase", head=PAIR, loss="binary_cross_entropy"),
    "sts": generated(
        "similarity",
        head="cosine",
        loss={"name": "dynamic_margin", "per_sample": True, "positive_from": 3},
        metric="pearson",
    ),
    "nli": generated("entailment", head={"name": "embedding", "reads": "triple"}, loss="simcse"),
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
def taskloom(trained: tuple[Path, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object, registry: Path = trained[0]) -> Result:
        return CliRunner().invoke(cli, [*map(str, arguments), "--registry", str(registry)])

    return invoke


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not list(Path().glob("predictions/*"))
    return result.stderr


def kept(registry: Path, cell: str, task: str) -> list[dict[str, Any]]:
    text = (registry / "cells" / cell / f"predictions-{task}-dev.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


# The same as the run's own


def test_dev_predictions_are_those_of_the_run_to_the_last_digit(taskloom: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    assert len({cell.id for cell in plan.cells}) == 4
    for cell in plan.cells:
        result = taskloom("predict", cell.id, "--split", "dev", "--format", "jsonl", "--out", cell.id)
        assert result.exit_code == 0
        written = {path.name: path.read_bytes() for path in Path(cell.id).iterdir()}
        assert written == {path.name: path.read_bytes() for path in (registry / "cells" / cell.id).glob("*.jsonl")}
        assert set(written) == {f"predictions-{task}-dev.jsonl" for task in ("sst", "para", "sts")}
    values = {(one / "predictions-sts-dev.jsonl").read_text() for one in Path().iterdir()}
    assert len(values) == 4  # not one model four times


def test_a_plain_table_for_data_of_ones_own(taskloom: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    cell = plan.cells[0].id
    result = taskloom("predict", cell[:10], "--split", "dev")
    assert result.exit_code == 0
    for task in ("sst", "para", "sts"):
        assert f"predictions/{task}-dev-output.csv" in result.stdout
        with Path(f"predictions/{task}-dev-output.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        expected = kept(registry, cell, task)
        assert [row["id"] for row in rows] == [one["id"] for one in expected]
        assert [float(row["prediction"]) for row in rows] == [one["predicted"] for one in expected]
        assert all(row["prediction"].isdecimal() for row in rows) == (task != "sts")


def test_the_test_split_is_the_default_and_tasks_can_be_chosen(taskloom: Invoke, trained: tuple[Path, Plan]) -> None:
    result = taskloom("predict", trained[1].cells[0].id, "--task", "sts", "--out", "a/b")
    assert result.exit_code == 0
    (path,) = Path("a/b").iterdir()
    assert path.name == "sts-test-output.csv"
    lines = path.read_text().splitlines()
    assert len(lines) == 31
    assert lines[1].startswith("similarity-test-0,")


def test_predicting_leaves_the_registry_as_it_is(taskloom: Invoke, trained: tuple[Path, Plan]) -> None:
    def state() -> dict[Path, int]:
        files = (path for path in trained[0].rglob("*") if "ledger" not in path.name)
        return {path: path.stat().st_mtime_ns for path in files}

    before = state()
    assert taskloom("predict", trained[1].cells[0].id).exit_code == 0
    assert state() == before


# Which cell


def test_of_a_grid_the_best_finished_cell_that_fits(taskloom: Invoke, trained: tuple[Path, Plan]) -> None:
    registry, plan = trained
    with Ledger.open(registry, create=False) as ledger:
        places = ledger.grid("mine").cells
    scores = {place.cell.id: place.cell.scores["overall"] for place in places}

    def used(*arguments: object) -> str:
        result = taskloom("predict", "mine", "--task", "sts", *arguments)
        assert result.exit_code == 0, result.stderr
        (cell,) = [one.id for one in plan.cells if one.id.startswith(result.stderr.split()[1].rstrip(":"))]
        return cell

    assert used() == max(scores, key=lambda cell: scores[cell])
    for label in ("whole", "frozen"):
        of_row = {place.seed: place.cell.id for place in places if place.label == label}
        assert used("--row", label) == max(of_row.values(), key=lambda cell: scores[cell])
        assert [used("--row", label, "--seed", seed) for seed in (0, 1)] == [of_row[0], of_row[1]]


def test_cells_and_grids_that_are_not_there(taskloom: Invoke, tmp_path: Path) -> None:
    message = refused(taskloom("predict", "mien"))
    assert "did you mean 'mine'?" in message
    assert "no cell" in message
    assert "was not run" in refused(taskloom("predict", "quickstart"))
    assert "did you mean 'frozen'?" in refused(taskloom("predict", "mine", "--row", "forzen"))
    assert "(seeds: 0, 1)" in refused(taskloom("predict", "mine", "--seed", 7))
    assert "no registry in" in refused(taskloom("predict", "mine", registry=tmp_path / "none"))


def test_cells_that_are_not_finished(taskloom: Invoke, tmp_path: Path) -> None:
    spec = {"tasks": {"sst": {}}, "stages": [{"epochs": 2}], "seed": 0}
    cell = PlannedCell(id="aa", label="sum", seed=0, status="new", spec=spec, versions={}, stage_keys=())
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        ledger.record_grid("mine", {}, [cell])
        assert "only a finished cell" in refused(taskloom("predict", "a", registry=tmp_path / "r"))
        ledger.write(Event("started", "aa", {}))
        ledger.write(Event("failed", "aa", {"reason": "no memory"}))
    assert "failed: no memory" in refused(taskloom("predict", "aa", registry=tmp_path / "r"))
    assert "is finished" in refused(taskloom("predict", "mine", registry=tmp_path / "r"))


# What may be wrong


def test_requests_that_cannot_be_met(taskloom: Invoke, trained: tuple[Path, Plan], tmp_path: Path) -> None:
    cell = trained[1].cells[0].id
    assert "no task 'stst'; did you mean 'sts'?" in refused(taskloom("predict", cell, "--task", "stst"))
    message = refused(taskloom("predict", cell, "--task", "nli"))
    assert "task 'nli' predicts nothing: its head gives only vectors (tasks that do: sst, para, sts)" in message
    (tmp_path / "file").touch()
    assert "is a file" in refused(taskloom("predict", cell, "--out", "file/inner"))
    inside = trained[0] / "cells" / "new"
    assert "inside the registry" in refused(taskloom("predict", cell, "--out", inside))
    assert not inside.exists()
    assert "File name too long" in refused(taskloom("predict", cell, "--out", "x" * 300))
    assert "nowhere is not a folder" in refused(taskloom("predict", cell, "--data", "nowhere"))


def test_weights_that_are_gone_damaged_or_of_another_shape(
    taskloom: Invoke, trained: tuple[Path, Plan], tmp_path: Path
) -> None:
    copy, cell = tmp_path / "copy", trained[1].cells[0].id
    shutil.copytree(trained[0], copy)
    best = copy / "cells" / cell / "best"
    with Ledger.open(copy, create=False) as ledger:
        spec = ledger.cell(cell).spec
        wide = {**spec, "encoder": {**spec["encoder"], "width": 32}}
        gone = {**spec, "tasks": {"sst": {**spec["tasks"]["sst"], "head": {"name": "elsewhere"}}}}
        changed = [
            PlannedCell(id=id, label=id, seed=0, status="new", spec=each, versions={}, stage_keys=())
            for id, each in (("wide", wide), ("gone", gone))
        ]
        ledger.record_grid("changed", {}, changed)
        for one in changed:
            ledger.write(Event("started", one.id, {"versions": {"taskloom": "0.0.1"}}))
            ledger.write(Event("finished", one.id, {"scores": {}, "seconds": 1.0}))
    shutil.copytree(best, copy / "cells" / "wide" / "best")
    message = refused(taskloom("predict", "wide", registry=copy))
    assert "do not fit" in message
    assert "trained with taskloom 0.0.1" in message
    assert "no head 'elsewhere'" in refused(taskloom("predict", "gone", registry=copy))

    tensors = best / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert "best is damaged" in refused(taskloom("predict", cell, registry=copy))
    shutil.rmtree(best)
    assert "best cannot be read" in refused(taskloom("predict", cell, registry=copy))


# The course's files


def test_the_course_files_character_by_character() -> None:
    two = Examples((("a", "b"),), None, ("f00", "ba2"))
    assert course_file("sst", two, np.array([3.0, 0.0])) == "id \t Predicted_Sentiment \nf00 , 3 \nba2 , 0 \n"
    assert course_file("cfimdb", two, np.array([1.0, 0.0])) == "id \t Predicted_Sentiment \nf00 , 1 \nba2 , 0 \n"
    assert course_file("para", two, np.array([1.0, 0.0])) == "id \t Predicted_Is_Paraphrase \nf00 , 1.0 \nba2 , 0.0 \n"
    values = np.array([2.5, 0.1], np.float32).astype(np.float64)
    assert course_file("sts", two, values) == "id \t Predicted_Similiary \nf00 , 2.5 \nba2 , 0.1 \n"


def test_a_single_precision_number_is_written_so_that_it_can_be_read_back() -> None:
    values = (np.random.default_rng(0).random(500) * 5).astype(np.float32)
    ids = tuple(map(str, range(500)))
    lines = course_file("sts", Examples((ids,), None, ids), values.astype(np.float64)).splitlines()[1:]
    read = [np.float32(line.split(" , ")[1]) for line in lines]
    assert read == values.tolist()
    assert max(map(len, lines)) < 20  # the digits of a float32, not of a float64


def test_ids_with_commas_and_quotes_survive_in_a_plain_table() -> None:
    ids = ("a,b", 'say "x"')
    text = table(Examples((ids,), None, ids), np.array([1.0, 2.0]), classes=5)
    assert list(csv.reader(text.splitlines())) == [["id", "prediction"], ["a,b", "1"], ['say "x"', "2"]]


def test_files_are_called_as_the_course_calls_them_whatever_the_task_is_called() -> None:
    for task in ("sst", "para", "sts", "cfimdb"):
        assert file_name("mine", {"name": "cs224n", "task": task}, "dev", "submission") == f"{task}-dev-output.csv"
    assert file_name("mine", {"name": "table"}, "test", "submission") == "mine-test-output.csv"


def course_task(task: str, folder: Path, **rest: Any) -> dict[str, Any]:
    return {"data": {"name": "cs224n", "task": task, "dir": str(folder), "limit": 16}, **rest}


def ids_in(path: Path) -> list[str]:
    """The ids of a course file by other means than ours: the field of 25 hexadecimal digits in each line."""
    found = [re.search(r"\b[0-9a-f]{20,}\b", line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [match.group() for match in found if match]


def test_submission_files_for_the_real_unlabelled_test_sets(
    course_data: Path, tmp_path: Path, taskloom: Invoke
) -> None:
    tasks = {
        "sst": course_task("sst", course_data),
        "para": course_task("para", course_data, head={"name": "linear", "reads": "pair"}, loss="binary_cross_entropy"),
        "similarity": course_task("sts", course_data, head="cosine", loss="mse", metric="pearson"),
    }
    plan = train(
        tmp_path, {"tasks": tasks, "stages": [{"epochs": 1, "sampler": {"name": "round_robin", "batch_size": 8}}]}
    )
    cell, registry = plan.cells[0].id, tmp_path / "registry"

    dev = taskloom("predict", "mine", "--split", "dev", "--out", "handed-in", registry=registry)
    assert dev.exit_code == 0
    for name, file in (("sst", "sst"), ("para", "para"), ("similarity", "sts")):
        lines = Path(f"handed-in/{file}-dev-output.csv").read_text().splitlines()[1:]
        pairs = [line.split(" , ") for line in lines]
        expected = kept(registry, cell, name)
        assert [id for id, _ in pairs] == [one["id"] for one in expected]
        assert [np.float32(value) for _, value in pairs] == [np.float32(one["predicted"]) for one in expected]

    result = taskloom("predict", cell, registry=registry)
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
    elsewhere = taskloom("predict", cell, "--data", course_data.parent, "--out", "again", registry=registry)
    assert elsewhere.exit_code == 1
    assert "quora-test-student.csv" in elsewhere.stderr
    assert len(list(Path("again").iterdir())) == 2
    assert "nothing was written" in refused(taskloom("predict", cell, "--task", "para", registry=registry))


def test_test_files_may_lie_apart_from_what_was_trained_on(tmp_path: Path, taskloom: Invoke) -> None:
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
    assert "--format jsonl" in refused(taskloom("predict", cell, registry=registry)), "both are sst-test-output.csv"
    one = ("predict", cell, "--task", "again")
    assert "no file 'ids-sst-test-student.csv'" in refused(taskloom(*one, registry=registry))

    write("new/cs224n", "ids-sst-test-student.csv", 200, labelled=False)
    with (tmp_path / "new/cs224n/ids-sst-test-student.csv").open("a") as file:
        file.write(f"200\t{200:025x}\t\n")  # no sentence
    result = taskloom(*one, "--data", "new", registry=registry)
    assert result.exit_code == 0
    assert "ids-sst-test-student.csv, line 202:" in result.stderr
    lines = Path("predictions/sst-test-output.csv").read_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"{row:025x}" for row in range(200)]
