"""The JSON schema of grids: it accepts every valid grid, and refuses what is plainly wrong.

Grids are packaged ones and ones made for this, changed in random places. ``TASKLOOM_GRIDS=5000`` tries that many.
"""

import copy
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from taskloom.core import GridSpec, Loss, RequestError, RunSpec
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.entries import INTERFACES
from taskloom.registry.installed.schema import grid_schema
from taskloom.runs.cli import cli
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

EXAMPLES = int(os.environ.get("TASKLOOM_GRIDS", "80"))
Validator = jsonschema.Draft202012Validator


class Closed(BaseModel):
    """A model of a plugin's own."""

    model_config = ConfigDict(extra="forbid")
    depth: int = Field(1, ge=0, description="how deep")
    kids: "list[Closed]" = []


class Wrapped(Loss):
    """Another loss, scaled.

    Options:
        loss: the loss inside
        scale: what it is multiplied with
    """

    name = "wrapped"
    expects = "classes"

    def __init__(
        self,
        *,
        loss: Loss,
        more: Annotated[list[Loss], Field(max_length=2)] | None = None,
        scale: Annotated[float, Field(gt=0, lt=10)] = 1.0,
        mode: Literal["a", "b"] = "a",
        pair: tuple[int, int] = (1, 2),
        title: str = "",
        size: Annotated[int, Field(ge=1)] | Literal["all"] = "all",
        table: dict[str, float] | None = None,
        closed: Closed | None = None,
    ) -> None:
        super().__init__()

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()


@pytest.fixture(scope="module")
def catalogue(catalogue_of: Callable[..., Catalogue]) -> Catalogue:
    return catalogue_of(Wrapped)


@pytest.fixture(scope="module")
def schema(catalogue: Catalogue) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(grid_schema(catalogue), allow_nan=False))
    Validator.check_schema(made)
    return made


def grid(loss: Any, **more: Any) -> dict[str, Any]:
    return {"base": {"tasks": {"sst": {"data": {"name": "generated", "task": "sentiment"}, "loss": loss}}}, **more}


def judged(metric: Any) -> dict[str, Any]:
    return {"base": {"tasks": {"sst": {"data": "generated", "metric": metric}}}}


# -- what is valid ----------------------------------------------------------------------------------------------------


def test_every_installed_component_is_accepted_with_its_defaults(catalogue: Catalogue, schema: Any) -> None:
    for entry in catalogue.entries:
        resolved, _ = catalogue.resolve(entry.kind, entry.name)
        for written in (entry.name, {"name": entry.name}, resolved):
            run: dict[str, Any] = {"tasks": {"a": {"data": "generated"}}, "stages": [{}]}
            if entry.kind == "encoder":
                run["encoder"] = written
            elif entry.kind in ("sampler", "combiner"):
                run["stages"][0][entry.kind] = written
            elif entry.kind not in ("engine", "tracker"):  # chosen on the command line
                run["tasks"]["a"][entry.kind] = written
            Validator(schema).validate({"base": run})


def test_every_packaged_grid_is_accepted_and_so_is_its_resolved_base(catalogue: Catalogue, schema: Any) -> None:
    for packaged in catalogue.plugins.grids.values():
        raw = json.loads(packaged.path.read_text())
        Validator(schema).validate(raw)
        if isinstance(raw.get("base"), dict):
            run, problems = catalogue.resolve_run(raw["base"])
            assert [str(problem) for problem in problems] == []
            Validator(schema).validate({"base": run})


GOOD: list[dict[str, Any]] = [
    {"$schema": "grid.schema.json", "base": "quickstart", "name": "mine", "description": "x", "seeds": [0, 1]},
    {"base": "quickstart", "axes": {"stages.*.combiner": {"plain": "sum", "projected": {"name": "pcgrad"}}}},
    {"base": "quickstart", "zip": [{"stages.0.epochs": [1, 2], "stages.0.schedule": ["linear", {"name": "cosine"}]}]},
    {"base": "quickstart", "cells": [{"label": "a", "set": {"tasks.*.loss": "mse"}, "reported": {"sst": 0.5}}]},
    {"base": "quickstart", "exclude": [{"stages.0.combiner": "sum"}], "baseline": "sum", "table": {"digits": 2}},
    {"base": {**grid("mse")["base"], "stages": [{"schedule": "linear", "tasks": None}, {"schedule": {"warmup": 1}}]}},
    grid({"name": "wrapped", "loss": {"name": "wrapped", "loss": "mse"}, "scale": 2, "pair": [1.0, 2]}),
    grid({"name": "wrapped"}, axes={"tasks.sst.loss.loss": ["mse"]}),  # the axis brings what the base lacks
    *({"base": {**grid("mse")["base"], "overall": how}} for how in ("normalised", {"weights": {"sst": 2}}, {})),
    *(judged(metric) for metric in ("accuracy", ["accuracy"], ["accuracy", {"name": "macro_f1"}])),
]
BAD: list[dict[str, Any]] = [
    {},
    {"base": 3},
    {"base": "quickstrat"},
    {"base": {"tasks": {}}},
    {"base": {"tasks": {"a": {}}}},
    {"base": {"tasks": {"overall": {"data": "generated"}}}},
    {"bse": "quickstart", "base": "quickstart"},
    *({"base": "quickstart", "seeds": seeds} for seeds in ([], ["0"], [-1], 3)),
    *({"base": "quickstart", "axes": axes} for axes in ([], {"stages.0.combiner": []}, {"stages.0.combiner": "sum"})),
    *({"base": "quickstart", "cells": cells} for cells in ([{"set": {}}], [{"label": "a", "st": {}}])),
    *({"base": {**grid("mse")["base"], "stages": [stage]}} for stage in ({"schedule": "linaer"}, {"epochs": "3"})),
    *(grid(loss) for loss in ("wraped", "pcgrad", {"scale": 1}, {"name": "wrapped", "scael": 1})),
    *(grid({"name": "wrapped", "scale": scale}) for scale in (10, "1", True)),
    *(grid({"name": "wrapped", key: value}) for key, value in {"mode": "c", "pair": [1], "loss": "pcgrad"}.items()),
    grid({"name": "wrapped", "loss": {"name": "mse", "scael": 1}}),
    grid({"name": "wrapped", "more": ["mse", "msee"]}),
    grid({"name": "wrapped", "closed": {"kids": [{"depth": -1}]}}),
    *({"base": {**grid("mse")["base"], "overall": how}} for how in ("maen", {"weights": {"sst": -1}}, {"weight": {}})),
    *(judged(metric) for metric in ([], "acuracy", ["accuracy", "mse"], ["accuracy", 5])),
]


@pytest.mark.parametrize(("raw", "valid"), [*((raw, True) for raw in GOOD), *((raw, False) for raw in BAD)])
def test_the_schema_knows_good_from_bad(schema: Any, raw: dict[str, Any], valid: bool) -> None:
    assert Validator(schema).is_valid(raw) is valid


# -- grids that were changed at random --------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 256, "max_length": 16},
    "tasks": {
        "sst": {
            "data": {"name": "generated", "task": "sentiment", "size": 8, "dev_size": 4, "test_size": 4},
            "loss": {"name": "wrapped", "loss": {"name": "cross_entropy"}, "size": 1},
            "metric": ["accuracy", {"name": "macro_f1"}],
        },
    },
    "overall": {"name": "mean", "weights": {"sst": 2}},
    "stages": [{"sampler": {"name": "round_robin", "batch_size": 2}, "optimizer": {"lr": 0.001}, "epochs": 1}, {}],
}
GRIDS: list[dict[str, Any]] = [
    {"base": RUN},
    {
        "base": RUN,
        "axes": {"stages.0.combiner": ["sum", "pcgrad"], "tasks.sst.loss.scale": {"small": 0.3, "large": 1}},
        "zip": [{"stages.*.epochs": [1, 2], "tasks.*.head.dropout": [0.1, 0.2]}],
        "cells": [
            {"label": "a", "set": {"tasks.sst.loss.loss.label_smoothing": 0.1}, "reported": {"sst": 0.5}},
            {"label": "b", "set": {"stages.0.sampler.name": "alternating", "stages.1": {"tasks": ["sst"]}}},
        ],
        "exclude": [{"stages.0.combiner": "sum", "stages.0.epochs": 2}],
        "seeds": [0, 1],
        "baseline": "a",
        "table": {"columns": ["sst", "overall"], "digits": 2},
    },
]
VALUES: list[Any] = json.loads("""[
    null, true, 0, 1, 1.0, 2, -1, 0.3, 7.0, "", "a", "ab\\n", "all", "été", "\\u001b[1m", "a.b", "3x", [], {}, [1],
    "mse", "wrapped", "sum", "pcgrad", "linear", "cosine", "alternating", "sst", "last", [1, 1.0, true], [["mse"]],
    ["sst"], [1, 2], {"a": 1}, {"name": "wrapped", "loss": "mse"}, {"depth": 1}, {"name": 3}, {"nme": "a"}
]""")
KEYS = ["name", "nmae", "dropout", "epochs", "tasks", "loss", "set", "label", "sst", "*", "0", "seed", "", "scale"]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, item in inner for found in places(item, (*place, key)))]


def mutate(raw: Any, where: int, what: str, value: Any, key: str) -> Any:
    """The grid, changed in one place."""
    raw = copy.deepcopy(raw)
    spots = places(raw)[1:]
    *outer, last = spots[where % len(spots)]
    home = raw
    for step in outer:
        home = home[step]
    if what == "add" and isinstance(home, dict):
        home[key] = value
    elif what == "rename" and isinstance(home, dict):
        home[key] = home.pop(last)
    elif what == "drop":
        del home[last]
    else:
        home[last] = value
    return raw


CHANGES = st.sampled_from(["put", "drop", "add", "rename"])
MUTATION = st.tuples(st.integers(0, 2000), CHANGES, st.sampled_from(VALUES), st.sampled_from(KEYS))
MUTATIONS = st.lists(MUTATION, min_size=1, max_size=2)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(start=st.integers(0, 10**6), mutations=MUTATIONS)
def test_the_schema_accepts_what_validate_accepts_and_validate_never_crashes(
    catalogue: Catalogue,
    schema: Any,
    tmp_path_factory: pytest.TempPathFactory,
    start: int,
    mutations: list[tuple[int, str, Any, str]],
) -> None:
    raw: Any = GRIDS[start % len(GRIDS)]
    for mutation in mutations:
        assume(raw)
        raw = mutate(raw, *mutation)
    assume(isinstance(raw, dict))
    file = tmp_path_factory.getbasetemp() / "mutated.json"
    file.write_text(json.dumps(raw))
    try:
        make_plan(load_grid(str(file)), catalogue, None)
    except RequestError:
        return
    assert [one.message for one in Validator(schema).iter_errors(raw)] == [], raw


# -- what an editor shows ---------------------------------------------------------------------------------------------


def test_the_schema_says_what_the_docstrings_say(schema: Any) -> None:
    part = schema["$defs"]["loss.wrapped"]
    assert part["description"] == "Another loss, scaled."
    limits = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10, "default": 1.0}
    assert part["properties"]["scale"] == {**limits, "description": "what it is multiplied with"}
    assert part["properties"]["loss"] == {"allOf": [{"$ref": "#/$defs/loss"}], "description": "the loss inside"}
    assert part["$defs"]["Closed"]["properties"]["depth"]["description"] == "how deep"
    assert "wrapped" in schema["$defs"]["loss"]["anyOf"][0]["enum"]
    assert schema["properties"]["seeds"]["description"] == "Each cell is run once with every seed."
    assert set(schema["properties"]) == {field.alias or name for name, field in GridSpec.model_fields.items()}
    assert set(schema["$defs"]["RunSpec"]["properties"]) == set(RunSpec.model_fields)


def test_each_component_is_there_with_its_options_and_its_whole_docstring(catalogue: Catalogue, schema: Any) -> None:
    text = json.dumps(schema)
    for entry in (entry for entry in catalogue.entries if entry.kind not in ("engine", "tracker")):
        part = schema["$defs"][f"{entry.kind}.{entry.name}"]
        assert list(part["properties"]) == ["name", *entry.options]
        assert part["additionalProperties"] is False
        doc = inspect.cleandoc(entry.cls.__doc__ or "")
        if doc != entry.summary:
            for shown in (part["markdownDescription"], part["properties"]["name"]["markdownDescription"]):
                assert doc in shown
                assert str(entry.plugin) in shown
    named = {reference.split('"')[0].split("/")[0] for reference in text.split("#/$defs/")[1:]}
    assert named <= schema["$defs"].keys()
    assert {kind for kind in INTERFACES if kind not in ("engine", "tracker")} <= schema["$defs"].keys()


def test_the_command_writes_whole_files_that_are_valid(tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(cli, ["schema", *map(str, arguments)])

    out = tmp_path / "all.json"
    assert run("--out", out).exit_code == 0
    assert json.loads(out.read_text())["$schema"] == Validator.META_SCHEMA["$id"]
    assert json.loads(run().stdout) == json.loads(out.read_text())
    assert [one.name for one in tmp_path.iterdir()] == ["all.json"]
    for refused in (tmp_path / "no" / "folder.json", tmp_path):
        assert run("--out", refused).exit_code == 2
