"""A relative path in a grid's file begins at that file, wherever the shell is, and what a run read is found later."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core import RequestError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid
from taskloom.runs.cli import cli
from taskloom.runs.grid.contents import read_split
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.plan import Plan, make_plan

ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256, "pooling": "mean"}
MOOD = {
    "name": "table",
    "train": ["corpus/2023.csv", "corpus/2024.csv"],
    "dev": "corpus/dev.csv",
    "test": "corpus/test.csv",
    "text": "text",
    "label": "mood",
    "classes": {"glad": 2, "happy": 2, "so so": 1, "sad": 0},
}
WORDS = {"glad": "lovely", "happy": "bright", "so so": "plain", "sad": "dull"}


def write_corpus(folder: Path) -> None:
    """Three files of reviews; every third row has no mood."""
    folder.mkdir(parents=True)
    for name, first in (("2023", 0), ("2024", 60), ("dev", 120)):
        lines = ["text,mood,stars"]
        for n in range(first, first + 60):
            mood = list(WORDS)[n % 4]
            lines.append(f"film {n} is {WORDS[mood]},{mood if n % 3 else ''},{n % 5}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def write_grid(folder: Path, data: dict[str, Any] = MOOD, **changes: Any) -> Path:
    stages = [{"epochs": 1, "optimizer": {"lr": 0.003}}]
    base = {"encoder": ENCODER, "tasks": {"mood": {"data": data}}, "stages": stages, **changes}
    path = folder / "reviews.json"
    path.write_text(json.dumps({"base": base, "axes": {"stages.0.combiner": ["sum", "mean"]}}))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a grid and its data, which is not the current one."""
    write_corpus(tmp_path / "project" / "corpus")
    return write_grid(tmp_path / "project").parent


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


@pytest.fixture
def taskloom(tmp_path: Path) -> Callable[..., Result]:
    def invoke(*arguments: object) -> Result:
        environment = {"TASKLOOM_REGISTRY": str(tmp_path / "registry")}
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)

    return invoke


def planned(grid: Path | str, **overrides: Any) -> Plan:
    return make_plan(load_grid(str(grid)), load_catalogue(), None, overrides=Overrides(**overrides))


def data_of(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = plan.cells[0].spec["tasks"]["mood"]["data"]
    return found


def ids(plan: Plan) -> list[str]:
    return [cell.id for cell in plan.cells]


# Beside the grid


def test_a_grid_means_the_same_from_every_folder(
    project: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = planned(project / "reviews.json")
    assert data_of(there)["dev"] == str(project / "corpus" / "dev.csv")
    assert data_of(there)["train"] == [str(project / "corpus" / f"{year}.csv") for year in (2023, 2024)]
    monkeypatch.chdir(project)
    here = planned("reviews.json")
    assert [cell.spec for cell in here.cells] == [cell.spec for cell in there.cells]
    assert not [line for line in (*here.notes, *there.notes) if "folder" in line]


def test_where_the_folder_is_is_no_part_of_an_identity(project: Path, elsewhere: Path) -> None:
    shutil.copytree(project, elsewhere / "copy")
    copy = planned(elsewhere / "copy" / "reviews.json")
    assert ids(copy) == ids(planned(project / "reviews.json"))
    assert data_of(copy)["dev"].startswith(str(elsewhere))


def test_what_is_beside_the_grid_goes_before_what_is_in_the_current_folder(project: Path, elsewhere: Path) -> None:
    write_corpus(elsewhere / "corpus")
    (elsewhere / "corpus" / "dev.csv").write_text("text,mood\nanother,glad\n")
    assert data_of(planned(project / "reviews.json"))["dev"].startswith(str(project))


def test_what_is_only_in_the_current_folder_is_taken_and_said(project: Path, elsewhere: Path) -> None:
    before = ids(planned(project / "reviews.json"))
    (project / "corpus").rename(elsewhere / "corpus")
    plan = planned(project / "reviews.json")
    assert ids(plan) == before
    assert data_of(plan)["dev"] == str(elsewhere / "corpus" / "dev.csv")
    files = "'corpus/2023.csv', 'corpus/2024.csv', 'corpus/dev.csv'"
    assert f"in the current folder, not in the grid's ({project}): {files}" in plan.notes
    assert not [line for line in planned(project / "reviews.json", smoke=True).notes if "current folder" in line]


def test_what_is_nowhere_says_where_it_was_looked_for(
    project: Path, elsewhere: Path, taskloom: Callable[..., Result]
) -> None:
    (project / "corpus").rename(project / "corpora")
    refused = taskloom("validate", project / "reviews.json")
    assert refused.exit_code == 2
    assert "no folder 'corpus'; did you mean 'corpora'?" in refused.stderr
    assert f"(in {project}: corpora); nor is it in the current folder, {elsewhere}; --data FOLDER" in refused.stderr
    # A test file may come later; only its absence is no reason to say where it was looked for.
    (project / "corpora").rename(project / "corpus")
    other = write_grid(project, {**MOOD, "text": "words"})
    assert taskloom("validate", other).stderr.count("folder") == 0


def test_absolute_paths_variables_and_homes_stay_as_they_are_written(
    project: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT", str(project))
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("NAME", "corpus")
    files = {"dev": "$PROJECT/corpus/dev.csv", "test": "~/corpus/test.csv"}
    train = [str(project / "corpus" / "2023.csv"), "$NAME/2024.csv"]
    data = data_of(planned(write_grid(project, {**MOOD, **files, "train": train})))
    assert {key: data[key] for key in files} == files
    assert data["train"] == [train[0], str(project / "corpus" / "2024.csv")]


def test_paths_of_the_command_line_begin_in_the_current_folder(project: Path, elsewhere: Path) -> None:
    write_corpus(elsewhere / "corpus")
    setting = {"tasks.mood.data.dev": "corpus/dev.csv"}
    plan = planned(project / "reviews.json", settings=setting, name="mine")
    assert data_of(plan)["dev"] == str(elsewhere / "corpus" / "dev.csv")
    assert data_of(plan)["train"][0].startswith(str(project))


def test_a_packaged_grid_begins_in_the_current_folder(project: Path) -> None:
    assert load_grid("cosine-surgery").folder is None
    assert load_grid(str(project / "reviews.json")).folder == project


def test_an_axis_keeps_its_labels_and_an_exclusion_its_values(project: Path, elsewhere: Path) -> None:
    write_grid(project)
    grid = json.loads((project / "reviews.json").read_text())
    grid["axes"]["tasks.mood.data.dev"] = ["corpus/dev.csv", "corpus/2024.csv"]
    grid["exclude"] = [{"stages.0.combiner": "mean", "tasks.mood.data.dev": "corpus/2024.csv"}]
    (project / "reviews.json").write_text(json.dumps(grid))
    assert [cell.label for cell in planned(project / "reviews.json").cells] == [
        "sum, corpus/dev.csv",
        "sum, corpus/2024.csv",
        "mean, corpus/dev.csv",
    ]


def test_weights_are_a_folder_only_where_there_is_one(project: Path, elsewhere: Path, minilm: Path) -> None:
    def weights(given: str, **overrides: Any) -> str:
        found: str = (
            planned(write_grid(project, encoder={"name": "minbert", "weights": given}), **overrides)
            .cells[0]
            .spec["encoder"]["weights"]
        )
        return found

    (project / "model").symlink_to(minilm)
    assert weights("model") == weights("./model") == str(project / "model")
    assert weights("minilm") == "minilm"
    (elsewhere / "other").symlink_to(minilm)
    assert weights("model", weights="other", name="mine") == str(elsewhere / "other")


def test_a_grid_that_is_changed_in_python_keeps_its_folder(project: Path, elsewhere: Path, tmp_path: Path) -> None:
    grid = Grid(project / "reviews.json", registry=tmp_path / "registry")
    for made in (grid, grid.seeds(4), Grid(project / "reviews.json", name="mine", registry=tmp_path / "registry")):
        assert data_of(made.plan().found)["dev"] == str(project / "corpus" / "dev.csv")
    assert Grid("quickstart").seeds(7).file.folder is None
    grid.run(engine="inline", progress=False)
    assert Grid("reviews", registry=tmp_path / "registry").file.folder == project


# In a folder of the data set's name


def write_sst(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        rows = "\n".join(f"{i}\tid{i}\t{split} words {i}\t{i % 5}" for i in range(10))
        (folder / f"ids-sst-{split}.csv").write_text(f"\tid\tsentence\tsentiment\n{rows}\n")


@pytest.mark.parametrize("place", ["data", "data/cs224n", "data/cs224n-2024"])
def test_a_dir_and_the_data_option_search_in_the_same_way(project: Path, elsewhere: Path, place: str) -> None:
    write_sst(project / place)
    grid = write_grid(project, {"name": "cs224n", "task": "sst", "dir": "data"})
    found = [planned(grid), planned(grid, data=project / "data"), planned(grid, data=project / place)]
    assert [data_of(plan)["dir"] for plan in found] == [str(project / place)] * 3
    assert found[0].notes == ()
    (project / "data").rename(elsewhere / "data")
    assert planned(grid).notes == (f"in the current folder, not in the grid's ({project}): 'data'",)
    (elsewhere / "data").rename(project / "data")
    missing = write_grid(project, {"name": "cs224n", "task": "sts", "dir": "data"})
    for overrides in ({}, {"data": project / "data"}):
        with pytest.raises(RequestError, match=f"no file 'sts-train.csv'; .* .in {project / place}: ids-sst"):
            planned(missing, **overrides)


def test_the_real_data_are_found_by_the_folder_that_holds_them_all(
    course_data: Path, sick_data: Path, tmp_path: Path
) -> None:
    both = {
        "mood": {"data": {"name": "cs224n", "task": "sst", "dir": "data", "limit": 64, "dev_limit": 32}},
        "nli": {
            "data": {"name": "sick", "task": "entailment", "dir": "data"},
            "head": {"name": "linear", "reads": "pair"},
        },
    }
    (tmp_path / "data").symlink_to(course_data.parent)
    plan = planned(write_grid(tmp_path, tasks=both))
    found = [task["data"]["dir"] for task in plan.cells[0].spec["tasks"].values()]
    assert found == [str(tmp_path / "data" / "cs224n"), str(tmp_path / "data" / "sick")]
    assert [(size.task, size.split, size.examples) for size in plan.data] == [
        ("mood", "train", 64),
        ("mood", "dev", 32),
        ("nli", "train", 4439),
        ("nli", "dev", 495),
    ]


# Later, and elsewhere


def test_files_of_a_table_are_taken_from_the_data_folder_if_they_are_there(project: Path, elsewhere: Path) -> None:
    before = ids(planned(project / "reviews.json"))
    (project / "corpus").rename(elsewhere / "corpus")
    for folder in (elsewhere, elsewhere / "corpus"):
        plan = planned(project / "reviews.json", data=folder)
        assert ids(plan) == before
        assert data_of(plan)["dev"] == str(elsewhere / "corpus" / "dev.csv")
    (elsewhere / "corpus").rename(project / "corpus")
    assert data_of(planned(project / "reviews.json", data=elsewhere))["dev"] == str(project / "corpus" / "dev.csv")


def test_names_and_texts_are_shown_wherever_the_shell_and_the_project_are(
    project: Path, elsewhere: Path, tmp_path: Path, taskloom: Callable[..., Result]
) -> None:
    ran = taskloom("run", project / "reviews.json")
    assert ran.exit_code == 0, ran.stderr
    assert "task 'mood': rows without its label are left out, 40 of train and 20 of dev" in ran.stderr
    assert "than always 'glad' (0.500)" in ran.stdout

    def shows_texts(*more: object) -> bool:
        for command in (("errors", "sum"), ("compare", "sum", "mean")):
            shown = taskloom(*command, "--limit", 99, *more).stdout
            assert "so so" in shown
        found = json.loads(taskloom("errors", "sum", "--json", *more).stdout)["tasks"][0]
        assert found["confusion"]["names"] == ["sad", "so so", "glad"]
        return all(example["texts"] for example in found["worst"])

    assert shows_texts()
    assert taskloom("report", "reviews", "--out", "report.html").exit_code == 0
    assert ">so so<" in (elsewhere / "report.html").read_text()
    project.rename(tmp_path / "moved")
    assert not shows_texts()
    assert shows_texts("--data", tmp_path / "moved")
    assert taskloom("run", tmp_path / "moved" / "reviews.json").exit_code == 0
    assert shows_texts()
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        recorded = ledger.grid("reviews").cells[0].cell.spec["tasks"]["mood"]["data"]
    assert len(read_split(recorded, "train")) == 80


def test_validate_counts_what_each_task_has(project: Path, taskloom: Callable[..., Result]) -> None:
    stars = {**MOOD, "label": "stars", "classes": 5, "limit": 50, "dev_limit": 10}
    grid = write_grid(project, tasks={"mood": {"data": MOOD}, "stars": {"data": stars}})
    with (project / "corpus" / "2023.csv").open("a") as file:
        file.write("".join(f"one more {n},sad,{n % 5}\n" for n in range(60)) + "the last,bad,9\n")
    found = json.loads(taskloom("validate", grid, "--json").stdout)["data"]
    sizes = ("task", "split", "examples", "unreadable", "unlabelled")
    assert [{name: facts[name] for name in sizes} for facts in found] == [
        {"task": "mood", "split": "train", "examples": 140, "unreadable": 1, "unlabelled": 40},
        {"task": "mood", "split": "dev", "examples": 40, "unreadable": 0, "unlabelled": 20},
        {"task": "stars", "split": "train", "examples": 50, "unreadable": 1, "unlabelled": 0},
        {"task": "stars", "split": "dev", "examples": 10, "unreadable": 0, "unlabelled": 0},
    ]
    shown = taskloom("validate", grid).stdout
    assert "2 cells in 2 rows" in shown
    assert shown.count("mood") == 2
