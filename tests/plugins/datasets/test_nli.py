"""SNLI and SICK: pairs, values and triples from the files as they are distributed."""

import collections
import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import DataError, Examples, Labels
from taskloom.plugins.datasets import SICK, SNLI

SPLITS: Any = ("train", "dev", "test")
Pair = tuple[str, str, str]  # label, premise, hypothesis
NUMBERS = {"entailment": 0.0, "neutral": 1.0, "contradiction": 2.0}


def snli_lines(pairs: Sequence[Pair]) -> str:
    """Lines with the keys of the official files, of which most are not needed."""
    return "".join(
        json.dumps(
            {
                "gold_label": label,
                "pairID": f"p{row}",
                "sentence1": premise,
                "sentence1_binary_parse": "( )",
                "sentence2": hypothesis,
            }
        )
        + "\n"
        for row, (label, premise, hypothesis) in enumerate(pairs)
    )


def snli(folder: Path, pairs: Sequence[Pair], task: Any = "entailment", **options: Any) -> SNLI:
    for split in SPLITS:
        (folder / f"snli_1.0_{split}.jsonl").write_text(snli_lines(pairs), encoding="utf-8")
    return SNLI(task=task, dir=str(folder), **options)


def triples(examples: Examples) -> list[tuple[str, ...]]:
    assert examples.labels is None
    return list(zip(*examples.columns, strict=True))


GOOD: list[Pair] = [
    ("entailment", "A dog runs.", "An animal moves."),
    ("-", "A dog runs.", "Nobody agrees on this."),
    ("neutral", "A dog runs.", "It chases a cat."),
    ("contradiction", "A dog runs.", "The dog sleeps."),
    ("neutral", "A man sings.", "He is famous."),
    ("contradiction", "A man sings.", "The man is silent."),
    ("entailment", "A dog runs.", "Something moves."),
    ("contradiction", "A dog runs.", "There is no dog."),
    ("contradiction", "A dog runs.", "A dog lies down."),
    ("entailment", "Café – naïve “quotes”", "Zwölf Boxkämpfer"),
]


# SNLI


def test_snli_pairs_have_three_classes_and_no_undecided_rows(tmp_path: Path) -> None:
    data = snli(tmp_path, GOOD)
    assert data.labels == Labels.of_classes(3)
    assert data.columns == 2
    for split in SPLITS:
        examples = data.load(split)
        decided = [(label, a, b, f"p{row}") for row, (label, a, b) in enumerate(GOOD) if label != "-"]
        assert examples.labels is not None
        assert examples.labels.tolist() == [NUMBERS[label] for label, *_ in decided]
        assert list(zip(*examples.columns, examples.ids, strict=True)) == [row[1:] for row in decided]
        assert examples.skipped == ()


def test_undecided_rows_are_an_error_only_where_there_are_no_others(tmp_path: Path) -> None:
    assert len(snli(tmp_path, [("-", "a", "b")] * 50 + GOOD, strict=True).load("train")) == len(GOOD) - 1
    with pytest.raises(DataError, match=r"snli_1\.0_dev\.jsonl: none of its 5 rows"):
        snli(tmp_path, [("-", "a", "b")] * 5).load("dev")


def test_snli_triples_by_hand(tmp_path: Path) -> None:
    data = snli(tmp_path, GOOD, "triples")
    assert (data.labels, data.columns) == (None, 3)
    examples = data.load("train")
    assert triples(examples) == [
        ("A dog runs.", "An animal moves.", "The dog sleeps."),
        ("A dog runs.", "Something moves.", "There is no dog."),  # the third contradiction finds no entailment
    ]
    assert examples.ids == ("p0+p3", "p6+p7")


words = st.sampled_from([f"text {n}" for n in range(4)])


@given(st.lists(st.tuples(st.sampled_from([*NUMBERS, "-"]), words, words), min_size=1, max_size=30))
def test_triples_are_what_the_pairs_say(pairs: list[Pair]) -> None:
    with tempfile.TemporaryDirectory() as name:
        data = snli(Path(name), pairs, "triples")
        said = collections.defaultdict(set)
        for label, premise, hypothesis in pairs:
            said[premise, label].add(hypothesis)
        sizes = {}
        for premise in {pair[1] for pair in pairs}:
            follows, against = said[premise, "entailment"], said[premise, "contradiction"]
            sizes[premise] = min(len(follows - against), len(against - follows))
        if not any(sizes.values()):
            with pytest.raises(DataError, match=r"no triples|none of its"):
                data.load("train")
            return
        found = triples(data.load("train"))
    assert collections.Counter(premise for premise, *_ in found) == collections.Counter(
        {premise: size for premise, size in sizes.items() if size}
    )
    for premise, entailment, contradiction in found:
        assert entailment in said[premise, "entailment"] - said[premise, "contradiction"]
        assert contradiction in said[premise, "contradiction"] - said[premise, "entailment"]
    assert len({(premise, text) for premise, *texts in found for text in texts}) == 2 * len(found)  # none used twice


def test_bad_rows_are_skipped_and_named_or_refused(tmp_path: Path) -> None:
    pairs = [*GOOD * 30, ("entailed", "a", "b"), ("neutral", "a", " ")]
    data = snli(tmp_path, pairs)
    examples = data.load("train")
    assert len(examples) == 9 * 30
    first, second = examples.skipped
    assert "line 301: gold_label: no class 'entailed'; did you mean 'entailment'?" in first
    assert "line 302: sentence2 is empty" in second
    with pytest.raises(DataError, match=r"line 301.*strict: true refuses"):
        SNLI(task="entailment", dir=str(tmp_path), strict=True).load("train")
    assert snli(tmp_path, pairs, "triples").load("train").skipped == examples.skipped


def test_too_many_bad_rows_are_counted_among_those_that_are_meant(tmp_path: Path) -> None:
    good: list[Pair] = [("neutral", "a", "b")]
    with pytest.raises(DataError, match="2 of 102 rows cannot be read"):
        snli(tmp_path, [("-", "a", "b")] * 900 + good * 100 + [("x", "a", "b")] * 2).load("train")


def test_the_fingerprint_follows_the_task(tmp_path: Path) -> None:
    assert snli(tmp_path, GOOD).fingerprint() != snli(tmp_path, GOOD, "triples").fingerprint()


# SICK, the real file


@pytest.fixture(scope="module")
def sick_rows(sick_data: Path) -> list[dict[str, str]]:
    """The file as Python's own reader sees it, quotes being plain characters."""
    with (sick_data / "SICK.txt").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


PARTS = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}


@pytest.mark.parametrize("split", SPLITS)
def test_sick_classes_and_values(sick_data: Path, sick_rows: list[dict[str, str]], split: Any) -> None:
    rows = [row for row in sick_rows if row["SemEval_set"] == PARTS[split]]
    classes = SICK(task="entailment", dir=str(sick_data), strict=True)
    values = SICK(task="relatedness", dir=str(sick_data), strict=True)
    assert (classes.labels, values.labels) == (Labels.of_classes(3), Labels.of_range(1, 5))
    for data, column in ((classes, "entailment_label"), (values, "relatedness_score")):
        examples = data.load(split)
        assert len(examples) == {"train": 4439, "dev": 495, "test": 4906}[split]
        assert examples.ids == tuple(row["pair_ID"] for row in rows)
        assert examples.columns == tuple(tuple(row[f"sentence_{x}"].strip() for row in rows) for x in "AB")
        written = [row[column] for row in rows]
        expected = [float(text) if column == "relatedness_score" else NUMBERS[text.lower()] for text in written]
        assert examples.labels is not None
        assert examples.labels.tolist() == expected


@pytest.mark.parametrize("split", SPLITS)
def test_sick_triples(sick_data: Path, sick_rows: list[dict[str, str]], split: Any) -> None:
    follows, against = collections.defaultdict(set), collections.defaultdict(set)
    for row in sick_rows:
        if row["SemEval_set"] != PARTS[split]:
            continue
        a, b = row["sentence_A"].strip(), row["sentence_B"].strip()
        for premise, hypothesis, relation in ((a, b, row["entailment_AB"]), (b, a, row["entailment_BA"])):
            if "entails" in relation:
                follows[premise].add(hypothesis)
            if "contradicts" in relation:
                against[premise].add(hypothesis)
    examples = SICK(task="triples", dir=str(sick_data), strict=True).load(split)
    found = triples(examples)
    assert len(found) == {"train": 326, "dev": 5, "test": 424}[split]
    sizes = {p: min(len(follows[p] - against[p]), len(against[p] - follows[p])) for p in list(follows)}
    assert collections.Counter(premise for premise, *_ in found) == {p: n for p, n in sizes.items() if n}
    for premise, entailment, contradiction in found:
        assert entailment in follows[premise]
        assert contradiction in against[premise]
    assert len(set(examples.ids)) == len(found)


# SICK, files of ours


HEADER = "pair_ID sentence_A sentence_B entailment_label relatedness_score entailment_AB entailment_BA SemEval_set"


def sick(folder: Path, rows: Sequence[Sequence[str]], header: str = HEADER, **options: Any) -> SICK:
    lines = ["\t".join(row) for row in (header.split(), *rows)]
    (folder / "SICK.txt").write_text("\r\n".join(lines), encoding="utf-8", newline="")
    return SICK(**{"task": "entailment", "dir": str(folder), **options})


def row(number: int, part: str = "TRAIN", label: str = "NEUTRAL", score: str = "3.5") -> list[str]:
    return [str(number), f'a "{number}', f"b {number}", label, score, "A_neutral_B", "B_neutral_A", part]


def test_quotes_are_plain_and_line_ends_no_part_of_the_last_column(tmp_path: Path) -> None:
    examples = sick(tmp_path, [row(1), row(2, "TRIAL"), row(3, "TEST")]).load("dev")
    assert examples.columns == (('a "2',), ("b 2",))


def test_rows_of_no_split_or_out_of_range_are_named(tmp_path: Path) -> None:
    rows = [*(row(n) for n in range(300)), row(300, "TESTS"), row(301, score="5.5"), row(302, "TEST", score="9")]
    examples = sick(tmp_path, rows, task="relatedness").load("train")
    assert len(examples) == 300
    first, second = examples.skipped
    assert "line 302: SemEval_set: no split 'TESTS'; did you mean 'TEST'?" in first
    assert "line 303: relatedness_score 5.5 is out of range; it should be 1 to 5" in second


def test_a_missing_column_or_split_is_an_error(tmp_path: Path) -> None:
    header = HEADER.replace("SemEval_set", "set")
    with pytest.raises(DataError, match="SemEval_set: no split ''"):
        sick(tmp_path, [row(1)], header).load("train")
    with pytest.raises(DataError, match="none of its 1 rows"):
        sick(tmp_path, [row(1)]).load("dev")
