"""Every event as a line of JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from taskloom.core import TrackedRun, Tracker

Key = tuple[Any, ...]


class JSONL(Tracker):
    """Appends a line of JSON to a file for every event, for programs of your own.

    Every line has ``what`` (``started``, ``epoch``, ``finished``, ``failed`` or ``table``) and ``grid``; those of a run
    also ``row``, ``seed`` and ``cell``, beside the facts that ``taskloom.core.Tracker`` describes. A number that is
    not finite is ``null``. Nothing is in the file twice.

    Options:
        path: the file; by default ``events.jsonl`` in the registry

    Siblings: ``tensorboard``, ``mlflow``, ``wandb`` and ``trackio`` draw curves.

    Example: ``taskloom run quickstart --tracker jsonl``
    """

    name = "jsonl"

    def __init__(self, *, path: str | None = None) -> None:
        self.path = path
        self._known: set[Key] = set()

    def open(self, folder: Path) -> None:
        self._file = Path(self.path).expanduser() if self.path else folder / "events.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a+", encoding="utf-8") as file:
            file.seek(0)
            self._known = {_key(json.loads(line)) for line in file}

    def run_started(self, run: TrackedRun) -> None:
        self._write("started", _tags(run), {"spec": run.spec})

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        self._write("epoch", _tags(run), facts)

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        self._write("finished", _tags(run), facts)

    def run_failed(self, run: TrackedRun, reason: str) -> None:
        self._write("failed", _tags(run), {"reason": reason})

    def grid_finished(self, grid: str, table: str) -> None:
        self._write("table", {"grid": grid}, {"table": table})

    def _write(self, event: str, tags: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        line = {"what": event, **tags, **facts}
        if _key(line) not in self._known:
            self._known.add(_key(line))
            with self._file.open("ab") as file:
                file.write(to_json(line, inf_nan_mode="null") + b"\n")


def _tags(run: TrackedRun) -> dict[str, Any]:
    return {**run.tags, "seed": run.seed}  # a number here


def _key(line: Mapping[str, Any]) -> Key:
    """The fields by which two lines are the same; an epoch that is reported again may lack its memory."""
    return tuple(line.get(name) for name in ("what", "grid", "cell", "stage", "epoch", "reason", "table"))
