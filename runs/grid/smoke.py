"""A grid made tiny: every head, loss, sampler, combiner and stage as it is, on little text with a small encoder.

A smoke run shows in seconds that every cell of a grid can be trained and scored. Its figures mean nothing, so it is
recorded under a name of its own.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taskloom.core import DataSet
from taskloom.runs.grid.grid import Grid

if TYPE_CHECKING:
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


def make_tiny(run: dict[str, Any], catalogue: "Catalogue") -> None:
    """Change a run, in place, to a few steps: a tiny encoder, a few generated rows, at most one epoch per stage."""
    encoder = run["encoder"]
    run["encoder"] = ENCODER | {key: encoder[key] for key, values in KEPT.items() if encoder.get(key) in values}
    for task in run["tasks"].values():
        task["data"] = _generated(task["data"], catalogue)
    for stage in run["stages"]:
        stage["epochs"] = min(stage["epochs"], 1)
        iterations = stage["sampler"].get("iterations")  # with so little text even "3x" is few
        if isinstance(iterations, int):
            stage["sampler"]["iterations"] = min(iterations, ITERATIONS)


def _generated(given: dict[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """Generated text in the place of a data set: with as many texts, and labels that the same losses can take."""
    data, _ = catalogue.try_out(DataSet, given)
    if data is None:  # the plan reports what is wrong with it
        return given
    if data.labels is None or data.columns > 2:
        task = "entailment"
    elif data.labels.classes == 2:
        task = "paraphrase"  # a head that reads one text takes the first of the two
    elif data.labels.classes:
        task = "sentiment" if data.columns == 1 else "paraphrase"
    else:
        task = "similarity"
    return {"name": "generated", "task": task, **SIZES}
