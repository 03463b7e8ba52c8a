"""Encoders of other architectures are exported by the library that runs them."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize
from small_runs import generated, run_grid
from tiny_models import OTHERS, TEXTS, save_model
from tokenizers import Tokenizer

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord
from taskloom.runs.export.card import ExportFormat
from taskloom.runs.export.export import export_cell
from taskloom.runs.predict.trained import TrainedModel, load_trained

KINDS = {"bert": "pooler", "roberta": "pooler", "mpnet": "mean", "electra": "max", "distilbert": "cls"}


def trained(folder: Path, weights: Path, **options: str) -> tuple[TrainedModel, Path]:
    """A model on these weights, and its registry with the one cell."""
    registry = folder / "registry"
    encoder = {"name": "huggingface", "weights": str(weights), **options}
    run = {"encoder": encoder, "tasks": {"sst": generated("sentiment")}, "stages": [{"epochs": 1}]}
    assert run_grid(registry, {"base": run})[1].failed == 0
    return load_trained(only_cell(registry), load_catalogue(), registry), registry


def only_cell(registry: Path) -> CellRecord:
    with Ledger.open(registry, create=False) as ledger:
        return ledger.grid("grid").cells[0].cell


def export(registry: Path, folder: Path, form: ExportFormat) -> Path:
    export_cell(only_cell(registry), load_catalogue(), registry, folder, form)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_other_architectures_give_the_same_vectors(kind: str, tmp_path: Path) -> None:
    model, registry = trained(tmp_path, save_model(kind, tmp_path / kind), pooling=KINDS[kind])
    texts = [*TEXTS[:3], *OTHERS, "the cat ran " * 30]
    theirs = SentenceTransformer(str(export(registry, tmp_path / "out", "sentence-transformers")), device="cpu")
    assert np.abs(theirs.encode(texts) - model.encode(texts).numpy()).max() <= 1e-5


def test_vectors_of_sentence_transformers_stay_normalized_and_texts_lower_cased(tmp_path: Path) -> None:
    first = save_model("mpnet", tmp_path / "mpnet")
    kinds = ["Transformer", "Pooling", "Normalize"]
    made = SentenceTransformer(str(first), device="cpu")
    made.append(Normalize())
    made.save(str(tmp_path / "sentences"))
    path = next((tmp_path / "sentences").glob("sentence_*_config.json"))
    path.write_text('{"max_seq_length": 20, "do_lower_case": true}')
    model, registry = trained(tmp_path, tmp_path / "sentences")
    texts = ["the CAT", "A small dog ran"]
    ours = model.encode(texts).numpy()
    assert np.allclose(np.linalg.norm(ours, axis=1), 1)
    theirs = SentenceTransformer(str(export(registry, tmp_path / "out", "sentence-transformers")), device="cpu")
    assert [type(module).__name__ for module in theirs] == kinds
    assert np.abs(theirs.encode(texts) - ours).max() <= 1e-5
    folder = export(registry, tmp_path / "graph", "onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)
    given = {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }
    assert np.abs(session.run(["sentence_embedding"], given)[0] - ours).max() <= 1e-5
