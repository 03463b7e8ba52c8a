"""The kinds of plugin that ``taskloom new-plugin`` can write, and how each is described."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of plugin: what it is called, what the generated one does, and how it is used.

    ``use`` is a line of the package's page; ``$name`` in it is the component's name, as in all templates.
    """

    word: str
    summary: str
    use: str
    group: str = "taskloom"  # of its entry point
    data: tuple[str, ...] = ()  # files of the package beside its code, as patterns


def _component(word: str, summary: str, example: str, data: tuple[str, ...] = ()) -> Kind:
    return Kind(word, summary, f"In a grid: `{example}`; `taskloom plugins $name` explains its option.", data=data)


KINDS = {
    "encoder": _component(
        "encoder", "The mean of word vectors, after one layer.", '"encoder": {"name": "$name", "width": 64}'
    ),
    "head": _component(
        "head", "A hidden layer in which a gate decides what counts.", '"head": {"name": "$name", "hidden": 64}'
    ),
    "loss": _component(
        "loss", "Cross-entropy that gives easy examples less weight.", '"loss": {"name": "$name", "gamma": 2.0}'
    ),
    "sampler": _component(
        "sampler",
        "One task per step, drawn by the size of its data to a power.",
        '"sampler": {"name": "$name", "alpha": 0.5}',
    ),
    "combiner": _component(
        "gradient combiner",
        "Weighs tasks so that a long gradient does not drown the others.",
        '"combiner": {"name": "$name", "power": 1.0}',
    ),
    "data": _component(
        "data set",
        "Short reviews, each negative or positive, from files of JSON lines.",
        '"data": {"name": "$name", "dir": "data/reviews"}',
        data=("examples/*.jsonl",),
    ),
    "metric": _component(
        "metric", "How near predictions come to the labels.", '"metric": {"name": "$name", "scale": 0.5}'
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
        group="taskloom.grids",
        data=("*.json",),
    ),
}
