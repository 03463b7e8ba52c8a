"""What a user writes: the specification of one run, and of a grid of runs.

Pydantic models at the edge of the program; no component ever sees one. They check form only – types, ranges,
unknown keys. Whether a named component exists and takes the options given is the catalogue's business.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, Strict, model_validator

_STRICT = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# As JSON has them: "3" is no number and true is no 1, but 1 will do for 1.0 and 1.0 for 1.
Whole = Annotated[int, BeforeValidator(_whole), Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


class ComponentSpec(BaseModel):
    """A component by name, with options: ``"pcgrad"`` or ``{"name": "pcgrad", "reduction": "mean"}``."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class TaskSpec(BaseModel):
    """One task: its data, its head, its loss, and the metric that judges it."""

    model_config = _STRICT
    data: ComponentSpec
    """Where its examples come from."""
    head: ComponentSpec = ComponentSpec(name="linear")
    """What turns sentence vectors into its prediction."""
    loss: ComponentSpec = ComponentSpec(name="cross_entropy")
    """What its training makes small."""
    metric: ComponentSpec = ComponentSpec(name="accuracy")
    """What its dev set is scored with."""


class OptimizerSpec(BaseModel):
    """AdamW with decoupled weight decay and bias correction (Loshchilov & Hutter 2019)."""

    model_config = _STRICT
    lr: Number | None = Field(None, gt=0)
    """Learning rate; by default 1e-5, or 1e-3 where the encoder is frozen, as in the papers."""
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: Number = Field(1e-6, gt=0)
    """Added to the denominator."""
    weight_decay: Number = Field(0.0, ge=0)
    """Decoupled weight decay."""


class ScheduleSpec(BaseModel):
    """How the learning rate moves over a stage."""

    model_config = _STRICT
    name: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: stay, fall in a line to zero, or fall along half a cosine to zero."""
    warmup: Number = Field(0.0, ge=0)
    """Steps of linear warm-up; below 1, a share of all steps."""


def _schedule_from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class StageSpec(BaseModel):
    """One stage of training: which tasks, in which batches, combined how, for how long."""

    model_config = _STRICT
    tasks: tuple[str, ...] | None = None
    """The tasks that take part; by default all, in the order in which the run declares them."""
    sampler: ComponentSpec = ComponentSpec(name="round_robin")
    """Which task batches make up one step."""
    combiner: ComponentSpec = ComponentSpec(name="sum")
    """How the tasks' gradients become one update."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW's numbers."""
    schedule: Annotated[ScheduleSpec, BeforeValidator(_schedule_from_name)] = ScheduleSpec()
    """How the learning rate moves."""
    epochs: Whole = Field(10, ge=0)
    """Passes of the sampler; 0 leaves everything untrained."""
    frozen: Flag = False
    """Keep the encoder as it is and train only heads."""
    clip: Number | None = Field(None, gt=0)
    """Largest norm of the gradient of all parameters."""
    micro_batch: Whole | None = Field(None, ge=1)
    """Most examples of a task in memory at a time; the update is the whole batch's, dropout drawn part by part."""


class ResourcesSpec(BaseModel):
    """What one cell needs of a machine, for engines that place cells; no part of what the cell is."""

    model_config = _STRICT
    cpus: Number | None = Field(None, gt=0)
    """Cores; None: what the engine gives."""
    gpus: Number | None = Field(None, ge=0, le=1)
    """Share of a GPU, so that 0.5 puts two cells on one; None: what the engine gives."""


class RunSpec(BaseModel):
    """One run: an encoder, tasks, stages of training, a seed."""

    model_config = _STRICT
    encoder: ComponentSpec = ComponentSpec(name="minbert")
    """What turns text into vectors, shared by all tasks."""
    tasks: dict[str, TaskSpec] = Field(min_length=1)
    """The tasks by name."""
    stages: tuple[StageSpec, ...] = Field((StageSpec(),), min_length=1)
    """The stages of training, one after another; each hands its weights to the next."""
    overall: Literal["mean", "normalised"] = "mean"
    """How the tasks' dev scores become one: their mean, or the mean with correlations mapped to (r + 1)/2."""
    selection: str = "overall"
    """What chooses the best epoch: "overall", the name of a task, or "last"."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the forward pass computes in; weights, losses, gradients and the optimizer stay in float32."""
    resources: ResourcesSpec = ResourcesSpec()
    """What one cell needs of a machine."""
    seed: Whole = Field(0, ge=0, le=2**32 - 1)
    """The seed of everything random."""


class CellSpec(BaseModel):
    """One labelled cell of a grid, for tables that are no product."""

    model_config = _STRICT
    label: str = Field(min_length=1)
    """The row's name in the table."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Dotted path → value, laid over the base."""
    reported: dict[str, Number] = Field(default_factory=dict)
    """Figures that somebody published for this row, by column."""
    reported_train: dict[str, Number] = Field(default_factory=dict)
    """Figures that somebody published for this row on its training data, by task."""
    split: Literal["dev", "test"] = "dev"
    """The split on which the published figures were taken; ours are always those of dev."""
    note: str = ""
    """What a reader of this row should know: a choice that was made, a slip in the source."""


class TableSpec(BaseModel):
    """How the grid's table looks."""

    model_config = _STRICT
    columns: tuple[str, ...] | None = None
    """Columns in order: names of tasks, "overall", "seconds", "memory"; by default all tasks and "overall"."""
    digits: Whole = Field(3, ge=0, le=10)
    """Digits behind the point."""


Axis = list[JsonValue] | dict[str, JsonValue]
AxisSpec = Annotated[Axis, Field(min_length=1)]


class GridSpec(BaseModel):
    """A grid: a base run, what is varied in it, and how often each variant is repeated.

    The cells are the product of ``axes`` with each entry of ``zip`` (whose paths move together), less
    ``exclude``, followed by ``cells``. A path is dotted and counts lists from 0, as in
    ``stages.0.combiner.reduction``; ``*`` stands for every task or every stage. The values of an axis are a list,
    or an object from label to value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)
    schema_: str | None = Field(None, alias="$schema")
    """Where an editor finds the schema; see ``taskloom schema``."""
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """The grid's name in the registry; by default the file's."""
    description: str = ""
    """One line for the listing."""
    notes: tuple[str, ...] = ()
    """What a reader of the whole table should know."""
    base: str | dict[str, JsonValue]
    """A run specification, or the name of a packaged grid whose base is taken."""
    axes: dict[str, AxisSpec] = Field(default_factory=dict)
    """Dotted path → values: the grid is their product."""
    zip: tuple[dict[str, AxisSpec], ...] = ()
    """Groups of axes that move together, value by value."""
    cells: tuple[CellSpec, ...] = ()
    """Explicit cells beside the product."""
    exclude: tuple[dict[str, JsonValue], ...] = ()
    """Product cells that match all paths of an entry are left out."""
    seeds: tuple[Annotated[Whole, Field(ge=0, le=2**32 - 1)], ...] = Field((0,), min_length=1)
    """Each cell is run once with every seed."""
    baseline: str | None = None
    """The label of the cell that the others are compared with."""
    table: TableSpec = TableSpec()
    """How the table looks."""


def plain(value: Any) -> Any:
    """A spec as JSON values, components always as objects: ``{"name": …, options…}``."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json", by_alias=True))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
