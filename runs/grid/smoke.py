"""A grid made tiny: every head, loss, sampler, combiner and stage as it is, on little text with a small encoder.

A smoke run shows in seconds that every cell of a grid can be trained and scored. Its figures mean nothing, so it is
recorded under a name of its own.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from taskloom.runs.grid.expansion import copied
from taskloom.runs.grid.grid import Grid
from taskloom.runs.grid.paths import component_of, parts_of

if TYPE_CHECKING:
    from taskloom.core.data import DataSet
    from taskloom.registry.installed.catalogue import Catalogue

SUFFIX = "-smoke"
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 512, "max_length": 64}
#: Options of the grid's own encoder that a smoke run keeps, where they are what ``minbert`` takes.
KEPT = {"pooling": ("pooler", "cls", "mean", "max"), "trainable": (True, False)}
SIZES = {"size": 32, "dev_size": 16, "test_size": 4}
ITERATIONS = 4


def smoke_grid(grid: Grid) -> Grid:
    """The grid under its smoke name, with its first seed only."""
    name = f"{grid.name[: 100 - len(SUFFIX)]}{SUFFIX}"
    return replace(grid, name=name, spec=grid.spec.model_copy(update={"seeds": grid.spec.seeds[:1]}))


def smoke_run(spec: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """A run for a few steps: a tiny encoder, a few generated rows for every task, at most one epoch per stage.

    What is not valid stays, for the plan to report.
    """
    small = copied(spec)
    encoder = component_of(small.get("encoder"))
    if encoder is not None:
        small["encoder"] = ENCODER | {key: encoder[key] for key, values in KEPT.items() if encoder.get(key) in values}
    for task in parts_of(small, "tasks"):
        if "data" in task:
            task["data"] = _generated(task["data"], catalogue)
    for stage in parts_of(small, "stages"):
        if stage.get("epochs") != 0:
            stage["epochs"] = 1
        if "sampler" in stage:
            stage["sampler"] = _few_steps(stage["sampler"])
    return small


def _generated(given: Any, catalogue: "Catalogue") -> Any:
    """Generated text in the place of a data set: with as many texts, and labels that the same losses can take."""
    component = component_of(given)
    made = None if component is None else catalogue.try_out("data", component)
    if made is None or isinstance(made, list):
        return given
    data = cast("DataSet", made)
    if data.labels is None or data.columns > 2:
        task = "entailment"
    elif data.labels.classes == 2:
        task = "paraphrase"  # a head that reads one text takes the first of the two
    elif data.labels.classes:
        task = "sentiment" if data.columns == 1 else "paraphrase"
    else:
        task = "similarity"
    return {"name": "generated", "task": task, **SIZES}


def _few_steps(given: Any) -> Any:
    """The sampler as it is: with so little text even "3x" is few. Only a plain number of iterations is cut."""
    sampler = component_of(given)
    if sampler is None or not isinstance(sampler.get("iterations"), int):
        return given
    return {**sampler, "iterations": min(sampler["iterations"], ITERATIONS)}
