"""Identity: what decides a result is part of it, and nothing else is."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.grid import plan
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.identity import digest, facts, modern_facts
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.grid.planned import PlannedCell

SST: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}}


def planned(folder: Path, base: dict[str, Any], **rest: Any) -> tuple[PlannedCell, ...]:
    path = folder / "grid.json"
    path.write_text(json.dumps({"base": base, **rest}))
    return tuple(make_plan(load_grid(str(path)), load_catalogue(), None).cells)


def test_data_count_by_what_they_hold_and_not_by_where_they_are(tmp_path: Path) -> None:
    table = {"name": "table", "text": "text", "label": "label", "classes": 2}
    for folder, text in (("a", "good"), ("b", "good"), ("c", "bad")):
        (tmp_path / folder).mkdir()
        rows = "".join(f"{text} {i},{i % 2}\n" for i in range(8))
        (tmp_path / folder / "x.csv").write_text("text,label\n" + rows)
    cells = [
        {
            "label": folder,
            "set": {"tasks.t.data": {**table, **{s: str(tmp_path / folder / "x.csv") for s in ("train", "dev")}}},
        }
        for folder in "abc"
    ]
    base = {"tasks": {"t": {"data": {**table, "train": "x.csv", "dev": "x.csv"}}}}
    a, b, c = (cell.id for cell in planned(tmp_path, base, cells=cells))
    assert a == b  # the same rows in another folder
    assert a != c  # other rows


def test_the_libraries_that_a_component_relies_on_count(tmp_path: Path) -> None:
    axes = {"stages.0.combiner": ["sum", {"name": "torchjd", "aggregator": "UPGrad"}]}
    cells = planned(tmp_path, {"tasks": {"sst": SST}}, axes=axes)
    assert ["torchjd" in cell.versions for cell in cells] == [False, True]


def test_precision_and_micro_batches_count_where_they_are_given() -> None:
    catalogue = load_catalogue()

    def name(stage: dict[str, Any] | None = None, **rest: Any) -> str:
        spec, problems = catalogue.resolve_run({"tasks": {"sst": SST}, "stages": [stage or {}], **rest})
        assert not problems
        assert catalogue.resolve_run(spec) == (spec, [])  # what is resolved stays as it is
        return digest(spec)

    assert name() == name(precision="float32", resources={}) == name({"micro_batch": None})
    assert len({name(), name(precision="bfloat16"), name({"micro_batch": 4})}) == 3


def test_a_cell_is_named_by_what_determines_its_result(tmp_path: Path) -> None:
    run = {"tasks": {"sst": SST}}
    (cell,) = planned(tmp_path, run)
    assert cell.id == digest(cell.facts)
    assert sorted(cell.facts) == ["code", "content", "spec", "trainer"]
    assert cell.facts["code"] == {}, "built-ins of their first revision say nothing"
    assert list(cell.versions) == ["taskloom"], "which is recorded, and no part of the identity"
    stated = cell.facts["spec"]
    assert stated["tasks"]["sst"]["head"] == {"name": "linear"}, "defaults are left out, and what there is is stated"
    assert "selection" not in stated
    explicit = {"selection": "overall", "stages": [{"epochs": 10, "combiner": {"name": "sum"}}], "overall": "mean"}
    assert planned(tmp_path, {**run, **explicit})[0].id == cell.id, "a default that is written is the same cell"
    assert planned(tmp_path, {**run, "resources": {"cpus": 2}})[0].id == cell.id, "what a run needs is not what it is"
    assert planned(tmp_path, {**run, "selection": "last"})[0].id != cell.id
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        ledger.record_grid("grid", {}, [cell])
        assert digest(ledger.cell(cell.id).facts) == cell.id


def test_further_metrics_are_no_part_of_a_cell_and_the_first_is(tmp_path: Path) -> None:
    def cell(metric: Any) -> PlannedCell:
        (found,) = planned(tmp_path, {"tasks": {"sst": {**SST, "metric": metric}}})
        return found

    one = cell("accuracy")
    assert one.spec["tasks"]["sst"]["metric"] == {"name": "accuracy"}
    for metrics in (["accuracy"], ["accuracy", "macro_f1"], ["accuracy", "spearman", "macro_f1"]):
        assert cell(metrics) == one
    assert cell(["macro_f1", "accuracy"]).id != one.id


def test_a_recorded_grid_says_which_further_metrics_it_has(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    metrics = {"tasks.sst.metric": [["accuracy", "macro_f1"], ["accuracy", "macro_f1", "spearman"], "accuracy"]}
    grid = {"base": {"tasks": {"sst": SST, "sts": SST}}, "axes": metrics}
    path.write_text(json.dumps({**grid, "table": {"columns": ["sst:spearman", "overall"]}}))
    plan = make_plan(load_grid(str(path)), load_catalogue(), None)
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        ledger.record_grid("grid", plan.grid.raw, plan.cells)
        record = ledger.grid("grid")
    assert list(record.further) == ["sst:macro_f1", "sst:spearman"]
    assert "metrics" not in record.written
    assert len({cell.id for cell in plan.cells}) == 1


def test_weights_count_where_they_make_a_difference(tmp_path: Path) -> None:
    def name(overall: Any, stages: Any = ({},)) -> str:
        return planned(tmp_path, {"tasks": {"a": SST, "b": SST}, "stages": [*stages], "overall": overall})[0].id

    assert name("mean") == name({"weights": {}}) == name({"weights": {"a": 1}}) == name({"weights": {"a": 2, "b": 2}})
    assert len({name("mean"), name({"weights": {"a": 2}}), name({"weights": {"a": 0}}), name("normalised")}) == 4
    alone = [{"tasks": ["a"]}]
    assert name({"weights": {"a": 2}}, alone) == name("mean", alone), "one task is its own mean"


THEIRS = """
from taskloom.core import Loss, hookimpl

class Sharp(Loss):
    name = "sharp"
    expects = "classes"
    def forward(self, prediction, target): ...

@hookimpl
def taskloom_components(): return [Sharp]
"""


@pytest.mark.parametrize(
    "loss", ["sharp", {"name": "total", "losses": ["sharp", "cross_entropy"]}], ids=["alone", "inside"]
)
def test_what_0_2_recorded_of_a_third_partys_component_counts_by_its_version(
    install: Callable[..., None], loss: Any
) -> None:
    """Up to 0.2 facts had every option, and versions in place of code."""
    install("sharp", THEIRS, version="1.0")
    catalogue = load_catalogue()
    spec, problems = catalogue.resolve_run({"tasks": {"sst": {**SST, "loss": loss}}})
    assert not problems
    contents = Contents(catalogue, Overrides())
    today = facts(spec, catalogue, contents)
    assert [*today["code"]] == ["loss sharp"]
    older = {"spec": spec, "content": contents.of(spec), "trainer": today["trainer"]}
    assert modern_facts({**older, "plugins": {"taskloom": "0.2.0", "taskloom-sharp": "1.0"}}, catalogue) == today
    other = modern_facts({**older, "plugins": {"taskloom": "0.2.0", "taskloom-sharp": "0.9"}}, catalogue)
    assert other["code"] == {"loss sharp": "of version 0.9"}


#: A loss of somebody else's that takes a score for a value.
SQUARED = """
from taskloom.core import hookimpl
from taskloom.plugins.losses.mse import MSE
class Squared(MSE):
    '''The squared error.'''
    name = "squared"
@hookimpl
def taskloom_components(): return [Squared]
"""


@pytest.mark.parametrize(
    ("loss", "otherwise"),
    [
        ({"name": "squared"}, True),
        ({"name": "smart", "loss": {"name": "squared"}}, True),
        ({"name": "smart", "loss": {"name": "mse"}}, True),
        ({"name": "binary_cross_entropy"}, False),
    ],
)
def test_two_classes_that_0_2_learned_as_values_were_decided_otherwise(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, loss: dict[str, Any], otherwise: bool
) -> None:
    install("squared", SQUARED)
    monkeypatch.setattr(plan, "find_scores", lambda folder, cell: None)
    tasks = {"para": {"head": {"name": "linear"}, "loss": loss}}
    cell: Any = SimpleNamespace(spec={"tasks": tasks}, facts={"plugins": {}})
    ledger: Any = SimpleNamespace(folder=Path("nowhere"))
    assert plan._decided_otherwise(cell, ledger, load_catalogue()) is otherwise
