"""What becomes of a cell after an attempt: a pure function of how it ended and what was before."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Event, OutOfMemory
from taskloom.plugins.samplers.stepwise import BATCH_SIZE
from taskloom.runs.driver.verdict import UNNAMED, judge, largest_batch, next_micro_batch

SPEC: dict[str, Any] = {"stages": [{"sampler": {"name": "round_robin", "batch_size": 12}}]}


def event(what: str, **facts: Any) -> Event:
    return Event(what, "c", facts)


def test_what_succeeds_or_fails_by_itself_is_done() -> None:
    assert judge(event("finished"), [], SPEC).how == "finished"
    failed = judge(event("failed", reason="NaN"), [event("lost", reason="died")], SPEC)
    assert (failed.how, failed.reason, failed.halt) == ("failed", "NaN", False)
    assert judge(event("failed", reason="no room", disk_full=True), [], SPEC).halt
    assert judge(event("interrupted"), [], SPEC).how == "interrupted"
    assert judge(event("failed"), [], SPEC).reason == "no reason given"


@given(st.integers(1, 9))
def test_a_lost_worker_is_replaced_within_bounds(attempts: int) -> None:
    past: list[Event] = []
    for number in range(1, attempts + 1):
        lost = event("lost", reason=f"death {number}", micro_batch=3)
        verdict = judge(lost, past, SPEC, attempts=attempts)
        past.append(lost)
        assert verdict.how == ("again" if number < attempts else "failed")
        assert number == attempts or verdict.micro_batch == 3
    assert all(f"death {number}" in verdict.reason for number in range(1, attempts + 1)), "a reason is forgotten"


def test_a_cause_is_named_once_whatever_the_process() -> None:
    crashed = [f"worker process {pid} crashed (SIGALRM)" for pid in (797, 1480, 1502)]
    *past, last = [event("lost", reason=reason) for reason in crashed]
    assert judge(last, past, SPEC).reason == ("lost its worker 3 times: worker process crashed (SIGALRM)")


@given(st.integers(1, 500))
def test_memory_is_asked_for_in_halves_down_to_one_example(batch: int) -> None:
    tried = [batch]
    while (verdict := judge(event("oom", task="sst", micro_batch=tried[-1], reason="full"), [], SPEC)).how == "again":
        assert verdict.micro_batch == tried[-1] // 2
        tried.append(verdict.micro_batch)
    assert (verdict.how, tried[-1]) == ("oom", 1)
    assert verdict.reason == "out of memory even with one example at a time: full"
    said = str(OutOfMemory("sst", micro_batch=1, batch=8))
    verdict = judge(event("oom", task="sst", micro_batch=1, reason=said), [], SPEC)
    assert verdict.reason == "out of memory even with one example at a time: task 'sst' (batch 8)", "said once"


def test_out_of_memory_does_not_use_up_attempts() -> None:
    lost = event("lost", reason="died", micro_batch=2)
    past = [event("oom", micro_batch=8), event("oom", micro_batch=4), lost]
    assert judge(lost, past, SPEC, attempts=3).how == "again"
    assert judge(event("oom", micro_batch=2), [lost] * 5, SPEC, attempts=1).micro_batch == 1


@pytest.mark.parametrize(
    ("how", "micro_batch", "expected"),
    [("finished", None, None), ("lost", 6, 6), ("oom", None, 6), ("oom", 3, 1), ("oom", 1, None), (None, 4, 4)],
)
def test_a_later_driver_goes_on_with_what_fitted(
    how: str | None, micro_batch: int | None, expected: int | None
) -> None:
    assert next_micro_batch(how, micro_batch, SPEC) == expected


def test_the_largest_batch_of_a_run() -> None:
    assert largest_batch(SPEC) == 12
    assert largest_batch({"stages": [{"sampler": {"batch_size": {"sst": 4, "sts": 32}}}, *SPEC["stages"]]}) == 32
    assert largest_batch({"stages": [{"sampler": {"batch_size": 64}, "micro_batch": 16}]}) == 16
    assert largest_batch({}) == 1


def test_a_task_that_the_batch_size_does_not_name_counts_with_the_samplers_default() -> None:
    stage: dict[str, Any] = {"sampler": {"batch_size": {"sst": 1}}}
    assert UNNAMED == BATCH_SIZE
    assert largest_batch({"tasks": {"sst": {}, "sts": {}}, "stages": [stage]}) == BATCH_SIZE
    assert largest_batch({"tasks": {"sst": {}, "sts": {}}, "stages": [{**stage, "tasks": ["sst"]}]}) == 1
    assert largest_batch({"tasks": {"sst": {}, "sts": {}}, "stages": [{**stage, "micro_batch": 2}]}) == 2
