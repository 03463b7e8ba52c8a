"""A grid as it is written: where it comes from, what it is called, and others that are made of it."""

import copy
import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from taskloom.core.errors import RequestError, TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import SOURCE, GridRecord
from taskloom.runs.api.find import Note, no_grid, not_run, recorded_grid
from taskloom.runs.driver.signals import Stop

if TYPE_CHECKING:  # which imports pydantic
    from taskloom.runs.grid.grid import GridFile
    from taskloom.runs.grid.overrides import Overrides

#: Where results are kept unless somebody says otherwise.
REGISTRY = "taskloom-runs"
#: Characters of a file's name, and of a digest, in the name of a grid that was changed.
STEM, DIGEST = 80, 6
#: Arguments of the Python API: the type of a value, that of each item or key in it, and both in words.
KINDS: dict[str, tuple[Any, Any, str]] = {
    **dict.fromkeys(("registry", "data", "out"), (str | os.PathLike, str | os.PathLike, "a path")),
    **dict.fromkeys(("path", "weights", "sort", "group_by", "metric", "split"), (str, str, "a string")),
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


class WrittenGrid:
    """What :class:`~taskloom.runs.api.grid.Grid` is without its plans, runs and results."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        name: str | None = None,
        registry: str | os.PathLike[str] | None = None,
    ) -> None:
        name, registry = checked("name", name), checked("registry", registry)
        folder = registry or os.environ.get("TASKLOOM_REGISTRY") or REGISTRY
        self.registry = Path(os.path.expanduser(folder))  # noqa: PTH111 - the other raises
        self._source: str | None = None  # how a file is found, or a record
        self._name = name  # one that was given here
        self._origin = ""  # the name of the grid that this one was made of
        self._changed = ""  # in words, what the table changes in the runs of the grid that it was made from
        self._home: str | None = None  # what the registry knows the file by that this one was made of
        if isinstance(source, Mapping):
            self._name = name or source.get("name")
            if not self._name:
                raise TaskloomError('a grid that has no file needs a name: Grid({…}, name="mine")')
            self.file = _read({**source, "name": self._name}, Path(str(self._name)))
        elif not isinstance(source, str | os.PathLike):
            raise TaskloomError(
                f"a grid should be the name of one, the path of a file, or a mapping. Found {source!r}."
            )
        else:
            self._source = os.fspath(source)
            self._check_source(self._source)

    def _check_source(self, source: str) -> None:
        """Raise an error if there is no such grid, in a file or in the registry."""
        from taskloom.runs.grid.file import locate

        if os.path.isfile(locate(source)[0]):  # noqa: PTH113 - a name too long for a file is not a file, and no error
            return
        with Ledger.find(self.registry) or nullcontext() as ledger:
            if ledger is None or source not in ledger.grid_names():
                if Path(source).suffix[1:].isalpha() or os.sep in source:
                    _ = self.file  # whose message is about files
                raise no_grid(source, ledger)

    @cached_property
    def file(self) -> "GridFile":
        """The grid as it is written; ``file.raw`` is its JSON."""
        from taskloom.runs.grid.file import locate
        from taskloom.runs.grid.grid import load_grid

        assert self._source is not None
        if os.path.isfile(locate(self._source)[0]):  # noqa: PTH113
            found = load_grid(self._source)
        else:
            found, self._changed = _recorded(self.registry, self._source) or (load_grid(self._source), "")
        if self._name is None:
            return found
        self._check_unchanged(found.name)
        if self._name == found.name:
            raise TaskloomError(f"{found.name!r} is the grid's own name; leave it out, or choose another")
        self._home = found.source
        return _read({**found.raw, "name": self._name}, found.path.parent / self._name, found)

    @property
    def name(self) -> str:
        """What the grid is called."""
        return self.file.name

    def __repr__(self) -> str:
        shown = self._source if self._name is None and self._source else self.name
        return f"Grid({shown!r}, registry={str(self.registry)!r})"

    def record(self, ledger: Ledger, note: Note) -> GridRecord:
        """The grid as it was last run; ``NotRunError`` if it was not."""
        if self._source is not None and self._name is None:
            return recorded_grid(ledger, self._source, note)
        if self.name not in ledger.grid_names():
            raise not_run(ledger, self.name, "`run()`")
        record = ledger.grid(self.name)
        if self.file.raw != record.written:
            note(f"grid {self.name!r} has changed since it was last run ({record.updated}); this shows that run.")
        return record

    def table_under(self, overrides: "Overrides") -> str:
        """The name of the table that a run with these overrides has made; ``NotRunError`` if there was none."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.grid.naming import named

        overrides = overrides.located(load_catalogue())
        with Ledger.open(self.registry, create=False) as ledger:
            table, _, record = named(self.file, overrides, ledger)
            if record is None:
                raise not_run(ledger, table.name, "`taskloom run` with the same options")
        return table.name

    def _check_unchanged(self, name: str) -> None:
        """Raise an error if this is a table whose runs are not those that its grid states."""
        if self._changed:
            text = f"{name!r} is the table of a grid under settings of its own ({self._changed})"
            raise TaskloomError(f"{text}: change the grid itself, then run it with these settings")

    def check_name(self, ledger: Ledger | None) -> None:
        """Raise an error if another grid has this one's name, which was given here."""
        from taskloom.registry.installed.manager import packaged_grids

        if self._name is None:
            return
        home = "a packaged grid" if self._name in packaged_grids() else None
        if ledger is not None and self._name in ledger.grid_names():
            known = ledger.grid(self._name).spec.get(SOURCE)
            home = home or (known if known != self._home else None)
        if home:
            raise TaskloomError(f"{self._name!r} is the name of {home}; choose another")

    # Changes

    def axis(self, path: str, values: Iterable[Any] | Mapping[str, Any]) -> Self:
        """A grid that also varies the value at a dotted path; an axis with the same path is replaced.

        ``values`` are a list, or a mapping from the label of each to the value. The rows are the product of all axes.

        Example: ``grid.axis("stages.0.combiner", ["sum", "pcgrad"])``
        """
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TaskloomError(f"the values of axis {path!r} should be a list, or a mapping. Found {values!r}.")
        chosen = dict(values) if isinstance(values, Mapping) else list(values)
        return self.replace(axes={**self.file.raw.get("axes", {}), path: chosen})

    def row(self, label: str, settings: Mapping[str, Any] | None = None) -> Self:
        """A grid with one more labelled row: the base with ``settings`` (path → value) laid over it.

        A labelled row of the same name is replaced. In the grid's JSON it is an entry of ``cells``.

        Example: ``grid.row("slow", {"stages.0.optimizer.lr": 0.0005})``
        """
        settings = checked("settings", settings)
        others = [cell for cell in self.file.raw.get("cells", ()) if cell.get("label") != label]
        return self.replace(cells=[*others, {"label": label, "set": dict(settings or {})}])

    def seeds(self, *seeds: int) -> Self:
        """A grid that runs each row once with each of these seeds, and no others."""
        return self.replace(seeds=list(seeds))

    def set(self, path: str, value: Any) -> Self:
        """A grid with another value in its base run; rows that set the same place keep theirs.

        Example: ``grid.set("stages.*.epochs", 1)``
        """
        from taskloom.runs.grid.grid import base_of
        from taskloom.runs.grid.paths import PathError, assign

        base, problems = base_of(self.file)
        if problems:
            raise RequestError(str(self.file.path), problems)
        try:
            assign(base, checked("path", path), value)
        except PathError as error:
            raise TaskloomError(f"{path}: {error}") from None
        return self.replace(base=base)

    def replace(self, **keys: Any) -> Self:
        """A grid with other values under keys of its JSON: ``baseline``, ``claims``, ``margin``, ``exclude`` …

        Example: ``grid.replace(baseline="sum", claims=[{"better": "pcgrad", "than": "sum"}])``
        """
        from taskloom.runs.grid.identity import digest

        raw = _json({**self.file.raw, **keys, "name": self._name})
        self._check_unchanged(self.name)
        made = copy.copy(self)
        made._source, made._origin = None, self._origin or self.name
        if self._name is None:
            raw["name"] = f"{made._origin[:STEM].replace('/', '-')}-{digest(raw)[:DIGEST]}"
        made.file = _read(raw, self.file.path.parent / raw["name"], self.file)
        return made


def _read(raw: Mapping[str, Any], path: Path, origin: "GridFile | None" = None) -> "GridFile":
    """A grid from its JSON; the relative paths of one that was made of another begin where they did there."""
    from taskloom.runs.grid.grid import read_grid

    found = read_grid(_json(raw), path)
    return dataclasses.replace(found, folder=None if origin is None else origin.folder)


def checked(name: str, value: Any) -> Any:
    """An argument's value in Python's own types, or None; ``TaskloomError`` if it is not of the argument's kind."""
    kind, each, words = KINDS[name]
    value = (_json if isinstance(value, Mapping | list | tuple) else _plain)(value, name)
    items = value if isinstance(value, Collection) else (value,)
    fits = isinstance(value, kind) and all(isinstance(one, each) and not isinstance(one, bool) for one in items)
    if name == "seeds":
        fits = fits and all(0 <= seed < 2**32 for seed in items)
    if value is None or (fits and not (name == "name" and value == "")):
        return value
    raise TaskloomError(f"{name} should be {words}. Found {value!r:.100}.")


def _plain(value: Any, path: str) -> Any:
    """A copy of a value with Python's own numbers and lists in place of numpy's, none of them too large."""
    from taskloom.registry.installed.words import number_problem

    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each, f"{path}.{key}".lstrip(".")) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, f"{path}.{place}") for place, each in enumerate(value)]
    if message := number_problem(value):
        raise TaskloomError(f"{path} {message}")
    return value


def _json(value: Any, path: str = "") -> Any:
    """A copy of a value as JSON has it."""
    from pydantic_core import PydanticSerializationError

    from taskloom.runs.grid.expansion import copied

    try:
        return copied(_plain(value, path))
    except PydanticSerializationError as error:
        raise TaskloomError(f"{path or 'a grid'} should hold what JSON can: {error}") from None


def _recorded(registry: Path, name: str) -> "tuple[GridFile, str] | None":
    """A grid that the registry knows: its file as it is now, or as it was last run; None if there is no such grid.

    With it, in words, what the recorded table changes in its runs.
    """
    from taskloom.core.specs import GridSpec
    from taskloom.runs.grid.grid import GridFile, load_grid
    from taskloom.runs.grid.overrides import recorded_overrides

    with Ledger.find(registry) or nullcontext() as ledger:
        if ledger is None or name not in ledger.grid_names():
            return None
        record = ledger.grid(name)
    known_by, raw = str(record.spec.get(SOURCE, "")), record.written
    overrides = recorded_overrides(record)
    changed = "a smoke run" if overrides.smoke else overrides.in_words
    if os.path.isfile(known_by):  # noqa: PTH113
        return dataclasses.replace(load_grid(known_by), name=name), changed
    spec, home = GridSpec.model_validate({**raw, "name": None}), Path(known_by).parent
    folder = home if home.is_absolute() else None
    return GridFile(name, Path(name), spec, raw, source=known_by, folder=folder), changed
