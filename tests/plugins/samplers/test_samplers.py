"""Samplers and batch compositions, each against its definition; the laws of every sampler are the kit's."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator, Philox
from scipy.stats import chisquare
from small_runs import run_grid

from taskloom.core import DataError, Group, Pool, Sampler
from taskloom.core.testing import check
from taskloom.plugins.samplers import Alternating, Mixed, Ordered, RoundRobin, Sequential
from taskloom.plugins.samplers.composition import OnePositive, Shuffled
from taskloom.plugins.samplers.no_duplicates import NoDuplicates
from taskloom.plugins.samplers.stepwise import StepwiseSampler
from taskloom.registry.installed.catalogue import load_catalogue

KINDS = [RoundRobin, Alternating, Ordered, Sequential, Mixed]
over_all = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
sizes = st.dictionaries(st.sampled_from(["sst", "para", "sts", "nli"]), st.integers(1, 40), min_size=1)
#: Training rows of the course's data sets.
COURSE = {"sst": 8544, "para": 141506, "sts": 6041}


def pools(sizes: dict[str, int]) -> dict[str, Pool]:
    """Every third row is positive; some texts are in several rows."""
    random = Generator(Philox(3))
    return {
        task: Pool(
            size,
            labels=(np.arange(size) % 3 == 0).astype(np.float64),
            lengths=random.integers(3, 60, size),
            texts=random.integers(0, 2 * size, (size, 2)),
        )
        for task, size in sizes.items()
    }


def pool_of(size: int, *, labels: Any = None, texts: Any = None) -> Pool:
    """A pool whose other facts play no part."""
    return Pool(size, labels, np.ones(size, np.int64), np.zeros((size, 1), np.int64) if texts is None else texts)


def prepared(sampler: Sampler, sizes: dict[str, int], *, epochs: int = 1) -> Sampler:
    sampler.prepare(pools(sizes), generator=torch.Generator().manual_seed(0), epochs=epochs)
    return sampler


def plain(groups: list[Group]) -> list[Any]:
    return [[(batch.task, batch.rows.tolist()) for batch in group] for group in groups]


def stage(sampler: Sampler, sizes: dict[str, int], epochs: int = 1) -> list[list[Any]]:
    """The groups of each epoch."""
    prepared(sampler, sizes, epochs=epochs)
    return [plain(list(sampler.epoch())) for _ in range(epochs)]


def groups_of(sampler: Sampler, sizes: dict[str, int], epochs: int = 1) -> list[Any]:
    return [group for epoch in stage(sampler, sizes, epochs) for group in epoch]


def tasks_of(groups: list[Any]) -> list[str]:
    return [name for group in groups for name, _ in group]


def seen(groups: list[Any]) -> Counter[tuple[str, int]]:
    return Counter((name, row) for group in groups for name, rows in group for row in rows)


def rows_of(groups: list[Any], task: str) -> list[list[int]]:
    return [rows for group in groups for name, rows in group if name == task]


# Epochs and passes


def test_round_robin_gives_every_task_in_every_step() -> None:
    groups = groups_of(RoundRobin(batch_size=2), {"a": 3, "b": 10})
    assert len(groups) == 5
    assert all([name for name, _ in group] == ["a", "b"] for group in groups)


def test_alternating_gives_the_tasks_in_turn() -> None:
    groups = groups_of(Alternating(batch_size=2, iterations=3), {"b": 3, "a": 10}, 2)
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


@over_all
@settings(max_examples=40)
@given(sizes=sizes, batch=st.integers(1, 9), buckets=st.booleans(), iterations=st.sampled_from(["smallest", "3x", 7]))
def test_a_pass_covers_every_row_once(
    kind: type[StepwiseSampler], sizes: dict[str, int], batch: int, buckets: bool, iterations: Any
) -> None:
    groups = groups_of(kind(batch_size=batch, buckets=buckets, iterations=iterations), sizes, 6)
    for task, size in sizes.items():
        batches, per_pass = rows_of(groups, task), -(-size // batch)
        for start in range(0, len(batches), per_pass):
            one_pass = batches[start : start + per_pass]
            assert all(len(rows) == batch for rows in one_pass[: per_pass - 1])
            times = Counter(row for rows in one_pass for row in rows)
            assert max(times.values()) == 1
            if len(one_pass) == per_pass:
                assert sorted(times) == list(range(size))


@over_all
@settings(max_examples=30)
@given(sizes=sizes, batch=st.integers(1, 9), iterations=st.sampled_from(["smallest", "largest", "2x", 5]))
def test_buckets_change_no_epochs_rows(
    kind: type[StepwiseSampler], sizes: dict[str, int], batch: int, iterations: Any
) -> None:
    """Epoch by epoch and task by task the same rows, in as many batches of the same sizes."""
    both = [stage(kind(batch_size=batch, iterations=iterations, buckets=b), sizes, 4) for b in (False, True)]
    for without, within in zip(*both, strict=True):
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
        lengths = [data["a"].lengths[rows] for rows in batches]
        spread[buckets] = float(np.mean([length.max() - length.mean() for length in lengths]))
        firsts = [length.mean() for length in lengths]
        assert abs(np.corrcoef(firsts, np.arange(len(firsts)))[0, 1]) < 0.2  # not sorted from short to long
    assert spread[True] < 0.2 * spread[False]


@pytest.mark.parametrize(("size", "message"), [(0, "task 'a' has no training rows"), (9, "labels of task 'a'")])
def test_data_that_lack_what_is_needed_are_refused(size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RoundRobin(composition="one_positive").prepare({"a": pool_of(size)}, generator=torch.Generator())


@over_all
def test_every_pass_has_an_order_of_its_own(kind: type[StepwiseSampler]) -> None:
    groups = groups_of(kind(batch_size=50, iterations=6), {"a": 50, "b": 50}, 2)
    orders = [tuple(rows) for task in ("a", "b") for rows in rows_of(groups, task)]
    assert len(set(orders)) == len(orders) >= 12


@over_all
def test_a_tasks_rows_do_not_depend_on_the_other_tasks(kind: type[StepwiseSampler]) -> None:
    alone = rows_of(groups_of(kind(iterations=9), {"a": 30}), "a")
    among = rows_of(groups_of(kind(iterations=9), {"b": 5, "a": 30}), "a")
    assert among
    assert among == alone[: len(among)]


# Orders


def test_ordered_goes_through_whole_data_sets_in_the_order_given() -> None:
    order = ["sst", "sts", "sst", "sts", "para"]
    given = {"para": 11, "sst": 5, "sts": 8}
    for groups in stage(Ordered(order=order, batch_size=2), given, epochs=2):
        assert tasks_of(groups) == ["sst"] * 3 + ["sts"] * 4 + ["sst"] * 3 + ["sts"] * 4 + ["para"] * 6
        visits = [groups[:3], groups[3:7], groups[7:10], groups[10:14], groups[14:]]
        for task, visit in zip(order, visits, strict=True):
            assert seen(visit) == Counter((task, row) for row in range(given[task]))
        assert visits[0] != visits[2]  # the second time in another order


@pytest.mark.parametrize(
    ("iterations", "turns"), [("0.5x", "aaabb"), (2, "aabb"), ("smallest", "aaabbb"), ("largest", "a" * 6 + "b" * 6)]
)
def test_the_turns_of_ordered_are_as_long_as_asked(iterations: Any, turns: str) -> None:
    """Six batches of a; of b, three, half of which is rounded upwards."""
    (groups,) = stage(Ordered(batch_size=1, iterations=iterations), {"a": 6, "b": 3})
    assert tasks_of(groups) == list(turns)


def test_sequential_has_all_epochs_of_a_task_before_the_next() -> None:
    epochs = stage(Sequential(order=["sts", "sst"], batch_size=2), {"sst": 4, "sts": 10}, epochs=3)
    assert [len(groups) for groups in epochs] == [7, 7, 7]
    groups = [group for epoch in epochs for group in epoch]
    assert tasks_of(groups) == ["sts"] * 15 + ["sst"] * 6
    for place in range(0, 15, 5):
        assert seen(groups[place : place + 5]) == Counter(("sts", row) for row in range(10))


@settings(max_examples=60)
@given(sizes=sizes, epochs=st.integers(1, 5), batch=st.integers(1, 9), buckets=st.booleans())
@pytest.mark.parametrize("kind", [Ordered, Sequential, Mixed], ids=lambda kind: kind.name)
def test_a_stage_of_whole_passes_sees_every_row_once_per_epoch(
    kind: type[StepwiseSampler], sizes: dict[str, int], epochs: int, batch: int, buckets: bool
) -> None:
    """By default the three are the same work in another order, in epochs of the same length."""
    groups = stage(kind(batch_size=batch, buckets=buckets), sizes, epochs)
    assert {len(epoch) for epoch in groups} == {sum(-(-size // batch) for size in sizes.values())}
    every = {(task, row): epochs for task, size in sizes.items() for row in range(size)}
    assert seen([group for epoch in groups for group in epoch]) == every


# Mixtures


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, [134, 2212, 95]),
        ({"weights": "equal"}, [1, 1, 1]),
        ({"weights": {"para": 2}}, [1, 2, 1]),
        ({"weights": {"para": 2, "sts": 0.5}}, [1, 2, 0.5]),
        ({"temperature": 2}, [134**0.5, 2212**0.5, 95**0.5]),
        ({"weights": {"para": 2}, "temperature": 1}, [134, 2 * 2212, 95]),
        ({"temperature": 1e9}, [1, 1, 1]),
        ({"temperature": 1e-3}, [0, 1, 0]),
    ],
    ids=str,
)
def test_mixed_gives_each_task_its_share(options: Any, shares: list[float]) -> None:
    """The course's data in batches of 64: 134, 2212 and 95 of them."""
    sampler = prepared(Mixed(batch_size=64, **options), COURSE)
    assert sampler.steps == 134 + 2212 + 95
    for _ in range(2):
        counts = Counter(tasks_of(plain(list(sampler.epoch()))))
        found = [counts[task] for task in COURSE]
        assert sum(found) == sampler.steps
        assert np.abs(np.array(found) - sampler.steps * np.array(shares) / sum(shares)).max() < 1


def test_the_order_of_a_mixture_is_random() -> None:
    """At every place of an epoch a task comes as often as its weight says, whatever came before it."""
    sampler = prepared(Mixed(weights={"b": 2}, iterations=8), {"a": 8, "b": 8, "c": 8}, epochs=3000)
    orders = np.array([tasks_of(plain(list(sampler.epoch()))) for _ in range(3000)])  # [epochs, 8]
    for place in range(8):
        counts = Counter(orders[:, place].tolist())
        assert chisquare([counts[task] for task in "abc"], [750, 1500, 750]).pvalue > 1e-3
    pairs = Counter(zip(orders[:, 3].tolist(), orders[:, 4].tolist(), strict=True))
    held = {"a": 2, "b": 4, "c": 2}  # without putting back: of 8 places, then of 7
    expected = {(one, two): held[one] * (held[two] - (one == two)) / 56 * 3000 for one in "abc" for two in "abc"}
    assert chisquare([pairs[pair] for pair in expected], list(expected.values())).pvalue > 1e-3


@pytest.mark.parametrize(
    ("options", "shares"),
    [({}, [8544, 141506, 6041]), ({"weights": "equal"}, [1, 1, 1]), ({"weights": {"para": 2}}, [1, 2, 1])],
    ids=str,
)
def test_rows_mixed_across_tasks_fill_every_batch(options: Any, shares: list[float]) -> None:
    """The course's 156,091 rows in batches of 64 are 2,439 steps; an epoch has each task's share of rows to one row."""
    sampler = prepared(Mixed(batch_size=64, mix="rows", **options), COURSE)
    assert sampler.steps == 2439
    epoch = plain(list(sampler.epoch()))
    assert {sum(len(rows) for _, rows in group) for group in epoch} == {64}
    counts = Counter(name for name, _ in seen(epoch).elements())
    expected = 2439 * 64 * np.array(shares) / sum(shares)
    assert np.abs(np.array([counts[task] for task in COURSE]) - expected).max() < 1


def test_the_tasks_of_a_mixed_batch_are_drawn_without_regard_to_each_other() -> None:
    """The number of a task's rows in a batch is hypergeometric: its variance is n·p·(1 − p)·(N − n)/(N − 1)."""
    sampler = prepared(Mixed(batch_size=8, mix="rows"), {"a": 100, "b": 300}, epochs=400)
    counts = np.array([len(rows) for _ in range(400) for rows in rows_of(plain(list(sampler.epoch())), "a")])
    steps = 400 * sampler.steps
    mean, square = counts.sum() / steps, (counts**2).sum() / steps  # a task without a row in a step counts as 0
    assert mean == 2  # exactly: an epoch holds every row once
    assert square - mean**2 == pytest.approx(8 * 0.25 * 0.75 * 392 / 399, rel=0.05)


def test_rows_are_mixed_only_in_plain_batches() -> None:
    for options in ({"composition": "no_duplicates"}, {"buckets": True}, {"batch_size": {"sst": 4}}):
        with pytest.raises(ValueError, match="mix 'rows'"):
            Mixed(mix="rows", **options)


# Composition


def positive_and_negative(positives: int, negatives: int) -> Pool:
    labels = Generator(Philox(1)).permutation(np.repeat([4.0, 2.9], [positives, negatives]))
    return pool_of(len(labels), labels=labels)


@settings(max_examples=200)
@given(
    positives=st.integers(1, 30),
    negatives=st.integers(1, 60),
    others=st.integers(1, 8),
    run_out=st.sampled_from(["stop", "repeat", "as_shuffled"]),
    seed=st.integers(0, 99),
)
def test_one_positive_batches(positives: int, negatives: int, others: int, run_out: Any, seed: int) -> None:
    pool = positive_and_negative(positives, max(negatives, others))
    negatives = max(negatives, others)
    composer = OnePositive("sts", pool, 1 + others, positive_from=3, run_out=run_out)
    batches = composer.compose(Generator(Philox(seed)))
    assert len(batches) == composer.batches
    assert pool.labels is not None
    for rows in batches:
        assert (pool.labels[rows] >= 3).tolist() == [True] + [False] * others
        assert len(set(rows.tolist())) == len(rows)
    times = np.bincount(np.concatenate(batches), minlength=pool.size)
    if run_out == "stop":
        assert len(batches) == min(positives, negatives // others)
        assert times.max() == 1
        return
    for side in (pool.labels >= 3, pool.labels < 3):  # nobody a third time before everybody the second time
        assert times[side].max() - times[side].min() <= 1
        assert run_out == "as_shuffled" or times[side].min() >= 1
    shuffled = Shuffled(pool, 1 + others).batches
    assert len(batches) == (max(positives, -(-negatives // others)) if run_out == "repeat" else shuffled)


@pytest.mark.parametrize("iterations", ["largest", "smallest", "2x"])
def test_as_shuffled_an_epoch_has_the_steps_of_shuffled_batches(iterations: str) -> None:
    """The labels are Quora's, 37 of 100 positive: a pass that stops would be 28 % shorter."""
    pools, steps = {"para": positive_and_negative(370, 630), "sts": pool_of(960)}, []
    for options in ({}, {"run_out": "as_shuffled"}, {"run_out": "stop"}):
        given = {"composition": {"para": "one_positive"}, **options} if options else {}
        sampler = RoundRobin(batch_size=8, iterations=iterations, positive_from=3.0, **given)
        sampler.prepare(pools, generator=torch.Generator())
        steps.append((sampler.steps, sampler.streams["para"].batches))
    assert steps[0] == steps[1]
    assert steps[2][1] == pytest.approx(0.72 * steps[0][1])


@pytest.mark.parametrize(("positives", "negatives", "size"), [(0, 9, 3), (9, 0, 3), (9, 1, 3), (9, 9, 1)])
def test_one_positive_needs_both_sides(positives: int, negatives: int, size: int) -> None:
    message = f"Found {positives} with a label of at least 3 and {negatives} below; change batch_size or positive_from"
    with pytest.raises(DataError, match=message):
        OnePositive("sts", positive_and_negative(positives, negatives), size, positive_from=3, run_out="stop")


def hold_no_text_twice(batches: list[np.ndarray], texts: np.ndarray) -> bool:
    for rows in batches:
        times = Counter(text for row in rows for text in set(texts[row].tolist()))
        if max(times.values()) > 1:
            return False
    return True


@settings(max_examples=200)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 3),
    distinct=st.integers(1, 200),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_no_duplicates_keeps_every_row_and_repeats_no_text(
    rows: int, columns: int, distinct: int, size: int, seed: int
) -> None:
    """However often texts repeat – also where every row is the same – and with as many batches in every pass."""
    random = Generator(Philox(seed))
    texts = random.integers(-5, distinct, (rows, columns))
    composer = NoDuplicates(pool_of(rows, texts=texts), size)
    for _ in range(3):
        batches = composer.compose(random)
        assert len(batches) == composer.batches
        assert all(1 <= len(batch) <= size and batch.dtype == np.int64 for batch in batches)
        assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
        assert hold_no_text_twice(batches, texts)


@pytest.mark.parametrize("size", [8, 64])
def test_no_duplicates_fills_its_batches_where_it_can(size: int) -> None:
    """Each text in about six rows of 4000, so that most shuffled batches of 64 would hold one twice."""
    random = Generator(Philox(0))
    texts = random.integers(0, 1300, (4000, 2))
    plainly = Shuffled(pool_of(4000), size).compose(random)
    assert not hold_no_text_twice(plainly, texts)
    batches = NoDuplicates(pool_of(4000, texts=texts), size).compose(random)
    assert [len(rows) for rows in batches] == [len(rows) for rows in plainly]
    assert hold_no_text_twice(batches, texts)


# What tasks have for themselves


@over_all
def test_each_task_has_its_own_batches(kind: type[StepwiseSampler]) -> None:
    sampler = kind(
        batch_size={"para": 5, "nli": 4},
        composition={"para": "one_positive", "nli": "no_duplicates"},
        positive_from={"para": 1, "nli": 0},
        buckets=True,  # of the one task that is left
        iterations=40,
    )
    given = {"para": 60, "nli": 40, "sst": 90}
    data = pools(given)
    (groups,) = stage(sampler, given)
    assert {task for task, _ in Counter(tasks_of(groups)).items()} == set(given)
    for task, rows in (batch for group in groups for batch in group):
        labels, texts = data[task].labels, data[task].texts
        assert labels is not None
        if task == "para":
            assert labels[rows].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
        elif task == "nli":
            assert len(rows) == 4
            assert hold_no_text_twice([np.array(rows)], texts)
        else:
            assert len(rows) in (8, 90 % 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"buckets": True, "composition": "no_duplicates"},
            "which batches of composition 'no_duplicates'",
        ),
        ({"weights": "equal", "temperature": 2}, "temperature has no meaning with weights 'equal'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixed(**options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RoundRobin, {"composition": "one_positive", "run_out": "repeat", "batch_size": 3}),
        (Alternating, {"batch_size": 3, "iterations": "1.5x", "buckets": True}),
        (Ordered, {"composition": "no_duplicates", "iterations": 3}),
        (Sequential, {"batch_size": 3, "iterations": "0.5x", "buckets": True}),
        (Mixed, {"weights": "equal", "composition": "no_duplicates"}),
        (Mixed, {"temperature": 3, "iterations": 7, "buckets": True}),
        (Mixed, {"mix": "rows", "batch_size": 5, "weights": "equal"}),
    ],
    ids=str,
)
def test_the_kits_laws_hold_with_options_too(kind: type[StepwiseSampler], options: dict[str, Any]) -> None:
    check(kind, **options)


# In a run


def spec(sampler: Any, epochs: int = 2) -> dict[str, Any]:
    def task(which: str) -> dict[str, Any]:
        return {"data": {"name": "generated", "task": which, "size": 32, "dev_size": 16}}

    pair = {"head": {"name": "linear", "reads": "pair"}, "loss": "binary_cross_entropy"}
    return {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": task("sentiment"), "para": {**task("paraphrase"), **pair}},
        "stages": [{"epochs": epochs, "sampler": sampler}],
    }


def test_sequential_knows_how_many_epochs_the_run_has(tmp_path: Path) -> None:
    _, _, events = run_grid(tmp_path / "r", {"base": spec({"name": "sequential", "order": ["para", "sst"]})})
    trained = [list(event.facts["losses"]) for event in events if event.what == "epoch"]
    assert trained == [["para"], ["sst"]]


@pytest.mark.parametrize(
    ("sampler", "path", "message"),
    [
        ({"name": "ordered", "order": ["sst"]}, "order", "Missing: para."),
        ({"name": "sequential", "order": ["sst", "para", "sst"]}, "order", "a task once"),
        ({"name": "ordered", "order": ["sst", "para", "parra"]}, "order", "did you mean 'para'?"),
        ({"name": "mixed", "weights": {"parra": 2}}, "weights", "no task 'parra'; did you mean 'para'?"),
        ({"name": "mixed", "weights": {"para": 0}}, "weights", "above 0"),
        ({"name": "mixed", "batch_size": {"quora": 2}}, "batch_size", "no task 'quora'"),
        ({"name": "round_robin", "composition": {"sst": "shufled"}}, "composition", "'no_duplicates'"),
        *(
            ({"name": "round_robin", "iterations": wrong}, "iterations", f"Found '{wrong}'.")
            for wrong in ("x", "0x", "biggest", "-1x", "0.0x", "1.x", ".5x", "3x3x")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_options_are_found_before_anything_is_trained(sampler: Any, path: str, message: str) -> None:
    _, problems = load_catalogue().resolve_run(spec(sampler))
    assert [problem.path for problem in problems] == [f"stages.0.sampler.{path}"]
    assert message in problems[0].message
