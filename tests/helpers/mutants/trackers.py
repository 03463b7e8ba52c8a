"""Trackers that break a law."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutants.base import mutant

from taskloom.core import TrackedRun, Tracker


class Lists(Tracker):
    """Keeps what it is told in lists, by cell."""

    name = "lists"

    def __init__(self) -> None:
        self.runs: dict[str, list[Any]] = {}

    def run_started(self, run: TrackedRun) -> None:
        self.runs[run.cell] = []

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        self.runs[run.cell].append([facts["losses"], facts["metrics"]["pairs"]["margin"], run.epoch_number(facts)])

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        self.runs[run.cell].append(facts["best_epoch"])


def reads(method: str, look: Callable[[dict[str, Any]], Any]) -> Any:
    """One that looks into the facts of a call."""
    return mutant(Lists, f"reads in {method}", **{method: lambda self, run, facts: look(facts)})


def once_per_cell(self: Lists, run: Any) -> None:
    key = getattr(run, "cell", run)
    if key in self.runs:
        raise RuntimeError("this cell runs already")
    self.runs[key] = []


def leaving(self: Lists, run: TrackedRun, reason: str) -> None:
    raise SystemExit(reason)


def opening(self: Lists, folder: Path) -> None:
    self.runs["opened"] = []


def locking(self: Lists, folder: Path) -> None:
    (folder / "lock").open("x").close()


SOUND: list[tuple[Any, dict[str, Any]]] = [(Lists, {})]
MUTANTS = {
    "it takes every call of every run": [
        reads("epoch_ended", lambda facts: facts["dev"]["sst"]),
        reads("epoch_ended", lambda facts: sum(facts["metrics"].values())),
        reads("epoch_ended", lambda facts: min(facts["losses"].values())),
        reads("epoch_ended", lambda facts: facts["memory"] / 2**20),
        reads("run_finished", lambda facts: facts["memory"]),
        reads("run_finished", lambda facts: facts["scores"]["overall"]),
        mutant(Lists, "ends the program", run_failed=leaving),
        mutant(Lists, "takes a cell once", run_started=once_per_cell),
        mutant(
            Lists,
            "knows runs by their labels",
            run_started=lambda self, run: self.runs.__setitem__(run.label, []),
            epoch_ended=lambda self, run, facts: None,
            run_finished=lambda self, run, facts: self.runs.pop(run.label),
        ),
        mutant(Lists, "keeps one table", grid_finished=lambda self, grid, table: once_per_cell(self, grid)),
    ],
    "it may be closed at any time": [
        mutant(Lists, "closes what is not open", open=opening, close=lambda self: self.runs.pop("opened")),
        mutant(Lists, "closes twice", open=opening, close=lambda self: self.runs and self.runs.pop("opened")),
        mutant(Lists, "leaves a lock behind", open=locking),
    ],
}
