"""Reads an archive that somebody sent: all of it is checked before anything of it is used, and no code of it is run."""

import hashlib
import json
import re
import zlib
from collections.abc import Callable
from math import isclose, nan
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from pydantic import TypeAdapter, ValidationError

from taskloom.core.data import Metric
from taskloom.core.errors import RegistryError
from taskloom.core.overall import Overall
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.registry.installed.light import make_light, own_components
from taskloom.registry.results.archive import CONTENTS, DIGEST, MOST, SPLITS, Archive, ArchivedCell
from taskloom.registry.results.file import SCHEMA, STEPS
from taskloom.registry.results.records import GridRecord
from taskloom.registry.results.scores import ExampleSet, find_scores, load_examples

Identify = Callable[[Any], str]
#: The most texts that an example has.
MOST_TEXTS = 3
_NAMES = re.compile(r"cells/[0-9a-f]{20}/scores-(dev|test)\.safetensors|examples/[0-9a-f]{32}\.safetensors")
_DONE = ("planned", "finished", "failed", "oom")


class _Refused(Exception):  # noqa: N818 - a reason, which becomes a RegistryError
    """Why an archive cannot be imported."""


def unpack(path: Path, folder: Path, identify: Identify) -> tuple[Archive, str]:
    """Unpack an archive into an empty folder; returns what it holds and the SHA-256 that it is known by.

    ``identify`` gives the identity that follows from a cell's facts. Whatever is wrong is a ``RegistryError``.
    """
    try:
        archive, digest = _read(path, folder)
        _check(archive, folder, identify)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror or error}") from None
    except (_Refused, RegistryError) as error:
        why = str(error).replace(f"{folder}/", "").partition(" Put back a copy")[0].rstrip(".")
        advice = "Nothing was imported. Get the file again from whoever made it with `taskloom archive`."
        raise RegistryError(f"{path} cannot be imported: {why}. {advice}") from None
    return archive, digest


def _read(path: Path, folder: Path) -> tuple[Archive, str]:
    try:
        with ZipFile(path) as file:
            entries = {entry.filename: entry for entry in file.infolist()}
            size = sum(entry.file_size for entry in file.infolist())
            if size > MOST:
                raise _Refused(f"it would unpack to {size / 2**30:.1f} GiB, and {MOST / 2**30:.0f} GiB are allowed")
            if not {CONTENTS, DIGEST} <= set(entries):
                raise _Refused(f"it is not an archive of taskloom's: it has no {CONTENTS} or no {DIGEST}")
            files = sorted(set(entries) - {CONTENTS, DIGEST})
            strange = [name for name in files if not _NAMES.fullmatch(name)]
            strange += [
                name for name, entry in entries.items() if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED)
            ]
            if strange or len(entries) < len(file.infolist()):
                raise _Refused(f"it holds a file that is no part of an archive: {[*strange, 'one twice'][0]!r}")
            contents = file.read(CONTENTS)
            digest = hashlib.sha256(contents).hexdigest()
            if file.read(DIGEST).split()[:1] != [digest.encode()]:
                raise _Refused(f"{CONTENTS} is not as it was written, {DIGEST} says")
            archive = _parse(contents)
            if sorted(archive.files) != files:
                odd = sorted(set(archive.files) ^ set(files))[0]
                raise _Refused(f"its files are not those that {CONTENTS} names, such as {odd!r}")
            for name in files:
                data = file.read(name)
                if hashlib.sha256(data).hexdigest() != archive.files[name]:
                    raise _Refused(f"{name} is not as it was written, {CONTENTS} says")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            return archive, digest
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise _Refused(f"it is damaged, or no zip file ({error})") from None


def _parse(contents: bytes) -> Archive:
    try:
        raw = json.loads(contents)
        found = raw.get("ledger")
        if found not in (*STEPS, SCHEMA):
            reads = f"this taskloom reads versions {min(STEPS)} to {SCHEMA}"
            made_by = f"Use a taskloom of the version that made it, {raw.get('taskloom')!r}"
            raise _Refused(f"it has results of ledger version {found!r}; {reads}. {made_by}")
        return TypeAdapter(Archive).validate_python(raw)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _Refused(f"{CONTENTS} does not hold what an archive holds: {_first(error)}") from None


def _first(error: Exception) -> str:
    """The first of what is wrong, on one line."""
    if isinstance(error, ValidationError):
        item = error.errors()[0]
        return f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
    return str(error)


def _check(archive: Archive, folder: Path, identify: Identify) -> None:
    """Whether all parts agree: identities with facts, places with cells, scores with predictions."""
    cells = {cell.record.id: cell.record for cell in archive.cells}
    if len(cells) < len(archive.cells) or len({grid.name for grid in archive.grids}) < len(archive.grids):
        raise _Refused("a cell or a grid is there twice")
    for cell in archive.cells:
        _check_cell(cell, identify)
    for grid in archive.grids:
        written = GridRecord(grid.name, grid.spec, "", "", ()).written
        _check_spec(GridSpec, {**written, "name": written.get("name") or "unnamed"}, f"grid {grid.name!r}")
        for place in grid.places:
            if place.cell not in cells or cells[place.cell].spec["seed"] != place.seed:
                raise _Refused(f"grid {grid.name!r}: row {place.label!r}, seed {place.seed} has no cell that fits")
    examples: dict[str, ExampleSet] = {}
    for name in archive.files:
        room, key, *_ = Path(name).parts
        if room == "cells" and (key not in cells or cells[key].status != "finished"):
            raise _Refused(f"{name} belongs to no finished cell")
        if room == "examples":
            examples[Path(name).stem] = _load_examples(folder, Path(name).stem)
    for cell in archive.cells:
        for split in SPLITS:
            _check_scores(cell, folder, split, examples)


def _check_cell(cell: ArchivedCell, identify: Identify) -> None:
    record = cell.record
    if identify(record.facts) != record.id:
        raise _Refused(f"cell {record.id[:40]!r} is not the one that its specification, data and versions make")
    _check_spec(RunSpec, record.spec, f"cell {record.id}")
    if not _agree(record.spec, record.facts.get("spec")):
        raise _Refused(f"cell {record.id}: its specification is another one than its identity is made of")
    if record.status not in _DONE:
        raise _Refused(f"cell {record.id}: its status should be one of {', '.join(_DONE)}. Found {record.status!r}")


def _check_spec(model: type[RunSpec | GridSpec], spec: dict[str, Any], what: str) -> None:
    try:
        model.model_validate(spec)
    except ValidationError as error:
        raise _Refused(f"{what}: {_first(error)}") from None


def _agree(spec: Any, facts: Any) -> bool:
    """Whether a specification has everything that facts say of it; it has locations and defaults beside that."""
    if isinstance(spec, dict) and isinstance(facts, dict):
        return all(key in spec and _agree(spec[key], value) for key, value in facts.items())
    if isinstance(spec, list) and isinstance(facts, list):
        return len(spec) == len(facts) and all(map(_agree, spec, facts))
    return bool(spec == facts)


def _load_examples(folder: Path, key: str) -> ExampleSet:
    examples = load_examples(folder, key)
    rows, (expected, texts) = (len(examples.ids),), (examples.expected, examples.texts)
    fits = expected.shape == texts.shape[:1] == rows and (expected.dtype.kind, texts.dtype.kind) == ("f", "i")
    if not fits or texts.ndim != 2 or not 1 <= texts.shape[1] <= MOST_TEXTS or texts.min(initial=0) < 0:
        raise _Refused(
            f"examples/{key}.safetensors: it should have a label and the numbers of its texts for each of {rows[0]} ids"
        )
    return examples


def _check_scores(cell: ArchivedCell, folder: Path, split: str, examples: dict[str, ExampleSet]) -> None:
    """Whether a cell's scores are those that follow from its predictions; of a third party's metric nobody knows."""
    record = cell.record
    stored = find_scores(folder, record.id, split)
    if stored is None:
        return
    scores, correlations = record.scores if split == "dev" else record.test, []
    for task, facts in stored.tasks.items():
        where = f"cell {record.id}, {task}"
        if facts.examples not in examples or task not in record.spec["tasks"]:
            raise _Refused(f"{where}: the archive lacks its examples or its specification")
        expected = examples[facts.examples].expected
        columns = [stored.read(task, "predicted"), stored.read(task, "influence"), stored.read(task, "score")]
        if not all(each.dtype.kind == "f" and each.shape[:1] == expected.shape for each in columns):
            raise _Refused(f"{where}: it should have predictions for {len(expected)} examples")
        if any(each.ndim > 1 for each in columns[:2]) or not all(np.isfinite(each).all() for each in columns):
            raise _Refused(f"{where}: its predictions should be a finite number for each example")
        found, metric = scores.get(task, nan), record.spec["tasks"][task].get("metric")
        if facts.metric in own_components(Metric.kind) and isinstance(metric, dict) and metric["name"] == facts.metric:
            _compare(where, found, float(make_light(Metric, metric)(columns[0], expected)))
        correlations += [task] if facts.correlation else []
    overall = Overall.of(record.spec).score({task: scores.get(task, nan) for task in stored.tasks}, correlations)
    if overall is not None:
        _compare(f"cell {record.id}, overall", scores.get("overall", nan), overall)


def _compare(where: str, found: float, computed: float) -> None:
    if not isclose(found, computed, rel_tol=0, abs_tol=1e-6):
        raise _Refused(f"{where}: the score is {found:.6g}, but its predictions give {computed:.6g}")
