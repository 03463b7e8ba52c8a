"""Options of third parties in the schema: each means there what it means when it is read, and none spoils the rest."""

import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, RootModel, SecretStr, TypeAdapter
from torch import Tensor

from taskloom.core import Loss, hookimpl
from taskloom.core.fits import fits
from taskloom.core.forms import common_pattern, form_of, sound
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.manager import COMPONENTS, Plugin, Plugins, load_plugins
from taskloom.registry.installed.schema import grid_schema
from taskloom.runs.cli import cli

Validator = jsonschema.Draft202012Validator


def loss(name: str, annotation: Any, default: Any = ...) -> type[Loss]:
    """A loss with one option ``x``."""

    def build(self: Any, *, x: Any = default) -> None:
        super(made, self).__init__()

    def forward(self: Any, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()

    if default is ...:

        def build(self: Any, *, x: Any) -> None:
            super(made, self).__init__()

    build.__annotations__["x"] = annotation
    build.__name__ = "__init__"
    said = {"name": name, "__init__": build, "forward": forward, "__doc__": f"The loss {name}.", "expects": "classes"}
    made: Any = type(name, (Loss,), said)
    return made  # type: ignore[no-any-return]


def catalogue_of(*classes: type[Loss]) -> Catalogue:
    @hookimpl
    def taskloom_components() -> list[type[Loss]]:
        return list(classes)

    plugins: Plugins = load_plugins()
    plugins.add(SimpleNamespace(taskloom_components=taskloom_components), Plugin("test", COMPONENTS, "test", "1"))
    return Catalogue(plugins)


class Stubborn:
    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> Any:
        raise RuntimeError("no schema of mine")

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: value)


class Broken:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise RuntimeError("nothing of mine")


class Lenient(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.A


class Dictionary(TypedDict):
    x: int


class Tree(BaseModel):
    kids: "list[Tree]" = []


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1


class Told(BaseModel):
    """A model that says what its fields are."""

    steps: int = Field(1, ge=0, description="how many")
    words: Annotated[list[str], Field(description="which", min_length=1)]
    limit: float = Field(float("inf"), description="up to where")
    inner: Strict = Field(Strict(), description="more")
    names: set[str] = {"a", "b"}


class Wrapped(RootModel[list[int]]):
    pass


class Root(BaseModel):
    root: Annotated[int, Field(description="of what is wrapped")] = 3


class Rooted(RootModel[Root]):
    root: Root = Field(description="of what wraps it")


class Hidden(BaseModel):
    word: SecretStr
    inner: "list[Hidden]" = []


class Named(NamedTuple):
    a: int
    b: str = "x"


class Halves(Enum):
    ONE, TWO = 0.5, 1.0


class Pairs(Enum):
    ONE, TWO = (1, 2), (1, 3)


class Bits(Flag):
    ONE, TWO = 1, 2


GOOD: dict[str, tuple[Any, ...]] = {
    "stubborn": (Stubborn, None),
    "decimal": (Decimal, Decimal("0.5")),
    "moment": (datetime, datetime(2026, 1, 1)),
    "bytes": (bytes, b"x"),
    "lenient": (Lenient, Lenient.A),
    "letters": (Annotated[str, Field(pattern=r"^\p{L}+$")], "x"),
    "hangs": (Annotated[str, Field(pattern="^(a+)+$")], "a"),
    "tree": (Tree, Tree()),
    "anything": (Any, None),
    "path": (Path, Path("x")),
    "endless": (Annotated[float, Field(gt=float("-inf"), lt=float("inf"))], 0.5),
    "empty": (tuple[()], ()),
    "counter": (Counter[str], Counter("a")),
    "pairs": (Pairs, Pairs.TWO),
    "bits": (Bits, Bits.ONE | Bits.TWO),
    "named": (Named, Named(1)),
    "tagged": (Annotated[str, Field(json_schema_extra={"pattern": "("})], "x"),
}
BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "broken": ((Broken, None), "option 'x' should be of a type that JSON can hold"),
    "typed": ((Dictionary,), "option 'x' should be of a type that JSON can hold"),
    "regex": ((Annotated[str, Field(pattern="(")], "x"), "option 'x' should be of a type that JSON can hold"),
    "infinite": ((float, float("inf")), "the default of option 'x' should be a number"),
    "secret": ((SecretStr,), "option 'x' should not be a secret"),
    "hidden": ((list[Hidden] | None,), "option 'x' should not be a secret"),
    "limit": ((Annotated[int, Field(gt=0.5)],), "'gt' must be coercible to an integer"),
    "percent": ((Annotated[float, AfterValidator(lambda value: value / 100)], 0.5), "0.5 is read as 5"),
    "exits": ((Annotated[int, AfterValidator(sys.exit)], 3), "the default of option 'x' should be a whole number"),
    "lazy": ((Iterable[int], (1,)), "option 'x' should be of a type that JSON can hold"),
}


def test_no_type_spoils_the_schema_for_others() -> None:
    good = [loss(f"good_{name}", *given) for name, given in GOOD.items()]
    bad = [loss(f"bad_{name}", *given) for name, (given, _) in BAD.items()]
    catalogue = catalogue_of(*good, *bad)
    failed = "\n".join(map(str, catalogue.failed))
    for name, (_, reason) in BAD.items():
        assert any(f"'bad_{name}'" in line and reason in line for line in failed.splitlines()), (name, failed)
    assert len(catalogue.failed) == len(BAD), failed
    schema = json.loads(json.dumps(grid_schema(catalogue), allow_nan=False))
    Validator.check_schema(schema)
    for name in GOOD:
        part = schema["$defs"][f"loss.good_{name}"]
        assert part["description"] == f"The loss good_{name}."
        assert "description" in part["properties"]["x"] or part["properties"]["x"].keys() - {"default"}
        grid = {"base": {"tasks": {"a": {"data": "generated", "loss": catalogue.resolve("loss", f"good_{name}")[0]}}}}
        assert [error.message for error in Validator(schema).iter_errors(grid)] == [], name


@pytest.mark.parametrize(
    ("pattern", "same"),
    [
        ("^[a-z]+$", "^[a-z]+$(?!\\n)"),
        (r"^([1-9][0-9]*(\.[0-9]+)?|0\.0*[1-9][0-9]*)x$", r"^([1-9][0-9]*(\.[0-9]+)?|0\.0*[1-9][0-9]*)x$(?!\n)"),
        ("a.b", r"a[^\n]b"),
        *((one, None) for one in [r"\d", r"\w+", r"\p{L}", "(?i)a", "(a*)*", "(a|b+){2,}", "[a-z&&b]", "[[:alpha:]]"]),
        *((one, None) for one in [r"\bx", "a++", "(", ")", "*a", r"\x41", "(?P<n>a)", "a{2}{3}", "[b-a]"]),
    ],
)
def test_a_pattern_is_taken_over_only_if_it_means_the_same_everywhere(pattern: str, same: str | None) -> None:
    assert common_pattern(pattern) == same


TYPES: list[Any] = [
    *(int, float, bool, str, None, int | None, Literal["a", 1, None], Literal[True, 2], list[int], dict[str, float]),
    *(tuple[int, str], tuple[float, ...], set[int], list[int | str], dict[int, bool], Tree, int | list[bool]),
    Annotated[int, Field(ge=0, lt=5)],
    Annotated[float, Field(gt=-1, le=2.5)],
    Annotated[str, Field(min_length=1, max_length=3, pattern="^[a-z]*$")],
    Annotated[list[str], Field(min_length=1, max_length=2)],
    Annotated[int, Field(multiple_of=3)],
    *(
        Told,
        Rooted,
        list[Told],
        Strict,
        Wrapped,
        Named,
        Halves,
        Pairs,
        Bits,
        tuple[()],
        Counter[str],
        deque[int],
        OrderedDict[str, int],
    ),
    *(defaultdict[str, int], Decimal, date, datetime, time, timedelta, UUID, bytes, Json[int], Named | None),
    Annotated[int | float, Field(gt=0)],
    Annotated[list[int] | str | None, Field(min_length=1, max_length=2)],
    Annotated[Annotated[int | float, Field(gt=0, le=5)] | bool, Field(gt=2)],
    Annotated[int | float, AfterValidator(lambda value: -value), Field(gt=0)],
    Annotated[Decimal, Field(gt=0, le=Decimal("1.5"), lt=Decimal("9.1"))],
    Annotated[float, Field(multiple_of=0.5)],
    Annotated[deque[int], Field(max_length=1)],
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 8)
    | st.floats(-3, 8)
    | st.sampled_from([1.0, 2.0, 0.5, "a", "ab", "A", ""])
)
TEXTS = st.sampled_from(["1", "1.5", " 1_0\n", "2026-01-31", "2026-01-31T12:00:00", "12:00", "P1D", f"{UUID(int=1)}"])
KEYS = st.sampled_from(["a", "b", "1", " 1", "+1", "1_0", "1.0", "\u20031", "1\n", "x1"])
JSON = st.recursive(SCALARS | TEXTS, lambda one: st.lists(one, max_size=3) | st.dictionaries(KEYS, one), max_leaves=4)
FORMS = [
    *(form_of(TypeAdapter(one).core_schema) for one in TYPES),
    {"uniqueItems": True},
    {"not": {"enum": [1, [True]]}},
]


def test_the_fields_of_a_model_keep_their_texts_and_defaults() -> None:
    form = grid_schema(catalogue_of(loss("mine", Told)))["$defs"]["loss.mine"]["properties"]["x"]
    assert form["required"] == ["words"]
    assert form["properties"] == {
        "steps": {"type": "integer", "minimum": 0, "description": "how many", "default": 1},
        "words": {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "which"},
        "limit": {"type": "number", "description": "up to where"},  # JSON has no infinity
        "inner": {
            "type": "object",
            "properties": {"a": {"type": "integer", "default": 1}},
            "additionalProperties": False,
            "description": "more",
            "default": {"a": 1},
        },
        "names": {"type": "array", "items": {"type": "string"}},  # a set has no order
    }
    wrapped = form_of(TypeAdapter(Rooted).core_schema)["properties"]
    assert wrapped == {"root": {"type": "integer", "description": "of what is wrapped", "default": 3}}


def test_a_form_that_no_validator_could_read_is_left_out() -> None:
    assert form_of({"type": "list", "min_length": -1}) == {}
    assert form_of({"type": "list", "items_schema": {"type": "tuple", "items_schema": []}}) != {}
    for word, said in (("prefixItems", []), ("multipleOf", 0), ("maximum", float("inf")), ("pattern", "("), ("so", 1)):
        assert not sound({"anyOf": [{"type": "null"}, {word: said}]})


def test_numbers_of_any_size_are_held_against_limits() -> None:
    large = form_of(TypeAdapter(Annotated[int | float, Field(lt=10**400, multiple_of=0.5)]).core_schema)
    assert fits(large, 10**399)
    assert not fits(large, 10**400)
    assert form_of(TypeAdapter(Annotated[Decimal, Field(lt=Decimal("inf"), ge=10**400)]).core_schema)["anyOf"][0] == {
        "type": "number"
    }


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, len(FORMS) - 1), value=JSON)
def test_our_reading_of_a_form_is_that_of_any_validator(which: int, value: Any) -> None:
    Validator.check_schema(FORMS[which])
    assert fits(FORMS[which], value) == Validator(FORMS[which]).is_valid(value)


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, len(TYPES) - 1), value=JSON)
def test_a_form_refuses_nothing_that_the_type_takes(which: int, value: Any) -> None:
    try:
        TypeAdapter(TYPES[which]).validate_json(json.dumps(value), strict=True)
    except ValueError:
        return
    assert fits(FORMS[which], value) or "true" in json.dumps(value)  # pydantic takes true for 1 among choices


@pytest.mark.parametrize(
    ("annotation", "wrong", "right"),
    [
        (Annotated[int | float, Field(gt=0)], [-1, 0, -0.5], [1, 0.5]),
        (Annotated[list[int] | str | None, Field(min_length=1, max_length=2)], [[], "", [1, 2, 3], "abc"], [[1], "ab"]),
        (Annotated[Annotated[str, Field(min_length=1)] | list[int], Field(min_length=3)], ["ab", [1]], ["abc"]),
        (Annotated[Annotated[str, Field(max_length=1)] | list[int], Field(max_length=3)], ["ab"], ["a", [1, 2]]),
        (Annotated[int | float, AfterValidator(lambda value: -value), Field(gt=0)], ["a"], [-1]),
        (Annotated[Decimal, Field(gt=0, le=1.5)], [0, 1.6, True, []], [0.1, 1.5, "1.2"]),
        (Annotated[float, Field(multiple_of=0.5)], [0.25, 1.75], [1, 0.5, 2.5]),
        (Strict, [{"b": 1}, {"a": "x"}], [{}, {"a": 1}]),
        (Wrapped, [["a"], {}], [[1]]),
        (Told, [{}, {"words": []}, {"words": ["a"], "steps": -1}], [{"words": ["a"]}, {"words": ["a"], "inner": {}}]),
        (Named, [[], [1, "x", 2], ["x"], {"b": "x"}], [[1], [1, "y"], {"a": 1}]),
        (Halves, [0.25, "a", True], [0.5, 1]),
        (Pairs, [[1], [1, 4], 1], [[1, 2], [1.0, 3]]),
        (Bits, ["a", 1.5], [1, 3]),
        (tuple[()], [[1], {}], [[]]),
        (Counter[str], [{"a": "x"}, []], [{"a": 2}]),
        (deque[int], [["a"], 1], [[1]]),
        (OrderedDict[str, int], [{"a": "x"}], [{"a": 1}]),
        (defaultdict[str, int], [{"a": "x"}], [{"a": 1}]),
        (dict[int, float], [{"x": 1}, {"": 1}], [{"1": 1}, {" -1": 1}]),
        *((one, [1, [], None], []) for one in (date, datetime, time, timedelta, UUID, bytes)),
    ],
)
def test_what_a_type_refuses_by_its_form_the_schema_refuses(
    annotation: Any, wrong: list[Any], right: list[Any]
) -> None:
    catalogue = catalogue_of(loss("mine", annotation))
    assert catalogue.failed == []
    form = grid_schema(catalogue)["$defs"]["loss.mine"]["properties"]["x"]
    Validator.check_schema(form)
    for value in wrong:
        [problem] = catalogue.resolve("loss", {"name": "mine", "x": value})[1]
        assert (problem.kind, Validator(form).is_valid(value)) == ("form", False), (value, problem)
    for value in right:
        assert catalogue.resolve("loss", {"name": "mine", "x": value})[1] == []
        assert Validator(form).is_valid(value)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


def test_the_command_writes_whole_files_that_are_valid(tmp_path: Path) -> None:
    for name, more in (("all.json", []), ("one.json", ["quickstart"])):
        out = tmp_path / name
        assert run("schema", *more, "--out", str(out)).exit_code == 0
        schema = json.loads(out.read_text())
        assert schema["$schema"] == Validator.META_SCHEMA["$id"]
        Validator.check_schema(schema)
        printed = run("schema", *more)
        assert json.loads(printed.stdout) == schema
    assert sorted(one.name for one in tmp_path.iterdir()) == ["all.json", "one.json"]
    refused = run("schema", "--out", str(tmp_path / "no" / "folder.json"))
    assert refused.exit_code == 2
    assert "cannot be written" in refused.output
    assert run("schema", "--out", str(tmp_path)).exit_code == 2
    assert run("schema", str(tmp_path / "nothing.json")).exit_code == 2


@pytest.mark.parametrize(
    ("text", "message", "kind"),
    [
        ("[]", "should be a JSON object", "form"),
        ('{"base": "quickstart", "base": "quickstart"}', "'base' stands twice", "fact"),
        ('{"base": 1e999}', "too large a number", "fact"),
        ('{"base": %s}' % ("9" * 5000), "too large a number", "fact"),
        ('{"base": -Infinity}', "no JSON number", "fact"),
        ('{"base": "\\ud800"}', "half a character", "fact"),
        ("[" * 100_000, "cannot be read", "fact"),
        ('{"base": ', "no JSON", "fact"),
        ('\ufeff{"base": "quickstrat"}', "no packaged grid 'quickstrat'; did you mean 'quickstart'?", "form"),
        ('{"base": "\\u0000"}', "no packaged grid", "form"),
        ('{"$schema": 3, "base": "quickstart"}', "$schema", "form"),
    ],
)
def test_what_is_no_grid_is_told_in_a_sentence(tmp_path: Path, text: str, message: str, kind: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    done = run("validate", str(file), "--json")
    assert done.exit_code == 2
    [error] = json.loads(done.stdout)["errors"]
    assert message in f"{error['path']} {error['message']}"
    assert error["kind"] == kind
