"""Law: a grid's own schema accepts it if and only if ``taskloom validate`` finds nothing wrong with its form.

Grids are packaged ones and ones made for this, broken in random places. ``TASKLOOM_GRIDS=5000`` tries that many.
"""

import copy
import json
import os
from datetime import date
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from torch import Tensor

from taskloom.core import Component, DataSet, Examples, Labels, Loss, RequestError, hookimpl
from taskloom.core.errors import Problem
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.manager import COMPONENTS, Plugin, Plugins, load_plugins
from taskloom.registry.installed.schema import grid_schema
from taskloom.runs.grid.grid import base_of, expand, load_grid
from taskloom.runs.grid.grid_schema import schema_of
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.plan import make_plan

EXAMPLES = int(os.environ.get("TASKLOOM_GRIDS", "80"))
Validator = jsonschema.Draft202012Validator


class Level(IntEnum):
    LOW, HIGH, HUGE = 1, 2, 2**63


class Colour(Enum):
    RED, NONE = "red", None


class Inner(BaseModel):
    depth: int
    words: list[str] = []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 1


class Named(NamedTuple):
    depth: int
    side: str = "l"


class Bits(Flag):
    ONE, TWO = 1, 2


class Shares(Enum):
    HALF, WHOLE = 0.5, 1.0


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError(f"{value} is even")
    return value


class Odd(Loss):
    """A third party's loss with options of every kind.

    Options:
        choice: a text or a number
        inner: a loss inside
    """

    name = "odd"
    expects = "classes"

    def __init__(
        self,
        *,
        inner: Loss | None = None,
        more: Annotated[list[Loss], Field(max_length=2)] = [],  # noqa: B006 - never changed
        choice: Literal["a", 1] = "a",
        flag: Literal[True, "x"] = "x",
        level: Level = Level.LOW,
        colour: Colour = Colour.RED,
        big: Literal[7, 9223372036854775808, 36893488147419103232] = 7,
        step: Annotated[float, Field(multiple_of=0.1, ge=0)] = 0.5,
        even: Annotated[int, Field(multiple_of=2)] = 2,
        word: Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)] = "ab",
        odd: Annotated[int, AfterValidator(odd)] = 3,
        before: Annotated[int, BeforeValidator(lambda value: value)] = 3,
        letters: Annotated[str, Field(pattern=r"^\p{L}+$")] = "x",
        code: Annotated[str, Field(pattern="^[a-c]{2,3}$", max_length=3)] = "ab",
        wide: Annotated[float, Field(le=float("inf"), allow_inf_nan=True)] = 0.5,
        path: Path = Path("x"),
        group: frozenset[int] = frozenset({1}),
        table: dict[Literal["u", "v"], Annotated[int, Field(ge=0)]] | None = None,
        by_number: dict[int, float] = {},  # noqa: B006
        model: Inner | int = 3,
        pair: tuple[int, Literal["l", "r"]] = (1, "l"),
        size: Annotated[int, Field(ge=1, lt=2**70)] | Literal["all"] = "all",
        rate: Annotated[int | float, Field(gt=0, le=2)] = 1,
        percent: Annotated[float, Field(ge=0), AfterValidator(lambda value: value / 100)] = 0.0,
        half: Annotated[float, Field(multiple_of=0.5)] = 0.5,
        price: Annotated[Decimal, Field(ge=0)] = Decimal("0.5"),
        closed: Closed | None = None,
        named: Named = Named(1),  # noqa: B008
        nothing: tuple[()] = (),
        bits: Bits = Bits.ONE,
        shares: Shares = Shares.HALF,
        day: date = date(2026, 1, 31),
    ) -> None:
        super().__init__()

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()


class Tiny(DataSet):
    """Two examples that cost nothing."""

    name = "tiny"
    columns = 1

    def __init__(self, *, classes: Annotated[int, Field(ge=2, le=9)] = 2) -> None:
        self.labels = Labels.of_classes(classes)

    def load(self, split: Any) -> Examples:
        return Examples(columns=(("a", "b"),), labels=np.array([0.0, 1.0]), ids=("0", "1"))

    def fingerprint(self) -> str:
        return "tiny"


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Odd, Tiny]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    plugins: Plugins = load_plugins()
    module = SimpleNamespace(taskloom_components=taskloom_components)
    plugins.add(module, Plugin("test", COMPONENTS, "test", "1"))
    made = Catalogue(plugins)
    assert [str(one) for one in made.failed] == []
    return made


@pytest.fixture(scope="module")
def general(catalogue: Catalogue) -> Any:
    schema = json.loads(json.dumps(grid_schema(catalogue)))
    Validator.check_schema(schema)
    return Validator(schema)


def tiny_task(**more: Any) -> dict[str, Any]:
    return {"data": {"name": "tiny"}, **more}


ENCODER = {
    "name": "minbert",
    "layers": 1,
    "width": 8,
    "heads": 2,
    "feed_forward": 8,
    "vocabulary": 256,
    "max_length": 16,
}
RUN: dict[str, Any] = {
    "encoder": ENCODER,
    "tasks": {
        "sst": tiny_task(loss={"name": "odd", "inner": {"name": "cross_entropy"}, "choice": 1}),
        "two": tiny_task(head={"name": "linear", "dropout": 0.1}),
    },
    "stages": [{"sampler": {"name": "round_robin", "batch_size": 2}, "optimizer": {"lr": 0.001}, "epochs": 1}, {}],
}
OWN: list[dict[str, Any]] = [
    {"base": RUN},
    {
        "base": RUN,
        "axes": {"stages.0.combiner": ["sum", "pcgrad"], "tasks.sst.loss.step": {"small": 0.3, "large": 1}},
        "zip": [{"stages.*.epochs": [1, 2], "tasks.*.head.dropout": [0.1, 0.2]}],
        "cells": [
            {"label": "a", "set": {"tasks.sst.loss.inner.label_smoothing": 0.1}, "reported": {"sst": 0.5}},
            {"label": "b", "set": {"stages.0.sampler.name": "alternating", "stages.1": {"tasks": ["sst"]}}},
            {"label": "c", "set": {"tasks.three": tiny_task(), "selection": "three"}, "note": "\u001b[1m"},
        ],
        "exclude": [{"stages.0.combiner": "sum", "stages.0.epochs": 2}],
        "seeds": [0, 1],
        "baseline": "a",
        "table": {"columns": ["sst", "overall"], "digits": 2},
    },
    {
        "$schema": "x.json",
        "name": "mine",
        "base": RUN,
        "axes": {"tasks.sst.loss": {"plain": "cross_entropy", "odd": {"name": "odd", "more": ["mse"]}}},
        "cells": [
            {"label": "a", "set": {"stages": [{"combiner": "pcgrad"}], "stages.0.combiner.reduction": "sum"}},
            {"label": "b", "set": {"tasks": {"one": tiny_task(), "four": tiny_task()}, "tasks.one.loss": "odd"}},
        ],
    },
    {"base": {**RUN, "tasks": {"sst": tiny_task(loss="smart")}}, "axes": {"tasks.sst.loss.loss": ["cross_entropy"]}},
    {"base": "cosine-surgery", "axes": {"tasks.*.head.dropout": [0.0, 0.5], "stages.0.optimizer.betas.0": [0.5]}},
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 1.0, 2, 2.0, -1, 0.3, 0.5, 3, 7.0, 1e300, 2**53 + 1, 2**63, 2.0**63, 2**64, 10**30),
    *(
        "",
        "a",
        " a ",
        "ab",
        "abc",
        "ab\n",
        "x",
        "red",
        "all",
        "ghost",
        "été",
        "\u0000",
        "\u001b[1m",
        "😀😀",
        "1",
        "u",
        "a.b",
    ),
    *("mse", "odd", "sum", "pcgrad", "tiny", "linear", "cosine", "smart", "total", "alternating", "sst", "last", "3x"),
    *(
        [],
        {},
        [1],
        [1, "l"],
        ["sst"],
        ["sst", "sst"],
        ["ghost"],
        ["mse", "odd"],
        [1, 1.0, True],
        [[]],
        {"a": 1},
        {"u": 1},
    ),
    *({"name": "odd"}, {"name": "odd", "inner": "smart"}, {"name": "smart"}, {"name": "odd", "table": {"u": 1.0}}),
    *({"depth": 1}, {"depth": 1.0, "words": ["a"]}, {"depth": "x"}, {"1": 1, "x": 2}, {"name": 3}, {"nme": "odd"}),
    *({"name": "tiny", "classes": 3}, {"data": "tiny"}, tiny_task(), {"sst": tiny_task()}, [{"epochs": 1}]),
]
ODD = list(Odd.__init__.__annotations__)[:-1]
KEYS = [
    *ODD,
    "name",
    "nmae",
    "classes",
    "dropout",
    "epochs",
    "tasks",
    "loss",
    "set",
    "label",
    "sst",
    "*",
    "0",
    "seed",
    "",
]
PATHS = [
    *(f"tasks.sst.loss.{key}" for key in ODD),
    *("tasks.sst.loss", "tasks.*.loss", "tasks.sst", "tasks.*", "tasks", "tasks.new", "tasks.two.loss.inner"),
    *("tasks.sst.loss.name", "tasks.sst.loss.inner.name", "tasks.sst.loss.more.0", "tasks.sst.loss.table.u"),
    *("stages", "stages.0", "stages.*", "stages.1", "stages.2", "stages.00", "stages.0.tasks", "stages.0.tasks.0"),
    *("stages.*.combiner", "stages.0.combiner.reduction", "stages.0.sampler.name", "stages.0.sampler.batch_size"),
    *("stages.0.schedule", "stages.0.schedule.name", "stages.0.schedule.foo", "stages.0.optimizer.betas.0"),
    *("stages.0.optimizer.*", "overall", "overall.name", "selection", "seed", "*", "", "encoder", "encoder.width"),
    *(
        "encoder.name",
        "tasks.sst.head",
        "tasks.*.head.dropout",
        "tasks.*.data.classes",
        "tasks.sst.metric",
        "precision",
    ),
]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, item in inner for found in places(item, (*place, key)))]


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def mutate(grid: Any, where: int, what: str, value: Any, other: int) -> Any:
    """The grid, changed in one place."""
    grid = copy.deepcopy(grid)
    value = copy.deepcopy(value)
    spots = places(grid)[1:]
    if what == "axis":
        homes = [group for group in (grid.setdefault("axes", {}), *(grid.get("zip") or [])) if isinstance(group, dict)]
        homes[other % len(homes)][PATHS[where % len(PATHS)]] = {"p": value, "q": value} if other % 3 == 0 else [value]
        return grid
    if what == "cell":
        cells = grid.setdefault("cells", [])
        if isinstance(cells, list):
            cells.append({"label": f"new {where}", "set": {PATHS[where % len(PATHS)]: value}})
        return grid
    place = spots[where % len(spots)]
    home, key = at(grid, place[:-1]), place[-1]
    if what == "put":
        home[key] = value
    elif what == "drop":
        del home[key]
    elif what == "copy":
        home[key] = copy.deepcopy(at(grid, spots[other % len(spots)]))
    elif what == "add" and isinstance(home[key], dict):
        home[key][KEYS[other % len(KEYS)]] = value
    elif what == "add" and isinstance(home[key], list):
        home[key].append(value)
    elif what == "rename" and isinstance(home, dict):
        new = KEYS[other % len(KEYS)] if other % 2 else f"{key}"[:-1]
        home[new] = home.pop(key)
    elif what == "misspell" and isinstance(home[key], str):
        home[key] = home[key][1:] if other % 2 else home[key] + "\n"
    elif what == "retype" and isinstance(home[key], int | float):
        home[key] = [float(home[key]), bool(home[key]), str(home[key]), -home[key], [home[key]]][other % 5]
    return grid


MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, 2000),
        st.sampled_from(["put", "drop", "copy", "add", "add", "rename", "misspell", "retype", "axis", "axis", "cell"]),
        st.sampled_from(VALUES),
        st.integers(0, 2000),
    ),
    min_size=1,
    max_size=2,
)


def costly(value: Any) -> bool:
    """Whether a grid asks for millions of generated sentences."""
    for place in places(value):
        sized = any(str(step).endswith("size") for step in place)
        found = at(value, place)
        if sized and isinstance(found, int | float) and found > 5000:
            return True
    return False


def packaged(catalogue: Catalogue) -> list[Any]:
    """The packaged grids, with little text where it is generated."""
    few = '"name": "generated", "size": 8, "dev_size": 4'
    texts = [one.path.read_text() for one in catalogue.plugins.grids.values()]
    return [json.loads(text.replace('"name": "generated"', few)) for text in texts]


def verdict(catalogue: Catalogue, file: Path, *, overrides: Overrides | None = None) -> list[Problem]:
    """What ``taskloom validate`` says."""
    try:
        make_plan(load_grid(str(file)), catalogue, None, overrides=overrides)
    except RequestError as error:
        return error.problems
    return []


def own_schema(catalogue: Catalogue, file: Path) -> dict[str, Any]:
    """What ``taskloom schema GRID`` writes; that of any grid where there is no grid to speak of."""
    try:
        grid = load_grid(str(file))
    except RequestError:
        return grid_schema(catalogue)
    return schema_of(grid, catalogue)


def agree(catalogue: Catalogue, general: Any, raw: Any, file: Path) -> None:
    file.write_text(json.dumps(raw))
    problems = verdict(catalogue, file)
    form = [str(one) for one in problems if one.kind == "form"]
    refused = [
        f"{one.json_path}: {one.message[:300]}" for one in Validator(own_schema(catalogue, file)).iter_errors(raw)
    ]
    told = f"\ngrid: {json.dumps(raw)}\nvalidate, form: {form}\nvalidate: {[*map(str, problems)]}\nschema: {refused}"
    assert bool(form) == bool(refused), f"validate and the grid's schema disagree{told}"
    if not problems:
        wrong = [one.message for one in general.iter_errors(raw)]
        assert not wrong, f"the schema of all grids refuses a valid one: {wrong}{told}"
    _holds_by_rows(catalogue, file, refused, told)


def _holds_by_rows(catalogue: Catalogue, file: Path, refused: list[str], told: str) -> None:
    """The same seen from the rows, which know nothing of schemas: what they find is what the schema finds."""
    try:
        grid = load_grid(str(file))
    except RequestError:
        return
    base, wrong = base_of(grid)
    found = verdict(catalogue, file, overrides=Overrides(only=("*",)))
    if not found and not any(one.kind == "form" for one in (*wrong, *catalogue.resolve_run(base)[1])):
        assert not refused, f"no row has a problem, and the schema refuses{told}"
    paths = {path for group in (grid.spec.axes, *grid.spec.zip) for path in group}
    paths |= {path for cell in grid.spec.cells for path in cell.set}
    if base and not any(_interplay(one, other) for one in paths for other in paths if one != other):
        rows = [(*one.problems, *catalogue.resolve_run(one.spec)[1]) for one in expand(grid).variants]
        form = [one for row in rows for one in row if one.kind == "form" and not one.message.startswith("is missing")]
        assert refused or not form, f"rows are wrong in form, and the schema accepts: {[*map(str, form)]}{told}"


def _interplay(one: str, other: str) -> bool:
    """Whether what one path sets may change where another leads."""
    steps = list(zip(one.split("."), other.split("."), strict=False))
    return all("*" in pair or pair[0] == pair[1] for pair in steps) or one == "stages" or one.count(".") < 2


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(start=st.integers(0, 10**6), mutations=MUTATIONS)
def test_validate_and_the_schema_never_disagree(
    catalogue: Catalogue,
    general: Any,
    tmp_path_factory: pytest.TempPathFactory,
    start: int,
    mutations: list[tuple[int, str, Any, int]],
) -> None:
    grids = [*OWN, *OWN, *OWN, *packaged(catalogue)]
    raw: Any = grids[start % len(grids)]
    for mutation in mutations:
        raw = mutate(raw, *mutation)
    assume(isinstance(raw, dict) and not costly(raw))
    agree(catalogue, general, raw, tmp_path_factory.getbasetemp() / "mutated.json")


OPTIONS: list[tuple[str, Any, str]] = [
    *(("choice", True, "form"), ("choice", 1.0, ""), ("flag", 1, "form"), ("flag", True, ""), ("level", True, "form")),
    *(
        ("level", 1.0, ""),
        ("level", 2**63, ""),
        ("level", 2**64, "form"),
        ("colour", None, ""),
        ("colour", "x", "form"),
    ),
    *(("big", 2**63, ""), ("big", 2**65, ""), ("big", 2**64, "form"), ("big", 7.0, ""), ("big", True, "form")),
    *(("step", 0.3, ""), ("step", 0.35, "fact"), ("step", -1, "form"), ("even", 3, "form"), ("even", 4.0, "")),
    *(("word", " a ", "fact"), ("word", "a", "form"), ("word", " ab ", ""), ("odd", 2.0, "fact"), ("odd", 3.0, "")),
    *(("odd", "3", "form"), ("before", "x", "fact"), ("letters", "é", ""), ("letters", "1", "fact")),
    *(
        ("code", "ab\n", "form"),
        ("code", "abcd", "form"),
        ("code", "abc", ""),
        ("wide", 1e300, ""),
        ("path", 3, "form"),
    ),
    *(
        ("group", [1, 1.0], ""),
        ("by_number", {"1": 2}, ""),
        ("by_number", {"x": 2}, "form"),
        ("by_number", {"1-": 2}, "fact"),
    ),
    *(("table", {"u": 1.0}, ""), ("table", {"w": 1}, "form"), ("model", {"depth": 1.0}, ""), ("model", {}, "form")),
    *(
        ("pair", [1.0, "l"], ""),
        ("pair", [1], "form"),
        ("size", 2**70, "form"),
        ("size", 2**69, ""),
        ("nosuch", 1, "form"),
    ),
    *(("rate", -1, "form"), ("rate", 0.5, ""), ("rate", 3, "form"), ("percent", 50, ""), ("percent", -1, "form")),
    *(("half", 0.3, "form"), ("half", 1.5, ""), ("half", 10**30, ""), ("price", -1, "form"), ("price", "-1", "fact")),
    *(("closed", {"depth": 1.0}, ""), ("closed", {"x": 1}, "form"), ("named", [1.0, "r"], ""), ("named", [], "form")),
    *(("nothing", [], ""), ("nothing", [1], "form"), ("bits", 3, ""), ("bits", 4, "fact"), ("bits", "x", "form")),
    *(("shares", 1, ""), ("shares", 2, "form"), ("shares", True, "form"), ("day", 3, "form"), ("day", "x", "fact")),
    *(("inner", "pcgrad", "form"), ("inner", {"name": "smart"}, "fact"), ("more", ["mse"] * 3, "form")),
]


@pytest.mark.parametrize(("option", "value", "kind"), OPTIONS, ids=[f"{key}={value}" for key, value, _ in OPTIONS])
def test_an_option_means_the_same_to_both(
    catalogue: Catalogue, general: Any, tmp_path: Path, option: str, value: Any, kind: str
) -> None:
    raw = copy.deepcopy(OWN[0])
    raw["base"]["tasks"]["sst"]["loss"] = {"name": "odd", option: value}
    agree(catalogue, general, raw, tmp_path / "mine.json")
    problems = verdict(catalogue, tmp_path / "mine.json")
    assert {one.kind for one in problems} == ({kind} if kind else set()), [*map(str, problems)]
    if (option, value) == ("odd", 2.0):
        assert "2 is even. Found 2." in str(problems[0])


def with_tasks(**tasks: Any) -> dict[str, Any]:
    return {**RUN, "tasks": tasks}


def with_loss(loss: Any) -> dict[str, Any]:
    return with_tasks(sst=tiny_task(loss=loss))


def with_stage(**stage: Any) -> dict[str, Any]:
    return {**RUN, "stages": [stage]}


CASES: list[tuple[str, dict[str, Any]]] = [
    ("", {"base": with_loss("smart"), "axes": {"tasks.sst.loss.loss": ["cross_entropy"]}}),
    ("", {"base": with_loss("smart"), "cells": [{"label": "a", "set": {"tasks.*.loss": "cross_entropy"}}]}),
    ("", {"base": with_stage(epochs=2.0, sampler={"name": "round_robin", "batch_size": 2.0}), "seeds": [1.0]}),
    ("", {"base": RUN, "cells": [{"label": "\u001b[31m\u0000", "note": "\u0007"}], "notes": ["\u001b"]}),
    ("", {"base": with_stage(sampler={"name": "round_robin"}), "axes": {"stages.0.sampler.name": ["alternating"]}}),
    ("", {"base": RUN, "zip": [{"stages.0.combiner": ["pcgrad"], "stages.0.combiner.reduction": ["sum"]}]}),
    ("", {"base": RUN, "cells": [{"label": "a", "set": {"tasks.new": tiny_task(), "stages.0.tasks": ["new"]}}]}),
    ("form", {"base": with_loss("smart")}),
    ("form", {"base": with_loss("msee"), "axes": {"tasks.sst.loss": ["cross_entropy"]}}),
    ("form", {"base": with_stage(tasks=["ghost"])}),
    ("form", {"base": with_stage(tasks=[])}),
    ("form", {"base": with_stage(tasks=["sst", "sst"])}),
    ("form", {"base": {**RUN, "selection": "ghost"}}),
    ("form", {"base": with_tasks(overall=tiny_task())}),
    ("form", {"base": with_tasks(**{"a\n": tiny_task()})}),
    ("form", {"base": RUN, "name": "a\n"}),
    ("form", {"base": RUN, "table": {"columns": ["ghost"]}}),
    ("form", {"base": RUN, "table": {"columns": ["sst", "sst"]}}),
    ("form", {"base": RUN, "cells": [{"label": "a", "reported": {"ghost": 1}}]}),
    ("form", {"base": RUN, "seeds": [1, 1.0]}),
    ("form", {"base": RUN, "seeds": [True]}),
    ("form", {"base": RUN, "axes": {"seed": [1]}}),
    ("form", {"base": RUN, "axes": {"stages.2.epochs": [1]}}),
    ("form", {"base": RUN, "axes": {"stages.0.combiner.reduction": ["sum"]}}),
    ("form", {"base": RUN, "axes": {"tasks.*.loss.choice": ["a"]}}),
    ("form", {"base": RUN, "axes": {"tasks.sst.loss.inner.label_smoothing": [2]}}),
    ("form", {"base": "quickstrat"}),
    ("form", {"base": with_tasks(**{"*": tiny_task()}), "axes": {"tasks.*.loss": ["mse"]}}),
    ("form", {"base": RUN, "axes": {"tasks.sst.loss" + ".inner" * 3000: ["mse"]}}),
    ("fact", {"base": RUN, "axes": {"stages.0.combiner": ["sum", "pcgrad"], "stages.0.combiner.reduction": ["sum"]}}),
    ("fact", {"base": RUN, "axes": {"stages.0.epochs": [1, 1]}}),
    ("fact", {"base": RUN, "axes": {"stages.0.epochs": list(range(101)), "stages.1.epochs": list(range(101))}}),
    ("fact", {"base": RUN, "zip": [{"stages.0.epochs": [1, 2], "stages.1.epochs": [1]}]}),
    ("fact", {"base": RUN, "exclude": [{"stages.0.epochs": 7}]}),
    ("fact", {"base": RUN, "exclude": [{"stages.0.ghost": 7}]}),
    ("fact", {"base": RUN, "baseline": "ghost"}),
    ("fact", {"base": RUN, "cells": [{"label": " "}]}),
    ("fact", {"base": with_tasks(sst=tiny_task(metric="pearson", loss="mse", head="cosine"))}),
    ("fact", {"base": with_tasks(sst={"data": {"name": "cs224n", "task": "sst", "dir": "/nowhere"}})}),
]


@pytest.mark.parametrize(("kind", "raw"), CASES, ids=range(len(CASES)))
def test_what_is_form_and_what_is_fact(
    catalogue: Catalogue, general: Any, tmp_path: Path, kind: str, raw: dict[str, Any]
) -> None:
    agree(catalogue, general, raw, tmp_path / "mine.json")
    problems = verdict(catalogue, tmp_path / "mine.json")
    assert {one.kind for one in problems} == ({kind} if kind else set()), [*map(str, problems)]


def test_every_packaged_grid_fits_its_own_schema_and_that_of_all_grids(catalogue: Catalogue, general: Any) -> None:
    for name, grid in catalogue.plugins.grids.items():
        raw = json.loads(grid.path.read_text())
        schema = json.loads(json.dumps(schema_of(load_grid(name), catalogue), allow_nan=False))
        if name in ("quickstart", "robust-embeddings"):  # a second each
            Validator.check_schema(schema)
        Validator(schema).validate(raw)
        general.validate(raw)
