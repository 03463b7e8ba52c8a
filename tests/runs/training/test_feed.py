"""Laws of the token cache: whatever happens to its files, and whoever else writes them, a column is what it was."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath

import pytest
from small_runs import flip

from taskloom.core import Ids
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.registry.results.tensors import put_folder
from taskloom.runs.training import feed

TEXTS = ("a little bird", "", *(f"text {i} of many, all of them short" for i in range(300)))


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


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "removed": Path.unlink,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)) and None,
}


@pytest.mark.parametrize("texts", [(), ("",), TEXTS], ids=["none", "an empty one", "many"])
def test_a_column_is_tokenized_once(tmp_path: Path, texts: tuple[str, ...]) -> None:
    encoder = Counting()
    first, second = (feed.tokenized(texts, encoder, tmp_path) for _ in range(2))
    assert rows_of(first) == rows_of(second) == expected(texts)
    assert first.lengths.tolist() == second.lengths.tolist()
    assert (first.ids.dtype, first.starts.dtype) == (second.ids.dtype, second.starts.dtype)
    assert encoder.count == len(texts)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, how: str, file: str) -> None:
    encoder = Counting()
    feed.tokenized(TEXTS, encoder, tmp_path)
    (folder,) = (tmp_path / "tokens").iterdir()
    DAMAGE[how](folder / file)
    for _ in range(2):
        assert rows_of(feed.tokenized(TEXTS, encoder, tmp_path)) == expected(TEXTS)
    assert encoder.count == 2 * len(TEXTS), "made again, once"
    assert list((tmp_path / "tokens").iterdir()) == [folder], "nothing is left behind"


def test_two_may_write_the_same_column_at_once(tmp_path: Path) -> None:
    quicker: list[feed.Column] = []

    def meanwhile() -> None:
        quicker.append(feed.tokenized(TEXTS, Counting(), tmp_path))

    column = feed.tokenized(TEXTS, Counting(), tmp_path, meanwhile)
    quicker.append(feed.tokenized(TEXTS, Counting(), tmp_path))
    assert [rows_of(one) for one in (column, *quicker)] == [expected(TEXTS)] * 3
    shutil.rmtree(tmp_path / "tokens")
    assert rows_of(quicker[-1]) == expected(TEXTS), "what is in use outlives its files"


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
