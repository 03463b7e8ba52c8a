"""Locate the files that runs name: beside the grid's file, in the current folder, or in the folder of --data."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from taskloom.core import Component, DataError, DataSet, RequestError

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue


class FileLocator:
    """Make the relative paths of runs absolute, so that a run's files can be found later from any folder.

    A path in the grid's file is looked up in ``folder``, that of the file, then in the current one; for a packaged grid
    only in the current one. An encoder may also name a package or a model of a hub, so its name becomes a path only if
    there is such a folder.
    """

    def __init__(self, catalogue: "Catalogue", folder: Path | None) -> None:
        self.catalogue = catalogue
        self._here = Path.cwd()
        self._folders = list(dict.fromkeys((folder or self._here, self._here)))
        self._elsewhere: dict[str, str] = {}  # a path in the current folder that is not beside the grid → as written
        self._missing: set[str] = set()

    def settle(self, specs: Iterable[dict[str, Any]], *, typed: bool = False) -> None:
        """Make the paths of runs absolute, in place; ``typed`` ones come from the command line, not from the file."""
        folders = [self._here] if typed else self._folders
        done: dict[bytes, bytes] = {}  # many rows name the same files
        for home, kind in (source for spec in specs for source in _sources(spec)):
            if options := self._options(kind, home[kind]) & home[kind].keys():
                key = to_json([kind, home[kind]])
                if key not in done:
                    done[key] = to_json(self._with_paths(kind, home[kind], options, folders))
                home[kind] = from_json(done[key])

    def in_folder(self, folder: Path, component: dict[str, Any]) -> dict[str, Any] | None:
        """The data set with the paths of its files in a folder; None if they are not there."""
        return self._first_readable(candidates(component, folder, self._options("data", component)))

    def notes(self, specs: Iterable[dict[str, Any]]) -> list[str]:
        """Notes on files that these runs find in the current folder instead of the grid's."""
        used = {f"{path}{os.sep}" for spec in specs for home, kind in _sources(spec) for path in _strings(home[kind])}
        names = [
            repr(written)
            for path, written in self._elsewhere.items()
            if any(used_path.startswith(f"{path}{os.sep}") for used_path in used)
        ]
        return [f"in the current folder, not in the grid's ({self._folders[0]}): {', '.join(names)}"] if names else []

    def is_missing(self, component: Mapping[str, Any]) -> bool:
        """Whether a component names a file or folder, even a test file, that is in none of the folders."""
        return not self._missing.isdisjoint(_strings(component))

    def advice(self, kind: str) -> str:
        """The other folders searched, for a message on a missing file; those on data name the grid's folder already."""
        if len(self._folders) == 1:
            return ""
        if kind == "data":
            return f"; nor is it in the current folder, {self._here}"
        return f"; a folder is looked for in the grid's ({self._folders[0]}) and in the current one"

    def _options(self, kind: str, component: Mapping[str, Any]) -> frozenset[str]:
        try:
            entry = self.catalogue.get(kind, str(component.get("name")))
        except RequestError:  # the plan reports it
            return frozenset()
        return path_options(entry.cls, entry.options)

    def _with_paths(
        self, kind: str, component: dict[str, Any], options: Collection[str], folders: Sequence[Path]
    ) -> dict[str, Any]:
        settled = dict(component)
        for option in [option for option in component if option in options]:  # in the order of the file
            written = component[option]
            paths = [
                self._settled(kind, path, folders) for path in (written if isinstance(written, list) else [written])
            ]
            settled[option] = paths if isinstance(written, list) else paths[0]
        inner = []
        if kind == "data" and "dir" in options and isinstance(settled["dir"], str):
            inner = candidates(settled, Path(_expanded(settled["dir"])), options)
        return settled if len(inner) < 2 else self._first_readable(inner) or inner[1]

    def _settled(self, kind: str, written: Any, folders: Sequence[Path]) -> Any:
        """The path in the first of the folders that has it; anything but a relative path is returned unchanged."""
        relative = _expanded(written) if isinstance(written, str) else ""
        if not relative or Path(relative).is_absolute() or "$" in relative:  # a variable that is not set
            return written
        is_there = os.path.exists if kind == "data" else os.path.isdir
        paths = [os.path.normpath(folder / relative) for folder in folders]
        index = next((index for index, path in enumerate(paths) if is_there(path)), None)
        if index is None:
            written = paths[0] if kind == "data" else written
            self._missing.add(written)
            return written
        if index > 0:
            self._elsewhere[paths[index]] = written
        return paths[index]

    def _first_readable(self, components: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        for component in components:
            data_set, _ = self.catalogue.try_out(DataSet, component)
            with suppress(DataError):
                if data_set is not None:  # else its options are wrong, which the plan reports
                    data_set.fingerprint()
                    return component
        return None


def located(setting: Any, catalogue: "Catalogue", option: str = "") -> Any:
    """A setting of the command line with its files and folders made absolute; ``option`` is the last part of its path.

    A table is recorded with its settings, and the next command may run in another folder.
    """
    if isinstance(setting, Mapping):
        return {key: located(value, catalogue, key) for key, value in setting.items()}
    if isinstance(setting, list):
        return [located(value, catalogue, option) for value in setting]
    if not isinstance(setting, str) or not setting:
        return setting
    data_sets, others = (
        any(
            option in path_options(entry.cls, entry.options)
            for entry in catalogue.entries
            if issubclass(entry.cls, DataSet) is is_data
        )
        for is_data in (True, False)
    )
    path = os.path.abspath(_expanded(setting))  # noqa: PTH100 - any text may be given
    is_there = os.path.exists if data_sets else os.path.isdir if others else lambda _: False
    return path if is_there(path) else setting


def path_options(cls: type[Component], options: Collection[str]) -> frozenset[str]:
    """The options that name files or folders; ``dir`` always does."""
    return cls.path_options | ({"dir"} & set(options))


def candidates(component: Mapping[str, Any], folder: Path, options: Collection[str]) -> list[dict[str, Any]]:
    """The data set with its files in a folder, or in each subfolder that begins with the data set's name.

    If it names files instead of a folder, each file that the folder has under the longest matching end of its path.
    """
    if "dir" in options:
        inner = folder.glob(f"{component['name']}*") if os.path.isdir(folder) else ()  # noqa: PTH112 - any name may be given
        return [{**component, "dir": str(home)} for home in (folder, *sorted(path for path in inner if path.is_dir()))]
    named = {option: paths for option, paths in component.items() if option in options and paths}
    moved = {
        option: [_moved(path, folder) for path in paths] if isinstance(paths, list) else _moved(paths, folder)
        for option, paths in named.items()
    }
    return [{**component, **moved}] if moved != named else []


def _moved(path: str, folder: Path) -> str:
    parts = Path(path).relative_to(Path(path).anchor).parts
    ends = (folder.joinpath(*parts[start:]) for start in range(len(parts)))
    return next((str(end) for end in ends if end.is_file()), path)


def _expanded(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - the other raises


def _strings(component: Mapping[str, Any]) -> Iterator[str]:
    for option in component.values():
        yield from (text for text in (option if isinstance(option, list) else [option]) if isinstance(text, str))


def _sources(spec: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The encoder and the data sets that have options, each as its parent and key; the run need not be valid."""
    tasks = spec.get("tasks")
    homes = [(spec, "encoder"), *((task, "data") for task in (tasks.values() if isinstance(tasks, dict) else ()))]
    yield from ((home, key) for home, key in homes if isinstance(home, dict) and isinstance(home.get(key), dict))
