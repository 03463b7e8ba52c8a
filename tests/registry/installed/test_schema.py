"""The JSON Schema of a grid: it accepts what the catalogue accepts and refuses what it refuses."""

import json
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from torch import Tensor

from taskloom.core import GridSpec, Loss, RunSpec, hookimpl
from taskloom.registry.installed.catalogue import Catalogue, load_catalogue
from taskloom.registry.installed.entries import INTERFACES, Entry
from taskloom.registry.installed.manager import COMPONENTS, Plugin, Plugins, load_plugins
from taskloom.registry.installed.schema import component_schema, grid_schema


class Wrapped(Loss):
    """Another loss, scaled.

    Options:
        loss: the loss inside
        scale: what it is multiplied with
    """

    name = "test_wrapped"

    def __init__(
        self,
        *,
        loss: Loss,
        more: list[Loss] | None = None,
        scale: Annotated[float, Field(gt=0, lt=10)] = 1.0,
        mode: Literal["a", "b"] = "a",
        pair: tuple[int, int] = (1, 2),
        title: str = "",
    ) -> None:
        super().__init__()

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()


@hookimpl
def taskloom_components() -> list[type[Loss]]:
    return [Wrapped]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    """Everything installed and one loss with options of many types."""
    plugins: Plugins = load_plugins()
    plugins.add(SimpleNamespace(taskloom_components=taskloom_components), Plugin("test", COMPONENTS, "test", "1"))
    return Catalogue(plugins)


@pytest.fixture(scope="module")
def validator(catalogue: Catalogue) -> jsonschema.Draft202012Validator:
    schema = json.loads(json.dumps(grid_schema(catalogue)))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def grid(loss: Any = "test_wrapped", **more: Any) -> dict[str, Any]:
    return {"base": {"tasks": {"sst": {"data": {"name": "generated"}, "loss": loss}}}, **more}


NUMBERS = st.integers(1, 9) | st.floats(0.1, 9.9)
WRAPPED = st.deferred(
    lambda: st.fixed_dictionaries(
        {"name": st.just("test_wrapped"), "loss": st.just("mse") | WRAPPED},
        optional={
            "more": st.none() | st.lists(WRAPPED | st.just("mse"), max_size=2),
            "scale": NUMBERS,
            "mode": st.sampled_from(["a", "b"]),
            "pair": st.lists(st.integers(), min_size=2, max_size=2),
            "title": st.text(),
        },
    )
)


@settings(max_examples=50, deadline=None)
@given(loss=WRAPPED)
def test_what_the_catalogue_accepts_the_schema_accepts(
    catalogue: Catalogue, validator: jsonschema.Draft202012Validator, loss: Any
) -> None:
    resolved, problems = catalogue.resolve("loss", loss)
    assert problems == []
    validator.validate(grid(loss))
    validator.validate(grid(resolved))


def test_every_installed_component_is_accepted_with_its_defaults(
    catalogue: Catalogue, validator: jsonschema.Draft202012Validator
) -> None:
    for entry in catalogue.entries:
        resolved, _ = catalogue.resolve(entry.kind, entry.name)
        for written in (entry.name, {"name": entry.name}, resolved):
            run: dict[str, Any] = {"tasks": {"a": {"data": "generated"}}, "stages": [{}]}
            if entry.kind == "encoder":
                run["encoder"] = written
            elif entry.kind in ("sampler", "combiner"):
                run["stages"][0][entry.kind] = written
            elif entry.kind != "engine":  # chosen on the command line
                run["tasks"]["a"][entry.kind] = written
            validator.validate({"base": run})


def test_a_resolved_run_and_every_packaged_grid_are_accepted(
    catalogue: Catalogue, validator: jsonschema.Draft202012Validator
) -> None:
    for packaged in catalogue.plugins.grids.values():
        raw = json.loads(packaged.path.read_text())
        validator.validate(raw)
        if isinstance(raw["base"], dict):
            run, problems = catalogue.resolve_run(raw["base"])
            assert [str(problem) for problem in problems] == []
            validator.validate({"base": run})


GOOD: list[dict[str, Any]] = [
    {"base": "quickstart"},
    {"$schema": "grid.schema.json", "base": "quickstart", "name": "mine", "description": "x", "seeds": [0, 1]},
    {"base": "quickstart", "axes": {"stages.0.combiner": ["sum", {"name": "pcgrad", "reduction": "sum"}]}},
    {"base": "quickstart", "axes": {"stages.*.combiner": {"plain": "sum", "projected": "pcgrad"}}},
    {
        "base": "quickstart",
        "axes": {"stages.0.combiner.reduction": ["sum", "mean"], "stages.0.optimizer.lr": [1e-5, 1]},
    },
    {"base": "quickstart", "zip": [{"stages.0.epochs": [1, 2], "stages.0.schedule": ["linear", {"name": "cosine"}]}]},
    {"base": "quickstart", "cells": [{"label": "a", "set": {"tasks.*.loss": "mse"}, "reported": {"sst": 0.5}}]},
    {"base": "quickstart", "exclude": [{"stages.0.combiner": "sum"}], "baseline": "sum", "table": {"digits": 2}},
    {"base": {**grid("mse")["base"], "stages": [{"schedule": "linear", "tasks": None}]}},
    grid({"name": "test_wrapped"}, axes={"tasks.sst.loss.loss": ["mse"]}),  # the axis brings what the base lacks
]


@pytest.mark.parametrize("raw", GOOD, ids=range(len(GOOD)))
def test_good_grids_are_accepted(validator: jsonschema.Draft202012Validator, raw: dict[str, Any]) -> None:
    GridSpec.model_validate(raw)
    validator.validate(raw)


BAD: list[dict[str, Any]] = [
    {},
    {"base": 3},
    {"base": {"tasks": {}}},
    {"base": {"tasks": {"a": {}}}},
    {"bse": "quickstart", "base": "quickstart"},
    {"base": "quickstart", "seeds": []},
    {"base": "quickstart", "seeds": ["0"]},
    {"base": "quickstart", "axes": {"stages.0.combiner": []}},
    {"base": "quickstart", "axes": {"stages.0.combiner": ["pcgard"]}},
    {"base": "quickstart", "axes": {"stages.0.combiner": {"a": {"name": "pcgrad", "reducton": "sum"}}}},
    {"base": "quickstart", "axes": {"stages.*.epochs": ["three"]}},
    {"base": "quickstart", "cells": [{"set": {}}]},
    {"base": "quickstart", "cells": [{"label": "a", "set": {"tasks.sst.loss": "msee"}}]},
    {"base": "quickstart", "zip": [{"stages.0.schedule": ["linaer"]}]},
    grid("test_wraped"),
    grid({"name": "test_wrapped", "scael": 1}),
    grid({"name": "test_wrapped", "scale": 10}),
    grid({"name": "test_wrapped", "scale": "1"}),
    grid({"name": "test_wrapped", "scale": True}),
    grid({"name": "test_wrapped", "mode": "c"}),
    grid({"name": "test_wrapped", "pair": [1]}),
    grid({"name": "test_wrapped", "loss": "pcgrad"}),
    grid({"name": "test_wrapped", "loss": {"name": "mse", "scael": 1}}),
    grid({"name": "test_wrapped", "more": ["mse", "msee"]}),
    grid({"scale": 1}),
]


@pytest.mark.parametrize("raw", BAD, ids=range(len(BAD)))
def test_bad_grids_are_refused(validator: jsonschema.Draft202012Validator, raw: dict[str, Any]) -> None:
    assert not validator.is_valid(raw)


def test_the_schema_says_what_the_docstrings_say(catalogue: Catalogue) -> None:
    schema = grid_schema(catalogue)
    part = schema["$defs"]["loss.test_wrapped"]
    assert part["description"] == "Another loss, scaled."
    assert part["properties"]["scale"] == {
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 10,
        "default": 1.0,
        "description": "what it is multiplied with",
    }
    assert part["properties"]["loss"] == {"$ref": "#/$defs/loss", "description": "the loss inside"}
    assert "test_wrapped" in schema["$defs"]["loss"]["anyOf"][0]["enum"]
    assert schema["properties"]["seeds"]["description"] == "Each cell is run once with every seed."
    assert set(schema["properties"]) == {field.alias or name for name, field in GridSpec.model_fields.items()}
    assert set(schema["$defs"]["RunSpec"]["properties"]) == set(RunSpec.model_fields)


def test_the_whole_docstring_and_whose_it_is_are_in_the_schema(catalogue: Catalogue) -> None:
    parts = grid_schema(catalogue)["$defs"]
    longer = [entry for entry in catalogue.entries if entry.doc != entry.summary and entry.kind != "engine"]
    assert longer
    for entry in longer:
        part = parts[f"{entry.kind}.{entry.name}"]
        for shown in (part["markdownDescription"], part["properties"]["name"]["markdownDescription"]):
            assert entry.doc in shown
            assert entry.origin in shown


def test_every_reference_leads_somewhere(catalogue: Catalogue) -> None:
    schema = grid_schema(catalogue)
    text = json.dumps(schema)
    assert "ComponentSpec" not in text
    named = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named <= schema["$defs"].keys()
    assert {kind for kind in INTERFACES if kind != "engine"} <= schema["$defs"].keys()


def test_each_component_has_a_schema_of_its_own() -> None:
    for entry in load_catalogue().entries:
        assert isinstance(entry, Entry)
        schema = component_schema(entry)
        assert list(schema["properties"]) == ["name", *entry.options]
        assert schema["additionalProperties"] is False
