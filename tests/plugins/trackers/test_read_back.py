"""What trackers wrote of a run that was killed and resumed, read back by those who are to read it.

One run for each cell, each epoch once, and every figure as it is in the ledger.
"""

import json
import struct
import tempfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tracked import NAME, Known, kill_and_resume, known_cells

from taskloom.core.testing import check
from taskloom.plugins.trackers import JSONL, TensorBoard, WandB
from taskloom.plugins.trackers.packages import plain_name
from taskloom.plugins.trackers.wandb import Trackio

TRACKERS = ("jsonl", "tensorboard", "trackio", "wandb")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Where Trackio keeps its projects: it asks the environment once, when it is imported."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def registry(faulty: None, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_and_resume(tmp_path_factory.mktemp("killed"), *TRACKERS)


@pytest.fixture(scope="module")
def known(registry: Path) -> list[Known]:
    return known_cells(registry)


def test_jsonl(registry: Path, known: list[Known]) -> None:
    lines = [json.loads(line) for line in (registry / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["grid"] for line in lines} == {NAME}
    for one in known:
        mine = [line for line in lines if line.get("cell") == one.run.cell]
        assert [line["what"] for line in mine] == ["started", *["epoch" for _ in one.curves], "finished"]
        assert mine[0]["spec"] == one.run.spec
        assert {(line["row"], line["seed"]) for line in mine} == {(one.run.label, 5)}
        assert [line["scores"] for line in mine[1:-1]] == [scores(epoch) for epoch in one.curves.values()]
    (table,) = [line["table"] for line in lines if line["what"] == "table"]
    assert "famo" in table


def scores(figures: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("dev/"): value for name, value in figures.items() if name.startswith("dev/")}


def test_tensorboard(registry: Path, known: list[Known]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

    def read(folder: Path) -> Any:
        found = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
        return found.Reload()

    def text(found: Any, tag: str) -> str:
        (event,) = found.Tensors(f"{tag}/text_summary")
        return str(event.tensor_proto.string_val[0], "utf-8")

    home = registry / "tensorboard" / NAME
    assert {path.name for path in home.iterdir()} == {"table", *(plain_name(one.run.title) for one in known)}
    for one in known:
        found = read(home / plain_name(one.run.title))
        curves = {name for name in found.Tags()["scalars"] if name not in one.final or name in one.names}
        assert curves == {plain_name(name, also="/") for name in one.names}
        for name in one.names:
            told = {event.step: event.value for event in found.Scalars(plain_name(name, also="/"))}
            expected = {number: epoch[name] for number, epoch in one.curves.items() if name in epoch}
            assert told == pytest.approx(expected), name
            assert len(found.Scalars(plain_name(name, also="/"))) == len(expected), "an epoch is there twice"
        (last,) = found.Scalars("final/overall")
        assert last.value == pytest.approx(one.final["final/overall"])
        assert json.loads(text(found, "spec").removeprefix("```json").removesuffix("```")) == one.run.spec
        parameters = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        for word in (b"taskloom.row", one.run.label.encode(), b"stages.1.optimizer.lr"):
            assert word in parameters
    assert "famo" in text(read(home / "table"), "table")


def wandb_records(folder: Path) -> dict[str, list[Any]]:
    """What W&B's files hold, in its own messages; they lie in blocks of 32 KiB, as LevelDB writes its logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    data, at, whole, found = file.read_bytes(), 7, b"", dict[str, list[Any]]()
    while at + 7 <= len(data):
        if (room := 2**15 - at % 2**15) < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            what, whole = str(record.WhichOneof("record_type")), b""
            found.setdefault(what, []).append(getattr(record, what))
    return found


def test_wandb(registry: Path, known: list[Known]) -> None:
    for one in known:
        (folder,) = registry.glob(f"wandb/offline-run-*-{NAME}-{one.run.cell}")
        found = wandb_records(folder)
        (run,) = found["run"]
        assert (run.project, run.run_group, run.display_name) == (NAME, NAME, one.run.title)
        assert set(run.tags) == {NAME, one.run.label, one.run.cell}
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert {key: config[key] for key in one.run.spec} == one.run.spec
        assert config["taskloom"] == one.run.tags
        rows = [{item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in found["history"]]
        assert [row["_step"] for row in rows] == [*one.curves, 5]
        for row in rows[:-1]:
            epoch = one.curves[row["_step"]]
            assert {name: row[name] for name in epoch} == epoch
        assert {name: rows[-1][name] for name in one.final} == one.final
        assert [exit.exit_code for exit in found["exit"]] == [0]
    (folder,) = registry.glob(f"wandb/offline-run-*-{NAME}-table")
    (page,) = folder.glob("files/media/html/table_*.html")
    assert "| famo" in unescape(page.read_text(encoding="utf-8"))


def test_trackio(home: Path, registry: Path, known: list[Known]) -> None:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    runs = {run.name: run for run in Api().runs(NAME)}
    assert runs.keys() == {f"table of {NAME}", *(one.run.title for one in known)}
    assert len(Api().runs(NAME)) == 3
    for one in known:
        config = runs[one.run.title].config
        assert config is not None
        assert {key: config[key] for key in one.run.spec} == one.run.spec
        assert config["taskloom"] == one.run.tags
        rows = SQLiteStorage.get_logs(NAME, one.run.title, run_id=runs[one.run.title].id)
        assert [row["step"] for row in rows] == [*one.curves, 5]
        for row in rows[:-1]:
            epoch = one.curves[row["step"]]
            assert {name: row[name] for name in epoch} == epoch
        assert {name: rows[-1][name] for name in one.final} == one.final
    (row,) = SQLiteStorage.get_logs(NAME, f"table of {NAME}", run_id=runs[f"table of {NAME}"].id)
    (page,) = (home / "media").rglob(Path(row["table"]["file_path"]).name)
    assert "| famo" in unescape(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("tracker", [JSONL, TensorBoard, Trackio, WandB])
def test_they_keep_every_law(tracker: Any, home: Path) -> None:
    check(tracker)
