"""What becomes of a cell after an attempt: a pure function of how it ended and what was before."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Event, OutOfMemory
from taskloom.runs.driver.verdict import Verdict, judge, next_micro_batch


def event(what: str, **facts: Any) -> Event:
    return Event(what, "c", facts)


def test_what_succeeds_or_fails_by_itself_is_done() -> None:
    assert judge(event("finished"), []).how == "finished"
    failed = judge(event("failed", reason="NaN"), [event("lost", reason="died")])
    assert (failed.how, failed.reason, failed.halt) == ("failed", "NaN", False)
    assert judge(event("failed", reason="no room", disk_full=True), []).halt
    assert judge(event("interrupted"), []).how == "interrupted"
    assert judge(event("failed"), []).reason == "no reason given"


@given(st.integers(1, 9))
def test_a_lost_worker_is_replaced_within_bounds(attempts: int) -> None:
    past: list[Event] = []
    for number in range(1, attempts + 1):
        lost = event("lost", reason=f"death {number}", micro_batch=3)
        verdict = judge(lost, past, attempts=attempts)
        past.append(lost)
        assert verdict.how == ("again" if number < attempts else "failed")
        assert number == attempts or verdict.micro_batch == 3
    assert all(f"death {number}" in verdict.reason for number in range(1, attempts + 1)), "a reason is forgotten"


def test_a_cause_is_named_once_whatever_the_process() -> None:
    crashed = [f"worker process {pid} crashed (SIGALRM)" for pid in (797, 1480, 1502)]
    *past, last = [event("lost", reason=reason) for reason in crashed]
    assert judge(last, past).reason == ("lost its worker 3 times: worker process crashed (SIGALRM)")


@given(st.integers(1, 500))
def test_memory_is_asked_for_in_halves_down_to_one_example(batch: int) -> None:
    tried = [batch]
    while (verdict := judge(event("oom", task="sst", micro_batch=tried[-1], reason="full"), [])).how == "again":
        assert verdict.micro_batch == tried[-1] // 2
        tried.append(verdict.micro_batch)
    assert (verdict.how, tried[-1]) == ("oom", 1)
    assert verdict.reason == "out of memory even with one example at a time: full"
    said = str(OutOfMemory("sst", micro_batch=1, batch=8))
    verdict = judge(event("oom", task="sst", micro_batch=1, reason=said), [])
    assert verdict.reason == "out of memory even with one example at a time: task 'sst' (batch 8)", "said once"


def test_out_of_memory_does_not_use_up_attempts() -> None:
    lost = event("lost", reason="died", micro_batch=2)
    past = [event("oom", micro_batch=8), event("oom", micro_batch=4), lost]
    assert judge(lost, past, attempts=3).how == "again"
    assert judge(event("oom", micro_batch=2), [lost] * 5, attempts=1).micro_batch == 1


@pytest.mark.parametrize(
    ("how", "micro_batch", "expected"),
    [
        ("finished", None, None),
        ("lost", 6, 6),
        ("oom", None, None),
        ("oom", 12, 6),
        ("oom", 3, 1),
        ("oom", 1, None),
        (None, 4, 4),
    ],
)
def test_a_later_driver_goes_on_with_what_fitted(
    how: str | None, micro_batch: int | None, expected: int | None
) -> None:
    assert next_micro_batch(how, micro_batch) == expected


def test_memory_that_runs_out_before_the_first_step_is_no_matter_of_examples() -> None:
    full = [event("oom", reason=f"worker process {pid} was killed", micro_batch=None) for pid in (7, 8)]
    assert judge(full[0], []) == Verdict("again", "worker process 7 was killed", None)
    ended = judge(full[1], [full[0], event("oom", micro_batch=8)], attempts=2)
    assert (ended.how, ended.reason) == (
        "oom",
        "out of memory before its first step, tried 2 times: worker process was killed",
    )
