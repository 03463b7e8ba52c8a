"""What a user writes: the specification of one run, and of a grid of runs.

Pydantic models at the edge of the program; no component ever sees one. Whether a named component exists and takes the
options given is the catalogue's business.
"""

import re
from collections import Counter
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    Strict,
    WithJsonSchema,
    model_validator,
)

from taskloom.core.component import kind_schema

_NAME = "letters, digits, '_' and '-', starting with a letter or digit"
_TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_GRID_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}$"
#: Names of columns, which a task's name would hide; "last" is a way to select an epoch.
RESERVED = ("overall", "seconds", "memory", "examples", "backwards", "combiner", "last")
#: Characters of a row's label.
LONGEST_LABEL = 200
Axis = TypeVar("Axis", bound=list[Any] | dict[str, Any])
Items = TypeVar("Items", bound=tuple[Any, ...])


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _each_once(values: Items) -> Items:
    twice = [str(value) for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"each should appear once, and {', '.join(twice)} appears more often")
    return values


def _task_name(name: str) -> str:
    if not re.fullmatch(_TASK_NAME, name):
        raise ValueError(f"a task's name should be up to 64 {_NAME}")
    if name in RESERVED:
        raise ValueError(f"a task should not be called {', '.join(RESERVED)}")
    return name


def _grid_name(name: str) -> str:
    if not re.fullmatch(_GRID_NAME, name):
        allowed = _NAME.replace("digits,", "digits, dots, '+', '=',", 1)
        raise ValueError(f"a grid's name (its file's, unless it sets \"name\") should be up to 100 {allowed}")
    return name


def _label(label: str) -> str:
    if len(label) > LONGEST_LABEL:
        raise ValueError(f"a label should be up to {LONGEST_LABEL} characters long, not {len(label):,}")
    return label


def _axis(values: Axis) -> Axis:
    for label in values if isinstance(values, dict) else ():
        _label(label)
    return values


# As JSON has them: "3" is not a number and true is not 1, but 1 will do for 1.0 and 1.0 for 1.
Integer = Annotated[int, BeforeValidator(_integer), Strict()]
Seed = Annotated[int, Strict(), Field(ge=0, le=2**32 - 1), BeforeValidator(_integer)]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
TaskName = Annotated[
    str,
    AfterValidator(_task_name),
    WithJsonSchema({"type": "string", "pattern": _TASK_NAME, "not": {"enum": list(RESERVED)}}),
]
Label = Annotated[str, AfterValidator(_label), WithJsonSchema({"type": "string", "maxLength": LONGEST_LABEL})]
GridName = Annotated[str, AfterValidator(_grid_name), WithJsonSchema({"type": "string", "pattern": _GRID_NAME})]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _NamedSpec(_Spec):
    """What may be written as its name alone."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ComponentSpec(_NamedSpec):
    """A component by name, with options: ``"pcgrad"`` or ``{"name": "pcgrad", "reduction": "mean"}``."""

    model_config = ConfigDict(extra="allow")
    name: str


def _listed(value: Any) -> Any:
    """One metric as a list of one; whatever cannot be a metric is left to be refused as it is."""
    named = isinstance(value.get("name"), str) if isinstance(value, dict) else isinstance(value, str | ComponentSpec)
    return [value] if named else value


def _called_differently(metrics: tuple[ComponentSpec, ...]) -> tuple[ComponentSpec, ...]:
    _each_once(tuple(metric.name for metric in metrics))
    return metrics


_METRIC = kind_schema("metric")
#: One component, or several of different names; one is written without the list.
MetricSpecs = Annotated[
    tuple[ComponentSpec, ...],
    BeforeValidator(_listed),
    Field(min_length=1),
    AfterValidator(_called_differently),
    PlainSerializer(lambda metrics: metrics[0] if len(metrics) == 1 else list(metrics)),
    WithJsonSchema({"anyOf": [_METRIC, {"type": "array", "items": _METRIC, "minItems": 1}]}),
]


class TaskSpec(_Spec):
    """One task: its data, its head, its loss, and what judges it."""

    data: Annotated[ComponentSpec, WithJsonSchema(kind_schema("data"))]
    """Where its examples come from."""
    head: Annotated[ComponentSpec, WithJsonSchema(kind_schema("head"))] = ComponentSpec(name="linear")
    """What turns sentence vectors into its prediction."""
    loss: Annotated[ComponentSpec, WithJsonSchema(kind_schema("loss"))] = ComponentSpec(name="cross_entropy")
    """What its training makes small."""
    metric: MetricSpecs = (ComponentSpec(name="accuracy"),)
    """What its dev set is scored with; of a list the first is the task's score, the others are further columns."""


class OptimizerSpec(_Spec):
    """AdamW with decoupled weight decay and bias correction (Loshchilov & Hutter 2019)."""

    lr: Number | None = Field(None, gt=0)
    """Learning rate; by default 1e-5, or 1e-3 where the encoder is frozen, as in the papers."""
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: Number = Field(1e-6, gt=0)
    """Added to the denominator."""
    weight_decay: Number = Field(0.0, ge=0)
    """Decoupled weight decay."""


class ScheduleSpec(_NamedSpec):
    """How the learning rate moves over a stage."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: stay, fall in a line to zero, or fall along half a cosine to zero."""
    warmup: Number = Field(0.0, ge=0)
    """Steps of linear warm-up; below 1, a share of all steps."""


class StageSpec(_Spec):
    """One stage of training: which tasks, in which batches, combined how, for how long."""

    tasks: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_each_once)] | None = None
    """The tasks that take part; by default all, in the order in which the run declares them."""
    sampler: Annotated[ComponentSpec, WithJsonSchema(kind_schema("sampler"))] = ComponentSpec(name="round_robin")
    """Which task batches make up one step."""
    combiner: Annotated[ComponentSpec, WithJsonSchema(kind_schema("combiner"))] = ComponentSpec(name="sum")
    """How the tasks' gradients become one update."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW's numbers."""
    schedule: ScheduleSpec = ScheduleSpec()
    """How the learning rate moves."""
    epochs: Integer = Field(10, ge=0, le=1_000_000)
    """Passes of the sampler; 0 leaves everything untrained."""
    frozen: Flag = False
    """Keep the encoder as it is and train only heads."""
    clip: Number | None = Field(None, gt=0)
    """Largest norm of the gradient of all parameters."""
    micro_batch: Annotated[int, Strict(), Field(ge=1), BeforeValidator(_integer)] | None = None
    """Most examples of a task in memory at a time; the update is the whole batch's, dropout drawn part by part."""
    patience: Annotated[int, Strict(), Field(ge=1), BeforeValidator(_integer)] | None = None
    """End the stage once the selection score has not improved for so many epochs; by default train all of them."""


class HoldOutSpec(_Spec):
    """Training rows that are scored in the place of the dev split, and not trained on."""

    share: Number = Field(gt=0, lt=1)
    """Their share of each task's training rows; rows with equal texts stay together."""
    seed: Seed = 0
    """Draws them."""


class ResourcesSpec(_Spec):
    """What one cell needs of a machine, for engines that place cells; no part of what the cell is."""

    cpus: Number | None = Field(None, gt=0)
    """Cores; None: what the engine gives."""
    gpus: Number | None = Field(None, ge=0, le=1)
    """Share of a GPU, so that 0.5 puts two cells on one; None: what the engine gives."""


class ScoreSpec(_Spec):
    """What is scored beside the dev split."""

    train: Integer = Field(0, ge=0)
    """So many examples of each task's training data, always the same ones, after every epoch."""
    test: Flag = False
    """The labelled test split, once, with the weights of the best epoch."""


class OverallSpec(_NamedSpec):
    """How the tasks' dev scores become one."""

    name: Literal["mean", "normalised"] = "mean"
    """Their mean, or the mean with correlations mapped to (r + 1)/2."""
    weights: dict[str, Annotated[Number, Field(ge=0)]] = Field(default_factory=dict)
    """Task → weight in the mean; a task that is not named weighs 1, one that weighs 0 does not count."""


class RunSpec(_Spec):
    """One run: an encoder, tasks, stages of training, a seed."""

    encoder: Annotated[ComponentSpec, WithJsonSchema(kind_schema("encoder"))] = ComponentSpec(name="minbert")
    """What turns text into vectors, shared by all tasks."""
    tasks: dict[TaskName, TaskSpec] = Field(min_length=1)
    """The tasks by name."""
    stages: tuple[StageSpec, ...] = Field((StageSpec(),), min_length=1)
    """The stages of training, one after another; each hands its weights to the next."""
    overall: OverallSpec = OverallSpec()
    """How the tasks' dev scores become one: "mean", "normalised", or an object with ``weights``."""
    selection: str = "overall"
    """What chooses the best epoch: "overall", the name of a task, or "last"."""
    score: ScoreSpec = ScoreSpec()
    """What is scored beside the dev split."""
    hold_out: HoldOutSpec | None = None
    """Hold out training rows, and score these instead of dev, as the trials of a search do; by default none."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the forward pass computes in; weights, losses, gradients and the optimizer stay in float32."""
    resources: ResourcesSpec = ResourcesSpec()
    """What one cell needs of a machine."""
    seed: Seed = 0
    """The seed of everything random."""


class RangeSpec(_Spec):
    """The numbers from ``low`` to ``high`` among which a search chooses."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"log": [1e-5, 3e-4]}]})
    log: tuple[Number, Number] | None = None
    """[low, high], both above 0, on a logarithmic scale …"""
    uniform: tuple[Number, Number] | None = None
    """… or [low, high] on a linear one."""

    @model_validator(mode="after")
    def _has_one_scale(self) -> "RangeSpec":
        if (self.log is None) == (self.uniform is None):
            raise ValueError('a range should be {"log": [low, high]} or {"uniform": [low, high]}')
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"a range should go from its low end to its high end, such as [{high:g}, {low:g}]")
        if self.log is not None and low <= 0:
            raise ValueError('a range on a logarithmic scale should be above 0; "uniform" may begin anywhere')
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The low and the high end."""
        low, high = self.uniform if self.log is None else self.log  # type: ignore[misc]  # one of them is there
        return low, high


_Values = Annotated[list[JsonValue], Field(min_length=1)] | Annotated[dict[str, JsonValue], Field(min_length=1)]
#: Dotted path → the values, or the range of numbers, among which a search chooses.
Searched = Annotated[
    dict[str, Annotated[list[JsonValue], Field(min_length=1)] | RangeSpec],
    Field(min_length=1, json_schema_extra={"examples": [{"stages.0.optimizer.lr": {"log": [1e-5, 3e-4]}}]}),
]


class CellSearchSpec(_Spec):
    """What the search of a grid also varies in one of its rows."""

    over: Searched
    """Dotted path → list of values, {"log": [low, high]} or {"uniform": [low, high]}."""


class SearchSpec(CellSearchSpec):
    """A search for the settings of each row, with the same trials for all rows.

    Trials are scored on training rows that are held out. The row's final cells have the settings of its best trial, and
    are trained on all training data with the grid's seeds, none of which is a trial's.
    """

    trials: Integer = Field(8, ge=1, le=10_000)
    """Settings that each row is tried with."""
    hold_out: Number = Field(0.1, gt=0, lt=1)
    """The share of the training rows that trials are scored on."""
    seed: Seed = 0
    """Draws the settings, the held-out rows and the seeds of trials."""
    per: Literal["row", "seed"] = "row"
    """One search for each row, or one for each seed of each row."""
    halving: Flag = False
    """Train trials for the first third of their epochs, and only the better third of them to the end."""
    sampler: ComponentSpec = ComponentSpec(name="design")
    """What draws the settings."""


class CellSpec(_Spec):
    """One labelled cell of a grid, for tables that are not a product."""

    label: Label = Field(min_length=1)
    """The row's name in the table."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Dotted path → value, laid over the base."""
    search: CellSearchSpec | None = None
    """What the grid's search also varies in this row."""
    reported: dict[str, Number] = Field(default_factory=dict)
    """Figures that somebody published for this row, by column."""
    reported_train: dict[str, Number] = Field(default_factory=dict)
    """Figures that somebody published for this row on its training data, by task."""
    split: Literal["dev", "test"] = "dev"
    """The split on which the published figures were taken; the row shows our scores on the same one."""
    note: str = ""
    """What a reader of this row should know: a choice that was made, a slip in the source."""


_ROW = {"type": "string"}
#: A row's label, or several: a claim about several pairs of rows is about the mean of their differences.
RowLabels = Annotated[
    tuple[str, ...],
    BeforeValidator(_listed),
    Field(min_length=1),
    PlainSerializer(lambda labels: labels[0] if len(labels) == 1 else list(labels)),
    WithJsonSchema({"anyOf": [_ROW, {"type": "array", "items": _ROW, "minItems": 1}]}),
]


class ClaimSpec(_Spec):
    """A statement about two rows, written down at best before they are run; ``taskloom claims`` answers it.

    Lists of rows of equal length make it a statement about the mean of the differences of their pairs.
    """

    says: str = ""
    """The claim in words."""
    better: RowLabels | None = None
    """The row that is claimed to be better …"""
    equal: RowLabels | None = None
    """… or that is claimed to be as good …"""
    than: RowLabels = Field(validation_alias=AliasChoices("than", "to"))
    """… as this row."""
    on: str = "overall"
    """The column: a task, overall, or ``task:metric`` for a further metric of a task."""
    within: Number | None = Field(None, gt=0)
    """The difference up to which rows are equal; needed by a claim that they are."""

    @model_validator(mode="after")
    def _states_one_thing(self) -> "ClaimSpec":
        if (self.better is None) == (self.equal is None):
            raise ValueError('a claim should name one row, under "better" or under "equal"')
        if self.equal is not None and self.within is None:
            raise ValueError('a claim that rows are equal should say up to which difference, under "within"')
        key, other = ("equal", "to") if self.better is None else ("better", "than")
        if len(self.rows) != len(self.than):
            counts = f"Found {len(self.rows)} and {len(self.than)}."
            raise ValueError(f'a claim should have as many rows under "{key}" as under "{other}". {counts}')
        return self

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that are claimed to be better, or as good."""
        return self.better or self.equal or ()


class TableSpec(_Spec):
    """How the grid's table looks."""

    columns: Annotated[tuple[str, ...], AfterValidator(_each_once)] | None = None
    """Columns in order: tasks, "task:metric" for a further metric, "overall", "seconds", "memory"; by default all
    scores and "seconds"."""
    digits: Integer = Field(3, ge=0, le=10)
    """Digits behind the point."""


AxisSpec = Annotated[_Values, AfterValidator(_axis)]


class GridSpec(_Spec):
    """A grid: a base run, what is varied in it, and how often each variant is repeated.

    The cells are the product of ``axes`` with each entry of ``zip`` (whose paths move together), less
    ``exclude``, followed by ``cells``. A path is dotted and counts lists from 0, as in
    ``stages.0.combiner.reduction``; ``*`` stands for every task or every stage. The values of an axis are a list,
    or an object from label to value.
    """

    schema_: str | None = Field(None, alias="$schema")
    """Where an editor finds the schema; see ``taskloom schema``."""
    name: GridName | None = None
    """The grid's name in the registry; by default the file's."""
    description: str = ""
    """One line for the listing."""
    notes: tuple[str, ...] = ()
    """What a reader of the whole table should know."""
    extends: str | None = None
    """The name of a packaged grid that is taken with all its rows. What this grid states goes first, key by key (its
    own ``axes`` are in the place of the other's); ``cells``, ``claims`` and ``notes`` are added to the other's."""
    base: str | dict[str, JsonValue] = Field(default_factory=dict)
    """A run specification, or the name of a packaged grid whose base is taken, and nothing else of it."""
    axes: dict[str, AxisSpec] = Field(default_factory=dict)
    """Dotted path → values: the grid is their product."""
    zip: tuple[dict[str, AxisSpec], ...] = ()
    """Groups of axes that move together, value by value."""
    cells: tuple[CellSpec, ...] = ()
    """Explicit cells beside the product."""
    exclude: tuple[dict[str, JsonValue], ...] = ()
    """Product cells that match all paths of an entry are left out."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_each_once)] = (0,)
    """Each cell is run once with every seed."""
    search: SearchSpec | None = None
    """Tunes every row with the same number of trials, on training rows that are held out."""
    baseline: str | None = None
    """The label of the cell that the others are compared with."""
    margin: Number | None = Field(None, gt=0)
    """The difference up to which rows count as equal; without one no row is called equal."""
    claims: tuple[ClaimSpec, ...] = ()
    """Hypotheses about rows."""
    table: TableSpec = TableSpec()
    """How the table looks."""


def plain(spec: BaseModel) -> dict[str, Any]:
    """A spec as JSON values, components always as objects: ``{"name": …, options…}``."""
    return spec.model_dump(mode="json", by_alias=True)
