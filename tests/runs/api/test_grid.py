"""Grids from Python: a change makes a new grid, a grid is what it says however it is given, and nothing runs twice."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from click.testing import CliRunner
from recorded import Row, record

from taskloom.core.errors import RequestError, TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid
from taskloom.runs.api.find import NotRunError
from taskloom.runs.api.grid import PlanOptions
from taskloom.runs.cli import cli
from taskloom.runs.grid.overrides import Overrides

TINY: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16}}},
        "stages": [{"epochs": 1}],
    },
    "cells": [{"label": "sum"}, {"label": "slow", "set": {"stages.0.optimizer.lr": 0.0001}}],
    "baseline": "sum",
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def identities(grid: Grid) -> dict[tuple[str, int], str]:
    return {(cell.label, cell.seed): cell.id for cell in grid.plan().found.cells}


def test_a_grid_is_the_same_from_a_file_a_dictionary_and_the_registry(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    from_file = Grid("tiny.json")
    assert identities(Grid(TINY, name="mine")) == identities(from_file) == identities(Grid(Path("tiny.json")))
    Grid(TINY, name="mine").run(progress=False)
    assert identities(Grid("mine")) == identities(from_file)  # the registry knows it, no file does


def test_a_change_makes_a_new_grid_and_leaves_the_old() -> None:
    grid = Grid(TINY, name="mine")
    before = json.dumps(grid.file.raw), identities(grid)
    changes = [
        grid.axis("stages.0.combiner", ["sum", "pcgrad"]),
        grid.axis("stages.0.clip", {"clipped": 1.0}),
        grid.row("mean", {"stages.0.combiner": "mean"}),
        grid.seeds(3, 4),
        grid.set("stages.*.epochs", 2),
        grid.replace(margin=0.01, claims=[{"better": "slow", "than": "sum"}]),
    ]
    assert (json.dumps(grid.file.raw), identities(grid)) == before
    assert [sorted({label for label, _ in identities(each)}) for each in changes[:3]] == [
        ["pcgrad", "slow", "sum"],  # "sum" of the axis is the row of that label: they are one run
        ["clipped", "slow", "sum"],
        ["mean", "slow", "sum"],
    ]
    assert {seed for _, seed in identities(changes[3])} == {3, 4}
    assert not set(identities(changes[4]).values()) & set(before[1].values())
    assert identities(changes[5]) == before[1]


def test_a_change_is_what_the_file_with_the_same_change_is(tmp_path: Path) -> None:
    written = {**TINY, "axes": {"stages.0.clip": [1.0, 2.0]}, "seeds": [1, 2]}
    written["base"] = {**TINY["base"], "stages": [{"epochs": 2}]}
    (tmp_path / "changed.json").write_text(json.dumps(written))
    made = Grid(TINY, name="mine").axis("stages.0.clip", [1.0, 2.0]).seeds(1, 2).set("stages.0.epochs", 2)
    assert identities(made) == identities(Grid("changed.json"))


def test_rows_that_only_share_a_label_are_still_refused() -> None:
    with pytest.raises(RequestError, match="two rows would be called 'slow'"):
        Grid(TINY, name="mine").axis("stages.0.optimizer.lr", {"slow": 0.5}).plan()


def test_what_is_run_twice_is_trained_once() -> None:
    first = Grid(TINY, name="mine").run(progress=False)
    again = Grid(TINY, name="mine").run(progress=False)
    other = Grid(TINY, name="other").seeds(0, 1).run(progress=False, only="sum")
    assert (first.outcome.finished, first.failures) == (2, "")
    assert (again.outcome.finished, again.outcome.cached) == (0, 2)
    assert (other.outcome.finished, other.outcome.cached) == (1, 1)  # a cell is known by what it is, not by its grid
    assert again.as_json() == first.as_json() == Grid("mine").table().as_json()


def test_a_changed_grid_has_a_table_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    grid = Grid("tiny.json").seeds(0)
    changed, other = grid.row("mean", {"stages.0.combiner": "mean"}), grid.row("clipped", {"stages.0.clip": 1.0})
    names = {grid.name, changed.name, other.name}
    assert len(names) == 3
    assert all(name.startswith("tiny-") for name in names)
    assert changed.name == Grid("tiny.json").seeds(0).row("mean", {"stages.0.combiner": "mean"}).name
    changed.run(progress=False, only="mean")
    with Ledger.open("taskloom-runs", create=False) as ledger:
        assert ledger.grid_names() == [changed.name]
    assert [row.label for row in changed.table().found.rows] == ["sum", "slow", "mean"]
    with pytest.raises(NotRunError, match=rf"grid '{other.name}' was not run .*; `run\(\)` does that"):
        other.table()


def test_a_name_of_ones_own_is_kept_by_changes() -> None:
    grid = Grid("quickstart", name="mine")
    assert grid.name == grid.seeds(0).name == grid.seeds(0).set("stages.0.epochs", 1).name == "mine"
    assert repr(grid.seeds(0)) == "Grid('mine', registry='taskloom-runs')"


def test_names_that_another_grid_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    Grid("tiny.json").run(progress=False)
    for wrong in (Grid(TINY, name="quickstart"), Grid("tiny.json", name="tiny"), Grid(TINY, name="tiny")):
        for ask in (wrong.plan, wrong.run):
            with pytest.raises(TaskloomError, match="choose another"):
                ask()
    with pytest.raises(TaskloomError, match="needs a name"):
        Grid(TINY)
    with pytest.raises(RequestError, match="name: "):
        Grid(TINY, name="a/b").plan()


def test_a_table_says_if_its_grid_has_changed_since() -> None:
    Grid(TINY, name="mine").run(progress=False)
    answer = Grid(TINY, name="mine").seeds(0, 1).table()
    assert "has changed since it was last run" in answer.notes[0]
    assert "has changed since it was last run" in repr(answer)


def test_the_registry_is_that_of_the_environment_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKLOOM_REGISTRY", "~/mine")
    assert Grid("quickstart").registry == Path.home() / "mine"
    assert Grid("quickstart", registry="other").registry == Path("other")


def test_a_name_that_is_no_grid_is_refused_at_once() -> None:
    with pytest.raises(TaskloomError, match=r"no grid 'quikstart'; did you mean 'quickstart'\? \(packaged, "):
        Grid("quikstart")
    with pytest.raises(TaskloomError, match=r"'quickstart\.json' is not a file, and there is no packaged grid"):
        Grid("quickstart.json")


def test_a_name_of_the_registry_stands_for_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    Grid(file).run(progress=False)
    file.write_text(json.dumps({**TINY, "seeds": [0, 1]}))
    assert identities(Grid("tiny")) == identities(Grid(file))
    file.unlink()
    assert {seed for _, seed in identities(Grid("tiny"))} == {0}  # as it was last run


def test_all_errors_come_at_once_with_the_messages_of_the_command_line(tmp_path: Path) -> None:
    wrong = {**TINY, "axes": {"stages.0.combiner": ["pcgard"], "stages.4.epochs": [1]}, "seeds": [0, 0]}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    for ask in (Grid("wrong.json").plan, Grid("wrong.json").run):
        with pytest.raises(RequestError) as raised:
            ask()
        assert f"Error: {raised.value}\n" == CliRunner().invoke(cli, ["plan", "wrong.json"]).stderr
        assert len(raised.value.problems) == 3
    for request in ({"engine": "lokal"}, {"workers": 0, "engine": "local"}):
        with pytest.raises(RequestError, match="engine"):
            Grid(TINY, name="mine").run(**request)  # type: ignore[arg-type]
    wrong_seeds = ({"seeds": "+3"}, {"seeds": [-1]}, {"seeds": -1})
    for request in (*wrong_seeds, {"keep": "head"}, {"attempts": 0}, {"attempts": "3"}, {"timeout": -1}):
        with pytest.raises(TaskloomError, match=rf"{next(iter(request))} should be .* Found"):
            Grid(TINY, name="mine").run(**request)  # type: ignore[arg-type]
    assert not Path("taskloom-runs").exists()
    for change in (
        lambda grid: grid.set("stages.7.epochs", 1),
        lambda grid: grid.replace(baselin="sum").plan(),
        lambda grid: grid.axis("stages.0.clip", [object()]),
        lambda grid: grid.axis("stages.0.clip", 0.1),
        lambda grid: grid.axis("stages.0.combiner", "sum"),
        lambda grid: Grid(5),
    ):
        with pytest.raises(TaskloomError):
            change(Grid(TINY, name="mine"))


def test_what_is_laid_over_a_grid_is_what_the_command_line_lays_over_it() -> None:
    assert set(get_type_hints(PlanOptions)) - {"allow_large"} == set(vars(Overrides()))
    plan = Grid("quickstart").plan(smoke=True, only="sum", seeds=[5], settings={"stages.0.clip": 1})
    assert plan.found.grid.name == "quickstart+clip=1-smoke"
    assert {(cell.label, cell.seed) for cell in plan.found.chosen} == {("sum", 0), ("sum", 5)}


def test_answers_are_those_of_the_command_line() -> None:
    surgery = {"stages.0.combiner": {"name": "pcgrad"}}
    rows = [Row("sum"), Row("pcgrad", 1.3, set=surgery)]
    record(Path("taskloom-runs"), rows, name="mine", baseline="sum", claims=[{"better": "pcgrad", "than": "sum"}])
    grid = Grid("mine")
    for arguments, answer in {
        ("table", "mine"): grid.table(),
        ("table", "mine", "--metric", "macro_f1", "--sort", "overall"): grid.table(metric="macro_f1", sort="overall"),
        ("claims", "mine"): grid.claims(),
        ("effects", "mine", "--on", "sst"): grid.effects("sst"),
        ("seeds", "mine"): grid.seeds_needed(),
        ("compare", "sum", "pcgrad"): grid.compare("sum", "pcgrad"),
        ("errors", "sum"): grid.errors("sum"),
        ("cells", "mine"): grid.cells(),
    }.items():
        as_json = ["--format", "json"] if arguments[0] == "table" else ["--json"]
        said = CliRunner().invoke(cli, [*arguments, *as_json])
        assert json.loads(said.stdout) == json.loads(json.dumps(answer.as_json())), arguments
        plain = CliRunner().invoke(cli, arguments).stdout
        assert plain.startswith(str(answer)), arguments


def test_the_plan_and_its_reasons_are_those_of_the_command_line() -> None:
    Grid(TINY, name="mine").run(progress=False, only="sum")
    for command, answer in {"plan": Grid("mine").plan(), "explain": Grid("mine").explain()}.items():
        said = CliRunner().invoke(cli, [command, "mine", "--json"])
        assert json.loads(said.stdout) == json.loads(json.dumps(answer.as_json()))
        assert CliRunner().invoke(cli, [command, "mine"]).stdout == f"{answer}\n"


def test_published_figures_need_no_run() -> None:
    said = CliRunner().invoke(cli, ["table", "margin-for-error", "--reported"])
    assert said.stdout == f"{Grid('margin-for-error').table(reported=True)}\n"


def test_a_name_and_a_table_need_no_torch(tmp_path: Path) -> None:
    record(tmp_path / "taskloom-runs", [Row("sum"), Row("pcgrad")], name="mine", baseline="sum")
    code = (
        "import sys; from taskloom.runs import Grid; print('numpy' in sys.modules);"
        "Grid('mine').table(); Grid('quickstart').seeds(0); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_an_argument_that_is_not_there_is_named(tmp_path: Path) -> None:
    grid = Grid("quickstart", registry=tmp_path)
    with pytest.raises(TaskloomError, match="no argument 'epoch'; did you mean 'epochs'"):
        grid.plan(epoch=1)  # type: ignore[call-arg]
    with pytest.raises(TaskloomError, match=r"no argument 'devices' \(.* engine, .*workers\); .*'devices': 'cpu:2'}$"):
        grid.run(devices="cpu:2")  # type: ignore[call-arg]


WRONG: dict[str, Callable[[Any], object]] = {
    "epochs should be an integer. Found '1'.": lambda grid: grid.run(epochs="1"),
    "settings should hold what JSON can": lambda grid: grid.plan(settings={"stages.0.epochs": object()}),
    "settings should be a mapping from paths to values. Found ['a'].": lambda grid: grid.run(settings=["a"]),
    "settings should be a mapping from paths to values. Found 'a=1'.": lambda grid: grid.run(settings="a=1"),
    "settings should be a mapping from paths to values. Found ['x'].": lambda grid: grid.row("a", ["x"]),
    "only should be a pattern of rows, or a list of them. Found 3.": lambda grid: grid.run(only=3),
    "seeds should be a list of integers from 0 on": lambda grid: grid.plan(seeds=[True]),
    "engine should be the name of an engine": lambda grid: grid.run(engine=3),
    "trackers should be the name of a tracker": lambda grid: grid.run(trackers=[3]),
    "stop should be a taskloom.runs.driver.signals.Stop. Found 3.": lambda grid: grid.run(stop=3),
    "name should be a string that is not empty. Found 3.": lambda grid: Grid("quickstart", name=3),  # type: ignore[arg-type]
    "name should be a string that is not empty. Found ''.": lambda grid: Grid("quickstart", name=""),
    "registry should be a path. Found 3.": lambda grid: Grid("quickstart", registry=3),  # type: ignore[arg-type]
    "data should be a path. Found 3.": lambda grid: grid.plan(data=3),
    "out should be a path. Found 3.": lambda grid: grid.report(3),
    "path should be a string. Found 3.": lambda grid: Grid("quickstart").set(3, 1),  # type: ignore[arg-type]
    "base.stages.0.optimizer.lr should be a finite number. Found nan.": lambda grid: Grid("quickstart").set(
        "stages.0.optimizer.lr", float("nan")
    ),
    "metric should be a string. Found {'sst': 'f1'}.": lambda grid: grid.table(metric={"sst": "f1"}),
    "columns should be the name of a column": lambda grid: grid.table(columns=3),
    "seed should be an integer. Found '0'.": lambda grid: grid.cell("sum", seed="0"),
    "seed should be an integer. Found True.": lambda grid: grid.best(seed=True),
    "no figure 'bar'; did you mean 'bars'?": lambda grid: grid.plot("x.png", "bar"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_value_of_the_wrong_kind_is_named(message: str) -> None:
    record(Path("taskloom-runs"), [Row("sum"), Row("pcgrad")], name="mine", baseline="sum")
    with pytest.raises(TaskloomError, match=f"^{re.escape(message)}"):
        WRONG[message](Grid("mine"))


def test_none_is_nothing_given_and_numbers_may_be_those_of_numpy() -> None:
    grid = Grid(TINY, name="mine")
    nothing: dict[str, Any] = dict.fromkeys(PlanOptions.__annotations__)
    assert grid.plan(**nothing).as_json() == grid.plan().as_json()
    assert grid.set("stages.0.epochs", np.int64(2)).file.raw == grid.set("stages.0.epochs", 2).file.raw
    assert identities(grid.seeds(*np.arange(2))) == identities(grid.seeds(0, 1))
    numbers: Any = np.arange(2)
    assert grid.plan(seeds=numbers, epochs=np.int64(1)).as_json() == grid.plan(seeds=[0, 1], epochs=1).as_json()
