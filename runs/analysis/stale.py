"""The rows of a recorded grid that would be other runs now: changed data, plugins, trainer or grid file.

No torch, unless a plugin's data set is read. What cannot be compared without it, or is not on this machine, counts as
unchanged: weights, and revisions of components. ``taskloom explain`` compares everything.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskloom.core.data import DataSet
from taskloom.core.errors import RequestError, TaskloomError
from taskloom.registry.installed.code import code_fingerprint
from taskloom.registry.results.records import PACKAGED, SOURCE, CellRecord, GridRecord
from taskloom.runs.grid.trainer import TRAINER

OLDER = "made by another trainer"
FILE = "the grid's file states another run"
CODE = "code of "


def with_stale(record: GridRecord, path: Path | None = None, *, hide: bool = False) -> GridRecord:
    """The grid that knows its ``stale`` rows, or leaves them out; ``path`` is its file, if that is known."""
    changed, data = _other_runs(record, path), dict[str, str | None]()
    stale: dict[str, str] = {}
    for row in record.cells:
        if row.cell.status == "finished" and row.label not in stale:
            causes = [FILE] if row.label in changed else [*_causes(row.cell, data)]
            stale |= {row.label: "; ".join(causes)} if causes else {}
    cells = tuple(row for row in record.cells if not hide or row.label not in stale)
    return replace(record, cells=cells, stale=stale)


def _causes(cell: CellRecord, data: dict[str, str | None]) -> Iterator[str]:
    """Why a cell would be another one now; ``data`` are the fingerprints of data sets that were read already."""
    content = cell.facts.get("content", {})
    changed = [
        name
        for name, task in cell.spec.get("tasks", {}).items()
        if _data_changed(task.get("data", {}), content.get(f"tasks.{name}.data"), data)
    ]
    if changed:
        yield f"the data of {', '.join(changed)} changed"
    for name, listed in cell.versions.items():
        if name.startswith(CODE) and (files := _changed_files(name.removeprefix(CODE), str(listed))):
            yield f"the {name} changed ({', '.join(files[:3])})"
    if cell.facts.get("trainer", TRAINER) != TRAINER:
        yield OLDER


def _data_changed(spec: Mapping[str, Any], recorded: str | None, known: dict[str, str | None]) -> bool:
    """Whether a data set is here with another content than was recorded."""
    if recorded is None:
        return False
    key = json.dumps(spec, sort_keys=True)
    if key not in known:
        known[key] = _fingerprint(spec)
    return known[key] not in (None, recorded)


def _fingerprint(spec: Mapping[str, Any]) -> str | None:
    from taskloom.registry.installed.light import make_light
    from taskloom.registry.installed.manager import guard

    try:
        with guard():
            data = make_light(DataSet, spec)
            for value in (spec.get(option) for option in data.path_options):
                for path in value if isinstance(value, list) else [value]:
                    if path and not os.path.isabs(os.path.expanduser(os.path.expandvars(path))):  # noqa: PTH111, PTH117
                        return None  # of an archive, which keeps names alone: a file of that name here is another
            return data.fingerprint()
    except TaskloomError:  # it or its plugin is not on this machine, or it has other options now
        return None


def _changed_files(distribution: str, recorded: str) -> list[str]:
    """The files of an installed distribution that are not as they were recorded; none if it is not installed."""
    now = {f"{file} {fingerprint[:8]}" for file, fingerprint in code_fingerprint(distribution).files.items()}
    packages = {line.partition("/")[0].partition(" ")[0] for line in now}
    before = {line for line in recorded.split(", ") if line.partition("/")[0].partition(" ")[0] in packages}
    return sorted({line.rpartition(" ")[0].rpartition("/")[2] for line in now ^ before})


def _other_runs(record: GridRecord, path: Path | None) -> set[str]:
    """The rows that the grid's file no longer has, or states otherwise; none if it cannot be read."""
    from taskloom.registry.installed.manager import packaged_grids
    from taskloom.runs.grid.file import extended

    source = str(record.spec.get(SOURCE, ""))
    packaged = packaged_grids().get(record.name)
    path = path or (packaged.path if source == PACKAGED and packaged else Path(source))
    try:
        raw = extended(json.loads(path.read_text(encoding="utf-8-sig")), path)
        if raw == record.written:
            return set()
        before, now = (_runs(written, record) for written in (record.written, raw))
    except (OSError, ValueError, AttributeError, TaskloomError):
        return set()
    return {label for label, run in before.items() if run != now.get(label)}


def _runs(written: Mapping[str, Any], record: GridRecord) -> dict[str, Any]:
    """Label → run of every row of a grid as it is written, with the overrides of the recorded table."""
    from taskloom.registry.installed.resolution import split_metrics
    from taskloom.runs.grid.expansion import expand
    from taskloom.runs.grid.grid import read_grid
    from taskloom.runs.grid.overrides import change_runs, complete, recorded_overrides

    expansion = expand(read_grid({**written, "name": None}, Path("grid")), allow_large=True)
    if not any(row.spec for row in expansion.variants):  # there is no valid base
        raise RequestError(record.name, expansion.problems)
    runs = {row.label: complete(split_metrics(row.spec)[0]) for row in expansion.variants}
    change_runs([run for run in runs.values() if run is not None], recorded_overrides(record), strict=False)
    return runs
