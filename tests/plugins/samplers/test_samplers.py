"""Laws of all samplers: a pass is every row once, an epoch is as long as it says, and any state goes on exactly."""

import json
import random
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskloom.core import DataError, Group, Pool, Sampler
from taskloom.plugins.samplers import Alternating, Mixed, Ordered, RoundRobin, Sequential
from taskloom.plugins.samplers.stepwise import StepwiseSampler

KINDS = [RoundRobin, Alternating, Ordered, Sequential, Mixed]
over_all = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
sizes = st.dictionaries(st.sampled_from(["sst", "para", "sts", "nli"]), st.integers(1, 40), min_size=1)


def pools(sizes: dict[str, int]) -> dict[str, Pool]:
    lengths = np.random.Generator(np.random.Philox(3))
    return {task: Pool(size, lengths=lengths.integers(3, 60, size)) for task, size in sizes.items()}


def prepared(sampler: Sampler, sizes: dict[str, int], seed: int = 0, count: int = 1) -> Sampler:
    sampler.prepare(pools(sizes), generator=torch.Generator().manual_seed(seed), epochs=count)
    return sampler


def plain(groups: list[Group]) -> list[Any]:
    return [[(batch.task, batch.rows.tolist()) for batch in group] for group in groups]


def epochs(sampler: Sampler, count: int) -> list[Any]:
    return plain([group for _ in range(count) for group in sampler.epoch()])


def rows_of(groups: list[Any], task: str) -> list[list[int]]:
    return [rows for group in groups for name, rows in group if name == task]


def test_round_robin_gives_every_task_in_every_step() -> None:
    groups = epochs(prepared(RoundRobin(batch_size=2), {"a": 3, "b": 10}), 1)
    assert len(groups) == 5
    assert all([name for name, _ in group] == ["a", "b"] for group in groups)


def test_alternating_gives_the_tasks_in_turn() -> None:
    groups = epochs(prepared(Alternating(batch_size=2, iterations=3), {"b": 3, "a": 10}), 2)
    assert [[name for name, _ in group] for group in groups] == [["b"], ["a"]] * 6


@pytest.mark.parametrize(
    ("iterations", "rounds"),
    [("smallest", 2), ("largest", 6), (1, 1), (50, 50), ("1x", 2), ("3x", 6), ("1.5x", 3), ("0.1x", 1)],
)
def test_an_epoch_is_as_long_as_asked(iterations: Any, rounds: int) -> None:
    """Batches of 8: the data sets have 2, 3 and 6 of them, the last ones short."""
    given = {"small": 10, "middle": 24, "large": 41}
    for kind, times in ((RoundRobin, 1), (Alternating, 3)):
        sampler = prepared(kind(iterations=iterations), given)
        assert sampler.steps == rounds * times
        assert [len(list(sampler.epoch())) for _ in range(3)] == [rounds * times] * 3


@pytest.mark.parametrize("wrong", ["x", "0x", "biggest", "-1x", "0.0x", "1.x", ".5x", "3x3x"])
def test_a_length_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="iterations should be a number, 'smallest', 'largest' or a multiple"):
        prepared(RoundRobin(iterations=wrong), {"a": 3})


@over_all
@settings(max_examples=40, deadline=None)
@given(sizes=sizes, batch=st.integers(1, 9), buckets=st.booleans(), iterations=st.sampled_from(["smallest", "3x", 7]))
def test_a_pass_covers_every_row_once(
    kind: type[StepwiseSampler], sizes: dict[str, int], batch: int, buckets: bool, iterations: Any
) -> None:
    sampler = prepared(kind(batch_size=batch, buckets=buckets, iterations=iterations), sizes, count=6)
    groups = epochs(sampler, 6)
    assert len(groups) == 6 * sampler.steps
    for task, size in sizes.items():
        batches, per_pass = rows_of(groups, task), -(-size // batch)
        for start in range(0, len(batches), per_pass):
            one_pass = batches[start : start + per_pass]
            assert all(len(rows) == batch for rows in one_pass[: per_pass - 1])
            seen = Counter(row for rows in one_pass for row in rows)
            assert max(seen.values()) == 1
            if len(one_pass) == per_pass:
                assert sorted(seen) == list(range(size))


@over_all
@settings(max_examples=30, deadline=None)
@given(sizes=sizes, batch=st.integers(1, 9), iterations=st.sampled_from(["smallest", "largest", "2x", 5]))
def test_buckets_change_no_epochs_rows(
    kind: type[StepwiseSampler], sizes: dict[str, int], batch: int, iterations: Any
) -> None:
    """Epoch by epoch and task by task the same rows, in as many batches of the same sizes."""
    both = [prepared(kind(batch_size=batch, iterations=iterations, buckets=b), sizes, count=4) for b in (False, True)]
    for _ in range(4):
        without, within = (epochs(sampler, 1) for sampler in both)
        for task in sizes:
            a, b = rows_of(without, task), rows_of(within, task)
            assert Counter(row for rows in a for row in rows) == Counter(row for rows in b for row in rows)
            assert [len(rows) for rows in a] == [len(rows) for rows in b]


@over_all
def test_buckets_bring_similar_lengths_together(kind: type[StepwiseSampler]) -> None:
    data = pools({"a": 4000})
    spread = {}
    for buckets in (False, True):
        sampler = kind(buckets=buckets)
        sampler.prepare(data, generator=torch.Generator().manual_seed(0))
        batches = [group[0].rows for group in sampler.epoch()]
        assert sorted(np.concatenate(batches).tolist()) == list(range(4000))
        lengths = [data["a"].lengths[rows] for rows in batches]  # type: ignore[index]
        spread[buckets] = float(np.mean([length.max() - length.mean() for length in lengths]))
        firsts = [length.mean() for length in lengths]
        assert abs(np.corrcoef(firsts, np.arange(len(firsts)))[0, 1]) < 0.2  # not sorted from short to long
    assert spread[True] < 0.2 * spread[False]


def test_buckets_need_lengths() -> None:
    sampler = RoundRobin(buckets=True)
    with pytest.raises(DataError, match="token counts of task 'a'"):
        sampler.prepare({"a": Pool(3)}, generator=torch.Generator())


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="task 'a' has no training rows"):
        prepared(RoundRobin(), {"b": 1, "a": 0})


@over_all
def test_every_pass_has_an_order_of_its_own(kind: type[StepwiseSampler]) -> None:
    groups = epochs(prepared(kind(batch_size=50, iterations=6), {"a": 50, "b": 50}, count=2), 2)
    orders = [tuple(rows) for task in ("a", "b") for rows in rows_of(groups, task)]
    assert len(set(orders)) == len(orders) >= 12


def test_an_epoch_that_ends_within_a_pass_goes_on_in_the_next() -> None:
    sampler = prepared(RoundRobin(batch_size=2, iterations=3), {"a": 10})
    seen = [row for rows in rows_of(epochs(sampler, 2), "a")[:5] for row in rows]
    assert sorted(seen) == list(range(10))


@over_all
@settings(max_examples=60, deadline=None)
@given(
    sizes=sizes,
    batch=st.integers(1, 9),
    buckets=st.booleans(),
    iterations=st.sampled_from(["smallest", "largest", "2x", 5]),
    after=st.integers(0, 60),
)
def test_any_state_goes_on_exactly(
    kind: type[StepwiseSampler], sizes: dict[str, int], batch: int, buckets: bool, iterations: Any, after: int
) -> None:
    """Taken while a group is in use or between epochs, through JSON, into a sampler of another seed."""

    def make(seed: int) -> Sampler:
        return prepared(kind(batch_size=batch, buckets=buckets, iterations=iterations), sizes, seed, count=3)

    def endless(sampler: Sampler) -> Any:
        while True:
            yield from sampler.epoch()

    first = make(1)
    stream = endless(first)
    list(islice(stream, after))
    state = json.loads(json.dumps(first.state_dict()))
    second = make(2)
    second.load_state_dict(state)
    assert second.state_dict() == first.state_dict()
    assert plain(list(islice(endless(second), 30))) == plain(list(islice(stream, 30)))


@over_all
def test_a_state_taken_after_the_last_group_begins_the_next_epoch(kind: type[StepwiseSampler]) -> None:
    first, second = prepared(kind(), {"a": 30, "b": 9}), prepared(kind(), {"a": 30, "b": 9})
    for _ in first.epoch():
        state = first.state_dict()
    second.load_state_dict(state)
    assert list(second.epoch()) == []
    assert epochs(second, 1) == epochs(first, 1)


@over_all
def test_one_seed_one_order(kind: type[StepwiseSampler]) -> None:
    given = {"a": 30, "b": 9}
    first = epochs(prepared(kind(), given, seed=4), 3)
    assert epochs(prepared(kind(), given, seed=4), 3) == first
    assert epochs(prepared(kind(), given, seed=5), 3) != first


@over_all
def test_a_tasks_rows_do_not_depend_on_the_other_tasks(kind: type[StepwiseSampler]) -> None:
    alone = rows_of(epochs(prepared(kind(iterations=9), {"a": 30}), 1), "a")
    among = rows_of(epochs(prepared(kind(iterations=9), {"b": 5, "a": 30}), 1), "a")
    assert among
    assert among == alone[: len(among)]


@over_all
def test_no_global_random_state_is_touched(kind: type[StepwiseSampler]) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index,union-attr]
    epochs(prepared(kind(buckets=True), {"a": 30, "b": 9}), 2)
    assert torch.get_rng_state().equal(before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index,union-attr]
    assert random.getstate() == before[2]
