"""A grid as it is written: where it comes from, what it is called, and others that are made of it."""

import copy
import dataclasses
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from taskloom.core.errors import RequestError, TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import SOURCE, GridRecord
from taskloom.runs.api.arguments import checked, checked_overrides, json_copy, registry_folder
from taskloom.runs.api.find import Note, no_grid, not_run, recorded_grid

if TYPE_CHECKING:  # which imports pydantic
    from taskloom.runs.grid.grid import GridFile

#: Characters of a file's name, and of a digest, in the name of a grid that was changed.
STEM, DIGEST = 80, 6


class WrittenGrid:
    """What :class:`~taskloom.runs.api.grid.Grid` is without its plans, runs and results."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        name: str | None = None,
        registry: str | os.PathLike[str] | None = None,
    ) -> None:
        name = checked("name", name)
        self.registry = registry_folder(registry)
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
        if self._is_file:
            return
        with Ledger.find(self.registry) or nullcontext() as ledger:
            if ledger is None or source not in ledger.grid_names():
                if Path(source).suffix[1:].isalpha() or os.sep in source:
                    _ = self.file  # whose message is about files
                raise no_grid(source, ledger)

    @cached_property
    def _located(self) -> tuple[Path, str]:
        """The path of the file, and its source in the registry."""
        from taskloom.runs.grid.file import locate

        assert self._source is not None
        return locate(self._source)

    @property
    def _is_file(self) -> bool:
        return os.path.isfile(self._located[0])  # noqa: PTH113 - a name too long for a file is not a file, and no error

    @cached_property
    def file(self) -> "GridFile":
        """The grid as it is written; ``file.raw`` is its JSON."""
        from taskloom.runs.grid.grid import load_grid

        assert self._source is not None
        recorded = None if self._is_file else _recorded(self.registry, self._source)
        file, self._changed = recorded or (load_grid(self._source, self._located), "")
        if self._name is None:
            return file
        self._check_unchanged(file.name)
        if self._name == file.name:
            raise TaskloomError(f"{file.name!r} is the grid's own name; leave it out, or choose another")
        self._home = file.source
        return _read({**file.raw, "name": self._name}, file.path.parent / self._name, file)

    @property
    def name(self) -> str:
        """What the grid is called."""
        return self.file.name

    @property
    def source(self) -> str:
        """What the command line calls the grid: its file, or its name."""
        return self._source if self._name is None and self._source else self.name

    def __repr__(self) -> str:
        return f"Grid({self.source!r}, registry={str(self.registry)!r})"

    def record(self, ledger: Ledger, note: Note) -> GridRecord:
        """The grid as it was last run; ``NotRunError`` if it was not."""
        if self._source is not None and self._name is None:
            return recorded_grid(ledger, self._source, note, self._located)
        if self.name not in ledger.grid_names():
            raise not_run(ledger, self.name, "`run()`")
        record = ledger.grid(self.name)
        if self.file.raw != record.written:
            note(f"grid {self.name!r} has changed since it was last run ({record.updated}); this shows that run.")
        return record

    def under(self, **options: Any) -> Self:
        """The table that a run with these ``weights``, ``epochs``, ``settings`` and ``tuned`` has made.

        ``NotRunError`` if there was none.
        """
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.grid.naming import table_for

        overrides = checked_overrides(options)[0].located(load_catalogue())
        with Ledger.open(self.registry, create=False) as ledger:
            table, _, record = table_for(self.file, overrides, ledger)
            if record is None:
                raise not_run(ledger, table.name, "`taskloom run` with the same options")
        return type(self)(table.name, registry=self.registry)

    def _check_unchanged(self, name: str) -> None:
        """Raise an error if this is a table whose runs are not those that its grid states."""
        if self._changed:
            text = f"{name!r} is the table of a grid under settings of its own ({self._changed})"
            raise TaskloomError(f"{text}: change the grid itself, then run it with these settings")

    def check_name(self) -> None:
        """Raise an error if another grid has this one's name, which was given here."""
        from taskloom.registry.installed.manager import packaged_grids

        if self._name is None:
            return
        home = "a packaged grid" if self._name in packaged_grids() else None
        with Ledger.find(self.registry) or nullcontext() as ledger:
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

    def search(self, *, over: Mapping[str, Any], **options: Any) -> Self:
        """A grid that tunes each of its rows with the same trials, on training rows that are held out.

        ``over`` maps dotted paths to a list of values, ``{"log": [low, high]}`` or ``{"uniform": [low, high]}``;
        ``options`` are further keys of the grid's ``search``: ``trials``, ``hold_out``, ``seed``, ``per``, ``halving``,
        ``sampler``.

        Example: ``grid.search(over={"stages.0.optimizer.lr": {"log": [1e-5, 1e-3]}}, trials=12)``
        """
        return self.replace(search={"over": dict(over), **options})

    def set(self, path: str, value: Any) -> Self:
        """A grid with another value in its base run; rows that set the same path keep theirs.

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

        raw = json_copy({**self.file.raw, **keys, "name": self._name})
        self._check_unchanged(self.name)
        changed = copy.copy(self)
        changed._source, changed._origin = None, self._origin or self.name
        if self._name is None:
            raw["name"] = f"{changed._origin[:STEM].replace('/', '-')}-{digest(raw)[:DIGEST]}"
        changed.file = _read(raw, self.file.path.parent / raw["name"], self.file)
        return changed


def _read(raw: Mapping[str, Any], path: Path, origin: "GridFile | None" = None) -> "GridFile":
    """A grid from its JSON; the relative paths of one that was made of another begin where they did there."""
    from taskloom.runs.grid.grid import read_grid

    folder = None if origin is None else origin.folder
    return dataclasses.replace(read_grid(json_copy(raw), path), folder=folder)


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
