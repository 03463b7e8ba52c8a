"""What the rows of a recorded grid differ in: its axes, and the level of each row on them."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskloom.registry.results.records import CHANGES, GridRecord
from taskloom.runs.grid.paths import PathError, values_at


@dataclass(frozen=True)
class Factor:
    """Something that the rows of a grid differ in: the paths that move together, and the level of each row.

    The first level is the baseline's, if the grid has a baseline, or the first row's.
    """

    paths: tuple[str, ...]
    levels: tuple[str, ...]
    of_row: Mapping[str, int]

    @property
    def name(self) -> str:
        return " with ".join(self.paths)


def factors_of(grid: GridRecord) -> list[Factor]:
    """What the rows of a grid differ in: its axes and zips, the paths that labelled cells set and that were changed."""
    spec = grid.spec
    paths = [*spec.get("axes", {}), *itertools.chain(*spec.get("zip", ()))]
    paths += itertools.chain(*(cell.get("set", {}) for cell in spec.get("cells", ())))
    changes = spec.get(CHANGES, ())  # up to 0.2, of changed rows in the table of the grid itself
    paths += itertools.chain(*(change.get("settings", {}) for change in changes))
    if any(change.get("epochs") is not None for change in changes):
        paths += [f"stages.{stage}.epochs" for cell in grid.cells for stage in range(len(cell.cell.spec["stages"]))]
    paths = list(dict.fromkeys(paths))
    paths = [path for path in paths if not any(path != other and path.startswith(f"{other}.") for other in paths)]
    runs = {cell.label: cell.cell.spec for cell in grid.cells}
    if (baseline := spec.get("baseline")) in runs:
        runs = {baseline: runs[baseline], **runs}
    partitions: dict[tuple[int, ...], list[tuple[str, tuple[Any, ...]]]] = {}
    for path in paths:
        values = [_value(run, path) for run in runs.values()]
        levels = list(dict.fromkeys(values))
        if len(levels) > 1:
            partition = tuple(levels.index(value) for value in values)
            partitions.setdefault(partition, []).append((path, tuple(json.loads(level) for level in levels)))
    return [
        Factor(
            tuple(path for path, _ in members),
            tuple(map(_together, zip(*(_names(levels) for _, levels in members), strict=True))),
            dict(zip(runs, partition, strict=True)),
        )
        for partition, members in partitions.items()
    ]


def _together(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _value(run: dict[str, Any], path: str) -> str:
    try:
        return json.dumps(values_at(run, path), sort_keys=True)
    except PathError:
        return json.dumps(None)


def _names(levels: Sequence[Any]) -> list[str]:
    """Name levels: a component by its name and the options in which it differs from its namesakes.

    >>> _names([[0.1], [0.2]]), _names([[{"name": "sum"}], [{"name": "famo", "lr": 1}], [{"name": "famo", "lr": 2}]])
    (['0.1', '0.2'], ['sum', 'famo (lr 1)', 'famo (lr 2)'])
    """
    return [_name(level, [other for other in levels if other is not level]) for level in levels]


def _name(level: Any, others: Sequence[Any]) -> str:
    component = level[0] if isinstance(level, list) and len(set(map(json.dumps, level))) == 1 else level
    if component is None:
        return "none"
    if not isinstance(component, Mapping) or "name" not in component:
        return component if isinstance(component, str) else json.dumps(component)
    name = component["name"]
    namesakes = [other[0] for other in others if isinstance(other, list) and other and _called(other[0]) == name]
    differing = {
        key: option for key, option in component.items() if any(other.get(key) != option for other in namesakes)
    }
    options = ", ".join(f"{key} {_name(option, ())}" for key, option in differing.items())
    return f"{name} ({options})" if options else str(name)


def _called(component: Any) -> Any:
    return component.get("name") if isinstance(component, Mapping) else None
