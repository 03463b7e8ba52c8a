"""Real attempts: code in a grid, names that lead elsewhere, checkpoints and weights from a stranger."""

import hashlib
import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from taskloom.core import RegistryError, RequestError, WeightsError
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.tensors import load_folder
from taskloom.runs.cli import cli
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.training import checkpoint

TASK: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
    "tasks": {"sst": TASK},
    "stages": [{"epochs": 1}],
}


def taskloom(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], prog_name="taskloom")


def refused(result: Result) -> str:
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result.stderr


def plan_of(folder: Path, **grid: Any) -> Any:
    path = folder / "mine.json"
    path.write_text(json.dumps({"base": BASE, **grid}))
    return make_plan(load_grid(str(path)), load_catalogue(), None)


# -- a grid names registered components, and nothing else -------------------------------------------------------------

PATHS = [
    "trap:go",
    "trap",
    "trap.go",
    "../trap",
    "os",
    "os:system",
    "builtins.eval",
    "__doc__",
    "taskloom.core:Loss",
    "",
]
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "encoder": lambda given: {**BASE, "encoder": given},
    "head": lambda given: {**BASE, "tasks": {"sst": {**TASK, "head": given}}},
    "loss": lambda given: {**BASE, "tasks": {"sst": {**TASK, "loss": given}}},
    "metric": lambda given: {**BASE, "tasks": {"sst": {**TASK, "metric": given}}},
    "data": lambda given: {**BASE, "tasks": {"sst": {"data": given}}},
    "sampler": lambda given: {**BASE, "stages": [{"sampler": given}]},
    "combiner": lambda given: {**BASE, "stages": [{"combiner": given}]},
    "nested": lambda given: {**BASE, "tasks": {"sst": {**TASK, "loss": {"name": "total", "losses": [given]}}}},
    "weights": lambda given: {**BASE, "encoder": {"name": "minbert", "weights": given}},
    "name in a list": lambda given: {**BASE, "stages": [{"combiner": {"name": "torchjd", "aggregator": given}}]},
}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when anybody imports it; the file that would be the mark."""
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\ndef go(*args, **kwargs): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "sprung"


@pytest.mark.parametrize("place", PLACES)
def test_an_import_path_is_not_a_component(trap: Path, tmp_path: Path, place: str) -> None:
    for given in (*PATHS, {"name": PATHS[0]}):
        with pytest.raises(RequestError) as caught:
            plan_of(tmp_path, base=PLACES[place](given))
        assert caught.value.problems
    assert not trap.exists()
    assert "trap" not in sys.modules


@pytest.mark.parametrize("key", ["__class__", "__init__", "cls", "_target_", "$ref", "!!python/object", "__dict__"])
def test_no_option_reaches_what_python_is_made_of(trap: Path, tmp_path: Path, key: str) -> None:
    with pytest.raises(RequestError, match="no option"):
        plan_of(tmp_path, base=PLACES["loss"]({"name": "cross_entropy", key: "trap:go"}))
    with pytest.raises(RequestError):
        plan_of(tmp_path, axes={f"tasks.sst.loss.{key}": ["trap:go"]})
    with pytest.raises(RequestError):
        plan_of(tmp_path, axes={key: [{"name": "trap:go"}]})
    with pytest.raises(RequestError):
        plan_of(tmp_path, base=PLACES["combiner"]({"name": "torchjd", "aggregator": "UPGrad", "options": {key: "x"}}))
    assert not trap.exists()


def test_the_command_line_is_as_strict_as_a_grid(trap: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base": BASE}))
    registry = tmp_path / "registry"
    refused(taskloom("run", path, "--registry", registry, "--engine", "trap:go"))
    refused(taskloom("plan", path, "--registry", registry, "--set", "tasks.sst.loss=trap:go"))
    refused(taskloom("plan", path, "--registry", registry, "--set", "__class__.x=1"))
    refused(taskloom("plugins", "trap:go"))
    assert not trap.exists()
    assert not registry.exists()


# -- names stay where they belong -------------------------------------------------------------------------------------

NAMES = ["../x", "/etc/x", "a/b", "a\\b", "..", ".", "", " ", "a\0b", "a\n", "x" * 101, "ａ", "a\u202egnp", "CON\u0301", "~root"]  # fmt: skip # noqa: E501


@pytest.mark.parametrize("name", [*NAMES, "-rf", "a.b", "x" * 129])
def test_the_name_of_a_grid_a_task_or_a_folder_is_plain(tmp_path: Path, name: str) -> None:
    if name in NAMES:
        for hostile in ({"name": name}, {"base": {**BASE, "tasks": {name: TASK}}}):
            with pytest.raises(RequestError):
                plan_of(tmp_path, **hostile)
    artifacts = Artifacts(tmp_path / "registry")
    if len(name) != 101:  # which a folder may have
        for make in (artifacts.cell, artifacts.stage):
            with pytest.raises(RegistryError, match="cannot name a folder"):
                make(name)
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.json"}


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry with one planned cell; nothing was trained."""
    plan = plan_of(tmp_path)
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        ledger.record_grid("mine", plan.grid.raw, plan.cells)
    return tmp_path / "registry"


@pytest.mark.parametrize("prefix", ["%", "_", "*", "?", "../..", "/etc/passwd", "' OR 1=1 --", "x" * 5000, ""])
@pytest.mark.parametrize("command", ["predict", "explain", "cells"])
def test_what_is_given_for_a_cell_is_neither_a_pattern_nor_a_path(registry: Path, command: str, prefix: str) -> None:
    message = refused(taskloom(command, prefix, "--registry", registry))
    with Ledger.open(registry, create=False) as ledger:
        (cell,) = ledger.cells()
    assert cell.id not in message


@pytest.mark.parametrize("change", ["spec = replace(spec, '\"sst\"', '\"../../evil\"')", "id = '../../evil'"])
def test_a_strangers_ledger_leads_nowhere_else(registry: Path, tmp_path: Path, change: str) -> None:
    with Ledger.open(registry, create=False) as ledger, ledger.transaction() as db:
        db.execute("PRAGMA defer_foreign_keys = ON")
        db.execute(f"UPDATE cells SET status = 'finished', {change}")
        db.execute("UPDATE grid_cells SET cell = (SELECT id FROM cells)")
        db.execute("UPDATE history SET cell = (SELECT id FROM cells)")
    before = {path for path in tmp_path.rglob("*") if "ledger" not in path.name}
    answer = refused(taskloom("predict", "mine", "--registry", registry, "--out", tmp_path / "out" / "deep"))
    assert "cannot name a file" in answer
    assert {path for path in tmp_path.rglob("*") if "ledger" not in path.name} == before


@pytest.mark.parametrize(
    ("link", "make"),
    [
        ("cells", lambda artifacts: artifacts.cell("abc")),
        ("cells/abc", lambda artifacts: artifacts.cell("abc")),
        ("stages", lambda artifacts: artifacts.stage("abc")),
        ("cache", Artifacts.cache),
    ],
)
def test_a_link_out_of_the_registry_is_refused(tmp_path: Path, link: str, make: Callable[[Artifacts], Path]) -> None:
    (tmp_path / "outside").mkdir()
    place = tmp_path / "registry" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(RegistryError, match="leads out of the registry"):
        make(Artifacts(tmp_path / "registry"))
    assert not list((tmp_path / "outside").iterdir())


def test_a_registry_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "registry").symlink_to(tmp_path / "disk")
    assert Artifacts(tmp_path / "registry").cell("abc").is_dir()


# -- a stranger's files are opened without running code ---------------------------------------------------------------


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def zipped(mark: Path) -> bytes:
    """As ``torch.save`` lays it out."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"embeddings.word_embeddings.weight": Payload(mark)}))
        file.writestr("archive/version", "3")
    return content.getvalue()


FILES: dict[str, Callable[[Path], bytes]] = {
    "pickled": lambda mark: pickle.dumps(Payload(mark)),
    "zipped": zipped,
    "garbage": lambda mark: bytes(range(256)) * 4,
    "a header that claims more than there is": lambda mark: (2**60).to_bytes(8, "little") + b"{}",
    "empty": lambda mark: b"",
}


def test_the_payload_is_a_real_one(tmp_path: Path) -> None:
    pickle.loads(FILES["pickled"](tmp_path / "sprung"))  # noqa: S301 - our own
    assert (tmp_path / "sprung").exists()


def checkpoint_of(folder: Path, state: str) -> Path:
    """A checkpoint's folder whose state has the right checksum in place of SUM if it has nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    checksum = hashlib.sha256((folder / "tensors.safetensors").read_bytes() + b"{}").hexdigest()
    (folder / "state.json").write_text(state.replace("SUM", checksum))
    return folder


@pytest.mark.parametrize("content", FILES)
def test_a_checkpoint_that_holds_no_tensors_is_passed_over(tmp_path: Path, content: str) -> None:
    cell = tmp_path / "cell"
    checkpoint.save_checkpoint(cell, 0, 1, {"weight": torch.ones(2)}, {"epoch": 1})
    bad = cell / "checkpoint-000-00002"
    bad.mkdir()
    (bad / "tensors.safetensors").write_bytes(FILES[content](tmp_path / "sprung"))
    checkpoint_of(bad, '{"sha256": "SUM"}')
    with pytest.raises(ValueError, match="checkpoint-000-00002 "):
        load_folder(bad)
    found, damaged = checkpoint.newest_checkpoint(cell)
    assert found is not None
    assert found[1]["epoch"] == 1
    assert len(damaged) == 1
    assert not (tmp_path / "sprung").exists()


STATES = ["[]", "null", "3", "{", "", '{"sha256": 3}', "[" * 100_000, "9" * 10_000, '{"sha256": "SUM", "step": 1}']


@pytest.mark.parametrize("state", STATES, ids=[text[:20] or "empty" for text in STATES])
def test_a_hostile_state_is_damage(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "checkpoint-000-00001"
    folder.mkdir()
    save_file({"weight": torch.ones(2)}, folder / "tensors.safetensors")
    with pytest.raises(ValueError, match="checkpoint-000-00001 "):
        load_folder(checkpoint_of(folder, state))


@pytest.mark.parametrize("content", FILES)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_weights_from_a_stranger_do_not_run_code(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    sizes = {"vocab_size": 8, "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 1}
    sizes |= {"intermediate_size": 4, "max_position_embeddings": 8}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
    (folder / name).write_bytes(FILES[content](tmp_path / "sprung"))
    encoder = MinBert(weights=str(folder))
    with pytest.raises(WeightsError):
        encoder.check()
    with pytest.raises(WeightsError):
        encoder.build(generator=torch.Generator())
    assert not (tmp_path / "sprung").exists()


def test_nothing_of_ours_unpickles() -> None:
    """No file of the product names a loader that runs what it reads; torch and transformers load only weights."""
    root = Path(__file__).parents[1]
    words = ("import pickle", "from pickle", "import dill", "joblib", "cloudpickle", "marshal.loads", "yaml.load(")
    for package in ("core", "plugins", "registry", "runs"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not [word for word in words if word in text], path
            loads = text.count("torch.load(") + text.count("library.AutoModel.from_pretrained(")
            assert loads == text.count("weights_only=True"), path
            assert "trust_remote_code" not in text or '"trust_remote_code": False' in text, path
