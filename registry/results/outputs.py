"""Where an output may go: one decision for every command and for Python.

Never into a registry, and never over a file that the command reads. An existing file is replaced if it is of the same
kind as the new one, as an earlier report is, and otherwise only with ``force``.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from taskloom.core.errors import RegistryError, TaskloomError
from taskloom.registry.results.artifacts import replacing
from taskloom.registry.results.file import FILE

#: Bytes of a file that decide its kind.
HEAD = 1 << 16
_MAGIC = {
    b"SQLite format 3\0": "an SQLite database",
    b"PK\3\4": "a zip archive",
    b"\x89PNG": "a PNG image",
    b"%PDF": "a PDF document",
    b"PAR1": "a Parquet table",
}
_FIRST_KEY = re.compile(r'[\s\[{]*"((?:[^"\\]|\\.)*)"\s*:\s*("[^"]*)?')


def check_location(path: Path, reads: Iterable[str | Path] = ()) -> None:
    """Refuse an output inside a registry, or in place of a file that is read."""
    target = path.resolve()  # os.path, not pathlib, asks what is there: a name too long is no file, and no error here
    for folder in (target, *target.parents):
        if os.path.isfile(folder / FILE):  # noqa: PTH113
            raise RegistryError(f"{path} is inside the registry {folder}; choose a place outside")
    if any(os.path.isfile(file) and os.path.isfile(target) and target.samefile(file) for file in reads):  # noqa: PTH113
        raise TaskloomError(f"{path} is a file that this command reads; choose another")


@contextmanager
def output(path: Path, *, force: bool | None = False, reads: Iterable[str | Path] = ()) -> Iterator[Path]:
    """A file to write, which becomes ``path`` at the end: whole, or after an error not at all.

    ``force`` replaces a file of another kind too; ``None`` says that the command has no such option.

    Example: ``with output(Path("page.html"), reads=["grid.json"]) as part: part.write_text(page)``
    """
    check_location(path, reads)
    with replacing(path) as part:
        yield part
        if not force:
            check_kind(part, path, has_force=force is not None)


def check_kind(new: Path, path: Path, *, has_force: bool = True) -> None:
    """Refuse to replace a file by one of another kind; an empty file may be replaced by anything."""
    if not path.is_file() or not path.stat().st_size:
        return
    old_kind, new_kind = kind_of(path), kind_of(new)
    if old_kind != new_kind:
        advice = ", or replace it with --force (in Python force=True)" if has_force else ""
        raise TaskloomError(f"{path} is {old_kind}, and the output is {new_kind}; choose another file{advice}")


def kind_of(path: Path) -> str:
    """What a file holds, by its first bytes. Text is of one kind if its first line is the same: a table, its header."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if b"\0" in head:
        return "a safetensors file" if head[8:9] == b"{" else "binary data"
    text = head.decode(errors="replace").strip().removeprefix("\ufeff")
    start = text.lower()
    if start.startswith(("<!doctype html", "<html")):
        return "an HTML page"
    if start.startswith(("<?xml", "<svg")) and "<svg" in start:
        return "an SVG image"
    if key := _FIRST_KEY.match(text) if text.startswith(("{", "[")) else None:
        is_schema = key[1] == "$schema" and "json-schema.org" in (key[2] or "")
        return "a JSON schema" if is_schema else f"JSON that begins with {key[1]!r}"
    for beginning, kind in (("\\begin{tabular}", "a LaTeX table"), ("|", "a Markdown table")):
        if text.startswith(beginning):
            return kind
    first = " ".join(text.partition("\n")[0].split())
    return f"text that begins with {first if len(first) <= 60 else first[:60] + '…'!r}" if first else "an empty file"
