"""Laws of samplers."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from taskloom.core.errors import RequestError
from taskloom.core.sampler import Pool, Sampler
from taskloom.core.testing.general import law_of_repeating
from taskloom.core.testing.law import accepted, given, law, require, require_equal
from taskloom.core.testing.require import new_generator
from taskloom.core.testing.specimens import REFUSALS, Specimen

#: Data sets of very different sizes, one of them a single row.
SIZES: tuple[dict[str, int], ...] = ({"one": 13}, {"small": 1, "large": 41, "middle": 18})
EPOCHS = 3
#: Epochs within which every row should be used.
MANY = 100


def _pools(sizes: dict[str, int]) -> dict[str, Pool]:
    """Pools with labels, lengths and texts, for samplers of all kinds."""
    random = np.random.Generator(np.random.Philox(0))
    return {
        task: Pool(
            size,
            labels=(np.arange(size) % 2).astype(np.float64),
            lengths=random.integers(3, 50, size),
            texts=random.integers(0, max(2, size // 2), (size, 2)),
        )
        for task, size in sizes.items()
    }


def _sizes(specimen: Specimen) -> list[tuple[str, dict[str, int]]]:
    """The data sets that the sampler accepts; its options may name tasks or require rows that some do not have."""
    named = ((f"data sets of {sizes}", sizes) for sizes in SIZES)
    cases = list(accepted(specimen, named, partial(_prepared, specimen)))
    return cases[-1:] if specimen.edge else cases


def _prepared(specimen: Specimen, sizes: dict[str, int], seed: int = 0, epochs: int = EPOCHS) -> Sampler:
    sampler: Sampler = specimen.make()
    if problems := sampler.problems(list(sizes)):
        raise RequestError(sampler.name, problems)
    sampler.prepare(_pools(sizes), generator=new_generator(seed), epochs=epochs)
    return sampler


def _endless(sampler: Sampler) -> Iterator[Any]:
    """The groups of one epoch after another as plain lists, with a marker where an epoch ends."""
    while True:
        for group in sampler.epoch():
            yield [(batch.task, np.asarray(batch.rows).tolist()) for batch in group]
        yield "the epoch ends"


@law("sampler", cases=_sizes, at_edges=True)
def an_epoch_has_as_many_steps_as_it_says(specimen: Specimen, sizes: dict[str, int]) -> None:
    sampler = _prepared(specimen, sizes)
    require(sampler.steps >= 1, f"an epoch should have at least one step. Found {sampler.steps}.")
    for epoch in range(1, EPOCHS + 1):
        groups = sum(1 for _ in islice(sampler.epoch(), sampler.steps + 1))
        require(groups == sampler.steps, f"epoch {epoch} gave {groups} groups; steps says {sampler.steps}")


@law("sampler", cases=_sizes, at_edges=True)
def groups_hold_rows_of_the_tasks(specimen: Specimen, sizes: dict[str, int]) -> None:
    sampler = _prepared(specimen, sizes)
    for number, group in enumerate(group for _ in range(2) for group in sampler.epoch()):
        tasks = [batch.task for batch in group]
        require(bool(tasks) and set(tasks) <= set(sizes), f"group {number} has tasks {tasks}")
        require(len(set(tasks)) == len(tasks), f"group {number} has a task twice: {tasks}")
        for batch in group:
            rows = batch.rows
            sound = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64 and rows.size > 0
            require(sound, f"rows should be a non-empty array of int64. Found {rows!r}.")
            inside = rows.min() >= 0 and rows.max() < sizes[batch.task]
            words = f"task {batch.task!r} has {sizes[batch.task]} rows; a batch asks for {rows.tolist()}"
            require(inside, words)


@law("sampler", cases=_sizes)
def every_row_has_its_turn(specimen: Specimen, sizes: dict[str, int]) -> None:
    sampler = _prepared(specimen, sizes, epochs=MANY)
    unused = {task: set(range(size)) for task, size in sizes.items()}
    for _ in range(MANY):
        for batch in (batch for group in sampler.epoch() for batch in group):
            unused[batch.task] -= set(np.asarray(batch.rows).tolist())
        if not any(unused.values()):
            return
    for task, rows in unused.items():
        require(not rows, f"rows {sorted(rows)[:5]} of {task!r} have no turn in {MANY} epochs")


@law("sampler", cases=_sizes, at_edges=True)
def it_leaves_the_pools_as_they_are(specimen: Specimen, sizes: dict[str, int]) -> None:
    pools, sampler = _pools(sizes), specimen.make()
    sampler.prepare(pools, generator=new_generator(), epochs=EPOCHS)
    list(sampler.epoch())
    for (task, pool), fresh in zip(pools.items(), _pools(sizes).values(), strict=True):
        for part in ("labels", "lengths", "texts"):
            same = np.array_equal(getattr(pool, part), getattr(fresh, part))
            require(same, f"the {part} of {task!r} were written to")


def groups_of(sampler: Sampler) -> list[str]:
    """The groups of two epochs; also of many tasks, where the options allow: few may come in order by chance."""
    lines: list[str] = []
    for sizes in (*SIZES, {f"task {k}": 5 + k for k in range(8)}):
        with suppress(*REFUSALS):
            sampler.prepare(_pools(sizes), generator=new_generator(5), epochs=EPOCHS)
            lines += map(str, islice(_endless(sampler), 2 * sampler.steps))
    return lines


law_of_repeating("sampler", groups_of)


@law("sampler", cases=_sizes)
def its_state_survives_saving(specimen: Specimen, sizes: dict[str, int]) -> None:
    """A sampler that was prepared with another seed continues from a state taken after any group, written as JSON.

    It is followed to the end of the stage, as a loss may show only in a later epoch.
    """
    steps = _prepared(specimen, sizes).steps
    whole = EPOCHS * (steps + 1)  # with the markers where an epoch ends
    moments = {0, 1, 2, steps // 2, steps - 1, steps, steps + 1, steps + 1 + steps // 2, 2 * steps, whole - 2}
    for after in sorted(moments):
        with given(f"state taken after {after} steps"):
            first, second = _prepared(specimen, sizes, seed=1), _prepared(specimen, sizes, seed=2)
            stream = _endless(first)
            for _ in islice(stream, after):
                pass
            second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
            expected = list(islice(stream, whole - after))
            resumed = list(islice(_endless(second), whole - after))
            require_equal(resumed, expected, "the resumed sampler gives other groups")
