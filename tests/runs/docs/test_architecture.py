"""The picture of the architecture is what the import statements say."""

import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "architecture"))


def test_the_committed_picture_is_the_one_that_the_script_draws(script: dict[str, Any]) -> None:
    committed = script["PICTURE"].read_text(encoding="utf-8")
    assert committed == script["draw"](), (
        "imports changed: draw it again with `python .ci/architecture`, and look at it"
    )


def test_every_room_is_in_the_picture(script: dict[str, Any]) -> None:
    folders = {f"{path.parent.parent.name}.{path.parent.name}" for path in ROOT.glob("r*/*/__init__.py")}
    assert set(script["import_graph"]()) == {"core", "plugins", *folders}
    assert set(script["CAPTIONS"]) == {"core", *folders}


def test_arrows_lead_to_all_imported_rooms_and_none_follows_from_others(script: dict[str, Any]) -> None:
    graph, reachable = script["import_graph"](), script["reachable"]
    arrows = script["reduced"](graph)
    for room, imported in graph.items():
        assert arrows[room] <= imported
        assert reachable(arrows, room) == reachable(graph, room)
        for target in arrows[room]:
            without = {**arrows, room: arrows[room] - {target}}
            assert target not in reachable(without, room)


def test_a_room_lies_above_what_it_imports_and_on_no_other(script: dict[str, Any]) -> None:
    arrows = script["reduced"](script["import_graph"]())
    rows = script["rows_of"](arrows)
    boxes = script["place_rooms"](rows)
    assert all(rows[room] < rows[target] for room in rows for target in arrows[room] & rows.keys())
    rooms = [*rows, "registry.installed", "registry.results", "plugins.engines", "grid.json", "output", "legend"]
    for first, second in combinations(rooms, 2):
        a, b = boxes[first], boxes[second]
        assert a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y, (first, second)
