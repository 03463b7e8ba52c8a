"""What a registry takes on the disk: nothing that counts ever goes, and what is said to go does."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open
from small_runs import ENCODER, generated, run_grid

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.cli import cli
from taskloom.runs.driver.disk import WEIGHTS, disk_uses
from taskloom.runs.grid.plan import Plan

GRID: dict[str, Any] = {
    "base": {
        "encoder": ENCODER,
        "tasks": {
            "sst": generated("sentiment"),
            "sts": generated("similarity", head="cosine", loss="mse", metric="pearson"),
        },
        "stages": [{"epochs": 1, "tasks": ["sst"]}, {"epochs": 1}],
    },
    "cells": [{"label": "trained"}, {"label": "frozen", "set": {"stages.*.frozen": True}}],
}


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Plan]:
    plan, outcome, _ = run_grid(tmp_path / "registry", GRID)
    assert outcome.finished == 2
    return tmp_path / "registry", plan


def taskloom(registry: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [arguments[0], "--registry", str(registry), *arguments[1:]])


def on_disk(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def names(registry: Path, cell: str) -> set[str]:
    with safe_open(registry / "cells" / cell / "best" / "tensors.safetensors", "numpy") as file:
        return {name.split(".")[0] for name in file.keys()}  # noqa: SIM118 - it is no dictionary


def test_everything_is_counted_once_and_what_may_go_goes(run: tuple[Path, Plan]) -> None:
    registry, _ = run
    (registry / "cells" / run[1].cells[0].id / ".partial-1-x").mkdir()
    with Ledger.open(registry, create=False) as ledger:
        uses, size = disk_uses(ledger), on_disk(registry)
    paths = [use.path for use in uses]
    assert len(set(paths)) == len(paths)
    assert sum(use.bytes for use in uses) == size
    table = taskloom(registry, "table", "grid").stdout
    before = json.loads(taskloom(registry, "gc", "--dry-run", "--json").stdout)
    assert before["freed"] == 0
    assert {what for what, use in before["uses"].items() if use["may_go"]} >= {"tokenized texts", "shared stages"}
    freed = json.loads(taskloom(registry, "gc", "--json").stdout)["freed"]
    assert freed == before["may_go"] > 0
    assert json.loads(taskloom(registry, "gc", "--dry-run", "--json").stdout)["may_go"] == 0
    assert taskloom(registry, "table", "grid").stdout == table
    again = run_grid(registry, GRID)[1]
    assert (again.finished, again.cached) == (0, 2)


def test_keep_says_what_stays_of_weights_in_a_run_and_afterwards(run: tuple[Path, Plan], tmp_path: Path) -> None:
    registry, plan = run
    trained, frozen = (cell.id for cell in plan.cells)
    assert names(registry, trained) == {"encoder", "heads"}
    asked = json.loads(taskloom(registry, "gc", "--keep", "heads", "--dry-run", "--json").stdout)
    freed = json.loads(taskloom(registry, "gc", "--keep", "heads", "--json").stdout)["freed"]
    assert names(registry, trained) == names(registry, frozen) == {"heads"}
    assert 0 <= freed - asked["may_go"] < 4000, "the tensors' names go, too"
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    result = CliRunner().invoke(cli, ["run", str(path), "--registry", str(tmp_path / "new"), "--keep", "heads"])
    assert result.exit_code == 0, result.output
    assert names(tmp_path / "new", trained) == {"heads"}
    assert taskloom(registry, "gc", "--keep", "none").exit_code == 0
    assert not (registry / "cells" / trained / "best").exists()
    assert (registry / "cells" / trained / "scores-dev.safetensors").exists()


def test_heads_are_enough_where_the_encoder_was_not_trained(run: tuple[Path, Plan], tmp_path: Path) -> None:
    registry, plan = run
    trained, frozen = (cell.id for cell in plan.cells)

    def predicted(cell: str, out: str) -> Result:
        return taskloom(registry, "predict", cell, "--split", "dev", "--out", str(tmp_path / out))

    assert predicted(frozen, "before").exit_code == 0
    assert taskloom(registry, "gc", "--keep", "heads").exit_code == 0
    assert predicted(frozen, "after").exit_code == 0
    for path in (tmp_path / "before").iterdir():
        assert (tmp_path / "after" / path.name).read_bytes() == path.read_bytes()
    refused = predicted(trained, "none")
    assert refused.exit_code == 2
    assert "only its heads were kept, and its encoder was trained" in refused.stderr
    assert taskloom(registry, "gc", "--keep", "none").exit_code == 0
    assert "its weights are gone: they were not kept" in predicted(frozen, "none").stderr


def test_cells_without_a_row_are_listed_and_kept_until_they_are_named(run: tuple[Path, Plan]) -> None:
    registry, plan = run
    row, lost = (cell.id for cell in plan.cells)
    checkpoint = registry / "cells" / lost / "checkpoint-000-00001"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{}")
    assert json.loads(taskloom(registry, "gc", "--dry-run", "--json").stdout)["without_row"] == {}
    run_grid(registry, {**GRID, "cells": GRID["cells"][:1]})
    assert re.search(rf"\n{lost} +\d.* +kept\n", taskloom(registry, "gc", "--keep", "none").stdout)
    assert not (registry / "cells" / row / "best").exists(), "which is what --keep none asks for"
    (registry / "cells" / row / "best").mkdir()
    best = registry / "cells" / lost / "best"
    assert best.exists()
    assert checkpoint.exists()
    size = on_disk(best) + on_disk(checkpoint)
    shown = json.loads(taskloom(registry, "gc", "--cell", lost[:9], "--dry-run", "--json").stdout)
    assert (shown["without_row"], shown["may_go"], shown["freed"]) == ({lost: size}, size, 0)
    assert best.exists()

    for name, message in ((row, f"cell {row} is row 'trained' of grid"), ("zz", "no cell 'zz'")):
        refused = taskloom(registry, "gc", "--cell", lost, "--cell", name)
        assert (refused.exit_code, best.exists()) == (2, True)
        assert message in refused.stderr
    assert json.loads(taskloom(registry, "gc", "--cell", lost, "--json").stdout)["freed"] == size
    assert not best.exists()
    assert not checkpoint.exists()
    assert (registry / "cells" / lost / "scores-dev.safetensors").exists()


def test_what_unfinished_cells_need_stays_and_so_does_all_while_a_run_goes_on(run: tuple[Path, Plan]) -> None:
    registry, plan = run
    checkpoint = registry / "cells" / plan.cells[0].id / "checkpoint-000-00001"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{}")
    with Ledger.open(registry, create=False) as ledger, ledger.transaction() as db:
        db.execute("UPDATE cells SET status = 'interrupted' WHERE id = ?", [plan.cells[0].id])
    with Claims(registry) as other:
        other.share()
        refused = taskloom(registry, "gc")
        assert refused.exit_code == 2
        assert "a run is using" in refused.stderr
    assert taskloom(registry, "gc", "--keep", "none").exit_code == 0
    assert checkpoint.exists()
    assert list((registry / "stages").iterdir())
    with Ledger.open(registry, create=False) as ledger:
        assert [use.path.parent.name for use in disk_uses(ledger) if use.what == WEIGHTS] == [plan.cells[0].id]


def test_a_registry_may_move(run: tuple[Path, Plan], tmp_path: Path) -> None:
    registry, plan = run
    table = taskloom(registry, "table", "grid").stdout
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(registry, elsewhere)
    shutil.rmtree(registry)
    (tmp_path / "grid.json").rename(tmp_path / "another" / "grid.json")
    assert taskloom(elsewhere, "table", "grid").stdout == table
    moved, outcome, _ = run_grid(elsewhere, {**GRID, "seeds": [0, 1]})
    assert [cell.id for cell in moved.cells if cell.seed == 0] == [cell.id for cell in plan.cells]
    assert (outcome.cached, outcome.finished) == (2, 2)
    out = str(tmp_path / "out")
    assert taskloom(elsewhere, "predict", moved.cells[0].id, "--split", "dev", "--out", out).exit_code == 0
    assert not registry.exists()
