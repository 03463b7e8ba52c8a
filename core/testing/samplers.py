"""Laws of samplers."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from taskloom.core.sampler import Group, Pool, Sampler
from taskloom.core.testing.law import Subject, generator, given, require, untouched_randomness

#: Data sets of very different sizes, one of them a single row.
SIZES: tuple[dict[str, int], ...] = ({"one": 13}, {"small": 1, "large": 41, "middle": 18})


def pools(sizes: dict[str, int]) -> dict[str, Pool]:
    """Pools with labels, lengths and texts, so that any sampler finds what it looks at."""
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


def _prepared(subject: Subject, sizes: dict[str, int], seed: int = 0) -> Sampler:
    sampler: Sampler = subject.make()
    sampler.prepare(pools(sizes), generator=generator(seed))
    return sampler


def _plain(group: Group) -> list[tuple[str, list[int]]]:
    return [(batch.task, np.asarray(batch.rows).tolist()) for batch in group]


def _endless(sampler: Sampler) -> Iterator[Any]:
    """Epoch after epoch: groups in plain form, and a word where an epoch ends."""
    while True:
        for group in sampler.epoch():
            yield _plain(group)
        yield "the epoch ends"


def an_epoch_has_as_many_steps_as_it_says(subject: Subject) -> None:
    for sizes in SIZES:
        with given(f"data sets of {sizes}"):
            sampler = _prepared(subject, sizes)
            require(sampler.steps >= 1, f"an epoch should have at least one step. Found {sampler.steps}.")
            for epoch in (1, 2, 3):
                found = sum(1 for _ in islice(sampler.epoch(), sampler.steps + 1))
                require(found == sampler.steps, f"epoch {epoch} gave {found} groups; steps says {sampler.steps}")


def groups_hold_rows_of_the_tasks(subject: Subject) -> None:
    for sizes in SIZES:
        with given(f"data sets of {sizes}"):
            sampler = _prepared(subject, sizes)
            for group in (g for _ in range(2) for g in sampler.epoch()):
                tasks = [batch.task for batch in group]
                require(bool(tasks) and set(tasks) <= set(sizes), f"a group has tasks {tasks}")
                require(len(set(tasks)) == len(tasks), f"a group has a task twice: {tasks}")
                for batch in group:
                    rows = batch.rows
                    form = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64 and rows.size > 0
                    require(form, f"rows should be a filled array of int64. Found {rows!r}.")
                    inside = rows.min() >= 0 and rows.max() < sizes[batch.task]
                    require(
                        inside, f"task {batch.task!r} has {sizes[batch.task]} rows; a batch asks for {rows.tolist()}"
                    )


def one_seed_gives_one_order(subject: Subject) -> None:
    for sizes in SIZES:
        with given(f"data sets of {sizes}"), untouched_randomness():
            runs = []
            for _ in range(2):
                sampler = _prepared(subject, sizes, seed=5)
                runs.append(list(islice(_endless(sampler), 2 * sampler.steps)))
            require(runs[0] == runs[1], "the same seed gives other groups")


def any_state_goes_on_exactly(subject: Subject) -> None:
    """A state taken after any group, written as JSON, goes on in a sampler that was prepared with another seed."""
    for sizes in SIZES:
        steps = _prepared(subject, sizes).steps
        for after in sorted({0, 1, 2, steps // 2, steps - 1, steps, steps + 1, 2 * steps}):
            with given(f"data sets of {sizes}, state taken after {after} steps"):
                first = _prepared(subject, sizes, seed=1)
                stream = _endless(first)
                for _ in islice(stream, after):
                    pass
                state = json.loads(json.dumps(first.state_dict()))
                second = _prepared(subject, sizes, seed=2)
                second.load_state_dict(state)
                going_on = list(islice(stream, steps + 2))
                resumed = list(islice(_endless(second), steps + 2))
                require(resumed == going_on, "the resumed sampler gives other groups, or ends its epoch elsewhere")


LAWS = (
    an_epoch_has_as_many_steps_as_it_says,
    groups_hold_rows_of_the_tasks,
    one_seed_gives_one_order,
    any_state_goes_on_exactly,
)
