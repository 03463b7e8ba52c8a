"""Results to hand on: grids with their cells and predictions in one zip file, without weights, and without paths.

::

    archive.json      what the ledger has of the grids, and the SHA-256 of every other file (:class:`Archive`)
    archive.sha256    the SHA-256 of archive.json, by which the archive is known
    cells/<id>/scores-<split>.safetensors, examples/<key>.safetensors    as in a registry

The same results make the same bytes. ``imports.py`` reads it.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from taskloom.core.errors import RegistryError
from taskloom.registry.results.file import SCHEMA
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import (
    PACKAGED,
    SOURCE,
    AttemptRecord,
    CellRecord,
    EpochRecord,
    GridRecord,
    StageRecord,
)
from taskloom.registry.results.scores import find_scores

CONTENTS, DIGEST = "archive.json", "archive.sha256"
SPLITS = ("dev", "test")
#: Bytes that an archive may unpack to.
MOST = 2 * 2**30
#: What leads to a file from the root, a home or a folder above, up to its name; a home is no name.
_FOLDERS = re.compile(
    r"""(?<![\w.:/\\~])(?:file:/*|~\w*|[A-Za-z]:|\.\.)?[/\\](?=[\w.])
        (?:(?:home|Users)[/\\][^/\\"'\s:;,()]+(?:[/\\]|(?=$|["'\s:;,()])))?
        (?:[^/\\"'\n:;,()\[\]]*[/\\])*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Place:
    """A cell's place in an archived grid."""

    label: str
    seed: int
    cell: str
    reported: dict[str, float]


@dataclass(frozen=True)
class ArchivedGrid:
    """A grid, when its claims were first seen, and when its test scores were looked at."""

    name: str
    spec: dict[str, Any]
    created: str
    updated: str
    places: tuple[Place, ...]
    claims: dict[str, str]
    looks: tuple[str, ...]


@dataclass(frozen=True)
class ArchivedCell:
    """A cell with all that was reported of it."""

    record: CellRecord
    stages: tuple[StageRecord, ...]
    epochs: tuple[EpochRecord, ...]
    attempts: tuple[AttemptRecord, ...]


@dataclass(frozen=True)
class Archive:
    """What ``archive.json`` holds; ``ledger`` is the version of the ledger, ``files`` are names with their SHA-256."""

    ledger: int
    taskloom: str
    grids: tuple[ArchivedGrid, ...]
    cells: tuple[ArchivedCell, ...]
    files: dict[str, str]


def make_archive(ledger: Ledger, names: Iterable[str]) -> tuple[Archive, bytes]:
    """The archive of these grids, and the zip file that it is written as."""
    grids = [ledger.grid(name) for name in sorted(set(names))]
    cells = {place.cell.id: place.cell for grid in grids for place in grid.cells}
    paths = _files(ledger.folder, sorted(id for id, cell in cells.items() if cell.status == "finished"))
    if sum(path.stat().st_size for path in paths.values()) > MOST:
        raise RegistryError(f"the predictions have more than {MOST / 2**30:.0f} GiB; archive fewer grids at a time")
    if len({_name(grid) for grid in grids}) < len(grids):
        names = Counter(_name(grid) for grid in grids)
        both = " and ".join(repr(grid.name) for grid in grids if names[_name(grid)] > 1)
        raise RegistryError(f"{both} have one name in an archive, which leaves folders out; archive one at a time")
    archive = Archive(
        ledger=SCHEMA,
        taskloom=version("taskloom"),
        grids=tuple(_grid(ledger, grid) for grid in grids),
        cells=tuple(_cell(ledger, cell) for _, cell in sorted(cells.items())),
        files={name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()},
    )
    contents = json.dumps(asdict(archive), separators=(",", ":")).encode()
    digest = f"{hashlib.sha256(contents).hexdigest()}  {CONTENTS}\n"
    zipped = io.BytesIO()
    with ZipFile(zipped, "w") as file:
        _add(file, CONTENTS, contents)
        _add(file, DIGEST, digest.encode())
        for name, path in paths.items():
            _add(file, name, path.read_bytes())
    return archive, zipped.getvalue()


def without_folders(value: Any) -> Any:
    """A JSON value in whose strings paths are only the names of files: where they are says who one is.

    >>> without_folders(["/home/ada/data/sst.csv: no such file", "data/sst.csv", "w/o surgery", "https://x.org/a/b"])
    ['sst.csv: no such file', 'data/sst.csv', 'w/o surgery', 'https://x.org/a/b']
    """
    if isinstance(value, str):
        return _FOLDERS.sub("", value) or ("." if value else "")
    if isinstance(value, Mapping):
        return {key: without_folders(each) for key, each in value.items()}
    return [without_folders(each) for each in value] if isinstance(value, list | tuple) else value


def _add(file: ZipFile, name: str, data: bytes) -> None:
    info = ZipInfo(name)  # of 1980: the time of writing is no part of the content
    info.compress_type, info.external_attr = ZIP_DEFLATED, 0o644 << 16
    file.writestr(info, data, compresslevel=9)


def _files(registry: Path, cells: Iterable[str]) -> dict[str, Path]:
    """The predictions of these cells, and the examples that they are about."""
    found = [stored for cell in cells for split in SPLITS if (stored := find_scores(registry, cell, split))]
    keys = sorted({facts.examples for stored in found for facts in stored.tasks.values()})
    paths = [stored.path for stored in found] + [registry / "examples" / f"{key}.safetensors" for key in keys]
    return {path.relative_to(registry).as_posix(): path for path in paths}


def _name(grid: GridRecord) -> str:
    return grid.name.rpartition("/")[2]


def _grid(ledger: Ledger, grid: GridRecord) -> ArchivedGrid:
    places = [(without_folders(place.label), place) for place in grid.cells]
    if len({(label, place.seed) for label, place in places}) < len(places):
        raise RegistryError(
            f"rows of grid {grid.name!r} differ only in folders, which an archive leaves out; give them labels of "
            "their own in the grid and run it again"
        )
    with ledger.snapshot() as db:
        looks = db.execute("SELECT moment FROM looks WHERE grid = ? ORDER BY moment", [grid.name]).fetchall()
    claims = ledger.claims(grid.name).items()
    return ArchivedGrid(
        _name(grid),
        # A file elsewhere is another one, or none: a record without it is that of any file of its name.
        without_folders({key: each for key, each in grid.spec.items() if key != SOURCE or each == PACKAGED}),
        grid.created,
        grid.updated,
        tuple(Place(label, place.seed, place.cell.id, place.reported) for label, place in places),
        {json.dumps(without_folders(json.loads(claim)), sort_keys=True): written for claim, written in claims},
        tuple(look["moment"] for look in looks),
    )


def _cell(ledger: Ledger, cell: CellRecord) -> ArchivedCell:
    """What became of a cell. One that is not done is only planned elsewhere: its checkpoint stays here."""
    spec = _portable(cell.spec, cell.facts.get("spec", {}))
    if cell.status in ("planned", "running", "interrupted"):
        return ArchivedCell(CellRecord(cell.id, spec, "planned", created=cell.created, facts=cell.facts), (), (), ())
    return ArchivedCell(
        # The numbers of epochs and attempts follow from what there is of them.
        replace(cell, spec=spec, reason=without_folders(cell.reason), epochs=0, attempts=0, identity=None),
        ledger.stages(cell.id),
        ledger.epochs(cell.id),
        tuple(
            replace(attempt, driver=None, worker=None, reason=without_folders(attempt.reason))
            for attempt in ledger.attempts(cell.id)
        ),
    )


def _portable(spec: Any, facts: Any) -> Any:
    """A specification whose locations, which are what its identity leaves out, are without folders."""
    if not isinstance(spec, dict) or not isinstance(facts, dict):
        return spec
    return {
        key: _portable(value, facts[key]) if key in facts else without_folders(value) for key, value in spec.items()
    }
