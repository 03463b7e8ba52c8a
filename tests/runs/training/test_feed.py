"""Laws of the token cache: whatever happens to its files, and whoever else writes them, a column is what it was."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath

import numpy as np
import pytest

from taskloom.core import Ids
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.runs.training import feed
from taskloom.runs.training.checkpoint import put_folder

# One column of less and one of more than a page: the second is mapped into memory.
COLUMNS = [("a little bird", "", "sings"), tuple(f"text {i} of many, all of them short" for i in range(300))]


class Counting(MinBert):
    """Counts the texts that it tokenizes."""

    def __init__(self) -> None:
        super().__init__(layers=1, width=8, heads=2, vocabulary=500)
        self.count = 0

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        self.count += len(texts)
        return super().tokenize(texts)


def rows_of(column: feed.Column) -> list[list[int]]:
    return [column[row].tolist() for row in range(len(column.starts) - 1)]


def expected(texts: Sequence[str]) -> list[list[int]]:
    return [ids.tolist() for ids in Counting().tokenize(texts)]


def zeros(path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, np.zeros_like(np.load(path)))
    else:
        path.write_text("0" * path.stat().st_size)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 64
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "removed": Path.unlink,
    "zeros": zeros,
}


@pytest.mark.parametrize("texts", COLUMNS, ids=["few", "many"])
def test_a_column_is_tokenized_once(tmp_path: Path, texts: tuple[str, ...]) -> None:
    encoder = Counting()
    first, second = (feed.tokenized(texts, encoder, tmp_path) for _ in range(2))
    assert rows_of(first) == rows_of(second) == expected(texts)
    assert first.lengths.tolist() == second.lengths.tolist()
    assert encoder.count == len(texts)


@pytest.mark.parametrize("texts", COLUMNS, ids=["few", "many"])
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", [feed.IDS, feed.STARTS, feed.CHECK])
def test_a_damaged_cache_is_made_again(tmp_path: Path, texts: tuple[str, ...], how: str, file: str) -> None:
    encoder = Counting()
    feed.tokenized(texts, encoder, tmp_path)
    (folder,) = (tmp_path / "tokens").iterdir()
    DAMAGE[how](folder / file)
    for _ in range(2):
        assert rows_of(feed.tokenized(texts, encoder, tmp_path)) == expected(texts)
    assert encoder.count == 2 * len(texts), "made again, once"
    assert list((tmp_path / "tokens").iterdir()) == [folder], "nothing is left behind"


def test_of_two_that_write_the_same_the_quicker_stays(tmp_path: Path) -> None:
    texts, quick = COLUMNS[1], Counting()
    quicker: list[feed.Column] = []

    def meanwhile() -> None:
        quicker.append(feed.tokenized(texts, quick, tmp_path))
        (folder,) = (tmp_path / "tokens").iterdir()
        numbers.append((folder / feed.IDS).stat().st_ino)

    numbers: list[int] = []
    column = feed.tokenized(texts, Counting(), tmp_path, meanwhile)
    assert rows_of(column) == rows_of(quicker[0]) == expected(texts)
    (folder,) = (tmp_path / "tokens").iterdir()
    assert (folder / feed.IDS).stat().st_ino == numbers[0]


def test_a_cache_that_somebody_removes_at_once_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_and_lose(partial: Path, folder: Path) -> None:
        put_folder(partial, folder)
        shutil.rmtree(folder)

    monkeypatch.setattr(feed, "put_folder", put_and_lose)
    assert rows_of(feed.tokenized(COLUMNS[1], Counting(), tmp_path)) == expected(COLUMNS[1])


class Overtaken(PosixPath):
    """A folder whose name is taken; another process moves what has it away right after that was found out."""

    def rename(self, target: str | os.PathLike[str]) -> PosixPath:
        try:
            return super().rename(target)
        except OSError:
            shutil.rmtree(target)
            raise


def test_a_folder_gets_its_name_though_another_process_frees_it(tmp_path: Path) -> None:
    for name in ("new", "taken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    put_folder(Overtaken(tmp_path / "new"), tmp_path / "taken")
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "new"]
