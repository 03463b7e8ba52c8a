"""Locate a grid's file, and merge the packaged grid that it extends. Light to import."""

import json
import os
from pathlib import Path
from typing import Any

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.registry.installed.manager import packaged_grids
from taskloom.registry.results.records import PACKAGED

#: Keys that a grid adds to those of the grid that it extends; it replaces all other keys that it states.
ADDED = ("cells", "claims", "notes")
#: Keys that are not inherited.
OWN = ("name", "$schema")


def locate(source: str) -> tuple[Path, str]:
    """The path of a grid, given as the name of a packaged one or as a path, and its source in the registry."""
    packaged = packaged_grids()
    path = packaged[source].path if source in packaged else Path(os.path.expanduser(source))  # noqa: PTH111 - raises
    is_packaged = any(path == grid.path for grid in packaged.values())
    return path, PACKAGED if is_packaged else os.path.realpath(path)


def extended(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Merge a grid with the packaged one that it ``extends``; a grid that extends none is unchanged.

    Its own keys take precedence; cells, claims and notes come after the packaged grid's.
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
        inherited = {key: value for key, value in other.items() if key not in OWN}
        own = {key: value for key, value in raw.items() if key != "extends"}
        both = [key for key in ADDED if isinstance(own.get(key), list) and key in inherited]
        raw = {**inherited, **own, **{key: [*inherited[key], *own[key]] for key in both}}
    return raw
