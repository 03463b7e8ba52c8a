"""The kinds of plugin that can be begun with ``taskloom new-plugin``, and the words in which each is described."""

from dataclasses import dataclass

COMPONENTS, GRIDS = "taskloom", "taskloom.grids"  # entry-point groups


@dataclass(frozen=True)
class Kind:
    """One kind of plugin: how it is called, what the generated one does, and where it goes in a grid.

    ``use`` is a line of the package's page; ``$name`` in it stands for the component's name, as in all templates.
    """

    word: str
    summary: str
    use: str
    group: str = COMPONENTS
    data: tuple[str, ...] = ()  # files of the package beside its code, as patterns
    packaged: bool = False  # the grid is part of the package

    @property
    def command(self) -> str:
        """What runs the package's grid."""
        return "taskloom run $name" if self.packaged else "taskloom run $name.json"


def _in_grid(example: str) -> str:
    return f"In a grid: `{example}`; `taskloom plugins $name` explains its option."


KINDS = {
    "encoder": Kind(
        "encoder",
        "The mean of word vectors, after one layer.",
        _in_grid('"encoder": {"name": "$name", "width": 64}'),
    ),
    "head": Kind(
        "head",
        "A hidden layer in which a gate decides what counts.",
        _in_grid('"head": {"name": "$name", "hidden": 64}'),
    ),
    "loss": Kind(
        "loss",
        "Cross-entropy that turns away from easy examples.",
        _in_grid('"loss": {"name": "$name", "gamma": 2.0}'),
    ),
    "sampler": Kind(
        "sampler",
        "One task per step, drawn by the size of its data to a power.",
        _in_grid('"sampler": {"name": "$name", "alpha": 0.5}'),
    ),
    "combiner": Kind(
        "gradient combiner",
        "Weighs tasks so that a long gradient does not drown the others.",
        _in_grid('"combiner": {"name": "$name", "power": 1.0}'),
    ),
    "data": Kind(
        "data set",
        "Short reviews, each negative or positive, from files of JSON lines.",
        _in_grid('"data": {"name": "$name", "dir": "data/reviews"}'),
        data=("examples/*.jsonl",),
    ),
    "metric": Kind(
        "metric",
        "How near predictions come to the labels.",
        _in_grid('"metric": {"name": "$name", "scale": 0.5}'),
    ),
    "engine": Kind(
        "engine",
        "Runs cells in threads of this process.",
        "For any grid: `taskloom run GRID --engine $name`; `taskloom plugins $name` explains its option.",
    ),
    "tracker": Kind(
        "tracker",
        "One line of JSON for everything that happens to a cell.",
        "For any grid: `$variable=events.jsonl taskloom run GRID`.",
    ),
    "grid": Kind(
        "packaged grid",
        "A grid that can be run by name.",
        "`taskloom grids` lists it; put more grids beside it, and they are listed too.",
        group=GRIDS,
        data=("*.json",),
        packaged=True,
    ),
}
