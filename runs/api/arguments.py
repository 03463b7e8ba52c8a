"""Arguments of the Python API, checked: of the right type, in Python's own numbers, and known by name."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import TaskloomError, unknown
from taskloom.runs.driver.signals import Stop

if TYPE_CHECKING:  # which imports pydantic
    from taskloom.runs.grid.overrides import Overrides

#: The type of an argument's value, that of each entry or key in it, and both in words.
ARGUMENTS: dict[str, tuple[Any, Any, str]] = {
    **dict.fromkeys(("registry", "data", "out"), (str | os.PathLike, str | os.PathLike, "a path")),
    **dict.fromkeys(("path", "weights", "sort", "group_by", "metric", "split", "column"), (str, str, "a string")),
    **dict.fromkeys(("epochs", "seed"), (int, int, "an integer")),
    "name": (str, str, "a string that is not empty"),
    "settings": (Mapping, str, "a mapping from paths to values"),
    "only": (Collection, str, "a pattern of rows, or a list of them"),
    "columns": (Collection, str, "the name of a column, or a list of them"),
    "engine": (str | Mapping, str, "the name of an engine, or a mapping of its name and options"),
    "trackers": (Collection, str | Mapping, "the name of a tracker, or a list of names or mappings"),
    "stop": (Stop, Stop, "a taskloom.runs.driver.signals.Stop"),
    "seeds": (int | Collection, int, "a list of integers from 0 on, or the number of new ones"),
}
#: Where results are kept unless somebody says otherwise.
REGISTRY = "taskloom-runs"
#: Arguments of ``Grid.run`` beside those of every plan.
RUN_ARGUMENTS = ("engine", "workers", "progress", "retry", "attempts", "timeout", "keep", "trackers", "stop")
#: Options of engines that are flags of ``taskloom run``, and so are looked for among the arguments.
ENGINE_OPTIONS = ("devices", "threads", "cells_per_gpu", "address")


def checked(name: str, value: Any) -> Any:
    """An argument's value in Python's own types, or None; ``TaskloomError`` if it is not of the argument's type."""
    value_type, entry_type, words = ARGUMENTS[name]
    value = (json_copy if isinstance(value, Mapping | list | tuple) else _plain)(value, name)
    entries = value if isinstance(value, Collection) else (value,)
    fits = isinstance(value, value_type)
    fits = fits and all(isinstance(entry, entry_type) and not isinstance(entry, bool) for entry in entries)
    if name == "seeds":
        fits = fits and all(0 <= seed < 2**32 for seed in entries)
    if value is None or (fits and not (name == "name" and value == "")):
        return value
    raise TaskloomError(f"{name} should be {words}. Found {value!r:.100}.")


def checked_overrides(options: Mapping[str, Any], *, others: Collection[str] = ()) -> "tuple[Overrides, bool]":
    """The overrides of a plan or a run, and whether a large grid is accepted.

    ``others`` are further arguments of the method, for the message about one that it does not have.
    """
    from taskloom.runs.grid.overrides import Overrides

    names = {*Overrides.__dataclass_fields__, "allow_large", *others}
    for key, value in options.items():
        if key not in names:
            hint = {"name": "ray" if key == "address" else "local", key: value}
            how = f"; an engine takes it: engine={hint}" if others and key in ENGINE_OPTIONS else ""
            raise TaskloomError(unknown("argument", key, names, where="arguments") + how)
    fields = {
        key: checked(key, value) if key in ARGUMENTS else value for key, value in options.items() if value is not None
    }
    allow_large, only, seeds = bool(fields.pop("allow_large", False)), fields.get("only", ()), fields.get("seeds", ())
    if "data" in fields:
        fields["data"] = Path(os.path.expanduser(fields["data"]))  # noqa: PTH111 - the other raises
    fields["only"] = (only,) if isinstance(only, str) else tuple(only)
    fields["seeds"] = seeds if isinstance(seeds, int) else tuple(seeds)
    return Overrides(**fields), allow_large


def registry_folder(folder: str | os.PathLike[str] | None) -> Path:
    """The folder that keeps results: the one that is named, or that of the environment, or the default."""
    folder = checked("registry", folder) or os.environ.get("TASKLOOM_REGISTRY") or REGISTRY
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - the other raises


def checked_split(split: str) -> str:
    """The name of a split, or "" for the one that each row states; an error if there is none of that name."""
    from taskloom.runs.analysis.results import SPLITS

    if checked("split", split) and split not in SPLITS:
        raise TaskloomError(unknown("split", split, SPLITS, where="splits"))
    return split or ""


def check_limit(limit: int) -> None:
    """Raise an error if this is no number of examples."""
    if not isinstance(limit, int) or limit < 0:
        raise TaskloomError(f"limit should be an integer from 0 on. Found {limit!r}.")


def json_copy(value: Any, path: str = "") -> Any:
    """A copy of a value as JSON has it."""
    from pydantic_core import PydanticSerializationError

    from taskloom.runs.grid.expansion import copied

    try:
        return copied(_plain(value, path))
    except PydanticSerializationError as error:
        raise TaskloomError(f"{path or 'a grid'} should hold what JSON can: {error}") from None


def _plain(value: Any, path: str) -> Any:
    """A copy of a value with Python's own numbers and lists in place of numpy's, none of them too large."""
    if value is None or isinstance(value, str | os.PathLike):
        return value
    from taskloom.registry.installed.words import number_problem  # and with it pydantic

    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(child, f"{path}.{key}".lstrip(".")) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child, f"{path}.{index}") for index, child in enumerate(value)]
    if message := number_problem(value):
        raise TaskloomError(f"{path} {message}")
    return value
