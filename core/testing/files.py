"""Other options than those given, and other files than those they name."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from taskloom.core.testing.edges import edge_values, known_options
from taskloom.core.testing.law import Subject

#: Files that are larger than this together, in bytes, are not copied.
MOST = 2_000_000
Change = Callable[[list[bytes]], list[bytes]]
#: What is done to the lines of every file. One that counts its lines may notice the first.
CHANGES: dict[str, Change] = {
    "without their last line": lambda lines: lines[:-1],
    "with their last two lines in the other order": lambda lines: [*lines[:-2], *reversed(lines[-2:])],
}


def other_options(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Other values of options that were not given: edges of their range, and the next number."""
    for name, option in known_options(subject.component).items():
        if name in subject.options or option.required:
            continue
        values = [value for value in edge_values(option) if value != option.default]
        if type(option.default) is int:
            values.append(option.default + 1)
        for value in values:
            yield name, value


def copied_options(options: Mapping[str, Any], to: Path, change: Change | None = None) -> dict[str, Any] | None:
    """The options that name files or folders, naming copies in ``to``; None if there are none, or too large ones."""
    named = {key: Path(value) for key, value in options.items() if isinstance(value, str | Path) and _is_there(value)}
    if not named or sum(file.stat().st_size for path in named.values() for file in _files(path)) > MOST:
        return None
    found: dict[str, Any] = {}
    for key, path in named.items():
        target = to / key / path.name
        target.parent.mkdir(parents=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
        for file in _files(target) if change else ():
            file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))  # type: ignore[misc]
        found[key] = type(options[key])(target)
    return found


def _is_there(value: str | Path) -> bool:
    """Whether it is the path of something; a bare word may be anything else as well."""
    try:
        return len(Path(value).parts) > 1 and Path(value).exists()
    except (OSError, ValueError):
        return False


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
