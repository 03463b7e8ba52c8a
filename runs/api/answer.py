"""The result of a call of the API: numbers as objects, and the same as text, HTML, JSON and a data frame."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.outputs import check_kind, output
from taskloom.registry.results.wording import file_size
from taskloom.runs.show.parts import Part, as_html, as_text
from taskloom.runs.show.render import FORMATS, as_json, flat_rows, render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:  # both import much
    import pandas as pd

    from taskloom.runs.analysis.tables import Table


#: The first line of the notes beside a csv table, by which a later table knows them.
NOTES = "What to know of this table:"
Value = TypeVar("Value")


@dataclass(frozen=True, repr=False, eq=False)
class Answer(Generic[Value]):
    """The answer to a question about a grid, a cell or a registry.

    ``found`` holds the numbers as objects, ``str()`` is what the command of the same name prints, ``as_json()`` what it
    prints with ``--json``, and ``to_pandas()`` is a data frame of it. A notebook shows it as HTML. ``checks`` are what
    was found by computing and stands below the numbers: in the text, in the JSON and in ``to_pandas().attrs``.
    ``notes`` are what a reader should know beside it; the command line prints them to stderr.

    ``parts`` are the paragraphs and listings of the text and the HTML, ``records`` the rows of the data frame.
    """

    found: Value
    parts: Sequence[Part] = ()
    json: Any = None
    records: Sequence[dict[str, Any]] = ()
    notes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def noting(self, notes: Iterable[str]) -> Self:
        """The same answer with notes before its own."""
        return replace(self, notes=(*notes, *self.notes))

    def format(self, form: str = "plain", *, colors: bool = False, width: int | None = None) -> str:
        """What the command line prints: text, or JSON; control characters are escaped.

        Columns of a listing that do not fit in a ``width`` are in further ones below.
        """
        return visible(json.dumps(self.as_json(), indent=2, allow_nan=False) if form == "json" else self._text(width))

    def as_json(self) -> Any:
        """For programs: JSON values, those of the command's ``--json``."""
        return self.json

    def rows(self) -> Sequence[dict[str, Any]]:
        """The rows of the data frame."""
        return self.records

    def to_pandas(self) -> "pd.DataFrame":
        """A data frame, one row per row, claim, effect, cell, epoch or example; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise TaskloomError("a data frame needs pandas: pip install 'taskloom[pandas]'") from None
        frame = pd.DataFrame.from_records(list(self.rows()))
        frame.attrs["checks"] = list(self.checks)
        return frame

    def _text(self, width: int | None = None) -> str:
        return as_text([*self.parts, "\n".join(self.checks)], width)

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return visible("\n".join([*self.notes, str(self)]))

    def _repr_html_(self) -> str:
        return as_html([*self.notes, *self.parts, "\n".join(self.checks)])


@dataclass(frozen=True, repr=False, eq=False)
class TableAnswer(Answer["Table"]):
    """A comparison table. ``found.rows`` are its rows, each with a mean and its noise per column.

    ``reads`` are the grid's own files, which the table is never written over.
    """

    found: "Table"
    reported: bool = False
    reads: tuple[str, ...] = ()

    def format(self, form: str = "plain", *, colors: bool = False, width: int | None = None) -> str:
        """The table as ``plain``, ``github``, ``latex``, ``html``, ``csv`` or ``json`` text.

        Plain text may have ``colors`` and bold type. Columns that do not fit in a ``width`` are in tables below.
        """
        if form not in FORMATS:
            raise TaskloomError(f"the format should be one of {', '.join(FORMATS)}. Found {form!r}.")
        return render(self.found, form, colors=colors, width=width, reported=self.reported)

    def as_json(self) -> Any:
        """For programs: what ``format("json")`` has."""
        return as_json(self.found)

    def rows(self) -> Sequence[dict[str, Any]]:
        """The rows of the data frame."""
        return flat_rows(self.found, self.reported)

    def write(self, out: Path, form: str, *, force: bool = False) -> Answer[Path]:
        """Write the table to a file; csv has no room for its checks, which go to a file beside it."""
        texts = {out: self.format(form)}
        if form == "csv" and self.checks:
            texts[out.with_name(f"{out.name}.notes.txt")] = "\n".join([NOTES, *self.checks])
        contents = {path: f"{text}\n".encode() for path, text in texts.items()}
        return written(contents, reads=self.reads, force=force)

    def __str__(self) -> str:
        return self.format("plain")

    def _repr_html_(self) -> str:
        return f"{as_html(self.notes)}\n{self.format('html')}"


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """One level of columns: an interval as ``low`` and ``high``, a list as text.

    >>> flat({"delta": 0.1, "interval": [0.0, 0.2], "paths": ["a", "b"]})
    {'delta': 0.1, 'low': 0.0, 'high': 0.2, 'paths': 'a, b'}
    """
    columns: dict[str, Any] = {}
    for key, value in record.items():
        if key == "interval":
            columns["low"], columns["high"] = value or (None, None)
        else:
            columns[key] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return columns


def written(
    contents: Mapping[Path, bytes], *, force: bool, reads: Iterable[str | Path] = (), checks: tuple[str, ...] = ()
) -> Answer[Path]:
    """Write all of these files, or none if one of them may not be written; the answer is the first."""
    path, *_ = contents
    try:
        with ExitStack() as files:
            for path, content in contents.items():
                part = files.enter_context(output(path, force=force, reads=reads))
                part.write_bytes(content)
                if not force:  # before any of them is put in its place
                    check_kind(part, path)
    except OSError as error:
        raise TaskloomError(f"{path} cannot be written: {error.strerror}; choose another file") from error
    facts: list[dict[str, Any]] = [{"path": str(path), "bytes": len(content)} for path, content in contents.items()]
    lines = "\n".join(f"{file['path']} ({file_size(file['bytes'])})" for file in facts)
    return Answer(next(iter(contents)), [lines], {**facts[0], "checks": list(checks)}, facts, checks=checks)


def existing_folder(data: str | os.PathLike[str] | None) -> Path | None:
    """The folder to which the data of a run were moved."""
    folder = None if data is None else Path(os.path.expanduser(data))  # noqa: PTH111 - the other raises
    if folder is not None and not os.path.isdir(folder):  # noqa: PTH112 - a name too long is not a folder
        raise TaskloomError(f"--data {folder} is not a folder")
    return folder
