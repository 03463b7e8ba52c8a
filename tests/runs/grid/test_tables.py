"""What the command line changes is a table of its own: no result ever leaves a table without a line."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core.errors import TaskloomError
from taskloom.core.specs import GridSpec
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli import cli
from taskloom.runs.grid.naming import derived_names
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.planned import PlannedCell

BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256, "pooling": "mean"},
    "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16}}},
    "stages": [{"epochs": 1, "optimizer": {"lr": 0.001}}],
}
GRID: dict[str, Any] = {
    "base": BASE,
    "cells": [
        {"label": "sum", "reported": {"sst": 0.5}},
        {"label": "mean", "set": {"stages.0.combiner": "mean"}},
        {"label": "clipped", "set": {"stages.0.clip": 0.1}},
    ],
    "baseline": "sum",
    "claims": [{"says": "clipping helps", "better": "clipped", "than": "sum"}],
}
LR = ("--set", "stages.0.optimizer.lr=0.01")
Rows = dict[str, tuple[int, float | None]]


class Registry:
    """A registry in a folder of its own, asked by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grid = self.write("grid.json")

    def write(self, place: str, **changes: Any) -> Path:
        path = self.folder / place
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps({**GRID, **changes}))
        return path

    def __call__(self, *arguments: object) -> Result:
        environment = {"TASKLOOM_REGISTRY": str(self.folder / "registry"), "TASKLOOM_ENGINE": "inline"}
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)

    def run(self, *options: object, grid: object = None) -> str:
        """What a run that succeeds says beside its table."""
        done = self("run", grid or self.grid, *options)
        assert done.exit_code == 0, done.stderr
        return done.stderr

    def rows(self, grid: object = None) -> Rows:
        """Label → number of finished seeds, and the overall score."""
        found = self("table", grid or self.grid, "--format", "json")
        assert found.exit_code == 0, found.stderr
        return {row["label"]: (row["n"], row["metrics"]["overall"]["mean"]) for row in json.loads(found.stdout)["rows"]}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


WAYS: dict[str, tuple[tuple[str, ...], str]] = {
    "a setting": (LR, "grid+lr=0.01"),
    "epochs": (("--epochs", "0"), "grid+max-epochs=0"),
    "two settings": ((*LR, "--set", 'stages.*.schedule={"name":"linear"}'), "grid+schedule=linear+lr=0.01"),
    "some rows": (("--only", "m*", *LR), "grid+lr=0.01"),
    "a component": (("--only", "mean", "--set", "stages.0.sampler=sequential"), "grid+sampler=sequential"),
    "only": (("--only", "mean"), "grid"),
    "seeds": (("--seeds", "+1"), "grid"),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_run_takes_a_result_out_of_a_table(registry: Registry, way: str) -> None:
    registry.run()
    before = registry.rows()
    options, table = WAYS[way]
    said = registry.run(*options)
    if way != "seeds":
        assert registry.rows() == before
    if table != "grid":
        assert f"'{table}'" in said
        overrides = [word for word in options if word not in ("--only", "m*", "mean")]
        shown = registry("table", registry.grid, *overrides, "--format", "json")
        assert shown.stdout == registry("table", table, "--format", "json").stdout, "found by its options and its name"
        chosen = [row for row in before if "--only" not in options or row.startswith("m")]
        assert {row: n for row, (n, _) in registry.rows(table).items()} == {row: int(row in chosen) for row in before}
        registry.run(grid=table)
        assert {n for n, _ in registry.rows(table).values()} == {1}, "its name continues it"
    after = registry.rows()
    registry.run()
    assert registry.rows() == after
    assert {grid["name"] for grid in json.loads(registry("grids", "--json").stdout)["recorded"]} == {"grid", table}


def planned(registry: Registry, *options: str, grid: object = None) -> tuple[str, list[dict[str, Any]]]:
    """The name of the table of a plan, and its cells."""
    plan = registry("plan", grid or registry.grid, *options, "--json")
    assert plan.exit_code == 0, plan.stderr
    names = [line.split("'")[1] for line in plan.stderr.splitlines() if "table of its own" in line]
    return names[0] if names else "", json.loads(plan.stdout)["cells"]


def test_a_name_is_short_and_no_two_tables_share_one(registry: Registry) -> None:
    two = [{"epochs": 1}, {"epochs": 1}]
    registry.grid = registry.write("grid.json", base={**BASE, "stages": two}, claims=[])
    first, second = ("--set", "stages.0.epochs=0"), ("--set", "stages.1.epochs=0")
    assert planned(registry, *first)[0] == planned(registry, *second)[0] == "grid+epochs=0"
    registry.run(*first, "--only", "sum")
    assert planned(registry, *first)[0] == "grid+epochs=0"
    assert re.fullmatch(r"grid\+epochs=0-[0-9a-f]{6}", planned(registry, *second)[0])
    for value in ("/a folder/of weights" * 9, {"name": "other", "options": [1] * 99}, "ß" * 200):
        for name in derived_names("grid", Overrides(settings={"encoder": value, "stages.*.clip": 1})):
            assert len(name) <= 94
            assert GridSpec(name=name).name == name, "valid as a name"


def test_the_order_of_settings_counts_only_where_one_contains_another(registry: Registry) -> None:
    clip, name = ("--set", "stages.0.clip=1"), "grid+clip=1+lr=0.01"
    assert planned(registry, *LR, *clip)[0] == planned(registry, *clip, *LR)[0] == name
    every, first = ("--set", "stages.*.clip=2"), ("--set", "stages.0.clip=1")
    registry.run(*every, *first, "--only", "sum")
    other, cells = planned(registry, *first, *every)
    assert other == "grid+clip=1+clip=2"
    assert {cell["spec"]["stages"][0]["clip"] for cell in cells} == {2}


def test_of_a_path_that_is_set_twice_the_last_value_counts(registry: Registry) -> None:
    every, first = "stages.*.clip=2", "stages.0.clip=1"
    _, cells = planned(registry, "--set", every, "--set", first, "--set", every)
    assert {cell["spec"]["stages"][0]["clip"] for cell in cells} == {2}


def test_weights_are_those_of_the_option_whatever_encoder_is_set(registry: Registry) -> None:
    encoder = "encoder=" + json.dumps({"name": "minbert", "weights": "none-such"})
    _, cells = planned(registry, "--set", encoder, "--weights", "minilm")
    assert {cell["spec"]["encoder"]["weights"] for cell in cells} == {"minilm"}


def test_one_relative_path_in_two_folders_is_two_tables(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"name": "table", "text": "text", "label": "label", "classes": 2, "train": "a.csv", "dev": "a.csv"}
    registry.grid = registry.write("grid.json", base={**BASE, "tasks": {"sst": {"data": data}}})
    names = []
    for folder, text in (("first", "good"), ("second", "bad")):
        (registry.folder / folder).mkdir()
        (registry.folder / folder / "b.csv").write_text(
            "text,label\n" + "".join(f"{text} {n},{n % 2}\n" for n in range(20))
        )
        monkeypatch.chdir(registry.folder / folder)
        options = ("--set", "tasks.sst.data.train=b.csv", "--set", "tasks.sst.data.dev=./b.csv")
        registry.run(*options, "--only", "sum")
        names.append(planned(registry, *options)[0])
        assert registry("table", registry.grid, *options).exit_code == 0, "found by the same options"
    assert names[0] == "grid+dev=b.csv+train=b.csv"
    assert re.fullmatch(re.escape(names[0]) + "-[0-9a-f]{6}", names[1])
    _, cells = planned(registry, grid=names[0])
    assert {cell["status"] for cell in cells if cell["label"] == "sum"} == {"finished"}, "continued from any folder"


def test_a_smoke_table_stays_a_smoke_table(registry: Registry) -> None:
    registry.run("--smoke", "--only", "sum")
    before = registry.rows("grid-smoke")
    for options in ((), ("--smoke",)):
        registry.run(*options, "--only", "sum", grid="grid-smoke")
        assert registry.rows("grid-smoke") == before
    assert [grid["name"] for grid in json.loads(registry("grids", "--json").stdout)["recorded"]] == ["grid-smoke"]


def test_a_table_with_settings_of_its_own_is_no_grid_to_change(registry: Registry) -> None:
    registry.run(*LR, "--only", "sum")
    folder, table = registry.folder / "registry", "grid+lr=0.01"
    assert Grid(table, registry=folder).table().found.rows
    for change in (
        lambda: Grid(table, registry=folder).seeds(0),
        lambda: Grid(table, registry=folder).set("stages.0.clip", 1),
        lambda: Grid(table, registry=folder, name="mine").plan(),
    ):
        with pytest.raises(TaskloomError, match=r"settings of its own \(stages.0.optimizer.lr = 0.01\)"):
            change()


def test_a_misspelt_name_with_a_dot_is_no_file(registry: Registry) -> None:
    registry.run(*LR, "--only", "sum")
    refused = registry("table", "grid+lr=0.001")
    assert refused.exit_code == 2
    assert "did you mean 'grid+lr=0.01'" in refused.stderr


def test_another_table_is_not_shown_before_its_run_and_shares_cells_that_do_not_change(registry: Registry) -> None:
    registry.run()
    refused = registry("table", registry.grid, "--set", "stages.0.clip=0.1")
    assert refused.exit_code == 2
    assert "'grid+clip=0.1' was not run" in refused.stderr
    _, cells = planned(registry, "--set", "stages.0.clip=0.1")
    assert {cell["label"]: cell["status"] for cell in cells} == {
        "sum": "finished",  # as "clipped" was
        "mean": "new",
        "clipped": "finished",
    }


def test_settings_over_a_changed_table_add_up(registry: Registry) -> None:
    registry.run(*LR, "--only", "sum")
    assert planned(registry, *LR, grid="grid+lr=0.01")[0] == "grid+lr=0.01"
    table, cells = planned(registry, "--set", "stages.0.clip=1", grid="grid+lr=0.01")
    assert table == "grid+lr=0.01+clip=1"
    stages = [cell["spec"]["stages"][0] for cell in cells]
    assert {(stage["clip"], stage["optimizer"]["lr"]) for stage in stages} == {(1, 0.01)}
    registry.run("--smoke", "--only", "sum", grid="grid+lr=0.01")
    assert "lr = 0.01" in registry("table", "grid+lr=0.01-smoke").stdout


def test_changed_rows_in_the_table_of_an_older_version_are_shown(registry: Registry, tmp_path: Path) -> None:
    registry.run()
    registry.run(*LR)
    with Ledger.open(registry.folder / "registry", create=False) as ledger:
        grid, changed = ledger.grid("grid"), ledger.grid("grid+lr=0.01")
        rows = [*grid.cells, *(replace(row, label=f"{row.label} [lr=0.01]") for row in changed.cells)]
        cells = [PlannedCell(row.cell.id, row.label, row.seed, "finished", row.cell.spec, {}) for row in rows]
        settings = {"stages.0.optimizer.lr": 0.01}
        change = {"settings": settings, "epochs": None, "label": "lr=0.01", "rows": ["sum", "mean", "clipped"]}
        ledger.record_grid("grid", {**grid.spec, "changes": [change]}, cells)
    assert {*registry.rows()} == {row.label for row in rows}
    assert "has changed" not in registry("table", registry.grid).stderr
    assert "stages.0.optimizer.lr" in registry("effects", registry.grid, "--json").stdout
    assert registry("claims", registry.grid).exit_code == 0
    assert registry("archive", "grid", tmp_path / "mixed.zip").exit_code == 0
    elsewhere = Registry(tmp_path / "elsewhere")
    imported = elsewhere("import", tmp_path / "mixed.zip")
    assert imported.exit_code == 0, imported.stderr
    assert elsewhere.rows("grid") == registry.rows()
    assert "no longer shows 3 results" in registry.run()
    assert {*registry.rows()} == {"sum", "mean", "clipped"}
    assert {cell["status"] for cell in planned(registry, *LR)[1]} == {"finished"}


def test_with_a_name_it_is_a_table_of_its_own(registry: Registry) -> None:
    registry.run()
    before = registry.rows()
    registry.run("--only", "sum", *LR, "--name", "fast")
    registry.run("--only", "clipped", *LR, "--name", "fast")
    assert {row: n for row, (n, _) in registry.rows("fast").items()} == {"sum": 1, "mean": 0, "clipped": 1}
    assert registry.rows() == before
    assert "Run with stages.0.optimizer.lr = 0.01." in registry("table", "fast").stdout
    assert "clipping helps" in registry("claims", "fast").stdout
    registry.run("--name", "fast")
    specs = [cell["spec"] for cell in json.loads(registry("cells", "fast", "--json").stdout)["cells"]]
    assert [spec["stages"][0]["optimizer"]["lr"] for spec in specs] == [0.01] * 3, "a name keeps its settings"
    assert registry("explain", "fast").exit_code == 0
    for options, words in (
        (("--set", "stages.0.clip=1", "--name", "fast"), "stages.0.optimizer.lr = 0.01"),
        (("--name", "grid"), "the grid's own name"),
        (("--name", "a b"), "letters, digits"),
    ):
        refused = registry("run", registry.grid, *options)
        assert refused.exit_code == 2
        assert words in refused.stderr
    other = registry("run", registry.write("other.json"), "--name", "fast")
    assert other.exit_code == 2
    assert "another grid is called 'fast'" in other.stderr


def test_two_files_of_one_name_are_two_grids(registry: Registry) -> None:
    one, two = (
        registry.write("a/grid.json"),
        registry.write("b/grid.json", cells=[{"label": "other"}], baseline="other", claims=[]),
    )
    registry.run(grid=one)
    registry.run(grid=two)
    assert {*registry.rows(one)} == {"sum", "mean", "clipped"}
    assert {*registry.rows(two)} == {*registry.rows("b/grid")} == {"other"}
    listed = json.loads(registry("grids", "--json").stdout)["recorded"]
    assert [grid["name"] for grid in listed] == ["b/grid", "grid"]
    said = registry("table", "grid")
    assert "sum" in said.stdout
    assert str(one) in said.stderr
    assert "b/grid" in said.stderr, "what to type for the other"
    registry.write("a/grid.json", cells=GRID["cells"][:2], claims=[])
    registry.run(grid=one)
    assert {*registry.rows(one)} == {"sum", "mean"}, "an edited file is the same grid"
    one.rename(registry.folder / "moved.json").rename(registry.write("c/grid.json"))
    registry.run(grid=registry.folder / "c" / "grid.json")
    assert {*registry.rows("grid")} == {"sum", "mean"}, "and so is one that was moved"
    assert registry("explain", "b/grid").exit_code == 0
    assert planned(registry, *LR, grid=two)[0] == planned(registry, *LR, grid="b/grid")[0] == "b/grid+lr=0.01"


def test_what_an_edit_takes_out_of_the_table_is_said(registry: Registry) -> None:
    registry.run()
    registry.write("grid.json", cells=GRID["cells"][:2], claims=[])
    said = registry.run()
    assert "no longer shows 1 result" in said
    assert "'clipped'" in said
    assert {*registry.rows()} == {"sum", "mean"}
    earlier = [cell for cell in json.loads(registry("cells", "--json").stdout)["cells"] if "(earlier)" in cell["label"]]
    assert {(cell["grid"], cell["label"]) for cell in earlier} == {("grid", "clipped (earlier)")}


def test_a_row_that_cannot_be_planned_today_keeps_its_result(registry: Registry) -> None:
    rows = [{"text": f"some words {n}", "label": n % 2} for n in range(24)]
    data = registry.folder / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = {"name": "table", "train": str(data), "dev_share": 0.5, "text": "text", "label": "label", "classes": 2}
    registry.grid = registry.write(
        "grid.json", cells=[*GRID["cells"], {"label": "file", "set": {"tasks.sst.data": table}}]
    )
    registry.run()
    before = registry.rows()
    data.unlink()
    registry.run("--only", "sum", "--seeds", "0")
    assert registry.rows() == before


# Grids that extend packaged ones


def test_a_grid_that_extends_another_has_all_its_rows(registry: Registry) -> None:
    def labels(**grid: Any) -> list[tuple[str, int]]:
        path = registry.folder / "mine.json"
        path.write_text(json.dumps({"extends": "quickstart", **grid}))
        planned = registry("plan", path, "--json")
        assert planned.exit_code == 0, planned.stderr
        return [(cell["label"], cell["seed"]) for cell in json.loads(planned.stdout)["cells"]]

    def packaged(*options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(registry("plan", "quickstart", "--json", *options).stdout)["cells"]
        return found

    plain = [(cell["label"], cell["seed"]) for cell in packaged()]
    assert labels() == plain
    assert {seed for _, seed in labels(seeds=[5])} == {5}, "what the file says goes first"
    extra = {"label": "clipped", "set": {"stages.0.clip": 1}}
    claim = {"better": "clipped", "than": "sum"}
    assert labels(cells=[extra], claims=[claim]) == [*plain, *(("clipped", seed) for seed in (0, 1, 2))]
    mine = registry.folder / "mine.json"
    registry.run("--smoke", grid=mine)
    with Ledger.open(registry.folder / "registry", create=False) as ledger:
        spec = ledger.grid("mine-smoke").spec
    assert [each.get("than") for each in spec["claims"]] == ["sum", "cosine loss", "sum"]
    assert spec["baseline"] == "sum"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"extends": "quikstart"}, "did you mean 'quickstart'"),
        ({"extends": 3}, "extends"),
        ({"extends": "quickstart", "cells": [{"label": "sum"}]}, "two rows would be called 'sum'"),
        ({"extends": "quickstart", "cells": 3}, "cells"),
        ({"seeds": [0]}, '"extends"'),
    ],
)
def test_what_cannot_be_extended_gets_a_sentence(registry: Registry, grid: dict[str, Any], words: str) -> None:
    path = registry.folder / "mine.json"
    path.write_text(json.dumps(grid))
    refused = registry("validate", path)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert isinstance(refused.exception, SystemExit)


def test_a_packaged_grid_is_printed_as_it_is_written(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = registry("grids", "quickstart")
    mine = registry.folder / "mine.json"
    mine.write_text(printed.stdout)
    ask: Callable[[object], Any] = lambda grid: json.loads(registry("plan", grid, "--json").stdout)  # noqa: E731
    assert ask(mine) == ask("quickstart")
    wrong = registry("grids", "quikstart")
    assert wrong.exit_code == 2
    assert "did you mean 'quickstart'" in wrong.stderr


def test_a_row_that_is_called_otherwise_is_still_shown_and_so_not_missed(registry: Registry) -> None:
    registry.run()
    registry.write("grid.json", cells=[{"label": "added up"}, *GRID["cells"][1:]], baseline=None, claims=[])
    assert "no longer shows" not in registry.run()
    assert {*registry.rows()} == {"added up", "mean", "clipped"}


def test_an_imported_grid_is_not_replaced_by_a_file_of_its_name(tmp_path: Path) -> None:
    here, there = Registry(tmp_path / "here"), Registry(tmp_path / "there")
    there.run()
    assert there("archive", "grid", tmp_path / "theirs.zip").exit_code == 0
    assert here("import", tmp_path / "theirs.zip").exit_code == 0
    theirs = here.rows("grid")
    another = here.write("mine/grid.json", cells=[{"label": "mine"}], baseline=None, claims=[])
    here.run(grid=another)
    assert here.rows("grid") == theirs
    assert {*here.rows("mine/grid")} == {"mine"}
    here.run("--seeds", "+1")
    assert {seeds for seeds, _ in here.rows("grid").values()} == {2}, "the same grid in a file is that grid"


def test_an_own_archive_of_a_second_file_brings_nothing_new(registry: Registry, tmp_path: Path) -> None:
    registry.run()
    second = registry.write("b/grid.json", cells=GRID["cells"][:1], claims=[])
    registry.run(grid=second)
    assert registry("archive", second, tmp_path / "own.zip").exit_code == 0
    before = registry("grids", "--json").stdout
    assert "Grids: b/grid" in registry("import", tmp_path / "own.zip").stdout
    assert registry("grids", "--json").stdout == before
