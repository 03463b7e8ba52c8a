"""Laws of packed tokens: padding and its inverse, the layout of texts, cutting."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Ids, Reads, SpecialTokens, Tokens, arrange
from taskloom.core.tokens import COLUMNS, SEQUENCES

BERT = SpecialTokens(start=(101,), middle=(102,), end=(102,))
ROBERTA = SpecialTokens(start=(0,), middle=(2, 2), end=(2,), second_type=0)
TWICE = SpecialTokens(start=(101,), middle=(102,), end=(102,), second_start=(101,))

lengths_of_batches = st.lists(st.integers(1, 9), min_size=1, max_size=6)
texts = st.lists(st.integers(5, 99), max_size=12)
batches = st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=5)


def tokens_of(lengths: list[int]) -> Tokens:
    return Tokens.pack([list(range(1, length + 1)) for length in lengths])


def columns_of(rows: list[tuple[list[int], ...]]) -> list[list[Ids]]:
    return [[np.array(text, np.int32) for text in column] for column in zip(*rows, strict=True)]


@given(lengths_of_batches)
def test_unpad_is_the_inverse_of_pad(lengths: list[int]) -> None:
    tokens = tokens_of(lengths)
    for rows in (tokens.ids, torch.randn(sum(lengths), 3), torch.randn(sum(lengths), 2, 3)):
        padded = tokens.pad(rows)
        assert padded.shape == (len(lengths), max(lengths), *rows.shape[1:])
        assert torch.equal(tokens.unpad(padded), rows)
        assert torch.equal(padded[~tokens.mask], torch.zeros_like(padded[~tokens.mask]))


@given(lengths_of_batches)
def test_pad_puts_each_sequence_into_its_own_row(lengths: list[int]) -> None:
    tokens = tokens_of(lengths)
    naive = [list(range(1, n + 1)) + [0] * (max(lengths) - n) for n in lengths]
    assert tokens.pad(tokens.ids).tolist() == naive
    assert tokens.mask.tolist() == [[place < n for place in range(max(lengths))] for n in lengths]
    assert tokens.positions.tolist() == [place for n in lengths for place in range(n)]
    assert tokens.offsets.tolist() == [0, *(sum(lengths[: row + 1]) for row in range(len(lengths)))]
    assert tokens.starts.tolist() == [sum(lengths[:row]) for row in range(len(lengths))]
    assert tokens.even == (len(set(lengths)) == 1)


def test_gradients_pass_through_padding() -> None:
    tokens = tokens_of([3, 1, 2])
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tokens.unpad(tokens.pad(x) ** 2), rows)


def naive_cut(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """BERT's truncate_seq_pair, one token at a time from the end of the longer text."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


@given(batches, st.integers(5, 30), st.sampled_from([BERT, ROBERTA, TWICE]))
def test_joined_pairs_are_cut_and_framed_as_bert_does(
    rows: list[tuple[list[int], ...]], max_length: int, frame: SpecialTokens
) -> None:
    room = max_length - len(frame.start) - len(frame.middle) - len(frame.second_start) - len(frame.end)
    sequences, types = [], []
    for swapped in (False, True):
        for first, second, _ in rows:
            a, b = naive_cut(*((second, first) if swapped else (first, second)), room)
            sequences.append([*frame.start, *a, *frame.middle, *frame.second_start, *b, *frame.end])
            head = len(frame.start) + len(a) + len(frame.middle)
            types.append([0] * head + [frame.second_type] * (len(sequences[-1]) - head))
    for reads, count in (("joint", len(rows)), ("both_orders", 2 * len(rows))):
        laid = arrange(columns_of(rows), reads, frame, max_length)
        expected = Tokens.pack(sequences[:count], types[:count])
        assert laid.ids.tolist() == expected.ids.tolist()
        assert laid.lengths.tolist() == expected.lengths.tolist()
        assert laid.types.tolist() == expected.types.tolist()


@given(batches, st.integers(5, 30), st.sampled_from([BERT, ROBERTA]))
def test_texts_by_themselves_come_column_after_column(
    rows: list[tuple[list[int], ...]], max_length: int, frame: SpecialTokens
) -> None:
    room = max_length - len(frame.start) - len(frame.end)
    for reads in ("single", "pair", "triple"):
        laid = arrange(columns_of(rows), reads, frame, max_length)
        expected = [[*frame.start, *row[column][:room], *frame.end] for column in range(COLUMNS[reads]) for row in rows]
        assert laid.ids.tolist() == [i for sequence in expected for i in sequence]
        assert laid.lengths.tolist() == [len(sequence) for sequence in expected]
        assert not laid.types.any()


@pytest.mark.parametrize("reads", list(SEQUENCES))
def test_every_way_of_reading_gives_the_sequences_it_promises(reads: Reads) -> None:
    rows = [([7], [8, 9], [10]), ([11], [], [12])]
    laid = arrange(columns_of(rows), reads, BERT, 512)
    assert len(laid) == SEQUENCES[reads] * len(rows)
    assert laid.ids.dtype == laid.lengths.dtype == laid.types.dtype == torch.int64
    ends = laid.lengths.cumsum(0).tolist()
    for start, end in pairwise([0, *ends]):
        assert laid.ids[start] == 101
        assert laid.ids[end - 1] == 102


def test_a_batch_keeps_what_each_task_asks_of_pooling() -> None:
    ids = columns_of([([7], [8, 9])])
    asked = [arrange(ids, "single", BERT, 9, pooling=one) for one in ("mean", None, "cls")]
    for one in (Tokens.join(asked), Tokens.join(asked).to("cpu")):
        assert one.poolings == ("mean", None, "cls")
        assert [part.poolings for part in one.split()] == [("mean",), (None,), ("cls",)]
    assert Tokens.pack([[1], [2]]).poolings == (None,)
