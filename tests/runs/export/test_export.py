"""What is exported gives on the other side what the cell gives here; the other side is the real one."""

import getpass
import json
import re
import shutil
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from small_runs import generated, run_grid
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from taskloom.plugins.datasets.generated import Generated
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord
from taskloom.runs.cli import cli
from taskloom.runs.export import export as exporting
from taskloom.runs.export import vectors
from taskloom.runs.export.export import export_cell
from taskloom.runs.predict.trained import TrainedModel, load_trained

POOLINGS = ("pooler", "cls", "mean", "max")
ENCODER = {"name": "minbert", "layers": 2, "width": 16, "heads": 2, "vocabulary": 256, "max_length": 24}
DPHA = {"name": "both_orders", "difference": True, "activation": "tanh"}
TASKS: dict[str, Any] = {
    "sst": generated("sentiment", head={"name": "linear", "layers": 2, "activation": "gelu"}),
    "joint": generated("paraphrase", head={"name": "linear", "reads": "joint", "last_activation": "tanh"}),
    "para": generated("paraphrase", head={"name": "shared_layer", "head": DPHA}, loss="binary_cross_entropy"),
    "sts": generated("similarity", head={"name": "cosine", "layers": 1}, loss="mse", metric="pearson"),
}
#: A head for each pooling but the encoder's own, one that lays out its texts in its own way, and one without a score.
MIXED: dict[str, Any] = {
    "sst": generated("sentiment", head={"name": "linear", "pooling": "cls"}),
    "para": generated("paraphrase", head={"name": "cosine_features", "pooling": "max"}),
    "sts": generated("similarity", head={"name": "cosine_sigmoid", "pooling": "pooler"}, loss="mse", metric="pearson"),
    "odd": generated("paraphrase", head={"name": "linear", "reads": "joint", "layout": "concatenated"}),
    "near": generated("paraphrase", head={"name": "linear", "reads": "pair"}, loss="mse"),
    "nli": generated("entailment", head={"name": "embedding", "reads": "triple"}, loss="simcse"),
    "joint": TASKS["joint"],
}
STAGES = [{"epochs": 1, "optimizer": {"lr": 0.05}}]
Invoke = Callable[..., Result]
Exported = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished cells: one for each pooling, and one whose heads ask for different ones."""
    registry = tmp_path_factory.mktemp("export") / "registry"
    cells = [{"label": pooling, "set": {"encoder.pooling": pooling}} for pooling in POOLINGS]
    grid = {"base": {"encoder": ENCODER, "tasks": TASKS, "stages": STAGES}, "cells": cells}
    assert run_grid(registry, grid, name="poolings")[1].failed == 0
    base = {"encoder": {**ENCODER, "pooling": "mean"}, "tasks": MIXED, "stages": STAGES}
    assert run_grid(registry, {"base": base}, name="mixed")[1].failed == 0
    return registry


@pytest.fixture
def export(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, registry: Path = registry) -> Result:
        return CliRunner().invoke(cli, ["export", "--registry", str(registry), *arguments])

    return invoke


@pytest.fixture(scope="module")
def exported(registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The folder of a cell in a format, written once."""

    @cache
    def do(grid: str, form: str) -> Path:
        folder = tmp_path_factory.mktemp("exported") / "out"
        export_cell(cell_of(registry, grid), load_catalogue(), registry, folder, form)  # type: ignore[arg-type]
        return folder

    return do


def cell_of(registry: Path, grid: str, row: str | None = None) -> CellRecord:
    with Ledger.open(registry, create=False) as ledger:
        return next(place.cell for place in ledger.grid(grid).cells if row in (None, place.label))


def model_of(registry: Path, grid: str, row: str | None = None) -> TrainedModel:
    return load_trained(cell_of(registry, grid, row), load_catalogue(), registry)


def columns_of(model: TrainedModel, task: str) -> list[list[str]]:
    return [list(column) for column in model.tasks[task].data.load("dev").columns]


def done(result: Result) -> None:
    assert result.exit_code == 0, result.output


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def same(theirs: Any, ours: Tensor, within: float = 1e-5) -> None:
    assert np.abs(np.asarray(theirs) - ours.numpy()).max() <= within


@pytest.mark.parametrize("pooling", POOLINGS)
def test_sentence_transformers_gives_the_same_vectors(export: Invoke, registry: Path, pooling: str) -> None:
    done(export("poolings", "out", "--row", pooling))
    model = model_of(registry, "poolings", pooling)
    texts = columns_of(model, "sst")[0]
    texts += [" ".join(texts), texts[0].upper()]  # longer than max_length, and in capitals
    theirs = SentenceTransformer("out", device="cpu", trust_remote_code=False)
    same(theirs.encode(texts), model.encode(texts))
    assert theirs.max_seq_length == 24


def test_transformers_gives_the_same_vectors(export: Invoke, registry: Path) -> None:
    done(export("poolings", "out", "--row", "pooler", "--format", "transformers"))
    texts = columns_of(model_of(registry, "poolings"), "sst")[0]
    tokenizer, theirs = AutoTokenizer.from_pretrained("out"), AutoModel.from_pretrained("out")
    assert theirs.config.model_type == "bert"
    with torch.no_grad():
        out = theirs(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))
    same(out.pooler_output, model_of(registry, "poolings", "pooler").encode(texts))


def namespaces(model: TrainedModel) -> dict[str, dict[str, Any]]:
    """What the card's lines leave for each task that they have lines for."""
    text = Path("README.md").read_text()
    blocks = re.findall(r"(?:### (\w+)\n\n)?```python\n(.*?)```", text, re.DOTALL)
    assert blocks[0][0] == ""
    found = {}
    for task, lines in blocks[1:]:
        assert len([line for line in lines.splitlines() if line]) <= 10
        columns = columns_of(model, task)
        names = {"texts": columns[0], **dict(zip(("first", "second", "third"), columns, strict=False))}
        exec(blocks[0][1] + lines, names)  # noqa: S102 - our own text
        found[task] = names
    return found


@pytest.mark.parametrize(
    ("grid", "form"),
    [
        ("poolings", "sentence-transformers"),
        ("poolings", "transformers"),
        ("mixed", "sentence-transformers"),
        ("mixed", "transformers"),
        ("mixed", "onnx"),
    ],
)
def test_the_cards_lines_predict_what_the_cell_predicts(
    exported: Exported, registry: Path, monkeypatch: pytest.MonkeyPatch, grid: str, form: str
) -> None:
    model = model_of(registry, grid)
    monkeypatch.chdir(exported(grid, form))
    found = namespaces(model)
    others = set() if form == "sentence-transformers" else {"sst", "para", "sts"}
    told = {"poolings": set(TASKS), "mixed": {"near", "joint", *others}}
    assert found.keys() == told[grid]
    for task, names in found.items():
        columns = columns_of(model, task)
        rows = columns[0] if len(columns) == 1 else list(zip(columns[0], columns[1], strict=True))
        same(names["predicted"], torch.from_numpy(model.predict(task, rows).values), 1e-4)
    text = Path("README.md").read_text()
    assert ("trained the encoder and predicts nothing" in text) == ("lays out two texts" in text) == (grid == "mixed")


#: A head that reads three texts: whether the second or the third is closer to the first.
CLOSER = """
import torch
from taskloom.core import Head, Prediction, hookimpl

class Closer(Head):
    \"\"\"Which of two texts is closer to a third.\"\"\"
    name, reads, gives = "closer", "triple", "classes"

    def __init__(self) -> None:
        super().__init__()

    def build(self, *, width, outputs, labels, generator, shared):
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, vectors):
        first, second, third = vectors
        logits = torch.stack([(first * second).sum(-1), (first * third).sum(-1)], -1)
        return Prediction(self.scale * logits, vectors)

    def decide(self, score):
        return score.argmax(-1)

    def snippet(self, layer=()):
        logits = "torch.stack([(vectors[0] * vectors[1]).sum(-1), (vectors[0] * vectors[2]).sum(-1)], -1)"
        return [*layer, f'score = w["scale"] * {logits}', "predicted = score.argmax(-1)"]

@hookimpl
def taskloom_components():
    return [Closer]
"""


@pytest.mark.parametrize("form", ["sentence-transformers", "transformers", "onnx"])
def test_a_third_partys_head_that_reads_three_texts_is_exported(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    install("closer", CLOSER)
    sentences = Generated(task="sentiment", size=16).load("train").columns[0]
    rows = [f"{sentences[i]}\t{sentences[i - 1]}\t{sentences[i - 2]}\t{i % 2}" for i in range(16)]
    (tmp_path / "triples.tsv").write_text("\n".join(["a\tb\tc\tcloser", *rows]) + "\n")
    data = {"name": "table", "train": "triples.tsv", "dev": "triples.tsv", "text": ["a", "b", "c"], "label": "closer"}
    task = {"data": {**data, "classes": 2}, "head": "closer"}
    base = {"encoder": {**ENCODER, "pooling": "mean"}, "tasks": {"closer": task}, "stages": STAGES}
    assert run_grid(tmp_path / "registry", {"base": base}, name="triples")[1].failed == 0
    model, cell = model_of(tmp_path / "registry", "triples"), cell_of(tmp_path / "registry", "triples")
    export_cell(cell, load_catalogue(), tmp_path / "registry", tmp_path / "out", form)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path / "out")
    names = namespaces(model)["closer"]
    triples = list(zip(*columns_of(model, "closer"), strict=True))
    same(names["predicted"], torch.from_numpy(model.predict("closer", triples).values))
    assert len(set(names["predicted"].tolist())) == 2, "a constant would agree, too"


def test_an_onnx_graph_takes_any_batch_and_length_and_has_every_pooling(exported: Exported, registry: Path) -> None:
    folder = exported("mixed", "onnx")
    model = model_of(registry, "mixed")
    texts = columns_of(model, "sst")[0]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    assert names == ["sentence_embedding", "cls_embedding", "max_embedding", "pooler_embedding", "token_embeddings"]
    for chosen in (texts, texts[:1], [" ".join(texts)], ["film"]):
        rows = tokenizer.encode_batch(chosen)
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        given = {name: np.array([getattr(row, field) for row in rows]) for name, field in fields.items()}
        found = dict(zip(names, session.run(names, given), strict=True))
        for task, name in (("odd", names[0]), ("sst", names[1]), ("para", names[2]), ("sts", names[3])):
            same(found[name], model.encode(chosen, task=task))
    assert not (folder / "model.safetensors").exists()


def test_pretrained_weights_keep_their_word_pieces(tmp_path: Path, export: Invoke) -> None:
    encoder = {"name": "minbert", "weights": "minilm", "pooling": "mean", "max_length": 16}
    tasks = {"sst": generated("sentiment", 8, 4)}
    registry = tmp_path / "registry"
    assert run_grid(registry, {"base": {"encoder": encoder, "tasks": tasks, "stages": STAGES}})[1].failed == 0
    done(export(str(tmp_path / "grid.json"), "out", registry=registry))
    texts = ["A Café in Zürich — naïve, 東京!", "unbelievably antidisestablishmentarian " * 4, "", "x"]
    theirs = SentenceTransformer("out", device="cpu", trust_remote_code=False)
    same(theirs.encode(texts), model_of(registry, "grid").encode(texts))


def test_the_card_has_scores_and_parts_but_no_texts_and_no_machine(export: Invoke, registry: Path) -> None:
    done(export("poolings", "some-name", "--row", "mean"))
    model = model_of(registry, "poolings", "mean")
    cell = cell_of(registry, "poolings", "mean")
    card = ModelCard.load("some-name/README.md")
    assert card.data.library_name == "sentence-transformers"
    found = {result.task_name: (result.metric_type, result.metric_value) for result in card.data.eval_results}
    metrics = {"sst": "accuracy", "joint": "accuracy", "para": "accuracy", "sts": "pearson"}
    assert found == {task: (metric, round(cell.scores[task], 4)) for task, metric in metrics.items()}
    for task in TASKS:
        assert re.search(rf"\| {task} .*\| \d\.\d+ .*\| -?\d\.\d+ to \d\.\d+ +\| 8 ", card.text)
        content = cell.facts["content"][f"tasks.{task}.data"][:16]
        assert re.search(rf"\| {task} +\| generated +\| .*\| 16 +\| 8 +\| `{content}`", card.text)
    assert '"name": "both_orders"' in card.text
    assert "Devlin" in card.text
    assert "section 4 (PH, DPH, DPHA)" in card.text  # of a head inside another
    heads = json.loads(Path("some-name/heads.json").read_text())
    assert heads["sts"]["labels"] == {"low": 0.0, "high": 5.0}
    assert heads["sst"]["labels"]["classes"] == 5
    written = [path.read_text() for path in Path("some-name").rglob("*") if path.suffix in (".md", ".json", ".txt")]
    texts = {text for task in TASKS for column in columns_of(model, task) for text in column}
    for word in (str(registry), str(registry.parent), str(Path.cwd()), getpass.getuser(), socket.gethostname(), *texts):
        assert not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for text in written), word


def test_a_folder_is_written_whole_or_not_at_all(
    export: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(exporting, "write_card", fail)
        assert "out cannot be written: No space left on device" in refused(export("mixed", "out"))
    assert not list(tmp_path.iterdir())
    Path("out").mkdir()
    done(export("mixed", "out"))
    first = Path("out/README.md").read_text()
    assert "out is not empty; choose another, or replace what was exported there (--replace" in refused(
        export("mixed", "out", "--format", "onnx")
    )
    assert Path("out/README.md").read_text() == first
    done(export("mixed", "out", "--format", "transformers", "--replace"))
    assert not Path("out/modules.json").exists()
    Path("out/.git").mkdir()
    Path("out/LICENSE").touch()
    message = "out also holds .git, LICENSE, which the export did not write"
    assert message in refused(export("mixed", "out", "--replace"))
    shutil.rmtree("out/.git")
    Path("out/LICENSE").unlink()
    Path("link").symlink_to("out")
    done(export("mixed", "link", "--replace"))
    assert Path("link").is_symlink()
    assert Path("out/modules.json").is_file()
    Path("link").unlink()
    Path("mine").mkdir()
    Path("mine/thesis.tex").touch()
    assert "mine holds no export" in refused(export("mixed", "mine", "--replace"))
    Path("file").touch()
    assert "Found a file" in refused(export("mixed", "file"))
    assert Path("file").read_bytes() == b""
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "mine", "out"}, "parts were left"


def test_what_cannot_be_exported_is_said(
    export: Invoke, registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "inside the registry" in refused(export("mixed", str(registry / "out")))
    assert "no row 'mena'; did you mean 'mean'?" in refused(export("poolings", "out", "--row", "mena"))
    with monkeypatch.context() as lacking:
        find = exporting.importlib.util.find_spec
        lacking.setattr(exporting.importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name))
        message = refused(export("mixed", "out", "--format", "onnx"))
    assert "needs onnx, onnxscript: pip install 'taskloom[onnx]'" in message
    with monkeypatch.context() as other:
        other.setattr(vectors, "POOLINGS", ("attention",))
        assert "pools by 'mean', which other programs do not know" in refused(export("mixed", "out"))
    assert not Path("out").exists()


def test_words_are_looked_for_where_the_data_are_now(tmp_path: Path, export: Invoke) -> None:
    folder = tmp_path / "here" / "cs224n"
    folder.mkdir(parents=True)
    lines = "".join(f"{n}\tid{n}\tword{n} of mine\t{n % 5}\n" for n in range(8))
    for split in ("train", "dev"):
        (folder / f"ids-sst-{split}.csv").write_text(f"\tid\tsentence\tsentiment\n{lines}")
    base = {"encoder": ENCODER, "tasks": {"sst": {"data": {"name": "cs224n", "task": "sst", "dir": str(folder)}}}}
    registry = tmp_path / "registry"
    assert run_grid(registry, {"base": base})[1].failed == 0
    (tmp_path / "here").rename(tmp_path / "there")
    grid = str(tmp_path / "grid.json")
    assert "--data FOLDER says where they are" in refused(export(grid, "out", registry=registry))
    done(export(grid, "out", "--data", str(tmp_path / "there"), registry=registry))
    assert "word7\n" in Path("out/vocab.txt").read_text()
    assert str(tmp_path) not in Path("out/README.md").read_text()
