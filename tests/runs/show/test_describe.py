"""What is said of a component, and the piece of a grid that shows its use."""

import json
from typing import Any

from taskloom.core import GridSpec, RunSpec
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.entries import INTERFACES
from taskloom.registry.installed.resolution import homes_of
from taskloom.runs.show.describe import describe_component, snippet


def test_the_snippet_of_every_component_is_a_valid_piece_of_a_grid() -> None:
    installed = load_catalogue()
    for entry in installed.entries:
        piece = snippet(entry)
        if entry.kind in ("engine", "tracker"):
            assert piece is None
            continue
        assert piece is not None, (entry.kind, entry.name)
        grid = GridSpec.model_validate(json.loads(json.dumps(piece)))
        assert isinstance(grid.base, dict)
        tasks: Any = grid.base.get("tasks", {"mine": {}})
        run = {**grid.base, "tasks": {name: {"data": "generated", **task} for name, task in tasks.items()}}
        RunSpec.model_validate(run)
        homes = list(homes_of(grid.base))
        assert f'"{entry.name}"' in json.dumps([home[key] for _, home, key, kind in homes if kind == entry.kind])
        for path, home, key, kind in homes:
            assert installed.try_out(INTERFACES[kind], home[key])[1] == [], (entry.name, path)


def test_what_a_component_says_of_itself_is_shown_in_full() -> None:
    installed = load_catalogue()
    text = describe_component(installed.get("combiner", "pcgrad"))
    for part in ("combiner pcgrad – plugin 'combiners' of taskloom ", "Options:", '"mean"', "Siblings:", "Reference: "):
        assert part in text
    assert json.loads(text.partition("In a grid:")[2]) == snippet(installed.get("combiner", "pcgrad"))
    assert "taskloom run quickstart --engine" in describe_component(installed.get("engine", "inline"))
