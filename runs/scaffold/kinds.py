"""The kinds of plugin that ``taskloom new-plugin`` can write, and how each is described."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PluginKind:
    """A kind of plugin: its name in words, a summary of the generated plugin, and how to use it.

    ``use`` is a line of the package's README; ``$name`` in it is the component's name, as in all templates.
    """

    word: str
    summary: str
    use: str
    group: str = "taskloom"  # of its entry point
    data: tuple[str, ...] = ()  # files of the package beside its code, as patterns


def _component(kind: str, summary: str, option: str) -> PluginKind:
    use = f'In a grid: `"{kind}": {{"name": "$name", {option}}}`; `taskloom plugins $name` explains its option.'
    word = {"combiner": "gradient combiner", "data": "data set"}.get(kind, kind)
    return PluginKind(word, summary, use, data=("examples/*.jsonl",) if kind == "data" else ())


_COMPONENTS = (
    ("encoder", "The mean of word vectors, after one layer.", '"width": 64'),
    ("head", "A hidden layer in which a gate decides what counts.", '"hidden": 64'),
    ("loss", "Cross-entropy that gives easy examples less weight.", '"gamma": 2.0'),
    ("sampler", "One task per step, drawn by the size of its data to a power.", '"alpha": 0.5'),
    ("combiner", "Weighs tasks so that a long gradient does not drown the others.", '"power": 1.0'),
    ("data", "Short reviews, each negative or positive, from files of JSON lines.", '"dir": "data/reviews"'),
    ("metric", "How near predictions come to the labels.", '"scale": 0.5'),
)
PLUGIN_KINDS = {
    **{facts[0]: _component(*facts) for facts in _COMPONENTS},
    "engine": PluginKind(
        "engine",
        "Runs cells in threads of this process.",
        "For any grid: `taskloom run GRID --engine $name`; `taskloom plugins $name` explains its option.",
    ),
    "tracker": PluginKind(
        "tracker",
        "A file for each run, with a line of JSON for everything that happens to it.",
        "For any grid: `taskloom run GRID --tracker $name`; `taskloom plugins $name` explains its option.",
    ),
    "grid": PluginKind(
        "packaged grid",
        "A grid that can be run by name.",
        "`taskloom grids` lists it; put more grids beside it, and they are listed too.",
        group="taskloom.grids",
        data=("*.json",),
    ),
}
