"""The folders of a registry. Everything that a run generates is inside them, nothing outside.

::

    taskloom-runs/
        ledger.sqlite
        cells/<id>/      checkpoint, best weights, scores, log and locks of one cell
        stages/<key>/    the result of a stage, shared by all cells that begin with the same stages
        examples/        labels of the examples that scores are about, and which texts are equal, keyed by content
        cache/           tokenized text, keyed by content
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskloom.core.errors import RegistryError
from taskloom.registry.results.errors import refusal

ROOMS = ("cells", "stages", "examples", "cache")
# No dot and no separator: a name can neither leave its folder nor hide in it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def is_name(text: str) -> bool:
    """Whether a string can name a file or folder and lead nowhere else.

    >>> is_name("sst"), is_name("../sst")
    (True, False)
    """
    return bool(_NAME.fullmatch(text))


class Artifacts:
    """Where the files of a registry are; a folder is created on first use.

    Example: ``write_text(Artifacts("taskloom-runs").cell("3f0c…") / "note.txt", "the best so far")``
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # a plugin may leave the current folder

    def cell(self, id: str) -> Path:
        """The folder of one cell."""
        return self._make("cells", id)

    def stage(self, key: str) -> Path:
        """The folder of one stage's result."""
        return self._make("stages", key)

    def examples(self) -> Path:
        """The folder for what cells on the same examples share."""
        return self._make("examples")

    def cache(self) -> Path:
        """The folder for what can be computed again."""
        return self._make("cache")

    def _make(self, *names: str) -> Path:
        if not is_name(names[-1]):
            raise RegistryError(
                f"{names[-1]!r} cannot name a folder under {self.folder / names[0]}; a name there is up to 128 "
                'letters, digits, "_" and "-", beginning with a letter or digit'
            )
        path = self.folder.joinpath(*names)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RegistryError(
                f"{path} is a link that leads out of the registry, to {path.resolve()}; nothing is read or written "
                "there. Remove the link; the whole registry may be elsewhere, named with --registry or as a link."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(f"{path} cannot be made", error, "Is the registry writable?") from error
        return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which replaces ``path`` at the end: whole, or after an error not at all.

    A path that exists and is no regular file, such as /dev/stdout, is written to directly.

    Example: ``with replacing(Path("table.csv")) as part: part.write_text("id,label\\n")``
    """
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(partial_prefix() + secrets.token_hex(4))
    try:
        yield part
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: after an error the old file is as it was."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 with the line ends it has, whole or not at all."""
    write_bytes(path, text.encode())


def partial_prefix() -> str:
    """How the names of unfinished files and folders begin: with the process that writes them, see :func:`sweep`.

    Example: ``tempfile.mkdtemp(prefix=partial_prefix(), dir=folder.parent)``
    """
    return f".partial-{os.getpid()}-"


def sweep(registry: Path) -> None:
    """Remove the unfinished files that killed writers left, but not those of a process that is alive here.

    Only for a driver that is alone in the registry: workers on other machines, such as Ray's, are not seen.
    """
    rooms = [registry / room for room in ROOMS if not (registry / room).is_symlink()]
    for path in [path for room in rooms for path in room.rglob(".partial-*")]:
        pid = path.name.split("-")[1]
        if pid.isdigit() and _is_alive(int(pid)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # somebody else's
    return True


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a power cut cannot undo the write."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
