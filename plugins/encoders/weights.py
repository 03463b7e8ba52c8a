"""BERT weights on disk: which tensors there should be, and how they become ours."""

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from taskloom.core import WeightsError
from taskloom.plugins.encoders.bert import Architecture
from taskloom.plugins.encoders.folders import weight_files

_ANCHOR = "embeddings.word_embeddings.weight"  # every BERT has it, whatever prefix the names have


class Config(Architecture):
    """What ``config.json`` says of a BERT; what this encoder cannot be is refused, other keys are not looked at."""

    model_type: Literal["bert"] | None = "bert"
    hidden_act: Literal["gelu"] | None = "gelu"
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] | None = False


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
    """Compare the names and shapes on disk with what the architecture needs."""
    path = weight_files(folder)[0]
    held = _read(folder, "meta")
    missing, wrong = [], []
    for name, shape in (tensor for parts in sources(sizes, pooler=pooler).values() for tensor in parts):
        if name not in held:
            missing.append(name)
        elif held[name].shape != shape:
            wrong.append(f"{name} is {list(held[name].shape)}, config.json needs {list(shape)}")
    if missing and all(name.startswith("pooler.") for name in missing):
        raise WeightsError(f"{path} has no pooler; pooling should be 'cls', 'mean' or 'max'. Found 'pooler'.")
    found = [f"{name} is missing" for name in missing] + wrong
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise WeightsError(f"{path}: weights do not fit the architecture: {'; '.join(found[:4])}{more}")


def load_tensors(folder: Path, sizes: Architecture, *, pooler: bool) -> dict[str, Tensor]:
    """The weights under our names, in float32."""
    held = _read(folder, "cpu")
    loaded = {}
    for ours, parts in sources(sizes, pooler=pooler).items():
        tensors = [held[name] for name, _ in parts]
        loaded[ours] = (torch.cat(tensors) if len(tensors) > 1 else tensors[0]).float()
    return loaded


def has_pooler(folder: Path) -> bool:
    """Whether the weights have BERT's layer over [CLS]."""
    return "pooler.dense.weight" in _read(folder, "meta")


def _read(folder: Path, device: str) -> dict[str, Tensor]:
    """The tensors by plain names: without a prefix (``bert.``), and with old norm names (gamma, beta) made new."""
    paths = weight_files(folder)
    held = {name: tensor for path in paths for name, tensor in _read_file(path, device).items()}
    anchors = [name for name in held if name.endswith(_ANCHOR)]
    if not anchors:
        raise WeightsError(f"{paths[0]}: weights do not fit the architecture: {_ANCHOR} is missing")
    prefix = min(anchors, key=len)[: -len(_ANCHOR)]
    named = {}
    for name, tensor in held.items():
        if name.startswith(prefix):
            plain = name[len(prefix) :].replace("LayerNorm.gamma", "LayerNorm.weight")
            named[plain.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return named


def _read_file(path: Path, device: str) -> dict[str, Tensor]:
    try:
        if path.suffix == ".bin":
            loaded: Any = torch.load(path, map_location=device, weights_only=True)
        else:
            loaded = load_file(path)  # maps the file into memory: what is not looked at is not read
        return {name: value for name, value in loaded.items() if isinstance(name, str) and isinstance(value, Tensor)}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None
    except Exception:  # bytes that are not an archive make the unpickler fail in many ways
        # torch's own message would advise to load it nevertheless.
        raise WeightsError(
            f"{path} cannot be read as plain tensors by name: it is damaged, or holds objects, which could run code "
            "when they are loaded; save the weights as model.safetensors"
        ) from None
