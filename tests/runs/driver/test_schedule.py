"""Which cell is next: pure functions of jobs, durations and stages."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Job
from taskloom.runs.driver.schedule import Durations, Order, longest_first, next_job


def job(cell: str, *stages: str, seed: int = 0, **spec: Any) -> Job:
    return Job(cell, cell, seed, {"seed": seed, **spec}, "", tuple(stages))


def names(jobs: list[Job]) -> str:
    return "".join(one.cell for one in jobs)


def test_longest_first_once_durations_are_known() -> None:
    durations = Durations()
    jobs = [job("a", x=1), job("b", x=2), job("c", x=3), job("d", x=2, seed=7)]
    assert names(longest_first(jobs, durations)) == "abcd", "nothing is known: the plan's order"
    durations.learn({"seed": 5, "x": 1}, 1.0)
    durations.learn({"seed": 5, "x": 2}, 9.0)
    assert [durations.expected(one.cell, one.spec) for one in jobs] == [1.0, 9.0, 5.0, 9.0], (
        "c has no like but of its size"
    )
    assert names(longest_first(jobs, durations)) == "bdca"
    durations.learn({"seed": 6, "x": 2}, None)
    assert durations.expected(jobs[1].cell, jobs[1].spec) == 9.0


def test_of_which_nothing_is_known_counts_as_the_mean() -> None:
    durations = Durations()
    jobs = [job("a", encoder="small"), job("b", encoder="unknown"), job("c", encoder="large")]
    durations.learn(jobs[0].spec, 1.0)
    durations.learn(jobs[2].spec, 9.0)
    assert durations.expected(jobs[1].cell, jobs[1].spec) is None
    assert names(longest_first(jobs, durations)) == "cba"


def test_cells_of_one_size_inform_each_other() -> None:
    stage = {"tasks": ["sst"], "epochs": 3, "frozen": False}
    base = {"encoder": {"name": "minbert"}, "tasks": {"sst": {"data": "generated"}}, "stages": [stage]}
    slower = {**base, "stages": [{**stage, "epochs": 30}]}
    durations = Durations()
    durations.learn({**base, "overall": "mean", "seed": 1}, 4.0)
    assert durations.expected("a", job("a", **base).spec) == 4.0
    assert durations.expected("b", job("b", **slower).spec) is None


def test_cells_that_share_a_stage_wait_for_it_once() -> None:
    first, second, other = job("a", "k"), job("b", "k"), job("c", "l")
    nothing: set[str] = set()
    assert next_job([first, second, other], [], nothing.__contains__) is first
    assert next_job([second, other], [first], nothing.__contains__) is other
    assert next_job([second], [first, other], nothing.__contains__) is None
    assert next_job([second], [first, other], {"k"}.__contains__) is second
    assert next_job([second], [other], nothing.__contains__) is second, "the one that computed it has failed"


def test_only_the_first_stage_that_lacks_counts() -> None:
    ahead = job("a", "k1", "k2")
    waiting = job("b", "k1", "other")
    assert next_job([waiting], [ahead], {"k1"}.__contains__) is waiting
    same = job("c", "k1", "k2")
    assert next_job([same], [ahead], {"k1"}.__contains__) is None
    assert next_job([same], [ahead], {"k1", "k2"}.__contains__) is same


@given(st.lists(st.lists(st.sampled_from("klm"), max_size=2), min_size=1, max_size=8), st.integers(1, 4))
def test_every_cell_runs_and_no_stage_is_computed_twice_at_once(stages: list[list[str]], slots: int) -> None:
    waiting = [job(str(place), *keys) for place, keys in enumerate(stages)]
    total, ran, running, done = len(waiting), 0, list[Job](), set[str]()
    while waiting or running:
        while len(running) < slots and (found := next_job(waiting, running, done.__contains__)):
            lacking = next((key for key in found.stage_keys if key not in done), None)
            assert all(lacking not in set(other.stage_keys) - done for other in running)
            waiting.remove(found)
            running.append(found)
        assert running, "everybody waits for somebody"
        ended = running.pop(0)
        done |= set(ended.stage_keys)
        ran += 1
    assert ran == total


def test_what_ends_changes_the_order_of_the_rest() -> None:
    durations = Durations()
    order = Order([job("a", x=1), job("b", x=2), job("c", x=3)], durations)
    nothing: set[str] = set()
    assert order.take([], nothing.__contains__) == job("a", x=1)
    durations.learn({"seed": 5, "x": 2}, 1.0)
    durations.learn({"seed": 5, "x": 3}, 9.0)
    order.learn()
    assert order.take([], nothing.__contains__) == job("c", x=3)
    order.add(job("d", x=3))
    assert list(map(str, order.pending)) == ["b", "d"]
    assert order.take([], nothing.__contains__) == job("d", x=3)
    assert order.take([], nothing.__contains__) == job("b", x=2)
    assert order.take([], nothing.__contains__) is None


def test_a_cell_of_a_large_grid_costs_no_more_than_one_of_a_small_one() -> None:
    def looks_per_cell(count: int) -> tuple[float, float]:
        sorts, looks, durations = 0, 0, Durations()

        class Counted(Durations):
            def expected(self, cell: str, spec: Mapping[str, Any]) -> float | None:
                nonlocal sorts
                sorts += 1
                return durations.expected(cell, spec)

        def is_done(key: str) -> bool:
            nonlocal looks
            looks += 1
            return False

        order = Order([job(str(place), "k", x=place % 7) for place in range(count)], Counted())
        first = order.take([], is_done)
        assert first is not None
        assert order.take([first], is_done) is None, "all wait for it"
        taken = 1
        while order.take([], is_done):
            order.learn()
            taken += 1
        assert taken == count
        return sorts / count, looks / count

    small, large = looks_per_cell(200), looks_per_cell(4000)
    assert large[1] <= small[1] + 1, "the disk is asked again and again"
    assert large[0] < 5 * small[0], f"{large[0]} against {small[0]} jobs are looked at for every cell"
