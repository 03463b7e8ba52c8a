"""Reads an archive from an untrusted source; of its figures only predictions and labels are used.

Scores are computed from them again with the metrics installed here, and have to agree with what the archive states.
All of it is checked before anything is used, and none of it is executed.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isclose, nan
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from pydantic import TypeAdapter, ValidationError

from taskloom.core.data import Metric
from taskloom.core.errors import RegistryError, RequestError, TaskloomError
from taskloom.core.overall import Overall
from taskloom.core.rows import open_file
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.registry.installed.light import make_light
from taskloom.registry.installed.manager import guard
from taskloom.registry.results.archive import ANY, CONTENTS, DIGEST, MOST, SPLITS, TIMES, Archive, ArchivedCell
from taskloom.registry.results.file import SCHEMA, STEPS
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import DATA, CellRecord, GridCell, GridRecord
from taskloom.registry.results.scores import (
    ExampleSet,
    StoredScores,
    TaskFacts,
    judge,
    load_examples,
    read_scores,
    save_scores,
)
from taskloom.registry.results.shapes import checked

#: Gives the identity that follows from a cell's facts.
Identify = Callable[[Any], str]
#: Whether a cell's specification is the one that the facts of its identity state.
SameSpec = Callable[[CellRecord], bool]
#: Says what is wrong with the rows of a grid: which do not have the settings that the grid states. Empty if nothing is.
CheckRows = Callable[[GridRecord], str]
#: The most texts that an example has, and the most classes of a task.
MOST_TEXTS, MOST_CLASSES = 3, 4096
#: The largest figure of an epoch that can be added up and drawn.
LARGEST = 1e100
_NAMES = re.compile(r"cells/[0-9a-f]{20}/scores-(dev|test)\.safetensors|examples/[0-9a-f]{32}\.safetensors")
_DONE = ("planned", "finished", "failed", "oom")


class _Refused(Exception):  # noqa: N818 - a reason, which becomes a RegistryError
    """Why an archive cannot be imported, and what to do."""

    def __init__(
        self, why: str, advice: str = "Get the file again from whoever made it with `taskloom archive`"
    ) -> None:
        super().__init__(why)
        self.advice = advice


@dataclass(frozen=True)
class Checks:
    """The checks of an import that need to resolve specifications and expand grids."""

    identify: Identify
    same_spec: SameSpec
    check_rows: CheckRows


def unpack(path: Path, folder: Path, registry: Path, checks: Checks) -> tuple[Archive, str]:
    """Unpack an archive into an empty folder, with score files computed here from its predictions.

    Returns its contents and the SHA-256 that identifies it. Whatever is wrong is a ``RegistryError``, also a
    contradiction between its examples and those of the ``registry``.
    """
    try:
        archive, digest = _read(path, folder)
        _check(archive, folder, registry, checks)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror or error}") from None
    except (_Refused, TaskloomError) as error:
        why = " ".join(str(error).replace(f"{folder}/", "").partition(" Put back a copy")[0].split()).rstrip(".")
        advice = getattr(error, "advice", _Refused("").advice)
        raise RegistryError(f"{path} cannot be imported: {why}. Nothing was imported. {advice}.") from None
    return archive, digest


def _read(path: Path, folder: Path) -> tuple[Archive, str]:
    try:
        with open_file(path) as stream, ZipFile(stream) as zip_file:
            files = _check_entries(zip_file.infolist(), path.stat().st_size)
            contents = zip_file.read(CONTENTS)
            digest = hashlib.sha256(contents).hexdigest()
            if zip_file.read(DIGEST).split()[:1] != [digest.encode()]:
                raise _Refused(f"{CONTENTS} is not as it was written, {DIGEST} says")
            archive = _parse(contents)
            if sorted(archive.files) != files:
                mismatch = sorted(set(archive.files) ^ set(files))[0]
                raise _Refused(f"its files are not those that {CONTENTS} names, such as {mismatch!r}")
            for name in files:
                content = zip_file.read(name)
                if hashlib.sha256(content).hexdigest() != archive.files[name]:
                    raise _Refused(f"{name} is not as it was written, {CONTENTS} says")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            return archive, digest
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise _Refused(f"it is damaged, or no zip file ({error})") from None


def _check_entries(entries: list[ZipInfo], packed_size: int) -> list[str]:
    """The names of an archive's files, which are read only if none is strange or could fill the disk."""
    size, names = sum(entry.file_size for entry in entries), {entry.filename for entry in entries}
    if size > MOST:
        raise _Refused(f"it would unpack to {size / 2**30:.1f} GiB, and {MOST / 2**30:.0f} GiB are allowed")
    if sum(entry.compress_size for entry in entries) > packed_size:
        raise _Refused("its files overlap")
    for entry in entries:
        if entry.file_size > ANY + TIMES * entry.compress_size:
            ratio = entry.file_size / max(entry.compress_size, 1)
            raise _Refused(f"{entry.filename!r} would unpack to {ratio:.0f} times its size")
    if not {CONTENTS, DIGEST} <= names:
        raise _Refused(f"it is not an archive of taskloom's: it has no {CONTENTS} or no {DIGEST}")
    files = sorted(names - {CONTENTS, DIGEST})
    strange = [name for name in files if not _NAMES.fullmatch(name)]
    strange += [entry.filename for entry in entries if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED)]
    if strange or len(names) < len(entries):
        raise _Refused(f"it holds a file that is no part of an archive: {[*strange, 'one twice'][0]!r}")
    return files


def _parse(contents: bytes) -> Archive:
    try:
        raw = json.loads(contents)
        ledger_version = raw.get("ledger")
        if ledger_version not in (*STEPS, SCHEMA):
            reads = f"this taskloom reads versions {min(STEPS)} to {SCHEMA}"
            advice = f"Use a taskloom of the version that made it, {raw.get('taskloom')!r}"
            raise _Refused(f"it has results of ledger version {ledger_version!r}; {reads}. {advice}")
        archive = TypeAdapter(Archive).validate_python(raw)
        parts = [part for cell in archive.cells for part in (cell.record, *cell.stages, *cell.epochs, *cell.attempts)]
        for record in (*parts, *(row for grid in archive.grids for row in (grid, *grid.places))):
            checked(record)  # integers of 64 bits, and the shape of specifications
        return archive
    except (ValueError, AttributeError, RecursionError) as error:
        raise _Refused(f"{CONTENTS} does not hold what an archive holds: {_first(error)}") from None


def _first(error: Exception) -> str:
    """The first problem of an error, on one line."""
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
    return str(error)


def _check(archive: Archive, folder: Path, registry: Path, checks: Checks) -> None:
    """Check that all parts agree: identities with facts, rows with cells and the grid, scores with predictions."""
    cells = {cell.record.id: cell.record for cell in archive.cells}
    if len(cells) < len(archive.cells) or len({grid.name for grid in archive.grids}) < len(archive.grids):
        raise _Refused("a cell or a grid is there twice")
    for cell in archive.cells:
        _check_cell(cell, checks)
    for grid in archive.grids:
        grid_words = f"grid {grid.name!r}"
        if DATA in grid.spec:
            raise _Refused(f"{grid_words}: it states what data hold, which is computed where they are")
        written = GridRecord(grid.name, grid.spec, "", "", ()).written
        _check_spec(GridSpec, {**written, "name": grid.name}, grid_words)
        for row in grid.places:
            if row.cell not in cells or cells[row.cell].spec["seed"] != row.seed:
                raise _Refused(f"{grid_words}: row {row.label!r}, seed {row.seed} has no cell that fits")
        if len({(row.label, row.seed) for row in grid.places}) < len(grid.places):
            raise _Refused(f"{grid_words}: a row has one seed several times")
        rows = tuple(GridCell(row.label, row.seed, row.reported, cells[row.cell]) for row in grid.places)
        if problem := checks.check_rows(GridRecord(grid.name, grid.spec, grid.created, grid.updated, rows)):
            raise _Refused(f"{grid_words}: {problem}")
    examples: dict[str, ExampleSet] = {}
    for name in archive.files:
        room, key, *_ = Path(name).parts
        if room == "cells" and (key not in cells or cells[key].status != "finished"):
            raise _Refused(f"{name} belongs to no finished cell")
        if room == "examples":
            examples[Path(name).stem] = _load_examples(folder, registry, Path(name).stem)
    metric_of = cache(lambda spec: make_light(Metric, json.loads(spec)))
    for record in cells.values():
        for split, scores in zip(SPLITS, (record.scores, record.test), strict=True):
            path = folder / "cells" / record.id / f"scores-{split}.safetensors"
            if path.is_file():
                _compute_again(record, read_scores(path), split, scores, examples, metric_of)
            elif record.status == "finished" and (scores or split == "dev"):
                raise _Refused(f"cell {record.id} is finished and has no predictions for {split}")
    _check_examples_agree(cells.values(), folder, registry)


def _check_examples_agree(archived: Iterable[CellRecord], folder: Path, registry: Path) -> None:
    """Refuse cells that were scored on other dev examples than cells with the same data, there or in the registry.

    The content of the data is part of an identity, so the same content means the same examples: all of them, with
    their own labels. Heads without predictions have none.
    """
    with Ledger.find(registry) or nullcontext() as ledger:
        local = ledger.cells() if ledger is not None else ()
    known: dict[tuple[str, str, str], str] = {}
    for home, cells in ((registry, local), (folder, archived)):
        for cell in cells:
            path = home / "cells" / cell.id / "scores-dev.safetensors"
            if cell.status != "finished" or "spec" not in cell.facts or not path.is_file():
                continue
            try:
                scored = read_scores(path).tasks
            except RegistryError:  # of a local file that was damaged; tables name it
                continue
            spec = cell.facts["spec"]
            trained = {task for stage in spec["stages"] for task in stage.get("tasks") or spec["tasks"]}
            for task in trained & spec["tasks"].keys():
                head = spec["tasks"][task].get("head")
                head = head["name"] if isinstance(head, dict) else str(head)
                content = str(cell.facts.get("content", {}).get(f"tasks.{task}.data"))
                key = scored[task].examples if task in scored else ""
                held_out = str(spec.get("hold_out"))  # the trials of a search are scored on training rows
                if known.setdefault((content, head, held_out), key) != key:
                    raise _Refused(f"cell {cell.id}, {task}: other cells with the same data have other dev examples")


def _check_cell(cell: ArchivedCell, checks: Checks) -> None:
    record = cell.record
    where = f"cell {record.id[:40]!r}"
    if checks.identify(record.facts) != record.id:
        raise _Refused(f"{where} is not the one that its specification, data and versions make")
    _check_spec(RunSpec, record.spec, where)
    stated = record.facts.get("spec")
    if not isinstance(stated, dict) or not stated.keys() >= {"encoder", "tasks", "stages", "seed"}:
        raise _Refused(f"{where}: its identity is not made of a specification")
    if not (_agree(record.spec, stated) and checks.same_spec(record)):
        raise _Refused(f"{where}: its specification is another one than its identity is made of")
    if record.status not in _DONE:
        raise _Refused(f"{where}: its status should be one of {', '.join(_DONE)}. Found {record.status!r}")
    if record.status != "finished" and (record.scores or record.test):
        raise _Refused(f"{where}: it is not finished, and has scores")
    durations = [record.seconds, record.peak_memory, *(epoch.seconds for epoch in cell.epochs)]
    if not all(0 <= duration < inf for duration in durations if duration is not None):
        raise _Refused(f"{where}: seconds and memory should be finite numbers from 0 on")
    figures = [vars(epoch) for epoch in cell.epochs]
    if any(abs(figure) > LARGEST for figure in _numbers(figures)):
        raise _Refused(f"{where}: the figures of its epochs should be at most {LARGEST:g}")
    epochs, stages = [(epoch.stage, epoch.epoch) for epoch in cell.epochs], [stage.index for stage in cell.stages]
    attempts = [attempt.number for attempt in cell.attempts]
    if any(len(set(numbers)) < len(numbers) for numbers in (epochs, stages, attempts)):
        raise _Refused(f"{where}: an epoch, a stage or an attempt is there twice")
    if not {*stages, *(stage for stage, _ in epochs)} <= {*range(len(record.spec["stages"]))}:
        raise _Refused(f"{where}: it has no such stage as its epochs say")
    if not {*attempts} <= {*range(1, len(attempts) + 1)}:
        raise _Refused(f"{where}: its attempts should be numbered from 1")


def _numbers(value: Any) -> Iterator[float]:
    """All numbers of a JSON value."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def _check_spec(model: type[RunSpec | GridSpec], spec: dict[str, Any], owner: str) -> None:
    try:
        model.model_validate(spec)
    except ValidationError as error:
        raise _Refused(f"{owner}: {_first(error)}") from None


def _agree(spec: Any, facts: Any) -> bool:
    """Whether a specification contains everything in its facts, which lack its locations and defaults."""
    if isinstance(spec, dict) and isinstance(facts, dict):
        return all(key in spec and _agree(spec[key], value) for key, value in facts.items())
    if isinstance(spec, list) and isinstance(facts, list):
        return len(spec) == len(facts) and all(map(_agree, spec, facts))
    return bool(spec == facts)


def _load_examples(folder: Path, registry: Path, key: str) -> ExampleSet:
    """The examples of an archive, which must equal those that the registry has under their key, if any."""
    examples = load_examples(folder, key)
    numbers, first = np.unique(examples.texts.ravel("F"), return_index=True)
    counted = np.array_equal(numbers, np.arange(len(numbers))) and (examples.chained or (np.diff(first) > 0).all())
    if not counted or examples.texts.shape[1] > MOST_TEXTS:
        raise _Refused(f"examples/{key}.safetensors does not number its texts as they come")
    if (registry / "examples" / f"{key}.safetensors").exists():
        ours = load_examples(registry, key)
        common = min(len(ours.digests), len(examples.digests))
        if ours.digests[:common] != examples.digests[:common]:
            raise _Refused(
                f"its examples {key[:12]} are not those of this registry, which have the same name",
                "One of the two was changed; import it into another --registry to look at it",
            )
        return ours
    return examples


def _compute_again(
    record: CellRecord,
    stored: StoredScores,
    split: str,
    scores: dict[str, float],
    examples: dict[str, ExampleSet],
    metric_of: Callable[[str], Metric],
) -> None:
    """Rewrite a score file from its predictions alone; refuse recorded scores that do not follow from them.

    The metric is the one in the facts of the cell's identity.
    """
    columns, facts, computed = dict[str, dict[str, Any]](), dict[str, TaskFacts](), dict[str, float]()
    for task, stated in stored.tasks.items():
        where = f"cell {record.id}, {task}"
        if stated.examples not in examples or task not in record.facts["spec"]["tasks"]:
            raise _Refused(f"{where}: the archive lacks its examples or its specification")
        of_task, expected = examples[stated.examples], examples[stated.examples].expected
        with np.errstate(over="ignore"):
            score = stored.read(task, "score").astype(np.float32)
        predicted = stored.read(task, "predicted").astype(np.float64)
        if len(predicted) != len(expected) or not (np.isfinite(predicted).all() and np.isfinite(score).all()):
            raise _Refused(f"{where}: it should have a finite prediction for each of {len(expected)} examples")
        classes, labels = stated.classes, np.concatenate([expected, predicted])
        outside = classes and ((labels != np.floor(labels)) | (labels < 0) | (labels >= classes)).any()
        wide = score.shape[1:] not in ((), (1,), (classes,)) or (stated.logit and classes != 2)
        if outside or wide or not 0 <= classes <= MOST_CLASSES or len(stated.names) not in (0, classes):
            raise _Refused(f"{where}: its labels and predictions are not of {classes} classes")
        if not 0 <= stated.seen <= len(expected):
            raise _Refused(f"{where}: {stated.seen} of {len(expected)} examples cannot be in the training data")
        metric = _installed_metric(record, task, metric_of)
        if metric.reads != "either" and (metric.reads == "classes") != bool(classes):
            raise _Refused(f"{where}: the metric {metric.name!r} cannot judge {classes or 'no'} classes")
        with guard(f"{where}: metric {metric.name!r}"):
            computed[task] = float(metric(predicted, expected))
            judged, influence = judge(metric, predicted, expected, classes)
        cleared = replace(stated, low=None, high=None, constant=None, floor=None)
        facts[task] = replace(cleared, digest=of_task.digests[-1], **judged)
        columns[task] = {"score": score, "predicted": predicted, "influence": influence}
    overall = Overall.of(record.facts["spec"]).score(computed, [task for task in facts if facts[task].correlation])
    computed |= {} if overall is None else {"overall": overall}
    for task in {**computed, **scores}:
        if not isclose(scores.get(task, nan), computed.get(task, nan), rel_tol=0, abs_tol=1e-6):
            text = f"the score is {scores.get(task, nan):.6g}, but its predictions give {computed.get(task, nan):.6g}"
            raise _Refused(f"cell {record.id}, {task}: {text}")
    save_scores(stored.path.parent, split, facts, columns)


def _installed_metric(record: CellRecord, task: str, metric_of: Callable[[str], Metric]) -> Metric:
    stated = record.facts["spec"]["tasks"][task].get("metric")
    stated = stated[0] if isinstance(stated, list) and stated else stated
    spec = stated if isinstance(stated, dict) else {"name": stated}
    try:
        return metric_of(json.dumps(spec, sort_keys=True))
    except RequestError as error:
        packages = [name.removeprefix("code of ") for name in record.versions if name.startswith("code of ")]
        listed = f" ({', '.join(packages)})" if packages else ""
        advice = (
            f"Its scores cannot be checked without the metric: install the package that has it{listed} and import again"
        )
        raise _Refused(f"cell {record.id}, {task}: {error.problems[0]}", advice) from None
