"""Where the files are that runs name: beside the grid's file, in the current folder, or where the command line says."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from taskloom.core import Component, DataError, DataSet, RequestError

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue


class Places:
    """Turns the relative paths of runs into absolute ones, so that what a run read is found from any folder later.

    A path of the grid's file is looked for in ``folder``, that of the file, then in the current one; a packaged grid
    has only the current one. What an encoder names may also be a package or a model of a hub, so it becomes a path
    only where there is such a folder.
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
        for home, kind in (place for spec in specs for place in _sources(spec)):
            if options := self._options(kind, home[kind]) & home[kind].keys():
                key = to_json([kind, home[kind]])
                if key not in done:
                    done[key] = to_json(self._with_paths(kind, home[kind], options, folders))
                home[kind] = from_json(done[key])

    def found_in(self, folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
        """The data set with its files where they are in a folder; None if they are not there."""
        return self._first_readable(candidates(data, folder, self._options("data", data)))

    def notes(self, specs: Iterable[dict[str, Any]]) -> list[str]:
        """What a user may not expect of where these runs find their files."""
        used = dict.fromkeys(path for spec in specs for home, kind in _sources(spec) for path in _strings(home[kind]))
        names = [repr(self._elsewhere[path]) for path in used if path in self._elsewhere]
        return [f"in the current folder, not in the grid's ({self._folders[0]}): {', '.join(names)}"] if names else []

    def is_missing(self, component: Mapping[str, Any]) -> bool:
        """Whether a component names something that is in none of the folders, be it a test file."""
        return not self._missing.isdisjoint(_strings(component))

    @property
    def advice(self) -> str:
        """Where else was looked for what is not beside the grid."""
        return f"; nor is it in the current folder, {self._here}" if len(self._folders) > 1 else ""

    def _options(self, kind: str, component: Mapping[str, Any]) -> frozenset[str]:
        try:
            entry = self.catalogue.get(kind, str(component.get("name")))
        except RequestError:  # the plan reports it
            return frozenset()
        return path_options(entry.cls, entry.options)

    def _with_paths(
        self, kind: str, component: dict[str, Any], options: Collection[str], folders: Sequence[Path]
    ) -> dict[str, Any]:
        found = dict(component)
        for option in options:
            value = component[option]
            many = [self._settled(kind, one, folders) for one in (value if isinstance(value, list) else [value])]
            found[option] = many if isinstance(value, list) else many[0]
        inner = []
        if kind == "data" and "dir" in options and isinstance(found["dir"], str):
            inner = candidates(found, Path(_expanded(found["dir"])), options)
        return found if len(inner) < 2 else self._first_readable(inner) or inner[1]

    def _settled(self, kind: str, value: Any, folders: Sequence[Path]) -> Any:
        """A path in the first of the folders that has it; what is no relative path stays as it is."""
        relative = _expanded(value) if isinstance(value, str) else ""
        if not relative or Path(relative).is_absolute() or "$" in relative:  # a variable that is not set
            return value
        is_there = os.path.exists if kind == "data" else os.path.isdir
        paths = [os.path.normpath(folder / relative) for folder in folders]
        place = next((place for place, path in enumerate(paths) if is_there(path)), None)
        if place is None:
            self._missing.add(paths[0])
            return paths[0] if kind == "data" else value
        if place > 0:
            self._elsewhere[paths[place]] = value
        return paths[place]

    def _first_readable(self, found: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        for candidate in found:
            made, _ = self.catalogue.try_out(DataSet, candidate)
            with suppress(DataError):
                if made is not None:  # else its options are wrong, which the plan reports
                    made.fingerprint()
                    return candidate
        return None


def path_options(cls: type[Component], options: Collection[str]) -> frozenset[str]:
    """The options that name files or folders; one that is called ``dir`` always does."""
    return cls.path_options | ({"dir"} & set(options))


def candidates(data: Mapping[str, Any], folder: Path, options: Collection[str]) -> list[dict[str, Any]]:
    """A data set as it may lie in a folder: there, or in a folder of the data set's name in it.

    One that names files and no folder has some of them there, each under the longest end of its path that exists.
    """
    if "dir" in options:
        inner = folder.glob(f"{data['name']}*") if os.path.isdir(folder) else ()  # noqa: PTH112 - any name may be given
        return [{**data, "dir": str(place)} for place in (folder, *sorted(path for path in inner if path.is_dir()))]
    named = {option: value for option, value in data.items() if option in options and value}
    moved = {
        option: [_moved(one, folder) for one in value] if isinstance(value, list) else _moved(value, folder)
        for option, value in named.items()
    }
    return [{**data, **moved}] if moved != named else []


def _moved(path: str, folder: Path) -> str:
    parts = Path(path).relative_to(Path(path).anchor).parts
    ends = (folder.joinpath(*parts[place:]) for place in range(len(parts)))
    return next((str(end) for end in ends if end.is_file()), path)


def _expanded(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - the other raises


def _strings(component: Mapping[str, Any]) -> Iterator[str]:
    for value in component.values():
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def _sources(spec: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The encoder and the data sets that have options, each as what holds it and its key; the run need not be valid."""
    tasks = spec.get("tasks")
    homes = [(spec, "encoder"), *((task, "data") for task in (tasks.values() if isinstance(tasks, dict) else ()))]
    yield from ((home, key) for home, key in homes if isinstance(home, dict) and isinstance(home.get(key), dict))
