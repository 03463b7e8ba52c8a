"""The folders of a registry. Everything that a run generates lies inside them, nothing outside.

::

    taskloom-runs/
        ledger.sqlite
        cells/<id>/      checkpoint, best weights, dev predictions, log of one cell; the number of its last lease
        stages/<key>/    what a stage hands on, shared by the cells that have it in common
        cache/           tokenized text, keyed by content
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taskloom.core.errors import RegistryError
from taskloom.registry.results.errors import LostLeaseError, refusal
from taskloom.registry.results.presence import Machine

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # nothing is written through a link that somebody put there
# No dot and no separator: a name can neither leave its folder nor hide in it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def is_name(text: str) -> bool:
    """Whether a text can name a file or folder and lead nowhere else.

    >>> is_name("sst"), is_name("../sst")
    (True, False)
    """
    return bool(_NAME.fullmatch(text))


class Artifacts:
    """Where the files of a registry lie; folders come into being when they are first asked for.

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

    def cache(self) -> Path:
        """The folder for what can be computed again."""
        return self._make("cache")

    def _make(self, room: str, *names: str) -> Path:
        for name in names:
            if not is_name(name):
                raise RegistryError(
                    f"{name!r} cannot name a folder under {self.folder / room}; a name there is up to 128 letters, "
                    'digits, "_" and "-", beginning with a letter or digit'
                )
        path = self.folder.joinpath(room, *names)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RegistryError(
                f"{path} is a link that leads out of the registry, to {path.resolve()}; nothing is read or written "
                "there. Remove the link; the whole registry may lie elsewhere, named with --registry or as a link."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(f"{path} cannot be made", error, "Is the registry writable?") from error
        return path


def claim_folder(folder: Path, fence: int) -> None:
    """Write into a cell's folder under which lease it is used now; ``LostLeaseError`` if that is an older one."""
    try:
        with _fence_file(folder) as file:
            _refuse(folder, fence, _read_fence(file))
            os.lseek(file, 0, os.SEEK_SET)
            length = os.write(file, f"{fence:020}\n".encode())  # always as long: nobody reads half of it
            os.ftruncate(file, length)  # need not outlive a power cut: nobody else does either
    except OSError as error:
        what = "It says which run uses the folder; is it a plain file, in a folder that you may write to?"
        raise refusal(f"{folder / 'fence'} cannot be written", error, what) from error


def refuse_late(folder: Path, fence: int) -> None:
    """Raise ``LostLeaseError`` if a later lease uses a cell's folder; to be asked right before a file is put there."""
    _refuse(folder, fence, fence_of(folder))


def fence_of(folder: Path) -> int:
    """The number of the lease under which a cell's folder was used last; 0 if there was none."""
    try:
        file = os.open(folder / "fence", os.O_RDONLY | _NO_LINK)
    except OSError:
        return 0
    try:
        return _read_fence(file)
    finally:
        os.close(file)


def _refuse(folder: Path, fence: int, newest: int) -> None:
    if newest > fence:
        raise LostLeaseError(folder.name, fence, f"another driver (lease {newest})")


def _read_fence(file: int) -> int:
    text = os.read(file, 64).strip()
    fence = int(text) if text.isdigit() else 0
    return fence if fence < 2**62 else 0  # which nobody ever had


@contextmanager
def _fence_file(folder: Path) -> Iterator[int]:
    """The open file, for one process at a time: it is read and then written. (Windows has no such locks.)"""
    file = os.open(folder / "fence", os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
    try:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: write to the path given, which then takes the real one's place.

    The other path lies in the same folder. It is on the disk before it is renamed; after an error it is gone and the
    old file is as it was.

    Example::

        with write_atomically(folder / "best.safetensors") as part:
            save_file(weights, part)
    """
    part = path.with_name(f".{path.name}.{Machine().mark()}-{secrets.token_hex(4)}.part")
    try:
        yield part
        sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def partial_prefix() -> str:
    """How the name of an unfinished folder begins: it tells whose it is, so that :func:`sweep` leaves it in peace.

    Example: ``tempfile.mkdtemp(prefix=partial_prefix(), dir=folder.parent)``
    """
    return f".partial-{Machine().mark()}-"


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole or not at all."""
    with write_atomically(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write text whole or not at all, as UTF-8 with the line ends it has."""
    write_bytes(path, text.encode())


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a power cut cannot undo it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder; its rename is durable by itself
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
