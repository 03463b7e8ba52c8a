"""The files that sentence-transformers reads beside a model of transformers: its modules and their settings.

They are in the format of its version 3, which every later version reads too, and name only its own classes.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from taskloom.core import TaskloomError
from taskloom.runs.export.vectors import own_pooling
from taskloom.runs.predict.trained import TrainedModel

_DENSE = "pooler.dense."


def write_modules(folder: Path, model: TrainedModel) -> None:
    """Write ``modules.json`` and a folder per module: the transformer, pooling, BERT's pooler, normalization."""
    width, pooling = model.encoder.width, own_pooling(model)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "sentence_bert_config.json", {"max_seq_length": model.encoder.max_length, "do_lower_case": False})
    modes = {"cls": "cls_token", "pooler": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    flags = {f"pooling_mode_{mode}": mode == modes[pooling.method] for mode in dict.fromkeys(modes.values())}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    if pooling.method == "pooler":
        modules.append(("2_Dense", "Dense"))
        _write_dense(folder, width)
    if pooling.normalized:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (folder / modules[-1][0]).mkdir()
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{module}"}
        for index, (path, module) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)
    _write(folder / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})


def _write_dense(folder: Path, width: int) -> None:
    """Write BERT's pooler, tanh(W · [CLS] + b), as a module of its own: the pooling module there has no pooler."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        pooler = {name: file.get_tensor(name) for name in file.keys() if _DENSE in name}  # noqa: SIM118
    tensors = {"linear." + name.partition(_DENSE)[2]: tensor for name, tensor in pooler.items()}
    if not tensors.keys() == {"linear.weight", "linear.bias"}:
        raise TaskloomError(
            "sentence-transformers has no module for this model's pooler; --format transformers or onnx has it, and "
            "so has any format of a run that pools by cls, mean or max"
        )
    config = {"in_features": width, "out_features": width, "bias": True}
    activation = "torch.nn.modules.activation.Tanh"
    _write(folder / "2_Dense" / "config.json", {**config, "activation_function": activation})
    save_file(tensors, folder / "2_Dense" / "model.safetensors", {"format": "pt"})


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
