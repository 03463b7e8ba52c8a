"""Laws of samplers."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, get_args, get_type_hints

import numpy as np

from taskloom.core.errors import RequestError
from taskloom.core.sampler import Pool, Sampler
from taskloom.core.testing.general import law_of_repeating
from taskloom.core.testing.law import accepted, given, law, require, require_equal
from taskloom.core.testing.require import new_generator
from taskloom.core.testing.subjects import REFUSALS, Subject

#: Data sets of very different sizes, one of them a single row.
SIZES: tuple[dict[str, int], ...] = ({"one": 13}, {"small": 1, "large": 41, "middle": 18})
EPOCHS = 3
#: Epochs in which every row should have its turn.
MANY = 100
USES = get_args(get_type_hints(Sampler)["uses"])


def _pools(sizes: dict[str, int]) -> dict[str, Pool]:
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


def _sizes(subject: Subject) -> list[tuple[str, dict[str, int]]]:
    """The data sets that the sampler takes; its options may name tasks, or ask for rows that some do not have."""
    found = list(accepted(subject, ((f"data sets of {sizes}", sizes) for sizes in SIZES), partial(_prepared, subject)))
    return found[-1:] if subject.edge else found


def _prepared(subject: Subject, sizes: dict[str, int], seed: int = 0, epochs: int = EPOCHS) -> Sampler:
    sampler: Sampler = subject.make()
    if problems := sampler.problems(list(sizes)):
        raise RequestError(sampler.name, problems)
    sampler.prepare(_pools(sizes), generator=new_generator(seed), epochs=epochs)
    return sampler


def _endless(sampler: Sampler) -> Iterator[Any]:
    """Epoch after epoch: groups in plain form, and a word where an epoch ends."""
    while True:
        for group in sampler.epoch():
            yield [(batch.task, np.asarray(batch.rows).tolist()) for batch in group]
        yield "the epoch ends"


@law("sampler", cases=_sizes, at_edges=True)
def an_epoch_has_as_many_steps_as_it_says(subject: Subject, sizes: dict[str, int]) -> None:
    sampler = _prepared(subject, sizes)
    require(sampler.steps >= 1, f"an epoch should have at least one step. Found {sampler.steps}.")
    for epoch in range(1, EPOCHS + 1):
        found = sum(1 for _ in islice(sampler.epoch(), sampler.steps + 1))
        require(found == sampler.steps, f"epoch {epoch} gave {found} groups; steps says {sampler.steps}")


@law("sampler", cases=_sizes, at_edges=True)
def groups_hold_rows_of_the_tasks(subject: Subject, sizes: dict[str, int]) -> None:
    sampler = _prepared(subject, sizes)
    for place, group in enumerate(group for _ in range(2) for group in sampler.epoch()):
        tasks = [batch.task for batch in group]
        require(bool(tasks) and set(tasks) <= set(sizes), f"group {place} has tasks {tasks}")
        require(len(set(tasks)) == len(tasks), f"group {place} has a task twice: {tasks}")
        for batch in group:
            rows = batch.rows
            sound = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64 and rows.size > 0
            require(sound, f"rows should be a non-empty array of int64. Found {rows!r}.")
            inside = rows.min() >= 0 and rows.max() < sizes[batch.task]
            words = f"task {batch.task!r} has {sizes[batch.task]} rows; a batch asks for {rows.tolist()}"
            require(inside, words)


@law("sampler", cases=_sizes)
def it_uses_the_rows_that_it_says(subject: Subject, sizes: dict[str, int]) -> None:
    """``uses``: "passes" gives each row once before any comes again, "every" gives each its turn, "some" may not."""
    sampler = _prepared(subject, sizes, epochs=MANY)
    require(sampler.uses in USES, f"uses should be one of {', '.join(USES)}. Found {sampler.uses!r}.")
    for task, rows in _rows(sampler, sizes).items() if sampler.uses != "some" else ():
        size = sizes[task]
        for start in range(0, len(rows), size) if sampler.uses == "passes" else ():
            one = rows[start : start + size]
            twice = sorted(row for row in set(one) if one.count(row) > 1)
            words = f"pass {start // size + 1} over the {size} rows of {task!r} gives rows {twice[:5]} more than once"
            require(not twice, f"{words}; if that is intended, set uses = 'every'")
        missing = sorted(set(range(size)) - set(rows))
        words = f"rows {missing[:5]} of {task!r} have no turn in {MANY} epochs; if that is intended, set uses = 'some'"
        require(not missing, words)


def _rows(sampler: Sampler, sizes: dict[str, int]) -> dict[str, list[int]]:
    """The rows of each task in the order in which they are given: three epochs, and more until each had its turn."""
    found: dict[str, list[int]] = {task: [] for task in sizes}
    for epoch in range(MANY):
        if epoch >= EPOCHS and all(len(set(rows)) == sizes[task] for task, rows in found.items()):
            break
        for group in sampler.epoch():
            for batch in group:
                found[batch.task] += np.asarray(batch.rows).tolist()
    return found


@law("sampler", cases=_sizes, at_edges=True)
def it_leaves_the_pools_as_they_are(subject: Subject, sizes: dict[str, int]) -> None:
    pools, sampler = _pools(sizes), subject.make()
    sampler.prepare(pools, generator=new_generator(), epochs=EPOCHS)
    list(sampler.epoch())
    for (task, pool), fresh in zip(pools.items(), _pools(sizes).values(), strict=True):
        for part in ("labels", "lengths", "texts"):
            same = np.array_equal(getattr(pool, part), getattr(fresh, part))
            require(same, f"the {part} of {task!r} were written to")


def groups_of(sampler: Sampler) -> list[str]:
    """The groups of two epochs; of many tasks, too, where the options take them: few may come in order by chance."""
    lines: list[str] = []
    for sizes in (*SIZES, {f"task {place}": 5 + place for place in range(8)}):
        with suppress(*REFUSALS):
            sampler.prepare(_pools(sizes), generator=new_generator(5), epochs=EPOCHS)
            lines += map(str, islice(_endless(sampler), 2 * sampler.steps))
    return lines


law_of_repeating("sampler", groups_of)


@law("sampler", cases=_sizes)
def its_state_survives_saving(subject: Subject, sizes: dict[str, int]) -> None:
    """A state taken after any group, written as JSON, goes on in a sampler that was prepared with another seed.

    To the end of the stage: what is lost may show only in a later epoch.
    """
    steps = _prepared(subject, sizes).steps
    whole = EPOCHS * (steps + 1)  # with the words where an epoch ends
    places = {0, 1, 2, steps // 2, steps - 1, steps, steps + 1, steps + 1 + steps // 2, 2 * steps, whole - 2}
    for after in sorted(places):
        with given(f"state taken after {after} steps"):
            first, second = _prepared(subject, sizes, seed=1), _prepared(subject, sizes, seed=2)
            stream = _endless(first)
            for _ in islice(stream, after):
                pass
            second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
            expected = list(islice(stream, whole - after))
            found = list(islice(_endless(second), whole - after))
            require_equal(found, expected, "the resumed sampler gives other groups")
