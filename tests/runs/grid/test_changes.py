"""What the command line changes stands beside what was there: no result ever leaves a table without a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

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
    "a setting": (LR, "lr=0.01"),
    "epochs": (("--epochs", "0"), "epochs≤0"),
    "two settings": ((*LR, "--set", 'stages.*.schedule={"name":"linear"}'), "lr=0.01, schedule=linear"),
    "some rows": (("--only", "m*", *LR), "lr=0.01"),
    "a component": (("--only", "mean", "--set", "stages.0.sampler=sequential"), "sampler=sequential"),
    "an option": (("--set", "stages.0.sampler.batch_size=4"), "batch_size=4"),
    "only": (("--only", "mean"), ""),
    "seeds": (("--seeds", "+1"), ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_run_of_a_grid_takes_a_result_out_of_its_table(registry: Registry, way: str) -> None:
    registry.run()
    before = registry.rows()
    options, label = WAYS[way]
    registry.run(*options)
    after = registry.rows()
    new = after.keys() - before.keys()
    assert {row for row in after if row in before} == {*before}
    if way != "seeds":
        assert {row: after[row] for row in before} == before, "under the same names"
    chosen = [row for row in before if "--only" not in options or row.startswith("m")]
    assert new == ({f"{row} [{label}]" for row in chosen} if label else set())
    assert all(after[row][0] == 1 for row in new), "and what is changed was run"
    registry.run()
    assert registry.rows() == after, "the grid as it is written leaves what was changed where it is"
    cells = json.loads(registry("cells", "--json").stdout)["cells"]
    assert all(cell["grid"] == "grid" and cell["label"] in after for cell in cells)


def test_changes_add_up_and_their_labels_say_what_they_are(registry: Registry) -> None:
    registry.run(*LR)
    assert {*registry.rows()} == {"sum [lr=0.01]", "mean [lr=0.01]", "clipped [lr=0.01]"}, "nothing else was run yet"
    registry.run("--only", "sum", "--set", "stages.0.optimizer.lr=0.1")
    registry.run("--only", "sum")
    registry.run("--only", "mean", *LR, "--seeds", "0-1")
    rows = registry.rows()
    assert list(rows) == [
        "sum",
        "sum [lr=0.01]",
        "sum [lr=0.1]",
        "mean",
        "mean [lr=0.01]",
        "clipped",
        "clipped [lr=0.01]",
    ]
    assert rows["mean [lr=0.01]"][0] == 2
    assert "[lr=0.1]: run with stages.0.optimizer.lr = 0.1." in registry("table", registry.grid).stdout
    registry.run("--only", "sum [[]lr=0.1]")
    assert registry.rows()["sum [lr=0.1]"][0] == 2, "a changed row is run again by its name"
    other = registry("compare", "sum", "sum [lr=0.01]", "--json")
    assert other.exit_code == 0, other.stderr


def test_a_label_names_as_much_of_a_path_as_tells_it_apart(registry: Registry) -> None:
    two = [{"epochs": 1}, {"epochs": 1}]
    registry.grid = registry.write("grid.json", base={**BASE, "stages": two}, claims=[])
    options = ("--set", "stages.1.epochs=0", "--set", "encoder.dropout=0.5", "--set", "stages.*.clip=1")
    cells = json.loads(registry("plan", registry.grid, "--only", "sum", *options, "--json").stdout)["cells"]
    assert cells[0]["label"] == "sum [stages.1.epochs=0, encoder.dropout=0.5, clip=1]"


def test_rows_that_a_setting_leaves_as_they_are_are_run_as_they_are(registry: Registry) -> None:
    said = registry.run("--only", "sum", "--set", "stages.0.optimizer.lr=0.001")
    assert "nothing changes" in said
    assert {row: n for row, (n, _) in registry.rows().items()} == {"sum": 1, "mean": 0, "clipped": 0}
    registry.run("--set", "stages.0.clip=0.1")
    assert registry.rows().keys() == {"sum", "sum [clip=0.1]", "mean", "mean [clip=0.1]", "clipped"}
    assert registry.rows()["clipped"][0] == 1


def test_a_row_of_the_file_keeps_its_name_for_itself(registry: Registry) -> None:
    registry.grid = registry.write("grid.json", cells=[*GRID["cells"], {"label": "sum [lr=0.01]"}])
    refused = registry("plan", registry.grid, *LR)
    assert refused.exit_code == 2
    assert "'sum [lr=0.01]' of its own" in refused.stderr


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


def test_what_an_edit_takes_out_of_the_table_is_said(registry: Registry) -> None:
    registry.run(*LR)
    registry.run()
    registry.write("grid.json", cells=GRID["cells"][:2], claims=[])
    said = registry.run()
    assert "no longer shows 2 results" in said
    assert "'clipped', 'clipped [lr=0.01]'" in said
    assert {*registry.rows()} == {"sum", "sum [lr=0.01]", "mean", "mean [lr=0.01]"}
    earlier = [cell for cell in json.loads(registry("cells", "--json").stdout)["cells"] if "(earlier)" in cell["label"]]
    assert {(cell["grid"], cell["label"]) for cell in earlier} == {
        ("grid", "clipped (earlier)"),
        ("grid", "clipped [lr=0.01] (earlier)"),
    }


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
    registry.run("--only", "sum", *LR)
    assert {row: registry.rows()[row] for row in before} == before


def test_claims_baseline_and_published_figures_hold_for_changed_rows(registry: Registry) -> None:
    registry.run(*LR, "--seeds", "0-1")
    (claim,) = json.loads(registry("claims", registry.grid, "--json").stdout)["claims"]
    assert (claim["row"], claim["other"]) == ("clipped [lr=0.01]", "sum [lr=0.01]"), "where only those were run"
    rows = json.loads(registry("table", registry.grid, "--format", "json").stdout)["rows"]
    assert [row["label"] for row in rows if row["baseline"]] == ["sum [lr=0.01]"]
    assert rows[0]["reported"] == {"sst": 0.5}
    registry.run()
    (claim,) = json.loads(registry("claims", registry.grid, "--json").stdout)["claims"]
    assert (claim["row"], claim["other"]) == ("clipped", "sum"), "a claim is about the rows of the file"
    axes = json.loads(registry("effects", registry.grid, "--json").stdout)
    assert "stages.0.optimizer.lr" in json.dumps(axes)
    assert registry("report", registry.grid, "-o", registry.folder / "r.html").exit_code == 0
    registry.run("--only", "sum", "--name", "alone")
    (claim,) = json.loads(registry("claims", "alone", "--json").stdout)["claims"]
    assert claim["answer"] in ("open", "untrained")


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


def test_a_plain_run_fills_every_row_of_the_table(registry: Registry) -> None:
    registry.run()
    registry.run("--only", "sum", *LR)
    registry.run("--only", "mean", "--seeds", "+1")
    assert registry.rows()["sum [lr=0.01]"][0] == 1
    registry.run()
    assert {seeds for seeds, _ in registry.rows().values()} == {2}
    assert registry("explain", registry.grid, "sum [lr=0.01]").exit_code == 0


def test_a_row_that_is_called_otherwise_is_still_shown_and_so_not_missed(registry: Registry) -> None:
    registry.run()
    registry.write("grid.json", cells=[{"label": "added up"}, *GRID["cells"][1:]], baseline=None, claims=[])
    assert "no longer shows" not in registry.run()
    assert {*registry.rows()} == {"added up", "mean", "clipped"}


def test_one_change_of_some_rows_here_and_of_others_there_is_one_change(tmp_path: Path) -> None:
    here, there = Registry(tmp_path / "here"), Registry(tmp_path / "there")
    here.run("--only", "sum", *LR, "--seeds", "0-1")
    there.run(*LR)
    assert there("archive", "grid", tmp_path / "theirs.zip").exit_code == 0
    assert here("import", tmp_path / "theirs.zip").exit_code == 0
    here.run()
    changed = {row: seeds for row, (seeds, _) in here.rows().items() if "[" in row}
    assert changed == {"sum [lr=0.01]": 2, "mean [lr=0.01]": 2, "clipped [lr=0.01]": 2}


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
