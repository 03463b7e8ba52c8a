"""The catalogue: options from annotations, complete specs, every problem at once, and a canonical form."""

import json
import math
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, Field
from torch import Tensor

from taskloom.core import Component, Expects, Loss, Metric, Problem, RequestError, RunSpec
from taskloom.registry.installed.catalogue import Catalogue, load_catalogue
from taskloom.registry.installed.manager import Plugins

CatalogueOf = Callable[..., Catalogue]


class Mean(Loss):
    """The mean score.

    Reads: anything.

    Options:
        scale: what it is multiplied with
        margin: subtracted from it,
            where there is one
    """

    name = "mean_score"
    expects: Expects = "score"

    def __init__(
        self, *, scale: Annotated[float, Field(gt=0, le=9)] = 1.0, margin: float | None = None, steps: int = 3
    ) -> None:
        super().__init__()
        if scale == 7:
            raise ValueError("scale should not be 7")
        if scale == 8:
            raise KeyError("eight")
        self.scale, self.margin, self.steps = scale, margin, steps

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean() * self.scale


class ByClass(Mean):
    """Needs classes, and passes other options on.

    Options:
        margin: another text
        weight: its own option
    """

    name = "by_class"
    expects = "classes"

    def __init__(self, *, weight: float = 1.0, **options: Any) -> None:
        super().__init__(**options)


class Several(Loss):
    """A sum of losses."""

    name = "several"
    expects: Expects = "score"

    def __init__(
        self,
        *,
        losses: list[Loss],
        named: dict[str, Loss] | None = None,
        first: Optional[Loss] = None,  # noqa: UP045 - people write it both ways
        either: float | Loss | list[Loss] = 1.0,
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
        several: Annotated[int, Field(ge=1, lt=9)] | Literal["smallest"] | None = None,
        times: Annotated[str, Field(pattern="^[1-9]x$", examples=["3x"])] | None = None,
        evens: Annotated[int, AfterValidator(even)] = 2,
        percent: Annotated[float, AfterValidator(lambda value: value / 100)] = 0.0,
        ends: Annotated[int, AfterValidator(lambda value: value and exit(value))] = 0,
        model_schema: Any = None,  # names that a pydantic model would not take
        copy: bool = False,
    ) -> None:
        self.__dict__.update(locals())

    def __call__(self, predicted: Any, expected: Any) -> float:
        return 0.0


@pytest.fixture(scope="module")
def catalogue(catalogue_of: CatalogueOf) -> Catalogue:
    made = catalogue_of(Mean, ByClass, Several, Many)
    assert made.failed == []
    return made


DATA = {"name": "generated", "task": "sentiment"}
RUN = {"tasks": {"sst": {"data": DATA, "loss": "by_class"}, "sts": {"data": DATA, "loss": "mean_score"}}}


# -- options ----------------------------------------------------------------------------------------------------------


def test_every_default_is_filled_in_as_json(catalogue: Catalogue) -> None:
    resolved, problems = catalogue.resolve("metric", "many")
    assert problems == []
    expected: dict[str, Any] = {"name": "many", "flag": True, "count": 1, "ratio": 2.0, "text": "a", "choice": "mean"}
    expected |= {"colour": "red", "file": "a/b", "pair": [0.9, 1.0], "row": [], "sets": ["a", "b"], "table": {"x": 1.0}}
    expected |= {"several": None, "times": None, "evens": 2, "percent": 0.0, "ends": 0}
    assert resolved == expected | {"model_schema": None, "copy": False}
    assert type(resolved["ratio"]) is type(resolved["table"]["x"]) is float  # 2 and 2.0 are one value, one text


def test_the_constructor_gets_values_of_the_annotated_types(catalogue: Catalogue) -> None:
    given = {"name": "many", "colour": "blue", "pair": [1, 2], "file": "c", "sets": ["z"], "count": 2.0, "copy": True}
    made = catalogue.make(Metric, given)
    assert (made.colour, made.pair, made.file, made.sets) == (Colour.BLUE, (1.0, 2.0), Path("c"), frozenset("z"))
    assert (type(made.count), made.copy) == (int, True)
    resolved = catalogue.resolve("metric", "many")[0]
    resolved["table"]["x"] = 5.0
    assert catalogue.resolve("metric", "many")[0]["table"] == {"x": 1.0}


@pytest.mark.parametrize(
    ("option", "value", "path", "allowed"),
    [
        *(("count", value, "", "an integer") for value in ("two", "3", True, 3.5, None)),
        *(("ratio", value, "", "a number") for value in (True, "1", math.nan, math.inf)),
        *(("flag", value, "", "true or false") for value in (1, "true")),
        ("text", 3, "", "a string"),
        ("choice", "maen", "", "Did you mean 'mean'?"),
        ("colour", "green", "", "'red' or 'blue'"),
        ("pair", [1], ".1", "a number"),
        ("pair", [1, 2, 3], "", "a list of 2 (a number, a number)"),
        ("row", [1, "x"], ".1", "an integer"),
        ("table", {"a": "b"}, ".a", "a number"),
        ("several", 9, "", "an integer of at least 1 and below 9, 'smallest' or null"),
        ("several", "small", "", "Did you mean 'smallest'?"),
        ("times", "0x", "", "a string such as '3x' or null"),
        ("evens", 3, "", "an even number is needed. Found 3."),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_allowed(
    catalogue: Catalogue, option: str, value: Any, path: str, allowed: str
) -> None:
    (problem,) = catalogue.resolve("metric", {"name": "many", option: value}, "tasks.a.metric")[1]
    assert problem.path == f"tasks.a.metric.{option}{path}"
    assert allowed in problem.message


@pytest.mark.parametrize(("option", "value"), [("percent", 50), ("ends", 3)])
def test_what_a_validator_does_to_a_value_cannot_go_unseen(catalogue: Catalogue, option: str, value: Any) -> None:
    (problem,) = catalogue.resolve("metric", {"name": "many", option: value})[1]
    assert "metric 'many' (plugin 'mine' of dist-mine 1.0)" in problem.message


def test_unknown_names_and_options_come_with_the_nearest(catalogue: Catalogue) -> None:
    (problem,) = catalogue.resolve("combiner", "pcgard", "stages.0.combiner")[1]
    assert problem.path == "stages.0.combiner"
    assert "no combiner 'pcgard'; did you mean 'pcgrad'?" in problem.message
    (problem,) = catalogue.resolve("combiner", {"name": "pcgrad", "reducton": "sum"}, "stages.0.combiner")[1]
    assert problem.path == "stages.0.combiner.reducton"
    assert "no option 'reducton' of combiner 'pcgrad'; did you mean 'reduction'?" in problem.message
    (problem,) = catalogue.resolve("combiner", {"name": "sum", "reduction": "sum"})[1]
    assert problem.message == "no option 'reduction' of combiner 'sum' (options: none)"


@pytest.mark.parametrize("given", [3, {}, {"name": 3}, {"scale": 1}, ["mean_score"], None])
def test_what_is_not_a_component_is_refused(catalogue: Catalogue, given: Any) -> None:
    (problem,) = catalogue.resolve("loss", given, "x")[1]
    assert problem.path == "x"
    assert problem.message.startswith('should be a loss: a name, or an object with "name" and options. Found ')


# -- components inside components -------------------------------------------------------------------------------------


def test_components_inside_components_are_resolved_and_made(catalogue: Catalogue) -> None:
    spec = {
        "name": "several",
        "losses": ["mean_score", {"name": "several", "losses": [{"name": "by_class", "scale": 2}]}],
        "named": {"a": "by_class"},
        "either": "mean_score",
    }
    resolved, problems = catalogue.resolve("loss", spec)
    assert problems == []
    assert resolved["losses"][0] == {"name": "mean_score", "scale": 1.0, "margin": None, "steps": 3}
    assert resolved["losses"][1]["losses"][0]["scale"] == 2.0
    assert (resolved["first"], resolved["either"]["name"]) == (None, "mean_score")
    made = catalogue.make(Loss, resolved)
    assert isinstance(made.losses[1].losses[0], ByClass)
    assert made.losses[1].losses[0].scale == 2.0
    assert isinstance(made.named["a"], ByClass)
    assert isinstance(made.either, Mean)
    assert catalogue.make(Loss, {"name": "several", "losses": []}).either == 1.0


def test_problems_inside_carry_their_path(catalogue: Catalogue) -> None:
    spec = {
        "name": "several",
        "losses": ["mean_scor", {"name": "several", "losses": [{"name": "by_class", "scale": -1, "stps": 3}]}],
        "first": {"name": "pcgrad"},
        "either": True,
    }
    _, problems = catalogue.resolve("loss", spec, "tasks.sst.loss")
    paths = ["losses.0", "losses.1.losses.0.scale", "losses.1.losses.0.stps", "first", "either"]
    assert [problem.path.removeprefix("tasks.sst.loss.") for problem in problems] == paths
    problems = catalogue.resolve("loss", {"name": "several", "losses": [], "either": ["mse", "mes", "msee"]})[1]
    assert [problem.path for problem in problems] == ["either.1", "either.2"]
    (problem,) = catalogue.resolve("loss", "several")[1]
    assert problem.path == "losses"
    assert "is missing" in problem.message


def test_constructors_that_refuse_are_problems_at_their_path(catalogue: Catalogue) -> None:
    inner = [{"name": "mean_score", "scale": 7}, "by_class", {"name": "mean_score", "scale": 8}]
    with pytest.raises(RequestError) as caught:
        catalogue.make(Loss, {"name": "several", "losses": inner})
    first, second = caught.value.problems
    assert first == Problem("losses.0", "scale should not be 7")
    assert second.path == "losses.2"
    assert "KeyError: 'eight'" in second.message


# -- rules for constructors -------------------------------------------------------------------------------------------


def constructor(body: str) -> type[Component]:
    space = {**globals()}
    exec(f"class Broken(Loss):\n    name, expects = 'b', 'score'\n    def __init__(self, {body}) -> None: ...", space)  # noqa: S102
    cls: type[Component] = space["Broken"]
    cls.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return cls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("*, a", "option 'a' should be annotated"),
        ("a: int = 1", "option 'a' should be keyword-only"),
        ("*args: int", "__init__ should name its options. Found '*args: int'."),
        ("*, name: str = 'x'", "an option should not be called 'name'"),
        ("*, a: int = 'x'", "the default of option 'a' cannot be written in a grid. Found 'x'"),
        ("*, a: Annotated[float, Field(gt=0)] = 0", "the default of option 'a' cannot be written in a grid. Found 0"),
        ("*, a: float = math.inf", "the default of option 'a' cannot be written in a grid. Found inf"),
        ("*, a: Loss = 'mean_score'", "the option takes a component"),
        ("*, a: Tensor", "option 'a' should be of a type that JSON can hold"),
        ("*, a: Mean", "option 'a' should be of a type that JSON can hold"),
        ("*, a: Annotated[str, Field(pattern='(')]", "option 'a' should be of a type that JSON can hold"),
        ("*, a: 'Nowhere' = 1", "the annotations of __init__ should be names that exist"),
    ],
)
def test_a_constructor_that_breaks_a_rule_is_the_plugins_failure(
    catalogue_of: CatalogueOf, arguments: str, message: str
) -> None:
    built = catalogue_of(Mean, constructor(arguments))
    (failure,) = built.failed
    assert message in str(failure)
    assert "mean_score" in built.names("loss")
    assert message in built.resolve("loss", "b")[1][0].message


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_a_short_run_becomes_complete(catalogue: Catalogue) -> None:
    run, problems = catalogue.resolve_run(RunSpec.model_validate(RUN))
    assert problems == []
    (stage,) = run["stages"]
    assert stage["tasks"] == ["sst", "sts"]
    assert stage["optimizer"] == {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.0}
    assert (stage["sampler"]["name"], stage["sampler"]["batch_size"]) == ("round_robin", 8)
    assert stage["combiner"] == {"name": "sum"}
    assert run["encoder"].keys() == {"name", *catalogue.get("encoder", "minbert").options}
    assert run["tasks"]["sts"]["head"].keys() == {"name", *catalogue.get("head", "linear").options}
    assert json.loads(json.dumps(run)) == run


@pytest.mark.parametrize(
    ("change", "rate"),
    [
        ({}, 1e-5),
        ({"stages": [{"frozen": True}]}, 1e-3),
        ({"stages": [{"frozen": True, "optimizer": {"lr": 0.1}}]}, 0.1),
        ({"encoder": {"name": "minbert", "trainable": False}}, 1e-3),
    ],
)
def test_the_learning_rate_follows_what_is_trained(catalogue: Catalogue, change: Any, rate: float) -> None:
    run, _ = catalogue.resolve_run({**RUN, **change})
    assert run["stages"][0]["optimizer"]["lr"] == rate


NUMBERS = st.integers(1, 6) | st.floats(0.5, 6)
LOSSES = st.deferred(
    lambda: (
        st.just("by_class")
        | st.fixed_dictionaries({"name": st.just("by_class")}, optional={"scale": NUMBERS, "margin": NUMBERS})
        | st.fixed_dictionaries({"name": st.just("several"), "losses": st.lists(LOSSES, max_size=2)})
    )
)
PAIRS, SETS = st.lists(NUMBERS, min_size=2, max_size=2), st.sets(st.text()).map(list)
METRICS = st.fixed_dictionaries({"name": st.just("many")}, optional={"pair": PAIRS, "sets": SETS})
TASKS = st.fixed_dictionaries({"data": st.just(DATA), "loss": LOSSES}, optional={"metric": METRICS})
SCHEDULES = st.sampled_from(["linear", {"name": "cosine", "warmup": 1}])
STAGES = st.fixed_dictionaries({}, optional={"frozen": st.booleans(), "clip": NUMBERS, "schedule": SCHEDULES})
RUNS = st.fixed_dictionaries(
    {"tasks": st.dictionaries(st.sampled_from(["sst", "para", "sts"]), TASKS, min_size=1)},
    optional={"stages": st.lists(STAGES, min_size=1, max_size=2), "selection": st.sampled_from(["overall", "last"])},
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
        assert catalogue.make(Loss, task["loss"]).name == RunSpec.model_validate(run).tasks[name].loss.name


def test_all_problems_of_a_run_come_together(catalogue: Catalogue) -> None:
    run = {
        "encoder": {"name": "minbert", "layers": "two"},
        "tasks": {
            "sst": {"data": DATA, "head": "linaer", "loss": {"name": "by_class", "scale": 7}},
            "real": {"data": {"name": "generated", "task": "similarity"}, "loss": "by_class"},
            "pair": {"data": DATA, "head": {"name": "linear", "reads": "pair"}, "loss": "mean_score"},
        },
        "stages": [{"tasks": ["sts", "pair"], "combiner": "pcgard"}],
        "selection": "sst2",
    }
    problems = catalogue.resolve_run(run)[1]
    assert sorted({problem.path for problem in problems}) == [
        *("encoder.layers", "selection", "stages.0.combiner", "stages.0.tasks", "tasks.pair.head"),
        *("tasks.real.loss", "tasks.real.metric", "tasks.sst.head", "tasks.sst.loss"),
    ]
    near = [problem.message for problem in problems if problem.path in ("stages.0.tasks", "selection")]
    assert all("did you mean 'sst'?" in message for message in near)


def test_a_run_that_is_not_valid_still_has_its_components_checked(catalogue: Catalogue) -> None:
    run = {
        "tasks": {"sst": {"data": "genrated", "los": "mse"}, "sts": {"data": {"nme": "x"}}, "x": 3, "a b": {}},
        "stages": [
            {"epochs": True, "combiner": {"name": "pcgrad", "reduction": "maen"}, "batch_size": 8},
            {"tasks": []},
            {"tasks": ["sst", "sst"]},
        ],
        "seed": -1,
    }
    resolved, problems = catalogue.resolve_run(run)
    assert resolved == {}
    found = {problem.path: problem.message for problem in problems}
    assert found.keys() == {
        *("seed", "stages.0.combiner.reduction", "stages.0.epochs", "stages.0.batch_size", "stages.1.tasks"),
        *("stages.2.tasks", "tasks", "tasks.a b.data", "tasks.sst.data", "tasks.sst.los", "tasks.sts.data"),
        "tasks.x",
    }
    assert len(problems) == len(found)
    assert found["stages.0.batch_size"] == "'batch_size' is an option of the sampler: write it inside 'sampler'"
    assert "did you mean 'loss'?" in found["tasks.sst.los"]
    assert found["tasks.x"] == "should be an object with data, head, loss, metric. Found 3."
    (problem,) = catalogue.resolve_run([])[1]  # type: ignore[arg-type]
    assert problem.path == ""


def test_versions_name_every_plugin_of_a_run_and_no_other(catalogue_of: CatalogueOf) -> None:
    plugins = Plugins()
    catalogue_of(Several, plugins=plugins, name="outer")
    two = catalogue_of(Mean, plugins=plugins, name="inner")
    outer = two.resolve("loss", {"name": "several", "losses": []})[0]
    inner = two.resolve("loss", {"name": "several", "losses": ["mean_score"]})[0]
    assert two.versions({"tasks": {"a": {"loss": outer}}}) == {"dist-outer": "1.0"}
    assert two.versions({"tasks": {"a": {"loss": inner}}}) == {"dist-inner": "1.0", "dist-outer": "1.0"}


# -- what is installed ------------------------------------------------------------------------------------------------


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


def test_a_task_that_no_stage_trains_is_no_part_of_the_run() -> None:
    spare = {"tasks": {"sst": {"data": DATA}, "spare": {"data": DATA}}, "stages": [{"tasks": ["sst"]}]}
    plain = {"tasks": {"sst": {"data": DATA}}}
    assert load_catalogue().resolve_run(spare) == load_catalogue().resolve_run(plain)


SIMILARITY = {"data": {"name": "generated", "task": "similarity"}, "head": "cosine", "loss": "mse", "metric": "pearson"}
ANY, TWO_TASKS = {"data": DATA}, {"sts": SIMILARITY, "sst": {"data": DATA}}
#: What one task has as its metric → where the one problem is, and what it says.
METRICS_REFUSED: list[tuple[Any, str, str]] = [
    (["pearson", "sperman"], ".1", "no metric 'sperman'; did you mean 'spearman'?"),
    (["pearson", "accuracy"], ".1", "metric 'accuracy' counts classes"),
    (["accuracy", "pearson"], ".0", "metric 'accuracy' counts classes"),
    (["pearson", "mcc"], ".1", "metric 'mcc' counts classes"),
    (["pearson", {"name": "spearman", "x": 1}], ".1.x", "no option 'x' of metric 'spearman'"),
    (["pearson", 5], ".1", 'should be a metric: a name, or an object with "name" and options. Found 5.'),
    (["pearson", "pearson"], "", "each should appear once, and pearson appears more often"),
    ([], "", "or a list of such. Found []."),
    ({"nme": "pearson"}, "", "or a list of such. Found "),
]
#: What a run of two tasks has as its overall score → the same.
WEIGHTS_REFUSED: list[tuple[Any, str, str]] = [
    ("maen", ".name", "Did you mean 'mean'?"),
    ({"weights": {"stss": 2}}, ".weights.stss", "no task 'stss'; did you mean 'sts'?"),
    ({"weights": {"sts": -1}}, ".weights.sts", "a number of at least 0. Found -1."),
    ({"weights": {"sts": 0, "sst": 0}}, ".weights", "one task with a dev score should weigh more than 0"),
    ({"weight": {"sts": 2}}, ".weight", "did you mean 'weights'?"),
]
REFUSED: list[tuple[Any, str, str]] = [
    (
        {"tasks": {"sst": {"data": DATA, "metric": ["accuracy", {"name": "f1", "classes": 9}]}}},
        "tasks.sst.metric.1",
        "metric 'f1' with these options gives all predictions the same score; the labels of data set 'generated' are",
    ),
    *(
        ({"tasks": {"sts": {**SIMILARITY, "metric": metric}}}, f"tasks.sts.metric{path}", words)
        for metric, path, words in METRICS_REFUSED
    ),
    *(({"tasks": TWO_TASKS, "overall": how}, f"overall{path}", words) for how, path, words in WEIGHTS_REFUSED),
    (
        {"tasks": {"a": ANY, "b": ANY}, "stages": [{"tasks": ["a"]}], "selection": "b"},
        "selection",
        "not trained in any stage",
    ),
]


def test_a_metric_of_values_is_refused_for_classes_and_a_correlation_of_classes_is_not() -> None:
    _, problems = load_catalogue().resolve_run({"tasks": {"sst": {"data": DATA, "metric": ["mcc", "f1", "mae"]}}})
    (problem,) = problems
    assert (problem.path, "metric 'mae' measures values" in problem.message) == ("tasks.sst.metric.2", True)


@pytest.mark.parametrize(("run", "path", "words"), REFUSED)
def test_the_one_problem_of_a_run_is_said_with_its_place(run: Any, path: str, words: str) -> None:
    _, (problem,) = load_catalogue().resolve_run(run)
    assert problem.path == path
    assert words in problem.message


# -- what a loss states -----------------------------------------------------------------------------------------------


class Silent(Mean):
    """Takes one number for it does not say what."""

    name = "silent"


class Hinge(Mean):
    """The sign of one number."""

    name = "hinge"
    score_means = "logit"


class Huber(Mean):
    """Compares one number with the label."""

    name = "huber"
    score_means = "value"


class Handed(Loss):
    """Hands on what another loss says."""

    name = "handed"
    expects: Expects

    def __init__(self, *, loss: Loss) -> None:
        super().__init__()
        self.expects, self.score_means, self.loss = loss.expects, loss.score_means, loss

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return self.loss(prediction, target)  # type: ignore[no-any-return]


class Unstated(Loss):
    """Says nothing of what it expects."""

    name = "unstated"

    def forward(self, prediction: Any, target: Tensor) -> Tensor:
        return prediction.score.mean()  # type: ignore[no-any-return]


def test_a_loss_states_what_it_expects_itself_or_by_a_parent_or_by_its_constructor(catalogue_of: CatalogueOf) -> None:
    catalogue = catalogue_of(Mean, Silent, Handed, Unstated)
    ours = [entry.name for entry in catalogue.entries if entry.cls.__module__ == __name__]
    assert ours == ["handed", "mean_score", "silent"]
    (failure,) = catalogue.failed
    values = "one of 'classes', 'score', 'vectors', or its annotation if the constructor sets it"
    assert failure.reason == f"loss 'unstated': expects should be stated in the class: {values}"
    (problem,) = catalogue.resolve("loss", "unstated")[1]
    assert failure.reason in problem.message


TWO, FIVE = ({"name": "generated", "task": task} for task in ("paraphrase", "sentiment"))
PAIR: dict[str, Any] = {"name": "linear", "reads": "pair"}
COSINE: dict[str, Any] = {"name": "cosine", "scale": 1}


@pytest.mark.parametrize(
    ("data", "head", "loss", "part", "words"),
    [
        ("named", "linear", "mse", "loss", "are named classes (con, neutral, pro): use 'cross_entropy', or number"),
        ("named", "linear", {"name": "smart", "loss": "mse"}, "loss", "'smart' compares one number with the label"),
        ("named", "linear", "huber", "loss", "loss 'huber' compares one number with the label"),
        (FIVE, "linear", "hinge", "loss", "'hinge' needs two classes; the labels of data set 'generated' are 5 cl"),
        (FIVE, "linear", {"name": "mse", "target": "scaled"}, "loss", "should have target 'raw' for 5 classes"),
        (TWO, PAIR, "silent", "loss", "loss 'silent' should say what one number means for two classes: score_means = "),
        (TWO, PAIR, {"name": "handed", "loss": "silent"}, "loss", "loss 'handed' should say what one number means"),
        (TWO, "cosine", "mse", "head", "scores from 2.5 on for the second class; loss 'mse' draws them to 0 and 1"),
        (TWO, {"name": "shared_layer", "head": "cosine_sigmoid"}, "huber", "head", "scale its scores to 1"),
        ("named", "linear", "cross_entropy", "", ""),
        (FIVE, "linear", "mse", "", ""),
        (FIVE, "linear", "silent", "", ""),
        (TWO, PAIR, "mse", "", ""),
        (TWO, PAIR, {"name": "handed", "loss": "huber"}, "", ""),
        (TWO, "both_orders", "hinge", "", ""),
        (TWO, COSINE, "mse", "", ""),
        (TWO, "cosine", "binary_cross_entropy", "", ""),
        (TWO, "cosine", "cosine_embedding", "", ""),
    ],
)
def test_one_number_that_cannot_stand_for_the_classes_is_refused(
    catalogue_of: CatalogueOf, data: Any, head: Any, loss: Any, part: str, words: str
) -> None:
    if data == "named":
        files = {"train": "t.csv", "dev": "d.csv"}
        data = {"name": "table", **files, "text": "text", "label": "side", "classes": ["con", "neutral", "pro"]}
    catalogue = catalogue_of(Mean, Silent, Hinge, Huber, Handed)
    _, problems = catalogue.resolve_run({"tasks": {"t": {"data": data, "head": head, "loss": loss}}})
    assert [problem.path for problem in problems] == ([f"tasks.t.{part}"] if part else [])
    assert all(words in problem.message for problem in problems)
