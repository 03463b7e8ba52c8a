"""taskloom explain: what changed, field by field, and which plugins took part in a result."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core import Event
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.cli import cli
from taskloom.runs.grid.differences import differences
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

Install = Callable[..., None]

FOCAL = '''
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

class Focal(Loss):
    """Wraps another loss."""
    name = "focal"
    expects = "classes"
    relies_on = ("scipy",)
    def __init__(self, *, inner: Loss, gamma: float = 2.0{more}) -> None:
        super().__init__()
        self.inner = inner
    def forward(self, prediction, target):
        return self.inner(prediction, target)

@hookimpl
def taskloom_components():
    return [Focal]
'''
INNER = '''
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

class Inner(Loss):
    """Cross-entropy."""
    name = "inner"
    expects = "classes"
    def forward(self, prediction, target):
        return cross_entropy(prediction.score, target)

@hookimpl
def taskloom_components():
    return [Inner]
'''
TRACKER = """
from taskloom.core import Tracker, hookimpl

class Deaf(Tracker):
    name = "deaf"

@hookimpl
def taskloom_components(): return [Deaf]
"""


def grid_of(folder: Path, **changes: Any) -> str:
    """A grid of two combiners and one excluded, on data in a file of its own."""
    rows = ["text\tlabel", *(f"word{place} again\t{place % 2}" for place in range(16))]
    (folder / "train.tsv").write_text("\n".join(rows) + "\n")
    data = {"name": "table", "train": str(folder / "train.tsv"), "dev_share": 0.25, "text": ["text"]}
    data |= {"label": "label", "classes": ["0", "1"]}
    base = {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": data, "loss": {"name": "focal", "inner": "inner"}}},
        "stages": [{"epochs": 1}],
    }
    axes = {"stages.0.combiner": ["sum", "mean", "pcgrad"]}
    grid = {"base": base, "axes": axes, "exclude": [{"stages.0.combiner": "mean"}], **changes}
    path = folder / "mine.json"
    path.write_text(json.dumps(grid))
    return str(path)


def taskloom(*arguments: object) -> Result:
    load_catalogue.cache_clear()  # as in a process of its own
    return CliRunner().invoke(cli, [str(one) for one in arguments], prog_name="taskloom")


def explained(*arguments: object) -> Any:
    result = taskloom("explain", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def texts(found: Any) -> list[str]:
    return [one["text"] for one in found["differences"]]


def test_a_row_through_its_whole_life(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install("focal", FOCAL.replace("{more}", ""), version="1.0")
    install("inner", INNER, version="3.0")
    install("tracker", TRACKER, version="9.0")
    grid = grid_of(tmp_path)

    never = explained(grid)["cells"]
    assert [(one["label"], one["state"]) for one in never] == [("sum", "new"), ("pcgrad", "new"), ("mean", "excluded")]
    assert never[2]["exclude"] == {"stages.0.combiner": "mean"}
    assert "exclude.0" in never[2]["why"]
    assert not Path("taskloom-runs").exists()

    run = taskloom("run", grid, "--engine", "inline", "--tracker", "deaf")
    assert run.exit_code == 0, run.stderr
    with Ledger.open("taskloom-runs", create=False) as ledger:
        first, second = (place.cell for place in ledger.grid("mine").cells)
    # Every plugin that took part, also inside a component and beneath it; a tracker takes no part.
    assert first.facts["code"].keys() == {"loss focal", "loss inner"}
    assert {"taskloom-focal": "1.0", "taskloom-inner": "3.0"}.items() <= first.versions.items()
    assert "scipy" in first.versions
    assert not any("tracker" in name for name in first.versions)

    assert [one["state"] for one in explained(grid)["cells"]] == ["cached", "cached", "excluded"]
    assert explained(first.id[:9])["state"] == "cached"
    assert explained(first.id)["rows"][0]["label"] == "sum"

    # A new version of an inner plugin, and nothing else; then other code.
    install("inner", INNER, version="3.1")
    assert [one["state"] for one in explained(grid)["cells"]] == ["cached", "cached", "excluded"]
    install("inner", f"{INNER}\nMORE = 1\n", version="3.1")
    stale = explained(grid, "sum")["cells"][0]
    assert (stale["state"], stale["against"]) == ("stale", first.id)
    assert stale["why"].endswith("it is run again: the code of taskloom-inner changed (taskloom_inner.py)")
    assert [text.partition(":")[0] for text in texts(stale)] == ["code of loss inner"]
    assert texts(explained(first.id)) == texts(stale)
    # The same under another name of the grid's file; a seed that was never run is new there too.
    renamed = tmp_path / "renamed.json"
    renamed.write_text(json.dumps(json.loads(Path(grid).read_text()) | {"seeds": [0, 2]}))
    again, other = (one for one in explained(renamed)["cells"] if one["label"] == "sum")
    assert {key: again[key] for key in stale} == stale
    assert (other["state"], other["seed"]) == ("new", 2)
    (tmp_path / "site" / "taskloom_inner-3.1.dist-info").rename(tmp_path / "elsewhere")
    gone = explained(first.id)
    assert gone["state"] == "stale"
    assert "no loss 'inner'" in gone["why"]
    (tmp_path / "elsewhere").rename(tmp_path / "site" / "taskloom_inner-3.1.dist-info")
    note = taskloom("plan", grid).stderr
    assert "the code of taskloom-inner changed (taskloom_inner.py)" in note
    assert "another grid" not in note
    install("inner", INNER, version="3.0")

    # Other data in the same file.
    content = Path("train.tsv").read_text()
    Path("train.tsv").write_text(content.replace("word3 ", "word99 "))
    (text,) = texts(explained(grid, "sum")["cells"][0])
    assert text.startswith("content of tasks.sst.data: ")
    assert explained(grid, "sum")["cells"][0]["why"].endswith("it is run again: the data changed")
    assert explained(second.id)["state"] == "stale"
    Path("train.tsv").write_text(content)

    # A new option with a default is other code; the default itself is no part of a specification.
    install("focal", FOCAL.replace("{more}", ", alpha: float = 1.0"), version="1.0")
    (text,) = texts(explained(grid, "sum")["cells"][0])
    assert text.startswith("code of loss focal: ")

    # A plugin that is gone.
    monkeypatch.setenv("TASKLOOM_PLUGINS", "inner")
    gone = explained(first.id)
    assert gone["state"] == "stale"
    assert "it cannot be planned today" in gone["why"]
    assert "no loss 'focal'" in gone["why"]
    assert "leaves out taskloom-focal, taskloom-tracker" in gone["why"]


SMALL: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
    "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}},
    "stages": [{"epochs": 1}],
}


def recorded(folder: Path, states: dict[str, str], **changes: Any) -> tuple[str, dict[str, str]]:
    """A grid that was run, each row with the state that it ended in; nothing is trained. Label → cell."""
    path = folder / "mine.json"
    path.write_text(json.dumps({"base": SMALL, "axes": {"stages.0.combiner": list(states)}, **changes}))
    plan = make_plan(load_grid(str(path)), load_catalogue(), None)
    facts: dict[str, dict[str, Any]] = {
        "finished": {"scores": {"sst": 0.5, "overall": 0.5}, "best_epoch": 1, "seconds": 1.0, "peak_memory": 1},
        "failed": {"reason": "loss is no number"},
        "oom": {"reason": "out of memory", "task": "sst", "micro_batch": 1},
        "interrupted": {},
    }
    with Ledger.open(folder / "r", create=True) as ledger:
        ledger.record_grid("mine", plan.grid.raw, plan.cells)
        for cell in plan.cells:
            state = states[cell.label]
            ledger.write(Event("started", cell.id, {"device": "cpu", "versions": cell.versions}))
            if state != "running":
                ledger.write(Event(state, cell.id, facts[state]))
    return str(path), {cell.label: cell.id for cell in plan.cells}


STATES = {"sum": "finished", "mean": "failed", "pcgrad": "interrupted", "mgda": "oom", "cagrad": "running"}


def test_every_state_is_explained(tmp_path: Path) -> None:
    grid, cells = recorded(tmp_path, STATES)
    found = {one["label"]: one for one in explained(grid, "--registry", tmp_path / "r")["cells"]}
    states = {label: one["state"] for label, one in found.items()}
    expected = {"finished": "cached", "running": "interrupted"}
    assert states == {label: expected.get(state, state) for label, state in STATES.items()}
    assert "loss is no number" in found["mean"]["why"]
    for label, state in states.items():
        assert explained(cells[label], "--registry", tmp_path / "r")["state"] == state
    with Claims(tmp_path / "r") as claims:
        assert claims.claim(cells["cagrad"])
        (one,) = explained(grid, "cagrad", "--registry", tmp_path / "r")["cells"]
        assert (one["state"], one["why"]) == ("running", f"process {os.getpid()} runs it now")
        assert explained(cells["cagrad"], "--registry", tmp_path / "r")["state"] == "running"
        claims.release(cells["cagrad"])
    assert explained(cells["cagrad"], "--registry", tmp_path / "r")["state"] == "interrupted"


def test_a_changed_grid_says_how_each_row_differs(tmp_path: Path) -> None:
    _, cells = recorded(tmp_path, {"sum": "finished", "mean": "failed"})
    changed = {**SMALL, "stages": [{"epochs": 3}]}
    path = tmp_path / "mine.json"
    axes = {"stages.0.combiner": ["sum", "mean", "pcgrad"]}
    path.write_text(json.dumps({"base": changed, "axes": axes, "seeds": [0, 1]}))
    result = taskloom("explain", path, "--registry", tmp_path / "r")
    assert result.exit_code == 0
    first = result.stdout.split("\nsum, seed 1")[0]
    assert first.splitlines()[1:] == ["    spec stages.0.epochs: 1 → 3"]
    assert f"stale (cell {explained(path, 'sum', '--registry', tmp_path / 'r')['cells'][0]['cell'][:12]})" in first
    rows = {(one["label"], one["seed"]): one for one in explained(path, "--registry", tmp_path / "r")["cells"]}
    assert rows["mean", 0]["state"] == "new"  # what failed left no result that could be stale
    assert rows["mean", 0]["against"] == cells["mean"]
    assert texts(rows["mean", 1]) == ["spec stages.0.epochs: 1 → 3", "spec seed: 0 → 1"]
    assert texts(rows["pcgrad", 0])[0].endswith(' → "pcgrad"'), "both others are as near"

    recorded(tmp_path, {"sum": "finished"}, base=changed)  # run: the row is another cell now
    (row,) = explained(cells["sum"], "--registry", tmp_path / "r")["rows"]
    assert row["now"] not in (None, cells["sum"])
    assert texts(row) == ["spec stages.0.epochs: 1 → 3"]
    text = taskloom("explain", cells["sum"], "--registry", tmp_path / "r").stdout
    assert f"its row is now cell {row['now'][:12]}, because:\n      spec stages.0.epochs: 1 → 3" in text


def test_a_result_that_no_row_has_any_more_is_stale(tmp_path: Path) -> None:
    _, old = recorded(tmp_path, {"sum": "finished"})
    recorded(tmp_path, {"sum": "finished"}, base={**SMALL, "overall": "normalised"})
    found = explained(old["sum"], "--registry", tmp_path / "r")
    assert found["state"] == "stale"
    assert [one["text"] for one in found["differences"]] == ['spec overall: default → "normalised"']
    shown = taskloom("explain", old["sum"], "--registry", tmp_path / "r").stdout
    assert shown.count("normalised") == 1
    recorded(tmp_path, {"sum": "finished"})  # the row is what it was
    assert explained(old["sum"], "--registry", tmp_path / "r")["state"] == "cached"


def test_a_row_is_compared_with_its_last_result(tmp_path: Path) -> None:
    for epochs in (1, 2):
        _, cells = recorded(tmp_path, {"sum": "finished"}, base={**SMALL, "stages": [{"epochs": epochs}]})
    path = tmp_path / "mine.json"
    axes = {"stages.0.combiner": ["sum"]}
    path.write_text(json.dumps({"base": {**SMALL, "stages": [{"epochs": 3}]}, "axes": axes}))
    (row,) = explained(path, "--registry", tmp_path / "r")["cells"]
    assert (row["state"], row["against"], texts(row)) == ("stale", cells["sum"], ["spec stages.0.epochs: 2 → 3"])


def test_a_plan_tells_another_grid_from_a_changed_one(tmp_path: Path) -> None:
    path, _ = recorded(tmp_path, {"sum": "finished"})
    for changes, words in (
        (
            {"base": {**SMALL, "selection": "last"}, "axes": {"stages.0.combiner": ["sum"]}},
            "of 'sum': the specification changed.",
        ),
        ({"base": SMALL, "axes": {"stages.0.combiner": ["mean"]}}, "no such rows or seeds now"),
    ):
        Path(path).write_text(json.dumps(changes))
        assert words in taskloom("plan", path, "--registry", tmp_path / "r").stderr


def test_what_cannot_be_explained_is_told(tmp_path: Path) -> None:
    path, cells = recorded(tmp_path, {"sum": "finished"})
    for arguments, words in (
        (["nothing"], "no cell's identity begins with it"),
        ([path, "smu"], "no row 'smu'; did you mean 'sum'?"),
        (["../x"], "../x"),
        (["%"], "%"),
    ):
        result = taskloom("explain", *arguments, "--registry", tmp_path / "r")
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert taskloom("explain", cells["sum"], "--registry", tmp_path / "none").exit_code == 2
    by_name = explained("mine", "--registry", tmp_path / "r")  # as it was last run, without its file
    assert by_name["cells"][0]["state"] == "cached"


def test_differences_name_the_field_and_both_sides() -> None:
    old = {"spec": {"a": {"b": [1, 2]}, "gone": None}, "content": {"encoder": "x"}, "code": {"p": "1"}, "trainer": 1}
    new = {"spec": {"a": {"b": [1, 3]}, "come": {}}, "content": {"encoder": "y"}, "code": {"q": 2}, "trainer": 2}
    found = differences(old, new)
    assert [one["text"] for one in found] == [
        "spec a.b.1: 2 → 3",
        "spec gone: null → default",
        "spec come: default → {}",
        "content of encoder: x → y",
        "code of p: 1 → nothing",
        "code of q: nothing → 2",
        "trainer: 1 → 2",
    ]
    assert differences(old, old) == []
    assert (found[4]["old"], found[4]["new"]) == ("1", None)
