"""Laws of samplers."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, get_args, get_type_hints

import numpy as np

from taskloom.core.errors import TaskloomError
from taskloom.core.sampler import Group, Pool, Sampler
from taskloom.core.testing.elsewhere import require_same_elsewhere
from taskloom.core.testing.law import REFUSALS, Subject, at_edges, generator, given, require, untouched_randomness
from taskloom.core.testing.states import through_json

#: Data sets of very different sizes, one of them a single row.
SIZES: tuple[dict[str, int], ...] = ({"one": 13}, {"small": 1, "large": 41, "middle": 18})
EPOCHS = 3
#: Epochs in which every row should have its turn.
MANY = 100
USES = get_args(get_type_hints(Sampler)["uses"])


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


def _sizes(subject: Subject) -> list[dict[str, int]]:
    """The data sets that the sampler takes; its options may name tasks, or ask for rows that some have not."""
    found, refused = [], []
    for sizes in SIZES:
        try:
            problems = [str(problem) for problem in subject.make().problems(list(sizes))]
            if not problems:
                _prepared(subject, sizes)
        except TaskloomError as error:
            problems = [str(error)]
        if problems:
            refused.append(f"{sizes} ({'; '.join(problems)})")
        else:
            found.append(sizes)
    require(bool(found) or subject.quick, f"it refuses all data sets: {'; '.join(refused)}")
    return found[-1:] if subject.quick else found


def _prepared(subject: Subject, sizes: dict[str, int], seed: int = 0) -> Sampler:
    sampler: Sampler = subject.make()
    sampler.prepare(pools(sizes), generator=generator(seed), epochs=EPOCHS)
    return sampler


def _plain(group: Group) -> list[tuple[str, list[int]]]:
    return [(batch.task, np.asarray(batch.rows).tolist()) for batch in group]


def _endless(sampler: Sampler) -> Iterator[Any]:
    """Epoch after epoch: groups in plain form, and a word where an epoch ends."""
    while True:
        for group in sampler.epoch():
            yield _plain(group)
        yield "the epoch ends"


@at_edges
def an_epoch_has_as_many_steps_as_it_says(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"):
            sampler = _prepared(subject, sizes)
            require(sampler.steps >= 1, f"an epoch should have at least one step. Found {sampler.steps}.")
            for epoch in range(1, EPOCHS + 1):
                found = sum(1 for _ in islice(sampler.epoch(), sampler.steps + 1))
                require(found == sampler.steps, f"epoch {epoch} gave {found} groups; steps says {sampler.steps}")


@at_edges
def groups_hold_rows_of_the_tasks(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"):
            sampler = _prepared(subject, sizes)
            for place, group in enumerate(g for _ in range(2) for g in sampler.epoch()):
                tasks = [batch.task for batch in group]
                require(bool(tasks) and set(tasks) <= set(sizes), f"group {place} has tasks {tasks}")
                require(len(set(tasks)) == len(tasks), f"group {place} has a task twice: {tasks}")
                for batch in group:
                    rows = batch.rows
                    form = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64 and rows.size > 0
                    require(form, f"rows should be a filled array of int64. Found {rows!r}.")
                    inside = rows.min() >= 0 and rows.max() < sizes[batch.task]
                    words = f"task {batch.task!r} has {sizes[batch.task]} rows; a batch asks for {rows.tolist()}"
                    require(inside, words)


@at_edges
def one_seed_gives_one_order(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"):
            runs = [_groups(subject, sizes) for _ in range(2)]
            place = next((k for k, (a, b) in enumerate(zip(*runs, strict=True)) if a != b), None)
            if place is not None:
                one, other = runs[0][place], runs[1][place]
                raise AssertionError(f"the same seed gives other groups: number {place} is {one}, then {other}")


def a_new_process_gives_the_same_order(subject: Subject) -> None:
    require_same_elsewhere(order_of, subject)


def order_of(subject: Subject) -> list[str]:
    """The groups of two epochs; of many tasks, if the options take them, since few may come in order by chance."""
    try:
        return [str(group) for group in _groups(subject, {f"task {place}": 5 + place for place in range(8)})]
    except REFUSALS:
        return [str(group) for sizes in _sizes(subject) for group in _groups(subject, sizes)]


def it_touches_no_global_random_state(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"), untouched_randomness():
            _groups(subject, sizes)


def _groups(subject: Subject, sizes: dict[str, int]) -> list[Any]:
    sampler = _prepared(subject, sizes, seed=5)
    return list(islice(_endless(sampler), 2 * sampler.steps))


def it_leaves_the_pools_as_they_are(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"):
            sampler: Sampler = subject.make()
            held = pools(sizes)
            sampler.prepare(held, generator=generator(), epochs=1)
            list(sampler.epoch())
            for (task, pool), fresh in zip(held.items(), pools(sizes).values(), strict=True):
                for part in ("labels", "lengths", "texts"):
                    same = np.array_equal(getattr(pool, part), getattr(fresh, part))
                    require(same, f"the {part} of {task!r} were written to")


def its_state_is_json(subject: Subject) -> None:
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}, state taken after 1 step"):
            sampler = _prepared(subject, sizes)
            next(iter(sampler.epoch()))
            through_json(sampler.state_dict())


def it_uses_the_rows_that_it_says(subject: Subject) -> None:
    """``uses``: "passes" gives each row once before any comes again, "every" gives each its turn, "some" may not."""
    for sizes in _sizes(subject):
        with given(f"data sets of {sizes}"):
            sampler: Sampler = subject.make()
            sampler.prepare(pools(sizes), generator=generator(), epochs=MANY)
            uses = getattr(sampler, "uses", "every")
            require(uses in USES, f"uses should be one of {', '.join(USES)}. Found {uses!r}.")
            given_rows = _rows(sampler, sizes) if uses != "some" else {}
            for task, rows in given_rows.items():
                if uses == "passes":
                    _require_passes(task, rows, sizes[task])
                missing = sorted(set(range(sizes[task])) - set(rows))
                words = (
                    f"rows {missing[:5]} of {task!r} have no turn in {MANY} epochs; if that is meant, say uses = 'some'"
                )
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


def _require_passes(task: str, rows: list[int], size: int) -> None:
    for start in range(0, len(rows), size):
        one = rows[start : start + size]
        twice = sorted(row for row in set(one) if one.count(row) > 1)
        words = f"pass {start // size + 1} over the {size} rows of {task!r} gives rows {twice[:5]} more than once"
        require(not twice, f"{words}, before others came; if that is meant, say uses = 'every'")


def any_state_goes_on_exactly(subject: Subject) -> None:
    """A state taken after any group, written as JSON, goes on in a sampler that was prepared with another seed.

    To the end of the stage: what is lost may show only in a later epoch.
    """
    for sizes in _sizes(subject):
        steps = _prepared(subject, sizes).steps
        whole = EPOCHS * (steps + 1)  # with the words where an epoch ends
        places = {0, 1, 2, steps // 2, steps - 1, steps, steps + 1, steps + 1 + steps // 2, 2 * steps, whole - 2}
        for after in sorted(places):
            with given(f"data sets of {sizes}, state taken after {after} steps"):
                first = _prepared(subject, sizes, seed=1)
                stream = _endless(first)
                for _ in islice(stream, after):
                    pass
                second = _prepared(subject, sizes, seed=2)
                second.load_state_dict(through_json(first.state_dict()))
                going_on = list(islice(stream, whole - after))
                resumed = list(islice(_endless(second), whole - after))
                _require_same(resumed, going_on)


def _require_same(resumed: list[Any], going_on: list[Any]) -> None:
    for place, (found, expected) in enumerate(zip(resumed, going_on, strict=True)):
        words = f"the resumed sampler gives other groups: number {place} after it is {found}, and not {expected}"
        require(found == expected, words)


LAWS = (
    an_epoch_has_as_many_steps_as_it_says,
    groups_hold_rows_of_the_tasks,
    it_uses_the_rows_that_it_says,
    one_seed_gives_one_order,
    a_new_process_gives_the_same_order,
    it_touches_no_global_random_state,
    it_leaves_the_pools_as_they_are,
    its_state_is_json,
    any_state_goes_on_exactly,
)
