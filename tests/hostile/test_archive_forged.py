"""An archive is a stranger's word: everything that follows from its predictions is computed again."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_law import check_table, computed, refused, rewritten, taskloom
from safetensors.numpy import load, save

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.grid.identity import digest

Files = dict[str, bytes]
Change = Callable[[dict[str, Any], Files], None]


def first(stated: dict[str, Any]) -> dict[str, Any]:
    cell: dict[str, Any] = stated["cells"][0]
    return cell


def scores_name(stated: dict[str, Any], split: str = "dev") -> str:
    return f"cells/{first(stated)['record']['id']}/scores-{split}.safetensors"


def edit_scores(stated: dict[str, Any], files: Files, task: str, *, facts: Any = None, **columns: Any) -> None:
    """Change the facts and columns of a task in the first cell's dev scores; a column is a function of the old one."""
    name = scores_name(stated)
    arrays, metadata = load(files[name]), metadata_of(files[name])
    if facts is not None:
        metadata[task] |= facts
    for column, change in columns.items():
        arrays[f"{task}.{column}"] = np.ascontiguousarray(change(arrays[f"{task}.{column}"]))
    files[name] = save(arrays, {"tasks": json.dumps(metadata)})


def metadata_of(content: bytes) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", content[:8])
    tasks: dict[str, Any] = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["tasks"])
    return tasks


def edit_examples(files: Files, **columns: Any) -> None:
    for name in [name for name in files if name.startswith("examples/")]:
        arrays = load(files[name])
        changed = {column: np.ascontiguousarray(change(arrays[column])) for column, change in columns.items()}
        files[name] = save({**arrays, **changed})


def stated_as(path: str, value: Any) -> Change:
    """A change of what the archive states: a value at a path ("*": of every element), or a function of the old one."""

    def change(stated: dict[str, Any], files: Files) -> None:
        homes: list[Any] = [stated]
        *steps, last = path.split(".")
        for step in steps:
            homes = [inner for home in homes for inner in (home if step == "*" else [at(home, step)])]
        for home in homes:
            home[last] = value(home[last]) if callable(value) else value

    return change


def at(home: Any, step: str) -> Any:
    return home[int(step) if isinstance(home, list) else step]


def scored(task: str = "sst", facts: Any = None, **columns: Any) -> Change:
    return lambda stated, files: edit_scores(stated, files, task, facts=facts, **columns)


def with_examples(**columns: Any) -> Change:
    return lambda stated, files: edit_examples(files, **columns)


def without_predictions(split: str) -> Change:
    def change(stated: dict[str, Any], files: Files) -> None:
        del files[scores_name(stated, split)]

    return change


def other_metric(stated: dict[str, Any], files: Files) -> None:
    """The file says that the scores are correlations, and the ledger's part a score that would follow from that."""
    edit_scores(stated, files, "sst", facts={"metric": "pearson", "correlation": True})
    first(stated)["record"]["scores"]["sst"] = 0.99


def without_identity(stated: dict[str, Any], files: Files) -> None:
    record = first(stated)["record"]
    for grid in stated["grids"]:
        for row in grid["places"]:
            if row["cell"] == record["id"]:
                row["cell"] = digest({"spec": {}})
    for name in [name for name in files if record["id"] in name]:
        files[name.replace(record["id"], digest({"spec": {}}))] = files.pop(name)
    record |= {"facts": {"spec": {}}, "id": digest({"spec": {}})}


def left_out_task(stated: dict[str, Any], files: Files) -> None:
    """The first cell has one task only, and the overall score that follows."""
    name, record = scores_name(stated), first(stated)["record"]
    metadata = {"sst": metadata_of(files[name])["sst"]}
    arrays = {key: array for key, array in load(files[name]).items() if key.startswith("sst.")}
    files[name] = save(arrays, {"tasks": json.dumps(metadata)})
    record["scores"] = {"sst": record["scores"]["sst"], "overall": record["scores"]["sst"]}


def own_examples(stated: dict[str, Any], files: Files) -> None:
    """The first cell brings examples of its own, whose labels are its predictions."""
    name = scores_name(stated)
    key = metadata_of(files[name])["sst"]["examples"]
    predicted = load(files[name])["sst.predicted"]
    files[f"examples/{'0' * 32}.safetensors"] = save(
        {**load(files[f"examples/{key}.safetensors"]), "expected": predicted.astype(np.float64)}
    )
    edit_scores(stated, files, "sst", facts={"examples": "0" * 32, "digest": ""})
    scores = first(stated)["record"]["scores"]
    scores["overall"] += (1 - scores["sst"]) / 2
    scores["sst"] = 1.0


def failed_with_scores(stated: dict[str, Any], files: Files) -> None:
    first(stated)["record"] |= {"status": "failed", "reason": "none", "test": {}}
    for split in ("dev", "test"):
        files.pop(scores_name(stated, split), None)


CELL, ROWS = "cells.0", "grids.0.places"
SWAPPED = {"sum": "pcgrad", "pcgrad": "sum"}
NO_CELL = "another one than its identity is made of"
NO_EXAMPLES = "other cells with the same data have other dev examples"
#: What is forged → how, and a part of the sentence that says so.
FORGED: dict[str, tuple[Change, str]] = {
    "facts of data": (
        stated_as(
            "grids.0.spec.data", [{"task": "sst", "split": "train", "examples": 10**6, "words": 9, "longest": 9}]
        ),
        "states what data hold",
    ),
    # An overall score that counts one task, and an option: the facts of the identity leave defaults out.
    "overall": (stated_as("cells.*.record.spec.overall", {"name": "mean", "weights": {"sts": 0}}), NO_CELL),
    "option": (stated_as("cells.*.record.spec.tasks.sst.loss.label_smoothing", 0.5), NO_CELL),
    "left out task": (left_out_task, NO_EXAMPLES),
    "own examples": (own_examples, NO_EXAMPLES),
    "failed with scores": (failed_with_scores, "it is not finished, and has scores"),
    "negative seconds": (stated_as(f"{CELL}.record.seconds", -5.0), "finite numbers from 0 on"),
    "endless losses": (stated_as(f"{CELL}.epochs.0.losses", {"sst": 1e308}), "should be at most 1e+100"),
    "figures": (stated_as(f"{ROWS}.*.reported", {"sst": 0.999}), "has other published figures than the grid states"),
    "name": (stated_as("grids.0.name", "../../x"), "a grid's name"),
    "metric": (other_metric, "the score is 0.99, but its predictions give"),
    "no predictions": (without_predictions("dev"), "is finished and has no predictions for dev"),
    "no test predictions": (without_predictions("test"), "is finished and has no predictions for test"),
    "thrice": (stated_as(ROWS, lambda rows: [*rows, rows[0], rows[0]]), "a row has one seed several times"),
    "label": (stated_as(f"{ROWS}.*.label", SWAPPED.__getitem__), "has another cell than the grid states"),
    "new label": (stated_as(f"{ROWS}.*.label", lambda label: f"{label}, tuned"), "it has no row 'sum, tuned'"),
    "packaged base": (stated_as("grids.0.spec.base", "quickstart"), "it builds on the packaged grid 'quickstart'"),
    "without identity": (without_identity, "its identity is not made of a specification"),
    "extra score": (
        stated_as(f"{CELL}.record.scores", lambda scores: {**scores, "cola": 0.9}),
        "cola: the score is 0.9, but its predictions give nan",
    ),
    "huge integer": (
        stated_as(f"{CELL}.record.peak_memory", 2**70),
        "peak_memory of a CellRecord is '1180591620717411303424'",
    ),
    "huge float": (stated_as(f"{CELL}.record.seconds", 10**400), "seconds"),
    **{
        f"{part} twice": (stated_as(f"{CELL}.{part}", lambda entries: entries * 2), "is there twice")
        for part in ("epochs", "stages", "attempts")
    },
    "no such stage": (stated_as(f"{CELL}.epochs.0.stage", -7), "it has no such stage"),
    "many classes": (scored(facts={"classes": 10**9}), "are not of 1000000000 classes"),
    "few classes": (scored(facts={"classes": 1}), "are not of 1 classes"),
    "wrong names": (scored(facts={"names": ["a", "b"]}), "are not of 5 classes"),
    "wrong metadata": (scored(facts={"seen": "many"}), "seen of a TaskFacts is 'many'"),
    "more seen": (scored(facts={"seen": 10**6}), "cannot be in the training data"),
    "wide scores": (scored(score=lambda score: np.repeat(score, 3, 1)), "are not of 5 classes"),
    "deep scores": (scored(score=lambda score: score[None]), "should be numbers, one for each example"),
    "infinite": (scored("sts", predicted=lambda predicted: predicted * np.inf), "a finite prediction for each of"),
    "integers": (scored(predicted=lambda old: old.astype(np.int64)), "should be numbers, one for each example"),
    "ids": (with_examples(ids=lambda ids: np.frombuffer(b'{"a": 1}', np.uint8)), "it should have ids and a label for"),
    "far texts": (with_examples(texts=lambda texts: texts + 2**40), "does not number its texts as they come"),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_does_not_follow_is_refused_and_the_registry_stays_as_it_was(
    theirs: Path, copy: Callable[[], Path], tmp_path: Path, case: str
) -> None:
    change, reason = FORGED[case]
    archive = rewritten(theirs / "results.zip", tmp_path / "forged.zip", change)
    assert reason in refused(archive, tmp_path / "none")
    if case in ("metric", "thrice"):  # the others are refused on the same path
        assert reason in refused(archive, copy())


def test_influence_and_floors_are_computed_here(theirs: Path, tmp_path: Path) -> None:
    def flatter(stated: dict[str, Any], files: Files) -> None:
        edit_scores(stated, files, "sst", facts={"floor": -1.0, "high": 0.2}, influence=np.zeros_like)

    archive = rewritten(theirs / "results.zip", tmp_path / "flattering.zip", flatter)
    honest, forged = tmp_path / "honest", tmp_path / "forged"
    for path, registry in ((theirs / "results.zip", honest), (archive, forged)):
        assert taskloom("import", path, "--registry", registry).exit_code == 0
    assert check_table(forged) == 12
    for path in honest.rglob("scores-*.safetensors"):
        assert path.read_bytes() == (forged / path.relative_to(honest)).read_bytes()


def test_examples_of_an_archive_never_become_the_truth_of_local_cells(
    theirs: Path, copy: Callable[[], Path], tmp_path: Path
) -> None:
    def relabelled(stated: dict[str, Any], files: Files) -> None:
        """Labels that make wrong predictions right, with the scores that follow from them."""
        for record in (cell["record"] for cell in stated["cells"]):
            for split, scores in (("dev", record["scores"]), ("test", record["test"])):
                name = f"cells/{record['id']}/scores-{split}.safetensors"
                arrays, key = load(files[name]), metadata_of(files[name])["sst"]["examples"]
                labels = load(files[f"examples/{key}.safetensors"])
                best = load(files[f"cells/{first(stated)['record']['id']}/scores-{split}.safetensors"])["sst.predicted"]
                files[f"examples/{key}.safetensors"] = save({**labels, "expected": best})
                scores["sst"] = float(np.mean(arrays["sst.predicted"] == best))
                scores["overall"] = (scores["sst"] + scores["sts"]) / 2

    archive = rewritten(theirs / "results.zip", tmp_path / "relabelled.zip", relabelled)
    assert "are not those of this registry" in refused(archive, copy())
    # Where there are none it is imported; a local run then reads the data, and the imported cells lose their examples.
    registry = tmp_path / "ours"
    assert taskloom("import", archive, "--registry", registry).exit_code == 0
    done = taskloom("run", theirs / "mine.json", "--registry", registry, "--seeds", "2", "--only", "sum")
    assert done.exit_code == 0, done.output
    assert check_table(registry) > 0
    shown = json.loads(taskloom("table", "mine", "--registry", registry, "--format", "json").stdout)
    assert {row["label"]: row["n"] for row in shown["rows"]} == {"sum": 1, "pcgrad": 0}
    with Ledger.open(registry, create=False) as ledger:
        (ours,) = [row.cell for row in ledger.grid("mine").cells if row.seed == 2 and row.label == "sum"]
    assert computed(registry, ours.id, "dev")["sst"] == pytest.approx(ours.scores["sst"])


def test_imported_cells_are_marked(theirs: Path, tmp_path: Path) -> None:
    registry = tmp_path / "ours"
    taskloom("import", theirs / "results.zip", "--registry", registry)
    assert (
        "Imported, not run here: 'sum' and 'pcgrad', from results.zip ("
        in taskloom("table", "mine", "--registry", registry).stdout
    )
    assert "imported from" in taskloom("cells", "mine", "--registry", registry).stdout
    cells = json.loads(taskloom("cells", "mine", "--registry", registry, "--json").stdout)["cells"]
    assert all(cell["imported"].startswith("results.zip (") for cell in cells)
    own = json.loads(taskloom("cells", "mine", "--registry", theirs / "registry", "--json").stdout)["cells"]
    assert {cell["imported"] for cell in own} == {None}


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_file_that_grows_is_refused_before_it_is_read(tmp_path: Path, says_its_size: bool) -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("archive.json", b"[" + b"[]," * 2_000_000 + b"0]")
        file.writestr("archive.sha256", b"")
    content = bytearray(written.getvalue())
    assert len(content) < 300_000
    if not says_its_size:  # the entry in the archive's directory has a packed size of 0
        entry = content.index(b"PK\1\2")
        content[entry + 20 : entry + 24] = bytes(4)
    (tmp_path / "bomb.zip").write_bytes(content)
    assert "times its size" in refused(tmp_path / "bomb.zip", tmp_path / "none")


def test_predictions_that_compress_well_are_archived_so_that_they_can_be_imported(theirs: Path, tmp_path: Path) -> None:
    from taskloom.registry.results.archive import _add

    with zipfile.ZipFile(tmp_path / "zeros.zip", "w") as file:
        _add(file, "zeros", bytes(2**22))
        assert file.getinfo("zeros").compress_type == zipfile.ZIP_STORED


def test_a_metric_that_is_not_installed_is_named(theirs: Path, tmp_path: Path) -> None:
    def renamed(stated: dict[str, Any], files: Files) -> None:
        stated["grids"][0]["spec"]["base"]["tasks"]["sst"]["metric"] = "kappa"
        ids = {}
        for record in (cell["record"] for cell in stated["cells"]):
            record["versions"]["code of taskloom-kappa"] = "abc"
            for spec in (record["spec"], record["facts"]["spec"]):
                spec["tasks"]["sst"]["metric"] = {"name": "kappa"}
            before, record["id"] = record["id"], digest(record["facts"])
            ids[before] = record["id"]
        for row in stated["grids"][0]["places"]:
            row["cell"] = ids[row["cell"]]
        for name in [name for name in files if name.startswith("cells/")]:
            room, id, rest = name.split("/")
            files[f"{room}/{ids[id]}/{rest}"] = files.pop(name)

    message = refused(rewritten(theirs / "results.zip", tmp_path / "foreign.zip", renamed), tmp_path / "none")
    assert "no metric 'kappa'" in message
    assert "install the package that has it (taskloom-kappa) and import again" in message


def test_an_import_that_cannot_be_written_leaves_nothing(theirs: Path, tmp_path: Path) -> None:
    """A folder stands where a score file should be: the last of the files cannot be written."""
    with Ledger.open(theirs / "registry", create=False) as ledger:
        ids = sorted(cell.id for cell in ledger.cells())
    (tmp_path / "ours" / "cells" / ids[-1] / "scores-test.safetensors" / "x").mkdir(parents=True)
    before = sorted((tmp_path / "ours").rglob("*"))
    done = taskloom("import", theirs / "results.zip", "--registry", tmp_path / "ours")
    assert done.exit_code == 2, done.output
    assert sorted((tmp_path / "ours").rglob("*")) == before
