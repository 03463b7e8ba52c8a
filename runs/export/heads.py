"""The heads beside an exported encoder, and the lines of Python that use both."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from taskloom.core.tokens import Reads
from taskloom.registry.installed.task import Task
from taskloom.runs.export.graph import VECTOR, output_name
from taskloom.runs.export.vectors import SentencePooling, all_poolings, head_pooling, own_pooling
from taskloom.runs.predict.trained import TrainedModel

HEADS, TENSORS, CARD = "heads.json", "heads.safetensors", "README.md"
#: The call of ``encode`` that gives an example's vectors, by how a head reads its texts.
_VECTORS: dict[Reads, str] = {
    "single": "encode(texts{0})[None]",
    "pair": "torch.stack([encode(first{0}), encode(second{0})])",
    "triple": "torch.stack([encode(first{0}), encode(second{0}), encode(third{0})])",
    "joint": "encode(first, second{0})[None]",
    "both_orders": "torch.stack([encode(first, second{0}), encode(second, first{0})])",
}
#: A pooling of ``states`` [B, L, d] with ``mask`` [B, L, 1].
_POOLED = {
    "mean": "(states * mask).sum(1) / mask.sum(1)",
    "max": "states.masked_fill(mask == 0, -torch.inf).amax(1)",
    "cls": "states[:, 0]",
    "pooler": "out.pooler_output",
}


def write_heads(folder: Path, model: TrainedModel, specs: Mapping[str, Any]) -> None:
    """Write every head's tensors as ``<task>.<name>``, and a description of each head and its labels.

    Call it after the encoder was written and before the card: the tensors' metadata list the files of the export.
    """
    tensors: dict[str, Tensor] = {}
    descriptions: dict[str, Any] = {}
    for name, task in model.tasks.items():
        head, labels = model.head(name), task.data.labels
        tensors |= {f"{name}.{key}": tensor.detach().clone() for key, tensor in head.state_dict().items()}
        pooling = head_pooling(model, name)
        descriptions[name] = {
            "head": specs[name]["head"],
            "reads": head.reads,
            "pooling": pooling.method,
            "normalized": pooling.normalized,
            "outputs": task.outputs,
            "labels": labels and _labels(task),
            "metric": specs[name]["metric"],
        }
    files = json.dumps(sorted({*_names(folder), HEADS, TENSORS, CARD}))
    save_file(tensors, folder / TENSORS, {"files": files})  # one entry: several would come in any order
    (folder / HEADS).write_text(json.dumps(descriptions, indent=2) + "\n", encoding="utf-8")


def foreign_files(folder: Path) -> list[str]:
    """List the files in the folder of an export that the export did not write."""
    with safe_open(folder / TENSORS, "pt") as tensors:
        files = json.loads((tensors.metadata() or {}).get("files", "[]"))
    return sorted(_names(folder) - {*files})


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _labels(task: Task) -> dict[str, Any]:
    labels = task.labels
    if not labels.classes:
        return {"low": labels.low, "high": labels.high}
    return {"classes": labels.classes, "names": list(labels.names)} if labels.names else {"classes": labels.classes}


def encode_lines(model: TrainedModel, form: str) -> list[str]:
    """Return Python that defines ``encode``: sentence vectors, [B, d], of one column of texts or of two read as one."""
    rows = "list(columns[0]) if len(columns) == 1 else list(zip(*columns))"
    if form == "sentence-transformers":
        return [
            "import torch",
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer(".")  # the folder of this card',
            "",
            "def encode(*columns):  # one column of texts, or two that are read as one sequence",
            f"    return model.encode({rows}, convert_to_tensor=True)",
        ]
    if form == "transformers":
        own, *others = all_poolings(model)
        pooled, parameter = _pooled(own), ""
        if others:
            cases = ", ".join(f'"{pooling}": {_pooled(pooling)}' for pooling in (own, *others))
            pooled = "{" + cases + "}[pooling]"
            parameter = f', pooling="{own}"'
        return [
            "import torch",
            "from transformers import AutoModel, AutoTokenizer",
            "",
            'model, tokenizer = AutoModel.from_pretrained("."), AutoTokenizer.from_pretrained(".")',
            "",
            "@torch.no_grad()",
            f"def encode(*columns{parameter}):  # one column of texts, or two that are read as one sequence",
            '    batch = tokenizer(*map(list, columns), padding=True, truncation=True, return_tensors="pt")',
            "    out = model(**batch)",
            '    states, mask = out.last_hidden_state, batch["attention_mask"][..., None]',
            f"    return {pooled}",
        ]
    return [
        "import numpy, onnxruntime, torch",
        "from tokenizers import Tokenizer",
        "",
        'tokenizer, session = Tokenizer.from_file("tokenizer.json"), onnxruntime.InferenceSession("model.onnx")',
        'fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}',
        "",
        f'def encode(*columns, output="{VECTOR}"):  # one column of texts, or two that are read as one sequence',
        f"    rows = tokenizer.encode_batch({rows})",
        "    read = {i.name: [getattr(row, fields[i.name]) for row in rows] for i in session.get_inputs()}",
        "    given = {name: numpy.array(ids) for name, ids in read.items()}",
        "    return torch.from_numpy(session.run([output], given)[0])",
    ]


def _pooled(pooling: SentencePooling) -> str:
    vectors = _POOLED[pooling.method]
    return f"torch.nn.functional.normalize({vectors})" if pooling.normalized else vectors


def head_lines(model: TrainedModel, name: str, form: str) -> list[str] | str:
    """Return Python that predicts a task with ``encode`` and its head's tensors, or the reason why there is none."""
    task, head, pooling = model.tasks[name], model.head(name), head_pooling(model, name)
    special_tokens = model.encoder.special_tokens
    if not task.predicts:
        return "This task trained the encoder and predicts nothing."
    if head.reads in ("joint", "both_orders") and head.frame(special_tokens) != special_tokens:
        return "Its head lays out two texts in a way that the tokenizer here does not know; `taskloom predict` does."
    if not (lines := head.snippet()):
        return f"The head {head.name!r} has no short form; `taskloom predict` uses it."
    argument = ""
    if pooling != own_pooling(model):
        if form == "sentence-transformers":
            return f"Its head reads vectors pooled by {pooling}; `taskloom export --format transformers` has them."
        argument = f', pooling="{pooling}"' if form == "transformers" else f', output="{output_name(pooling)}"'
    load = f'w = {{k.removeprefix("{name}."): v for k, v in load_file("{TENSORS}").items() if k.startswith("{name}.")}}'
    vectors = f"vectors = {_VECTORS[head.reads].format(argument)}  # [sequences, examples, width]"
    imports = ["import torch.nn.functional as F", "from safetensors.torch import load_file", ""]
    return [*imports, load, vectors, *lines]
