"""The drive loop with work that takes no time: order, shared stages, other drivers, bounds; and ``run``'s flags."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from driven import Run, record
from faults import faulty_rows, workers_of, write_grid

from taskloom.core import Event, Job, RegistryError
from taskloom.plugins.engines.local import Local
from taskloom.registry.results import file
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.driver.signals import Stop


@pytest.fixture(autouse=True)
def _workers_find_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "helpers"), prepend=":")


def jobs_of(ledger: Ledger, **dos: str | tuple[str, ...]) -> list[Job]:
    """Recorded cells: name → what it does, and its stage keys."""
    jobs = []
    for name, do in dos.items():
        what, *keys = [do] if isinstance(do, str) else do
        jobs.append(Job(name, name, 0, {"do": what}, str(ledger.folder), tuple(keys)))
    return record(ledger, jobs)


def test_cells_that_share_a_stage_wait_for_it_once(ledger: Ledger) -> None:
    jobs = jobs_of(ledger, first=("wait", "k"), second=("fine", "k"), other=("fine", "l"), third=("fine", "k"))
    run = Run(ledger, jobs, Local(workers=2, devices="cpu", threads=1))

    def react(event: Event) -> None:
        if event.what == "finished" and event.cell == "other":
            assert not {"second started", "third started"} & set(run.reported("started")), "somebody did not wait"
            (ledger.folder / "stages" / "k" / "result").mkdir(parents=True)  # the first has computed it and goes on
        if event.what == "finished" and event.cell == "third":
            run.engine.stop("first")

    run.react = react
    outcome = run()
    assert (outcome.finished, outcome.interrupted) == (3, 1)
    assert run.reported("finished", "interrupted")[-1] == "first interrupted"


def test_when_the_one_that_computes_a_stage_fails_the_next_takes_over(ledger: Ledger) -> None:
    jobs = jobs_of(ledger, first=("raise", "k"), second=("fine", "k"))
    run = Run(ledger, jobs, Local(workers=2, devices="cpu", threads=1))
    outcome = run()
    assert (outcome.finished, outcome.failed) == (1, 1)
    assert outcome.reasons == {"first": "ValueError: a plugin's defect"}
    assert run.reported("started", "failed") == ["first started", "first failed", "second started"]
    assert "in work" in (ledger.folder / "cells" / "first" / "log.txt").read_text(), "the traceback is in the log"


@pytest.mark.parametrize("how", ["computes it", "dies"])
def test_a_stage_that_another_driver_computes_is_waited_for(ledger: Ledger, how: str) -> None:
    jobs = jobs_of(ledger, theirs=("fine", "k"), mine=("fine", "k"), too=("fine", "k"), other=("fine", "l"))
    script = (
        "import sys, time; from pathlib import Path; from taskloom.registry.results.locks import Claims\n"
        "claims = Claims(Path(sys.argv[1])); print(claims.claim('theirs', ['k']), flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ledger.folder)], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "True\n"
        run = Run(ledger, jobs[1:])

        def react(event: Event) -> None:
            if event.cell == "other" and event.what == "finished":
                assert run.reported("started") == ["other started"], "somebody did not wait"
                if how == "dies":
                    driver.kill()
                else:  # and goes on with its next stage
                    (ledger.folder / "stages" / "k" / "result").mkdir(parents=True)

        run.react = react
        try:
            assert run().finished == 3
        finally:
            driver.kill()
    assert run.reported("started")[0] == "other started"
    assert sorted(run.reported("started")[1:]) == ["mine started", "too started"]


def test_what_is_silent_is_stopped_and_tried_a_bounded_number_of_times(ledger: Ledger) -> None:
    local = Local(workers=1, devices="cpu", threads=1)
    run = Run(ledger, jobs_of(ledger, hangs="hang", fine="fine"), local, attempts=3, timeout=1.0)
    outcome = run()
    assert (outcome.finished, outcome.failed) == (1, 1)
    assert outcome.reasons["hangs"] == "lost its worker 3 times: no progress for 1 s (--timeout)"
    attempts = ledger.attempts("hangs")
    assert [attempt.how for attempt in attempts] == ["lost", "lost", "failed"]
    again = [event.facts for event in run.events if event.what == "lost"]
    assert [(facts["attempt"], facts["attempts"], facts["again"]) for facts in again] == [(2, 3, True), (3, 3, True)]


def test_stopping_begins_nothing_and_counts_what_is_left(ledger: Ledger) -> None:
    said: list[str] = []
    stop = Stop(said.append)
    run = Run(ledger, jobs_of(ledger, first="wait", second="fine", third="fine"), stop=stop)
    run.react = lambda event: stop() if event.what == "started" else None
    outcome = run()
    assert run.reported("started", "interrupted") == ["first started", "first interrupted"]
    assert (outcome.finished, outcome.interrupted) == (0, 3)
    assert [text.partition(":")[0] for text in said] == ["Stopping"]
    assert ledger.states() == {"first": "interrupted"}


def test_a_ledger_that_cannot_be_written_ends_the_run_and_its_cells(ledger: Ledger) -> None:
    run = Run(ledger, jobs_of(ledger, first="wait", second="wait"), Local(workers=2, devices="cpu", threads=1))

    def react(event: Event) -> None:
        if len(run.reported("started")) == 2:
            raise RegistryError("the disk is full")

    run.react = react
    with pytest.raises(RegistryError, match="the disk is full"):
        run()
    assert workers_of(os.getpid()) == []


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--engine", "inline", "--workers", "2"], "no option 'workers' of engine 'inline'"),
        (["--engine", "local", "--address", "auto"], "no option 'address' of engine 'local'"),
        (["--engine", "local", "--devices", "cuda:93"], "there is no cuda:93 on this machine"),
        (["--engine", "local", "--devices", "tpu"], "devices: should be auto, cpu, cpu:N"),
        (["--engine", "local", "--devices", "cpu:100000"], "devices: should be at most"),
        (["--engine", "local", "--devices", "cpu:" + "9" * 5000], "devices: should be auto, cpu, cpu:N"),
        (["--engine", "local", "--workers", "100000"], "workers: should be at most"),
        (["--engine", "lokal"], "no engine 'lokal'; did you mean 'local'?"),
        (["--engine", '{"name": "local", "wrokers": 2}'], "did you mean 'workers'"),
        (["--engine", "{"], "JSON object"),
        (["--workers", "0"], "--workers"),
        (["--timeout", "0"], "--timeout"),
        (["--attempts", "0"], "--attempts"),
    ],
)
def test_impossible_flags_are_refused_before_anything_is_made(flags: list[str], message: str, tmp_path: Path) -> None:
    answer = invoke(write_grid(tmp_path), "--registry", tmp_path / "registry", *flags)
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "registry").exists()


def test_a_locked_ledger_is_not_a_wrong_request(faulty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, registry = write_grid(tmp_path), tmp_path / "registry"
    monkeypatch.setattr(file, "TIMEOUT", 0.3)
    monkeypatch.setattr(sys, "argv", ["taskloom", "run", str(grid)])
    Ledger.open(registry, create=True).close()
    with closing(sqlite3.connect(registry / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = invoke(grid, "--registry", registry, "--engine", "inline")
    assert answer.exit_code == 1
    assert "is locked: another process holds it" in answer.stderr
    assert answer.stderr.rstrip().endswith(f"taskloom run {grid}")
    assert "Traceback" not in answer.stderr


def test_the_end_names_the_failures(faulty: None, tmp_path: Path) -> None:
    grid = write_grid(tmp_path, **faulty_rows(raises={"do": "raise"}))
    options = ["--registry", tmp_path / "registry", "--engine", "inline", "--format", "json"]
    answer = invoke(grid, *options)
    assert answer.exit_code == 1
    assert [row["n"] for row in json.loads(answer.stdout)["rows"]] == [1, 0]
    assert "1 of 2 cells did not succeed" in answer.stderr
    assert "ZeroDivisionError: a defect of the plugin" in answer.stderr
