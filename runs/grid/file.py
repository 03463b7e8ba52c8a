"""Which file a grid is, and what it takes over from a packaged one. Light to import."""

import json
import os
from pathlib import Path
from typing import Any

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.registry.installed.manager import packaged_grids
from taskloom.registry.results.records import PACKAGED

#: What a grid that extends another adds to it; all else that it states is in the place of the other's.
ADDED = ("cells", "claims", "notes")
#: What is a file's own and not taken over.
OWN = ("name", "$schema")


def locate(source: str) -> tuple[Path, str]:
    """The path of a grid by the name of a packaged one or by a path, and what the registry knows it by."""
    packaged = packaged_grids()
    path = packaged[source].path if source in packaged else Path(os.path.expanduser(source))  # noqa: PTH111 - raises
    is_packaged = any(path == grid.path for grid in packaged.values())
    return path, PACKAGED if is_packaged else os.path.realpath(path)


def extended(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The grid with everything of the packaged one that it ``extends``; one that extends none is as it was.

    What it says itself goes first, key by key; cells, claims and notes come after the packaged grid's.
    """
    seen: list[str] = []
    while isinstance(name := raw.get("extends"), str):
        packaged = packaged_grids()
        if name not in packaged or name in seen or packaged[name].path == path:
            circle = f"the grids {' → '.join([*seen, name])} extend each other in a circle"
            message = circle if name in packaged else unknown("packaged grid", name, packaged, where="packaged")
            raise RequestError(str(path), [Problem("extends", message)])
        seen.append(name)
        other = json.loads(packaged[name].path.read_text(encoding="utf-8-sig"))
        taken = {key: value for key, value in other.items() if key not in OWN}
        own = {key: value for key, value in raw.items() if key != "extends"}
        both = [key for key in ADDED if isinstance(own.get(key), list) and key in taken]
        raw = {**taken, **own, **{key: [*taken[key], *own[key]] for key in both}}
    return raw
