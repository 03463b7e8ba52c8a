"""Archives: grids with their cells and predictions in one zip file, without weights and without local paths.

::

    archive.json      what the ledger has of the grids, and the SHA-256 of every other file (:class:`Archive`)
    archive.sha256    the SHA-256 of archive.json, which identifies the archive
    cells/<id>/scores-<split>.safetensors, examples/<key>.safetensors    as in a registry

Equal results give equal bytes. ``imports.py`` reads archives.
"""

import hashlib
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from taskloom.core.errors import RegistryError, count
from taskloom.registry.results.file import SCHEMA
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import (
    DATA,
    PACKAGED,
    SOURCE,
    AttemptRecord,
    CellRecord,
    EpochRecord,
    GridRecord,
    StageRecord,
)
from taskloom.registry.results.scores import check_examples, find_scores, load_examples

CONTENTS, DIGEST = "archive.json", "archive.sha256"
SPLITS = ("dev", "test")
#: The most bytes that an archive may unpack to; a file in it may have ANY bytes plus TIMES its packed size.
MOST, ANY, TIMES = 2 * 2**30, 2**20, 100
#: The folders of a path from the root, a home or a parent folder, up to the file's name; a home is not a name.
_FOLDERS = re.compile(
    r"""(?<![\w.:/\\~])(?:file:/*|~\w*|[A-Za-z]:|\.\.)?[/\\](?=[\w.])
        (?:(?:home|Users)[/\\][^/\\"'\s:;,()]+(?:[/\\]|(?=$|["'\s:;,()])))?
        (?:[^/\\"'\n:;,()\[\]]*[/\\])*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class ArchivedRow:
    """A row of an archived grid with a seed: its label, its cell, and the figures published for it."""

    label: str
    seed: int
    cell: str
    reported: dict[str, float]


@dataclass(frozen=True)
class ArchivedGrid:
    """A grid with the times at which its claims were first recorded and its test scores were shown."""

    name: str
    spec: dict[str, Any]
    created: str
    updated: str
    places: tuple[ArchivedRow, ...]  # the rows, under the name that archives have for them
    claims: dict[str, str]
    looks: tuple[str, ...]


@dataclass(frozen=True)
class ArchivedCell:
    """A cell with its stages, epochs and attempts."""

    record: CellRecord
    stages: tuple[StageRecord, ...]
    epochs: tuple[EpochRecord, ...]
    attempts: tuple[AttemptRecord, ...]


@dataclass(frozen=True)
class Archive:
    """The contents of ``archive.json``; ``ledger`` is the ledger's version, ``files`` maps names to their SHA-256."""

    ledger: int
    taskloom: str
    grids: tuple[ArchivedGrid, ...]
    cells: tuple[ArchivedCell, ...]
    files: dict[str, str]


def make_archive(ledger: Ledger, names: Iterable[str]) -> tuple[Archive, bytes]:
    """Archive these grids; returns the archive and the bytes of its zip file."""
    grids = [ledger.grid(name) for name in sorted(set(names))]
    cells = {row.cell.id: row.cell for grid in grids for row in grid.cells}
    paths = _files(ledger.folder, [cell for _, cell in sorted(cells.items()) if cell.status == "finished"])
    if sum(path.stat().st_size for path in paths.values()) > MOST:
        raise RegistryError(f"the predictions have more than {MOST / 2**30:.0f} GiB; archive fewer grids at a time")
    counts = Counter(map(_name, grids))
    if clashing := " and ".join(repr(grid.name) for grid in grids if counts[_name(grid)] > 1):
        raise RegistryError(f"{clashing} have one name in an archive, which leaves folders out; archive one at a time")
    archive = Archive(
        ledger=SCHEMA,
        taskloom=version("taskloom"),
        grids=tuple(_grid(ledger, grid) for grid in grids),
        cells=tuple(_cell(ledger, cell) for _, cell in sorted(cells.items())),
        files={name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()},
    )
    contents = json.dumps(asdict(archive), separators=(",", ":")).encode()
    digest = f"{hashlib.sha256(contents).hexdigest()}  {CONTENTS}\n"
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as zip_file:
        _add(zip_file, CONTENTS, contents)
        _add(zip_file, DIGEST, digest.encode())
        for name, path in paths.items():
            _add(zip_file, name, path.read_bytes())
    return archive, buffer.getvalue()


def without_folders(value: Any) -> Any:
    """A JSON value with every path in its strings cut down to the file's name: folders reveal who ran it.

    >>> without_folders(["/home/ada/data/sst.csv: no such file", "data/sst.csv", "w/o surgery", "https://x.org/a/b"])
    ['sst.csv: no such file', 'data/sst.csv', 'w/o surgery', 'https://x.org/a/b']
    """
    if isinstance(value, str):
        return _FOLDERS.sub("", value) or ("." if value else "")
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    return [without_folders(element) for element in value] if isinstance(value, list | tuple) else value


def _add(zip_file: ZipFile, name: str, content: bytes) -> None:
    info = ZipInfo(name)  # dated 1980: the time of writing is not part of the content
    too_dense = len(content) > ANY + TIMES * len(zlib.compress(content, 9)) if len(content) > ANY else False
    info.compress_type, info.external_attr = ZIP_STORED if too_dense else ZIP_DEFLATED, 0o644 << 16
    zip_file.writestr(info, content, compresslevel=9)


def _files(registry: Path, cells: Iterable[CellRecord]) -> dict[str, Path]:
    """The predictions of these cells and their examples: with them, others can check the scores."""
    paths, keys, reasons = list[Path](), set[str](), dict[str, str]()
    for cell, split in itertools.product(cells, SPLITS):
        try:
            stored = find_scores(registry, cell, split)
            if stored is not None:
                for task, facts in stored.tasks.items():
                    check_examples(stored, task, load_examples(registry, facts.examples))
                    keys.add(facts.examples)
        except RegistryError as error:
            reasons.setdefault(cell.id[:12], str(error))
            continue
        if stored is not None:
            paths.append(stored.path)
        elif cell.scores if split == "dev" else cell.test:
            reasons.setdefault(cell.id[:12], f"it has scores and no predictions for {split}")
    if reasons:
        reason = next(iter(reasons.values())).partition(" Put back")[0].rstrip(".")
        raise RegistryError(
            f"an archive needs the predictions of every finished cell. They are missing, or are not its own, in "
            f"{count(len(reasons), 'cell')}, such as {next(iter(reasons))}: {reason}. Put back copies of the files, or "
            "run the grid in another --registry and archive that."
        )
    paths += [registry / "examples" / f"{key}.safetensors" for key in sorted(keys)]
    return {path.relative_to(registry).as_posix(): path for path in paths}


def _name(grid: GridRecord) -> str:
    return grid.name.rpartition("/")[2]


def _grid(ledger: Ledger, grid: GridRecord) -> ArchivedGrid:
    rows = [(without_folders(row.label), row) for row in grid.cells]
    if len({(label, row.seed) for label, row in rows}) < len(rows):
        raise RegistryError(
            f"rows of grid {grid.name!r} differ only in folders, which an archive leaves out; give them labels of "
            "their own in the grid and run it again"
        )
    with ledger.snapshot() as db:
        looks = db.execute("SELECT moment FROM looks WHERE grid = ? ORDER BY moment", [grid.name]).fetchall()
    claims = ledger.claims(grid.name).items()
    return ArchivedGrid(
        _name(grid),
        # The path of the grid's file means nothing elsewhere; without it the record fits any file of the grid's name.
        # What training data hold cannot be computed again from an archive.
        without_folders(
            {key: part for key, part in grid.spec.items() if key != DATA and (key != SOURCE or part == PACKAGED)}
        ),
        grid.created,
        grid.updated,
        tuple(ArchivedRow(label, row.seed, row.cell.id, row.reported) for label, row in rows),
        {json.dumps(without_folders(json.loads(claim)), sort_keys=True): written for claim, written in claims},
        tuple(look["moment"] for look in looks),
    )


def _cell(ledger: Ledger, cell: CellRecord) -> ArchivedCell:
    """A cell as it is archived; one that is not done is archived as planned, since its checkpoint stays here."""
    spec = _portable(cell.spec, cell.facts.get("spec", {}))
    if cell.status in ("planned", "running", "interrupted"):
        return ArchivedCell(CellRecord(cell.id, spec, "planned", created=cell.created, facts=cell.facts), (), (), ())
    return ArchivedCell(
        # The numbers of epochs and attempts are counted again on import.
        replace(cell, spec=spec, reason=without_folders(cell.reason), epochs=0, attempts=0, identity=None, digests={}),
        ledger.stages(cell.id),
        ledger.epochs(cell.id),
        tuple(
            replace(attempt, driver=None, worker=None, reason=without_folders(attempt.reason))
            for attempt in ledger.attempts(cell.id)
        ),
    )


def _portable(spec: Any, facts: Any) -> Any:
    """A specification without folders in its locations, which are the keys that its identity leaves out."""
    if not isinstance(spec, dict) or not isinstance(facts, dict):
        return spec
    return {
        key: _portable(value, facts[key]) if key in facts else without_folders(value) for key, value in spec.items()
    }
