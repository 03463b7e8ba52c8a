"""BERT weights on disk: the expected tensors, and their mapping to our parameters."""

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from taskloom.core import WeightsError
from taskloom.plugins.encoders.bert import Architecture
from taskloom.plugins.encoders.folders import weight_files

_ANCHOR = "embeddings.word_embeddings.weight"  # every BERT has it, with or without a prefix


class Config(Architecture):
    """The keys of a BERT's ``config.json`` that are read; architectures that this encoder does not have are refused."""

    model_type: Literal["bert"] | None = "bert"
    hidden_act: Literal["gelu"] | None = "gelu"
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] | None = False


def sources(sizes: Architecture, *, pooler: bool) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Our parameter → the tensors on disk that are concatenated into it, with their shapes."""
    d, f = sizes.width, sizes.feed_forward
    tensors: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "embeddings.word": [(_ANCHOR, (sizes.vocabulary, d))],
        "embeddings.position": [("embeddings.position_embeddings.weight", (sizes.max_length, d))],
        "embeddings.segment": [("embeddings.token_type_embeddings.weight", (sizes.types, d))],
    }

    def add(ours: str, *theirs: str, shape: tuple[int, ...]) -> None:
        tensors[f"{ours}.weight"] = [(f"{name}.weight", shape) for name in theirs]
        tensors[f"{ours}.bias"] = [(f"{name}.bias", shape[:1]) for name in theirs]

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
    return tensors


def check_tensors(folder: Path, sizes: Architecture, *, pooler: bool) -> None:
    """Compare the names and shapes on disk with what the architecture needs."""
    path = weight_files(folder)[0]
    stored = _read(folder, "meta")
    missing, wrong = [], []
    for name, shape in (tensor for parts in sources(sizes, pooler=pooler).values() for tensor in parts):
        if name not in stored:
            missing.append(name)
        elif stored[name].shape != shape:
            wrong.append(f"{name} is {list(stored[name].shape)}, config.json needs {list(shape)}")
    if missing and all(name.startswith("pooler.") for name in missing):
        raise WeightsError(f"{path} has no pooler; pooling should be 'cls', 'mean' or 'max'. Found 'pooler'.")
    problems = [f"{name} is missing" for name in missing] + wrong
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise WeightsError(f"{path}: weights do not fit the architecture: {'; '.join(problems[:4])}{more}")


def load_tensors(folder: Path, sizes: Architecture, *, pooler: bool) -> dict[str, Tensor]:
    """The weights under our names, in float32."""
    stored = _read(folder, "cpu")
    loaded = {}
    for ours, parts in sources(sizes, pooler=pooler).items():
        tensors = [stored[name] for name, _ in parts]
        loaded[ours] = (torch.cat(tensors) if len(tensors) > 1 else tensors[0]).float()
    return loaded


def has_pooler(folder: Path) -> bool:
    """Whether the weights have BERT's layer over [CLS]."""
    return "pooler.dense.weight" in _read(folder, "meta")


def _read(folder: Path, device: str) -> dict[str, Tensor]:
    """The tensors by name, without a prefix (``bert.``) and with today's norm names for gamma and beta."""
    paths = weight_files(folder)
    stored = {name: tensor for path in paths for name, tensor in _read_file(path, device).items()}
    anchors = [name for name in stored if name.endswith(_ANCHOR)]
    if not anchors:
        raise WeightsError(f"{paths[0]}: weights do not fit the architecture: {_ANCHOR} is missing")
    prefix = min(anchors, key=len)[: -len(_ANCHOR)]
    named = {}
    for name, tensor in stored.items():
        if name.startswith(prefix):
            plain = name[len(prefix) :].replace("LayerNorm.gamma", "LayerNorm.weight")
            named[plain.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return named


def _read_file(path: Path, device: str) -> dict[str, Tensor]:
    try:
        if path.suffix == ".bin":
            loaded: Any = torch.load(path, map_location=device, weights_only=True)
        else:
            loaded = load_file(path)  # memory-mapped: tensors that are not used are not read
        return {name: value for name, value in loaded.items() if isinstance(name, str) and isinstance(value, Tensor)}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None
    except Exception:  # the unpickler fails in many ways on bytes that are no archive
        # Not torch's own message: it advises to load the file nevertheless.
        raise WeightsError(
            f"{path} cannot be read as plain tensors by name: it is damaged, or holds objects, which could run code "
            "when they are loaded; save the weights as model.safetensors"
        ) from None
