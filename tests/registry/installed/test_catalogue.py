"""The catalogue: options from annotations, complete specs, every problem at once, and a canonical form."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Optional

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, Base64Str, Field, ValidationError
from torch import Tensor

from taskloom.core import (
    Component,
    DataSet,
    Encoder,
    Examples,
    GradientCombiner,
    GridSpec,
    Head,
    Labels,
    Loss,
    Metric,
    PluginError,
    Problem,
    RequestError,
    RunSpec,
    Sampler,
    hookimpl,
)
from taskloom.core.options import option_texts, options_of
from taskloom.registry.installed.catalogue import Catalogue, load_catalogue
from taskloom.registry.installed.entries import HOOKS
from taskloom.registry.installed.manager import COMPONENTS, Plugin, Plugins
from taskloom.registry.installed.problems import problems_of
from taskloom.registry.installed.resolution import slots_of
from taskloom.runs.show.describe import described, drift, snippet


class Mean(Loss):
    """The mean score.

    Reads: anything.

    Options:
        scale: what it is multiplied with
        margin: subtracted from it,
            where there is one
    """

    name = "mean_score"

    def __init__(
        self, *, scale: Annotated[float, Field(gt=0, le=9)] = 1.0, margin: float | None = None, steps: int = 3
    ) -> None:
        super().__init__()
        if scale == 7:
            raise ValueError("scale should not be 7")
        if scale == 8:
            raise KeyError("eight")
        self.scale, self.margin = scale, margin

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean() * self.scale


class ByClass(Mean):
    """Needs classes."""

    name = "by_class"
    expects = "classes"


class Total(Loss):
    """A sum of losses."""

    name = "total"

    def __init__(
        self,
        *,
        losses: list[Loss],
        named: dict[str, Loss] | None = None,
        first: Optional[Loss] = None,  # noqa: UP045 - people write it both ways
        either: float | Loss = 1.0,
    ) -> None:
        super().__init__()
        self.losses, self.named, self.first, self.either = torch.nn.ModuleList(losses), named, first, either

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return torch.stack([loss(prediction, target) for loss in self.losses]).sum()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def even(value: int) -> int:
    if value % 2:
        raise ValueError("an even number is needed")
    return value


class Many(Metric):
    """Has options of every type."""

    name = "many"

    def __init__(
        self,
        *,
        flag: bool = True,
        count: int = 1,
        ratio: float = 2,  # type: ignore[assignment] # noqa: RUF100 - an int will do for a float
        text: str = "a",
        choice: Literal["sum", "mean"] = "mean",
        colour: Colour = Colour.RED,
        file: Path = Path("a/b"),
        pair: tuple[float, float] = (0.9, 1),
        row: Sequence[int] = (),
        sets: frozenset[str] = frozenset({"b", "a"}),
        table: dict[str, float] = {"x": 1},  # noqa: B006 - the catalogue must not let it leak
        several: int | Literal["smallest"] | None = None,
        evens: Annotated[int, AfterValidator(even)] = 2,
        model_schema: Any = None,  # names that a pydantic model would not take
        copy: bool = False,
    ) -> None:
        self.__dict__.update(locals())

    def __call__(self, predicted: Any, expected: Any) -> float:
        return 0.0


class Accurate(Metric):
    """A metric without options."""

    name = "accuracy"

    def __call__(self, predicted: Any, expected: Any) -> float:
        return 0.0


class Texts(DataSet):
    """Texts of nothing."""

    name = "texts"

    def __init__(self, *, columns: int = 1, classes: int = 5) -> None:
        self.columns = columns
        self.labels = Labels.of_classes(classes) if classes else Labels.of_range(0, 5)

    def load(self, split: Any) -> Examples:
        raise AssertionError("nothing is read before a run is checked")

    def fingerprint(self) -> str:
        return ""


class Line(Head):
    """A head."""

    name = "linear"

    def __init__(self, *, reads: Literal["single", "pair"] = "single", layers: Annotated[int, Field(ge=0)] = 0) -> None:
        super().__init__()
        self.reads, self.layers = reads, layers

    def build(self, **sizes: Any) -> None: ...

    def forward(self, vectors: Tensor) -> Any: ...

    def decide(self, score: Tensor) -> Tensor:
        return score


class Small(Encoder):
    """An encoder."""

    name = "minbert"

    def __init__(self, *, layers: int = 2, trainable: bool = True) -> None:
        super().__init__()
        self.trainable = trainable

    def check(self) -> None: ...
    def build(self, *, generator: torch.Generator) -> None: ...
    def vocabulary_key(self) -> str:
        return ""

    def tokenize(self, texts: Sequence[str]) -> list[Any]:
        return []

    def embed(self, tokens: Any) -> Tensor: ...
    def encode(self, embedded: Tensor, tokens: Any) -> Tensor: ...
    def pool(self, states: Tensor, tokens: Any) -> Tensor: ...


class Turns(Sampler):
    """A sampler."""

    name = "round_robin"
    steps = 0

    def __init__(self, *, batch_size: int = 8) -> None: ...
    def prepare(self, pools: Any, *, generator: torch.Generator) -> None: ...
    def epoch(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


class Sum(GradientCombiner):
    """A combiner without a constructor."""

    name = "sum"

    def weights(self, gramian: Tensor) -> Tensor:
        return torch.ones(len(gramian))


class Projected(Sum):
    """A combiner with options."""

    name = "pcgrad"

    def __init__(self, *, reduction: Literal["sum", "mean"] = "mean") -> None:
        super().__init__()


def catalogue_of(**components: list[type[Component]]) -> Catalogue:
    """A catalogue of plugins, one per kind, each as its module would be."""
    plugins = Plugins()
    for kind, classes in components.items():
        module = SimpleNamespace(**{HOOKS[kind]: hook(HOOKS[kind], classes)})
        plugins.add(module, Plugin(f"p_{kind}", COMPONENTS, f"dist-{kind}", "1.0"))
    assert not plugins.failed
    return Catalogue(plugins)


def hook(name: str, classes: list[type[Component]]) -> Any:
    def implementation() -> list[type[Component]]:
        return classes

    implementation.__name__ = name
    return hookimpl(implementation)


ALL: dict[str, list[type[Component]]] = {
    "encoder": [Small],
    "head": [Line],
    "loss": [Mean, ByClass, Total],
    "sampler": [Turns],
    "combiner": [Sum, Projected],
    "data": [Texts],
    "metric": [Accurate, Many],
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return catalogue_of(**ALL)


RUN = {"tasks": {"sst": {"data": "texts", "loss": "by_class"}, "sts": {"data": "texts", "loss": "mean_score"}}}


# -- options ----------------------------------------------------------------------------------------------------------


def test_every_default_is_filled_in_as_json(catalogue: Catalogue) -> None:
    resolved, problems = catalogue.resolve("metric", "many")
    assert problems == []
    assert resolved == {
        "name": "many",
        "flag": True,
        "count": 1,
        "ratio": 2.0,
        "text": "a",
        "choice": "mean",
        "colour": "red",
        "file": "a/b",
        "pair": [0.9, 1.0],
        "row": [],
        "sets": ["a", "b"],
        "table": {"x": 1.0},
        "several": None,
        "evens": 2,
        "model_schema": None,
        "copy": False,
    }
    assert type(resolved["ratio"]) is type(resolved["table"]["x"]) is float  # 2 and 2.0 are one value, one text


def test_the_constructor_gets_values_of_the_annotated_types(catalogue: Catalogue) -> None:
    made = catalogue.make("metric", {"name": "many", "colour": "blue", "pair": [1, 2], "file": "c", "sets": ["z"]})
    assert (made.colour, made.pair, made.file, made.sets) == (Colour.BLUE, (1.0, 2.0), Path("c"), frozenset("z"))
    resolved = catalogue.resolve("metric", "many")[0]
    resolved["table"]["x"] = 5.0
    assert catalogue.resolve("metric", "many")[0]["table"] == {"x": 1.0}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("count", "two", "should be a whole number. Found 'two'."),
        ("count", "3", "should be a whole number. Found '3'."),
        ("count", True, "should be a whole number. Found true."),
        ("count", 3.5, "should be a whole number. Found 3.5."),
        ("count", None, "should be a whole number. Found null."),
        ("ratio", True, "should be a number. Found true."),
        ("ratio", "1", "should be a number. Found '1'."),
        ("ratio", math.nan, "should be a number. Found NaN."),
        ("ratio", math.inf, "should be a number. Found Infinity."),
        ("flag", 1, "should be true or false. Found 1."),
        ("flag", "true", "should be true or false. Found 'true'."),
        ("text", 3, "should be a text. Found 3."),
        ("choice", "maen", "should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?"),
        ("colour", "green", "should be 'red' or 'blue'. Found 'green'."),
        ("pair", [1], "should be a list of 2 (a number, a number). Found [1]."),
        ("row", [1, "x"], 'should be a list (each: a whole number). Found [1, "x"].'),
        ("table", {"a": "b"}, 'should be an object (each value: a number). Found {"a": "b"}.'),
        ("several", "small", "should be a whole number, 'smallest' or null. Found 'small'. Did you mean 'smallest'?"),
        ("evens", 3, "an even number is needed. Found 3."),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_in_our_words(
    catalogue: Catalogue, option: str, value: Any, message: str
) -> None:
    _, problems = catalogue.resolve("metric", {"name": "many", option: value}, "tasks.a.metric")
    assert problems == [Problem(f"tasks.a.metric.{option}", message)]


def test_a_range_is_named(catalogue: Catalogue) -> None:
    _, problems = catalogue.resolve("loss", {"name": "mean_score", "scale": 0, "margin": "x"})
    assert [str(problem) for problem in problems] == [
        "scale: should be a number above 0 and of at most 9. Found 0.",
        "margin: should be a number or null. Found 'x'.",
    ]


class Odd(NamedTuple):
    a: int = 1


class Converts(Loss):
    """Makes something else of what a grid says."""

    name = "converts"
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(
        self,
        *,
        percent: Annotated[float, AfterValidator(lambda value: value / 100)] = 0.0,
        text: Base64Str = "",
        device: Annotated[str, AfterValidator(torch.device)] | None = None,
        counts: Counter[str] = Counter(),  # noqa: B006
        odd: Odd = Odd(),  # noqa: B008
        last_first: Annotated[tuple[Loss, ...], AfterValidator(lambda value: value[::-1])] = (),
        ends: Annotated[int, AfterValidator(lambda value: value and sys.exit(value))] | None = None,
    ) -> None:
        super().__init__()
        self.made.append(dict(locals()))

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()


def test_an_option_is_read_once_from_what_was_written() -> None:
    @hookimpl
    def taskloom_losses() -> list[type[Loss]]:
        return [Converts, Mean]

    plugins = Plugins()
    plugins.add(SimpleNamespace(taskloom_losses=taskloom_losses), Plugin("p", COMPONENTS, "dist", "1.0"))
    catalogue = Catalogue(plugins)
    assert catalogue.failed == []
    inner = ["mean_score", {"name": "mean_score", "scale": 2}]
    given = {"percent": 50, "text": "aGk=", "device": "cpu", "counts": {"a": 2}, "odd": [3], "last_first": inner}
    resolved, problems = catalogue.resolve("loss", {"name": "converts", **given})
    assert problems == []
    assert catalogue.resolve("loss", resolved) == (resolved, [])
    assert catalogue.resolve("loss", {"name": "converts", **given, "percent": 50.0})[0] == resolved
    assert catalogue.resolve("loss", {"name": "converts", **given, "percent": 0.5})[0] != resolved
    for _ in range(2):
        catalogue.make("loss", resolved)
        made = Converts.made[-1]
        assert (made["percent"], made["text"], made["device"]) == (0.5, "hi", torch.device("cpu"))
        assert (made["counts"], made["odd"]) == (Counter(a=2), Odd(3))
        assert type(made["counts"]) is Counter
        assert type(made["odd"]) is Odd
        assert [one.scale for one in made["last_first"]] == [2.0, 1.0]
    [problem] = catalogue.resolve("loss", {"name": "converts", "ends": 3})[1]
    assert str(problem) == "ends: should be a whole number or null. Found 3. (SystemExit: 3)"
    [problem] = catalogue.resolve("loss", {"name": "converts", "last_first": ["nothing"]})[1]
    assert problem.kind == "form"


def test_unknown_names_and_options_come_with_the_nearest(catalogue: Catalogue) -> None:
    (problem,) = catalogue.resolve("combiner", "pcgard", "stages.0.combiner")[1]
    assert str(problem) == "stages.0.combiner: no combiner 'pcgard'; did you mean 'pcgrad'? (installed: pcgrad, sum)"
    (problem,) = catalogue.resolve("combiner", {"name": "pcgrad", "reducton": "sum"}, "stages.0.combiner")[1]
    assert problem.path == "stages.0.combiner.reducton"
    assert problem.message == (
        "no option 'reducton' of combiner 'pcgrad'; did you mean 'reduction'? (options: reduction)"
    )
    (problem,) = catalogue.resolve("combiner", {"name": "sum", "reduction": "sum"})[1]
    assert problem.message == "no option 'reduction' of combiner 'sum' (options: none)"
    (problem,) = catalogue.resolve("data", "text")[1]
    assert problem.message.startswith("no data set 'text'; did you mean 'texts'?")


@pytest.mark.parametrize("given", [3, {}, {"name": 3}, {"scale": 1}, ["mean_score"], None])
def test_what_is_no_component_is_refused(catalogue: Catalogue, given: Any) -> None:
    (problem,) = catalogue.resolve("loss", given, "x")[1]
    assert problem.message.startswith('should be a loss: a name, or an object with "name" and options. Found ')


def test_objects_of_python_are_refused(catalogue: Catalogue) -> None:
    (problem,) = catalogue.resolve("metric", {"name": "many", "text": object()}, "x")[1]
    assert problem.message.startswith("should hold JSON values only. Found {'name': 'many', 'text': <object")


def test_option_texts_come_from_the_docstring(catalogue: Catalogue) -> None:
    options = catalogue.get("loss", "mean_score").options
    assert {name: option.text for name, option in options.items()} == {
        "scale": "what it is multiplied with",
        "margin": "subtracted from it, where there is one",
        "steps": "",
    }
    assert option_texts("Nothing.") == {}


# -- components inside components -------------------------------------------------------------------------------------


def test_components_inside_components_are_resolved_and_made(catalogue: Catalogue) -> None:
    spec = {
        "name": "total",
        "losses": ["mean_score", {"name": "total", "losses": [{"name": "by_class", "scale": 2}]}],
        "named": {"a": "by_class"},
        "either": "mean_score",
    }
    resolved, problems = catalogue.resolve("loss", spec)
    assert problems == []
    assert resolved["losses"][0] == {"name": "mean_score", "scale": 1.0, "margin": None, "steps": 3}
    assert resolved["losses"][1]["losses"][0]["scale"] == 2.0
    assert (resolved["first"], resolved["either"]["name"]) == (None, "mean_score")
    made = catalogue.make("loss", resolved)
    assert isinstance(made.losses[1].losses[0], ByClass)
    assert made.losses[1].losses[0].scale == 2.0
    assert isinstance(made.named["a"], ByClass)
    assert isinstance(made.either, Mean)
    assert catalogue.make("loss", {"name": "total", "losses": []}).either == 1.0


def test_problems_inside_carry_their_path(catalogue: Catalogue) -> None:
    spec = {
        "name": "total",
        "losses": ["mean_scor", {"name": "total", "losses": [{"name": "by_class", "scale": -1, "stps": 3}]}],
        "first": {"name": "pcgrad"},
        "either": True,
    }
    _, problems = catalogue.resolve("loss", spec, "tasks.sst.loss")
    assert [problem.path.removeprefix("tasks.sst.loss.") for problem in problems] == [
        "losses.0",
        "losses.1.losses.0.stps",
        "losses.1.losses.0.scale",
        "first",
        "either",
    ]
    (problem,) = catalogue.resolve("loss", "total")[1]
    assert str(problem) == (
        'losses: is missing; it should be a list (each: a loss: a name, or an object with "name" and options)'
    )


def test_constructors_that_refuse_are_problems_at_their_path(catalogue: Catalogue) -> None:
    inner = [{"name": "mean_score", "scale": 7}, "by_class", {"name": "mean_score", "scale": 8}]
    with pytest.raises(RequestError) as caught:
        catalogue.make("loss", {"name": "total", "losses": inner})
    first, second = caught.value.problems
    assert first == Problem("losses.0", "scale should not be 7")
    assert second.path == "losses.2"
    assert "loss 'mean_score' (plugin 'p_loss' of dist-loss 1.0) cannot be constructed: KeyError: 'eight'" in str(
        second
    )


# -- rules for constructors -------------------------------------------------------------------------------------------


def constructor(body: str) -> type[Component]:
    space = {**globals()}
    exec(f"class Broken(Mean):\n    name = 'b'\n    def __init__(self, {body}) -> None: ...", space)  # noqa: S102
    cls: type[Component] = space["Broken"]
    return cls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("*, a", "option 'a' should be annotated"),
        ("a: int = 1", "option 'a' should be keyword-only"),
        ("*args: int", "__init__ should name its options. Found '*args: int'."),
        ("*, name: str = 'x'", "an option should not be called 'name'"),
        ("*, a: int = 'x'", "the default of option 'a' should be a whole number. Found 'x'."),
        ("*, a: int = True", "the default of option 'a' should be a whole number. Found true."),
        ("*, a: Annotated[float, Field(gt=0)] = 0", "the default of option 'a' should be a number above 0. Found 0."),
        ("*, a: float = math.inf", "the default of option 'a' should be a number. Found Infinity."),
        ("*, a: Loss = 'mean_score'", "option 'a' should have no default, or None: it takes a component"),
        ("*, a: Tensor", "option 'a' should be of a type that JSON can hold"),
        ("*, a: Mean", "option 'a' should be annotated with an interface such as Loss. Found Mean."),
        ("*, a: Loss | Head", "option 'a' should name one interface"),
        ("*, a: 'Nowhere' = 1", "the annotations of __init__ should be names that exist"),
    ],
)
def test_a_constructor_that_breaks_a_rule_is_the_plugins_failure(arguments: str, message: str) -> None:
    with pytest.raises(PluginError, match="should") as caught:
        options_of(constructor(arguments))
    assert message in str(caught.value)
    built = catalogue_of(loss=[Mean, constructor(arguments)])
    (failure,) = built.failed
    assert message in str(failure)
    assert built.names("loss") == ["mean_score"]
    assert message in built.resolve("loss", "b")[1][0].message


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_a_short_run_becomes_complete(catalogue: Catalogue) -> None:
    run, problems = catalogue.resolve_run(RunSpec.model_validate(RUN))
    assert problems == []
    (stage,) = run["stages"]
    assert stage["tasks"] == ["sst", "sts"]
    assert stage["optimizer"] == {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.0}
    assert stage["sampler"] == {"name": "round_robin", "batch_size": 8}
    assert stage["combiner"] == {"name": "sum"}
    assert run["encoder"] == {"name": "minbert", "layers": 2, "trainable": True}
    assert run["tasks"]["sts"]["head"] == {"name": "linear", "reads": "single", "layers": 0}
    assert json.loads(json.dumps(run)) == run


@pytest.mark.parametrize(
    ("change", "rate"),
    [({}, 1e-5), ({"frozen": True}, 1e-3), ({"frozen": True, "optimizer": {"lr": 0.1}}, 0.1)],
)
def test_the_learning_rate_follows_the_stage(catalogue: Catalogue, change: Any, rate: float) -> None:
    run, _ = catalogue.resolve_run({**RUN, "stages": [change]})
    assert run["stages"][0]["optimizer"]["lr"] == rate


def test_the_learning_rate_follows_the_encoder(catalogue: Catalogue) -> None:
    run, _ = catalogue.resolve_run({**RUN, "encoder": {"name": "minbert", "trainable": False}})
    assert run["stages"][0]["optimizer"]["lr"] == 1e-3


def component(name: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A component as a bare name, or as an object with some of the options."""
    written = st.fixed_dictionaries({"name": st.just(name)}, optional=options)
    return st.just(name) | written


NUMBERS = st.integers(1, 6) | st.floats(0.5, 6)
LOSSES = st.deferred(
    lambda: (
        component("by_class", scale=NUMBERS, margin=NUMBERS | st.none(), steps=st.integers())
        | st.fixed_dictionaries({"name": st.just("total"), "losses": st.lists(LOSSES, max_size=2)})
    )
)
TASKS = st.fixed_dictionaries(
    {"data": component("texts", classes=st.integers(2, 5)), "loss": LOSSES},
    optional={
        "metric": component("many", pair=st.lists(NUMBERS, min_size=2, max_size=2), sets=st.sets(st.text()).map(list)),
        "head": component("linear", layers=st.integers(0, 3)),
    },
)
RUNS = st.dictionaries(st.sampled_from(["sst", "para", "sts"]), TASKS, min_size=1).flatmap(
    lambda tasks: st.fixed_dictionaries(
        {"tasks": st.just(tasks)},
        optional={
            "stages": st.lists(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "tasks": st.permutations(sorted(tasks)),
                        "frozen": st.booleans(),
                        "clip": NUMBERS | st.none(),
                        "schedule": st.sampled_from(["linear", {"name": "cosine", "warmup": 1}]),
                    },
                ),
                min_size=1,
                max_size=2,
            ),
            "encoder": component("minbert", trainable=st.booleans()),
            "selection": st.sampled_from(["overall", "last", *tasks]),
        },
    )
)


def rewritten(value: Any) -> Any:
    """The same JSON written differently: keys in the other order, whole floats without their point."""
    if isinstance(value, dict):
        return {key: rewritten(item) for key, item in reversed(value.items())}
    if isinstance(value, list):
        return [rewritten(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@settings(max_examples=60, deadline=None)
@given(run=RUNS)
def test_the_resolved_run_is_canonical(catalogue: Catalogue, run: dict[str, Any]) -> None:
    resolved, problems = catalogue.resolve_run(run)
    assert problems == []
    text = json.dumps(resolved, sort_keys=True)
    assert json.dumps(catalogue.resolve_run(json.loads(text))[0], sort_keys=True) == text
    other = {**rewritten(resolved), "tasks": {name: rewritten(resolved["tasks"][name]) for name in resolved["tasks"]}}
    assert json.dumps(catalogue.resolve_run(other)[0], sort_keys=True) == text
    for name, task in resolved["tasks"].items():
        assert catalogue.make("loss", task["loss"]).name == RunSpec.model_validate(run).tasks[name].loss.name


def test_all_problems_of_a_run_come_together(catalogue: Catalogue) -> None:
    run = {
        "encoder": {"name": "minbert", "layers": "two"},
        "tasks": {
            "sst": {"data": "texts", "head": "linaer", "loss": {"name": "by_class", "scale": 7}},
            "overall": {"data": "texts", "loss": "by_class"},
            "a b": {"data": {"name": "texts", "classes": 0}, "loss": "by_class"},
            "pair": {"data": "texts", "head": {"name": "linear", "reads": "pair"}, "loss": "mean_score"},
        },
        "stages": [{"tasks": ["sts", "pair", "pair"], "combiner": "pcgard"}, {"tasks": []}],
        "selection": "sst2",
    }
    problems = [str(problem) for problem in catalogue.resolve_run(run)[1]]
    expected = [
        "encoder.layers: should be a whole number. Found 'two'.",
        "tasks.sst.head: no head 'linaer'; did you mean 'linear'?",
        "tasks.sst.loss: scale should not be 7",
        "tasks: a task should not be called overall, seconds, memory, last. Found 'overall'.",
        "tasks: a task's name should be up to 64 letters, digits, '_' and '-', with a letter or digit first. "
        "Found 'a b'.",
        "tasks.a b.loss: loss 'by_class' needs classes",
        "tasks.pair.head: head 'linear' reads 'pair', which needs 2 texts per example",
        "stages.0.tasks: no task 'sts'; did you mean 'sst'?",
        "stages.0.tasks: should name a task once. Found 'pair' 2 times.",
        "stages.0.combiner: no combiner 'pcgard'; did you mean 'pcgrad'?",
        "stages.1.tasks: should name at least one task. Found [].",
        "selection: no selection 'sst2'; did you mean 'sst'?",
    ]
    for line in expected:
        assert sum(problem.startswith(line) for problem in problems) == 1, (line, problems)
    assert len(problems) == len(expected)


def test_a_run_that_is_wrong_in_form_still_has_its_components_checked(catalogue: Catalogue) -> None:
    run = {
        "tasks": {"sst": {"data": "txts", "los": "mse"}, "sts": {"data": {"nme": "texts"}}, "x": 3},
        "stages": [{"epochs": True, "combiner": {"name": "pcgrad", "reduction": "maen"}}],
        "seed": -1,
    }
    resolved, problems = catalogue.resolve_run(run)
    assert resolved == {}
    assert sorted(str(problem).partition(" (")[0] for problem in problems) == [
        "seed: should be a whole number of at least 0 and of at most 4294967295. Found -1.",
        "stages.0.combiner.reduction: should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?",
        "stages.0.epochs: should be a whole number of at least 0. Found true.",
        "tasks.sst.data: no data set 'txts'; did you mean 'texts'?",
        "tasks.sst.los: no key 'los'; did you mean 'loss'?",
        "tasks.sts.data.name: is missing; it should be a text",
        "tasks.x: should be an object with data, head, loss, metric. Found 3.",
    ]
    assert [str(one) for one in catalogue.resolve_run([])[1]] == [  # type: ignore[arg-type]
        f"should be an object with {', '.join(RunSpec.model_fields)}. Found []."
    ]


def test_versions_name_every_plugin_of_a_run_and_no_other() -> None:
    extra = catalogue_of(**ALL)
    run, problems = extra.resolve_run(RUN)
    assert problems == []
    assert extra.versions(run) == {f"dist-{kind}": "1.0" for kind in sorted(ALL)}
    plugins = Plugins()
    plugins.add(
        SimpleNamespace(taskloom_losses=hook("taskloom_losses", [Total])), Plugin("t", COMPONENTS, "outer", "2")
    )
    plugins.add(SimpleNamespace(taskloom_losses=hook("taskloom_losses", [Mean])), Plugin("m", COMPONENTS, "inner", "3"))
    two = Catalogue(plugins)
    outer = two.resolve("loss", {"name": "total", "losses": []})[0]
    inner = two.resolve("loss", {"name": "total", "losses": ["mean_score"]})[0]
    assert two.versions({"tasks": {"a": {"loss": outer}}}) == {"outer": "2"}
    assert two.versions({"tasks": {"a": {"loss": inner}}}) == {"inner": "3", "outer": "2"}


# -- what is installed ------------------------------------------------------------------------------------------------


def test_everything_installed_keeps_the_rules() -> None:
    installed = load_catalogue()
    assert [str(failure) for failure in installed.failed if failure.distribution == "taskloom"] == []
    assert load_catalogue() is installed
    for entry in installed.entries:
        assert entry.summary, entry
        assert json.loads(json.dumps(entry.as_dict()))["name"] == entry.name
        undescribed = [option.name for option in entry.options.values() if not option.text]
        assert not undescribed or entry.distribution != "taskloom", (entry.kind, entry.name, undescribed)


def test_the_snippet_of_every_component_is_a_valid_piece_of_a_grid() -> None:
    installed = load_catalogue()
    for entry in installed.entries:
        piece = snippet(installed, entry)
        if entry.kind == "engine":
            assert piece is None
            continue
        assert piece is not None, (entry.kind, entry.name)
        grid = GridSpec.model_validate(json.loads(json.dumps(piece)))
        assert isinstance(grid.base, dict)
        tasks: Any = grid.base.get("tasks", {"mine": {}})
        run = {**grid.base, "tasks": {name: {"data": "generated", **task} for name, task in tasks.items()}}
        RunSpec.model_validate(run)
        slots = list(slots_of(grid.base))
        assert f'"{entry.name}"' in json.dumps([part for _, kind, part in slots if kind == entry.kind])
        for path, kind, part in slots:
            resolved, problems = installed.resolve(kind, part, path)
            assert problems == [], (entry.name, problems)
            assert isinstance(installed.try_out(kind, resolved), Component), (entry.name, path)


def test_a_snippet_gives_what_is_required_and_nothing_else(catalogue: Catalogue) -> None:
    pieces = {name: snippet(catalogue, catalogue.get("loss", name)) for name in ("mean_score", "total")}
    assert pieces == {
        "mean_score": {"base": {"tasks": {"mine": {"loss": "mean_score"}}}},
        "total": {"base": {"tasks": {"mine": {"loss": {"name": "total", "losses": ["by_class"]}}}}},
    }

    class Strict(Loss):
        """Wants much."""

        name = "strict"

        def __init__(
            self,
            *,
            share: Annotated[float, Field(gt=3, lt=4)],
            even: Annotated[int, Field(multiple_of=7, ge=8)],
            pair: tuple[int, int],
            way: Literal["down", "up"],
            table: dict[str, Annotated[float, Field(ge=10)]],
        ) -> None:
            super().__init__()

        def forward(self, prediction: Any, target: Tensor) -> Tensor:
            return prediction.score.mean()

    several = catalogue_of(loss=[Strict])
    piece = snippet(several, several.get("loss", "strict"))
    assert piece is not None
    assert several.resolve("loss", piece["base"]["tasks"]["mine"]["loss"])[1] == []


def test_what_a_component_says_of_itself_is_shown_in_full() -> None:
    installed = load_catalogue()
    text = described(installed, installed.get("combiner", "pcgrad"))
    for part in ("combiner pcgrad – plugin 'combiners' of taskloom ", "Options:", '"mean"', "Siblings:", "Reference: "):
        assert part in text
    assert json.loads(text.partition("In a grid:")[2]) == snippet(installed, installed.get("combiner", "pcgrad"))
    assert "taskloom run quickstart --engine" in described(installed, installed.get("engine", "inline"))


def test_what_the_limit_leaves_out_is_named_where_a_component_is_missing(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("focal", "")
    monkeypatch.setenv("TASKLOOM_PLUGINS", "")
    (problem,) = load_catalogue().resolve("loss", "focal")[1]
    assert "TASKLOOM_PLUGINS='' leaves out taskloom-focal, which may have it" in problem.message
    monkeypatch.delenv("TASKLOOM_PLUGINS")
    load_catalogue.cache_clear()
    assert "TASKLOOM_PLUGINS" not in load_catalogue().resolve("loss", "focal")[1][0].message


def test_an_editable_plugin_whose_version_moved_is_told(install: Any, tmp_path: Path) -> None:
    install("focal", "")
    source = tmp_path / "the source"
    source.mkdir()
    (source / "pyproject.toml").write_text('[project]\nname = "taskloom-focal"\nversion = "1.3"\n')
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (tmp_path / "site" / "taskloom_focal-1.2.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert f"counts as 1.2, but {source / 'pyproject.toml'} says 1.3" in drift("taskloom-focal")
    (source / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    assert drift("taskloom-focal") == ""


def test_problems_of_carries_the_prefix() -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"tasks": {"a": {"dta": "x"}}})
    assert [str(problem) for problem in problems_of(caught.value, RunSpec, "base")] == [
        'base.tasks.a.data: is missing; it should be a data set: a name, or an object with "name" and options',
        "base.tasks.a.dta: no key 'dta'; did you mean 'data'? (keys: data, head, loss, metric)",
    ]


@pytest.mark.parametrize("name", ["a.b", "../x", "", "x" * 65, "ü", "overall"])
def test_a_task_with_an_impossible_name_is_refused(name: str) -> None:
    _, problems = load_catalogue().resolve_run({"tasks": {name: {"data": "generated"}}})
    assert "tasks" in {problem.path for problem in problems}


def test_a_task_that_no_stage_trains_is_no_part_of_the_run() -> None:
    data = {"name": "generated", "task": "sentiment"}
    spare = {"tasks": {"sst": {"data": data}, "spare": {"data": data}}, "stages": [{"tasks": ["sst"]}]}
    plain = {"tasks": {"sst": {"data": data}}}
    assert load_catalogue().resolve_run(spare) == load_catalogue().resolve_run(plain)


def test_selection_by_a_task_without_a_score_is_refused() -> None:
    data = {"name": "generated", "task": "sentiment"}
    run = {"tasks": {"a": {"data": data}, "b": {"data": data}}, "stages": [{"tasks": ["a"]}], "selection": "b"}
    _, (problem,) = load_catalogue().resolve_run(run)
    assert (problem.path, "no stage" in problem.message) == ("selection", True)
