"""Plugins and packaged grids that break a law."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mutants.base import Cosine, mutant

import taskloom.plugins.metrics
from taskloom.core import Metric, hookimpl
from taskloom.runs import grids

#: A hook that returns component classes.
COMPONENTS = next(name for name in vars(taskloom.plugins.metrics) if name.startswith("taskloom_"))


def plugin(**hooks: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


def components(*classes: Any) -> SimpleNamespace:
    return plugin(**{COMPONENTS: lambda: list(classes)})


def grid(name: str, *changes: dict[str, Any]) -> SimpleNamespace:
    """A plugin with a grid: one of the packaged ones, changed."""

    class Changed(type(Path())):  # type: ignore[misc]
        def read_text(self, *args: Any, **options: Any) -> str:
            sound = {"description": "Two rows.", "base": {"tasks": {"sst": {"data": "generated"}}}}
            return json.dumps({**sound, **changes[0]}) if changes else "{"

    return plugin(taskloom_grids=lambda: [Changed(name)])


SOUND: list[tuple[Any, dict[str, Any]]] = [
    (taskloom.plugins.metrics, {}),
    (grids, {}),
    (grid("sound.json", {}), {}),
]
MUTANTS = {
    "its hooks are those of taskloom": [
        plugin(taskloom_metrices=lambda: [Cosine]),
        SimpleNamespace(**{COMPONENTS: lambda: [Cosine]}),  # without @hookimpl
        SimpleNamespace(),
    ],
    "its components are whole classes of different names": [
        components(Cosine()),
        components(Metric),
        components(Cosine, mutant(Cosine, "has the name of another", name="cosine")),
    ],
}
GRIDS = {
    "its files are grids with a name and a description": [
        grid("broken.json"),
        grid("a.json", {"axis": {}}),
        grid("b.json", {"base": {"tasks": {"sst": {"data": "generated"}}, "epochs": 3}}),
        grid("My Grid.json", {}),
        grid("c.json", {"description": ""}),
    ],
}
