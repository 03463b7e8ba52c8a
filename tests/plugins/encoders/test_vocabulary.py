"""Tokenization: equal to transformers on any text, and hashed words."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import SpecialTokens, WeightsError
from taskloom.plugins.encoders.vocabulary import HashedWords, WordPieces, word_pieces

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ODD = [
    "",
    " \t\n ",
    "Café naïve ÅNGSTRÖM Straße ﬁn",
    "e\u0301 combining, n\u0303",
    "日本語 mixed 漢字kanji",
    "한국어 Ελληνικά العربية हिन्दी",
    "😀 emoji 👩‍👩‍👧 zwj",
    "con\x00trol\x07 \u200b zero\u00adwidth \ufeff\ufffd",
    "don't can't -- `` quoted '' $5.00 #tag @you",
    "a" * 120 + " supercalifragilisticexpialidocious",
    "[CLS] literal [SEP] specials [MASK] [UNK]",
    "word " * 300,
]


@pytest.fixture(scope="module")
def reference(minilm: Path):  # type: ignore[no-untyped-def]
    from transformers import BertTokenizerFast

    return BertTokenizerFast.from_pretrained(minilm)


@pytest.fixture
def plain_folder(minilm: Path, tmp_path: Path) -> Path:
    """The same vocabulary as vocab.txt alone."""
    shutil.copy(minilm / "vocab.txt", tmp_path)
    return tmp_path


def expected(reference, texts: list[str]) -> list[list[int]]:  # type: ignore[no-untyped-def]
    return reference(texts, add_special_tokens=False, truncation=False)["input_ids"]


def test_odd_text_as_transformers(minilm: Path, plain_folder: Path, reference) -> None:  # type: ignore[no-untyped-def]
    wanted = expected(reference, ODD)
    assert max(map(len, wanted)) > 128  # tokenizer.json itself would cut there
    for folder in (minilm, plain_folder):
        found = word_pieces(folder).tokenize(ODD)
        assert [ids.tolist() for ids in found] == wanted
        assert all(ids.dtype == np.int32 for ids in found)


def test_special_tokens_are_those_of_transformers(minilm: Path, plain_folder: Path, reference) -> None:  # type: ignore[no-untyped-def]
    for folder in (minilm, plain_folder):
        vocabulary = word_pieces(folder)
        assert vocabulary.special_tokens == SpecialTokens((101,), (102,), (102,))
        assert vocabulary.size == len(reference)
    pair = reference("one", "two")
    a, b = (ids.tolist() for ids in word_pieces(minilm).tokenize(["one", "two"]))
    assert pair["input_ids"] == [101, *a, 102, *b, 102]


def test_real_rows_as_transformers(course_data: Path, minilm: Path, reference) -> None:  # type: ignore[no-untyped-def]
    texts = []
    for file in ("ids-sst-dev.csv", "quora-dev.csv", "sts-dev.csv", "ids-cfimdb-dev.csv"):
        with (course_data / file).open(encoding="utf-8", newline="") as stream:
            texts += [row[2] for row in list(csv.reader(stream, delimiter="\t"))[1:200] if len(row) > 3]
    assert len(texts) > 500
    assert [ids.tolist() for ids in word_pieces(minilm).tokenize(texts)] == expected(reference, texts)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_settings_are_honoured_as_by_transformers(plain_folder: Path, settings: dict[str, bool]) -> None:
    from transformers import BertTokenizerFast

    (plain_folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "BertTokenizer"}))
    reference = BertTokenizerFast.from_pretrained(plain_folder)
    odd = [text for text in ODD if "[CLS]" not in text]
    found = [ids.tolist() for ids in word_pieces(plain_folder).tokenize(odd)]
    assert found == expected(reference, odd)
    assert found != [ids.tolist() for ids in _default(plain_folder).tokenize(odd)]


def _default(folder: Path) -> WordPieces:
    (folder / "tokenizer_config.json").unlink()
    return WordPieces(folder)


def test_vocabulary_is_read_again_when_its_file_changes(plain_folder: Path) -> None:
    before = word_pieces(plain_folder)
    assert word_pieces(plain_folder) is before
    with (plain_folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("zyzzyva\n")
    assert word_pieces(plain_folder).size == before.size + 1
    assert [ids.tolist() for ids in word_pieces(plain_folder).tokenize(["zyzzyva"])] == [[before.size]]


def test_missing_and_broken_vocabularies_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"tokenizer\.json or vocab\.txt"):
        word_pieces(tmp_path)
    for name, content, message in (
        ("vocab.txt", "[CLS]\n[SEP]\nhello\n", r"vocab\.txt has no '\[UNK\]'"),
        ("vocab.txt", "[UNK]\n[SEP]\nhello\n", r"has no '\[CLS\]'"),
        ("tokenizer.json", "{", r"tokenizer\.json cannot be read"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(WeightsError, match=message):
            word_pieces(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cls_token": 5}, "cls_token: .* string .*found 5"),
        ({"sep_token": {"text": "[SEP]"}}, "sep_token: .* string"),
        ({"do_lower_case": "yes"}, "do_lower_case: .* boolean .*found 'yes'"),
        ({"strip_accents": 1}, "strip_accents: .* boolean .*found 1"),
        ([], "object"),
    ],
)
def test_settings_of_the_wrong_type_are_named(plain_folder: Path, settings: object, message: str) -> None:
    (plain_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(WeightsError, match=rf"tokenizer_config\.json .*{message}"):
        word_pieces(plain_folder)


def test_settings_that_are_null_are_as_if_left_out(plain_folder: Path) -> None:
    (plain_folder / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": None, "do_lower_case": None, "strip_accents": None})
    )
    found = [ids.tolist() for ids in word_pieces(plain_folder).tokenize(ODD)]
    assert found == [ids.tolist() for ids in _default(plain_folder).tokenize(ODD)]


@given(st.lists(st.text(max_size=40), max_size=5), st.integers(6, 10_000))
def test_hashed_words_stay_in_range_and_do_not_depend_on_the_batch(texts: list[str], size: int) -> None:
    found = HashedWords(size).tokenize(texts)
    assert len(found) == len(texts)
    for text, ids in zip(texts, found, strict=True):
        assert all(5 <= number < size for number in ids.tolist())
        assert HashedWords(size).tokenize([text])[0].tolist() == ids.tolist()


def test_hashed_words_are_words_without_case_and_accents() -> None:
    words = HashedWords(8192)
    one, other, third = words.tokenize(["The café, again!", "the CAFE , AGAIN !", "the cafe again"])
    assert one.tolist() == other.tolist()
    assert len(one) == 5
    assert third.tolist() == [one[0], one[1], one[3]]


def test_hashed_words_spread_over_the_table() -> None:
    (ids,) = HashedWords(1005).tokenize([" ".join(f"w{number}" for number in range(1000))])
    # 1000 balls into 1000 boxes fill 632 ± 10 of them.
    assert 590 < len(set(ids.tolist())) < 675
