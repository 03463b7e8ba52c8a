"""BERT weights on disk: which tensors there should be, and how they become ours."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from taskloom.core import WeightsError
from taskloom.plugins.encoders.bert import Architecture
from taskloom.plugins.encoders.folders import weight_file

Shapes = dict[str, tuple[int, ...]]

_ANCHOR = "embeddings.word_embeddings.weight"  # every BERT has it, whatever stands before the name
_SIZES = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "max_length": "max_position_embeddings",
    "types": "type_vocab_size",
}
#: What this encoder is; a config that leaves one out means the same.
_FACTS = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}


@dataclass(frozen=True)
class Config:
    """What ``config.json`` says of a BERT."""

    sizes: Architecture
    dropout: float
    attention_dropout: float


def read_config(folder: Path) -> Config:
    """Read ``config.json``; what this encoder cannot be is an error that names it."""
    path = folder / "config.json"
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise WeightsError(f"{path} should hold an object. Found {type(raw).__name__}.")
    for key, wanted in _FACTS.items():
        if raw.get(key) not in (wanted, None):
            raise WeightsError(f"{path}: {key} should be {wanted!r} for minbert. Found {raw[key]!r}.")
    raw = {"type_vocab_size": 2, **raw}
    found = {ours: raw.get(theirs) for ours, theirs in _SIZES.items()}
    bad = [f"{_SIZES[ours]} is {value!r}" for ours, value in found.items() if type(value) is not int or value < 1]
    if bad:
        raise WeightsError(f"{path}: sizes should be whole numbers from 1. Found: {', '.join(bad)}.")
    names = {"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    eps, dropout, attention_dropout = shares = [raw.get(name, default) for name, default in names.items()]
    if not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        raise WeightsError(f"{path}: {', '.join(names)} should be numbers from 0 to below 1. Found {shares}.")
    return Config(Architecture(**found, eps=eps), dropout, attention_dropout)


def sources(sizes: Architecture, *, pooler: bool) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Our parameter → the tensors on disk that it is made of (one above the other), with their shapes."""
    d, f = sizes.width, sizes.feed_forward
    made: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "embeddings.word": [(_ANCHOR, (sizes.vocabulary, d))],
        "embeddings.position": [("embeddings.position_embeddings.weight", (sizes.max_length, d))],
        "embeddings.segment": [("embeddings.token_type_embeddings.weight", (sizes.types, d))],
    }

    def add(ours: str, *theirs: str, shape: tuple[int, ...]) -> None:
        made[f"{ours}.weight"] = [(f"{name}.weight", shape) for name in theirs]
        made[f"{ours}.bias"] = [(f"{name}.bias", shape[:1]) for name in theirs]

    add("embeddings.norm", "embeddings.LayerNorm", shape=(d,))
    for number in range(sizes.layers):
        ours, theirs = f"layers.{number}", f"encoder.layer.{number}"
        add(f"{ours}.qkv", *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")), shape=(d, d))
        add(f"{ours}.out", f"{theirs}.attention.output.dense", shape=(d, d))
        add(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm", shape=(d,))
        add(f"{ours}.up", f"{theirs}.intermediate.dense", shape=(f, d))
        add(f"{ours}.down", f"{theirs}.output.dense", shape=(d, f))
        add(f"{ours}.output_norm", f"{theirs}.output.LayerNorm", shape=(d,))
    if pooler:
        add("pooler.dense", "pooler.dense", shape=(d, d))
    return made


def check_tensors(folder: Path, sizes: Architecture, *, pooler: bool) -> None:
    """Compare the names and shapes on disk with what the architecture needs; no weight is read."""
    path = weight_file(folder)
    shapes = _read_shapes(path)
    names = _our_names(shapes, path)
    missing, wrong = [], []
    for theirs, shape in (tensor for parts in sources(sizes, pooler=pooler).values() for tensor in parts):
        if theirs not in names:
            missing.append(theirs)
        elif shapes[names[theirs]] != shape:
            wrong.append(f"{theirs} is {list(shapes[names[theirs]])}, config.json needs {list(shape)}")
    if missing and all(name.startswith("pooler.") for name in missing):
        raise WeightsError(f"{path} has no pooler; pooling should be 'cls', 'mean' or 'max'. Found 'pooler'.")
    found = [f"{name} is missing" for name in missing] + wrong
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise WeightsError(f"{path}: weights do not fit the architecture: {'; '.join(found[:4])}{more}")


def load_tensors(folder: Path, sizes: Architecture, *, pooler: bool) -> dict[str, Tensor]:
    """The weights under our names, in float32."""
    path = weight_file(folder)
    names = _our_names(_read_shapes(path), path)
    wanted = sources(sizes, pooler=pooler)
    if path.suffix == ".bin":
        held = _torch_load(path, "cpu")
        return {ours: _stack([held[names[name]] for name, _ in parts]) for ours, parts in wanted.items()}
    with safe_open(path, framework="pt") as file:
        return {ours: _stack([file.get_tensor(names[name]) for name, _ in parts]) for ours, parts in wanted.items()}


def _stack(parts: list[Tensor]) -> Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).float()


def _our_names(held: Mapping[str, object], path: Path) -> dict[str, str]:
    """Plain name → name on disk: without what stands before (``bert.``), old norm names (gamma, beta) made new."""
    anchors = [name for name in held if name.endswith(_ANCHOR)]
    if not anchors:
        raise WeightsError(f"{path}: weights do not fit the architecture: {_ANCHOR} is missing")
    prefix = min(anchors, key=len)[: -len(_ANCHOR)]
    names = {}
    for name in held:
        if name.startswith(prefix):
            plain = name[len(prefix) :].replace("LayerNorm.gamma", "LayerNorm.weight")
            names[plain.replace("LayerNorm.beta", "LayerNorm.bias")] = name
    return names


def _read_shapes(path: Path) -> Shapes:
    if path.suffix == ".bin":
        return {name: tuple(tensor.shape) for name, tensor in _torch_load(path, "meta").items()}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None


def _torch_load(path: Path, device: str) -> dict[str, Tensor]:
    try:
        held: Any = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # bytes that are no archive make the unpickler fail in many ways
        # torch's own words would be advice to load it nevertheless.
        raise WeightsError(
            f"{path} cannot be read as plain tensors: it is damaged, or holds objects, which could run code when they "
            "are loaded; save the weights as model.safetensors"
        ) from None
    if not isinstance(held, dict):
        raise WeightsError(f"{path} should hold named tensors. Found {type(held).__name__}.")
    return {name: value for name, value in held.items() if isinstance(name, str) and isinstance(value, Tensor)}
