"""Helpers of the fault tests: a small grid, drivers as processes, seeded moments, and what "the same result" means."""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import table_of
from taskloom.runs.driver.drive import Outcome, run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.show.render import render

#: Seconds after which a test that waits has failed.
PATIENCE = 180.0

GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 128},
        "tasks": {
            "sst": {
                "data": {"name": "generated", "task": "sentiment", "size": 96, "dev_size": 16},
                "loss": {"name": "faulty"},
            },
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 96, "dev_size": 16},
                "head": "cosine",
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [
            {
                "sampler": {"name": "round_robin", "batch_size": 8},
                "combiner": "pcgrad",
                "optimizer": {"lr": 0.001},
                "schedule": {"name": "linear", "warmup": 3},
                "epochs": 4,
            }
        ],
        "score": {"train": 24, "test": True},
    },
    "axes": {"stages.0.optimizer.lr": [0.001, 0.002, 0.004]},
    "seeds": [5],
}


def until(condition: Callable[[], Any]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def write_grid(folder: Path, **changes: Any) -> Path:
    """The grid as a file; always of one name, so that its table is too."""
    path = folder / "grid.json"
    path.write_text(json.dumps({**GRID, **changes}))
    return path


def run_here(grid: Path, registry: Path, **options: Any) -> Outcome:
    """Run a grid in this process."""
    catalogue = load_catalogue()
    with Ledger.open(registry, create=True) as ledger:
        plan = make_plan(load_grid(str(grid)), catalogue, ledger)
        ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
        return run_plan(plan, catalogue, ledger, **options)


def result_of(registry: Path, grid: str = "grid") -> dict[str, Any]:
    """What two runs of one grid should have in common to the last bit: table, figures, weights, predictions."""
    with Ledger.open(registry, create=False) as ledger:
        record = ledger.grid(grid)
        table = table_of(Results(record, registry, epochs=ledger.epochs))
        rows = json.loads(render(table, "json"))["rows"]
        for row in rows:
            row["metrics"].pop("seconds")  # a matter of the machine
        result: dict[str, Any] = {"table": rows}
        for place in record.cells:
            cell, name = place.cell, f"{place.label}, seed {place.seed}"
            epochs = [replace(epoch, seconds=None) for epoch in ledger.epochs(cell.id)]
            result[name] = {"status": cell.status, "scores": cell.scores, "best": cell.best_epoch, "epochs": epochs}
            result[name] |= {"costs": cell.costs, "test": cell.test}
            files = [registry / "cells" / cell.id / "best" / "tensors.safetensors"]
            files += sorted((registry / "cells" / cell.id).glob("scores-*"))
            result[name]["files"] = {path.name: path.read_bytes() for path in files}
    return result


def assert_same(registry: Path, reference: dict[str, Any]) -> None:
    found = result_of(registry)
    assert found["table"] == reference["table"]
    for name, cell in reference.items():
        assert found[name] == cell, name


def moments(seed: int, count: int, last: int) -> list[int]:
    """Moments at which something happens: after so many events. Printed, so that a failure can be repeated."""
    chosen = sorted(random.Random(seed).sample(range(1, last + 1), count))
    print(f"seed {seed}: moments {chosen} of {last}")
    return chosen


class Hold:
    """Training that stands still: each process that trains waits in its step ``at`` until it is let go.

    So something can be done to a run at a moment that is known, however slow or fast the machine is. The loss
    ``faulty`` holds a process whose environment says so (:data:`variables`); the results do not depend on it.
    """

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at = folder, at
        folder.mkdir()
        self.variables = {"FAULTY_HOLD": str(folder), "FAULTY_AT": str(at)}

    @property
    def pids(self) -> list[int]:
        """The processes that stand still or stood still."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name != "open")

    def let_go(self) -> None:
        (self.folder / "open").touch()


class Driver:
    """``taskloom run`` in a process of its own that does not outlive the block; its lines on stderr are read at once.

    ``program`` may be another one than ``taskloom``.
    """

    def __init__(
        self,
        grid: Path,
        registry: Path,
        *options: str,
        hold: "Hold | None" = None,
        program: tuple[str, ...] = ("-m", "taskloom.runs.cli"),
        **variables: str,
    ) -> None:
        self.lines: list[str] = []
        self.held = hold
        self.process = subprocess.Popen(
            [sys.executable, *program, "run", str(grid), "--registry", str(registry), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, **variables, **(hold.variables if hold else {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def epochs(self) -> list[tuple[str, int]]:
        """The epochs that it told of: row and number."""
        found = (re.search(r"(\S+, seed \d+): epoch (\d+)/\d+  loss", line) for line in self.lines)
        return [(match[1], int(match[2])) for match in found if match]

    def wait_for(self, condition: Callable[[], Any]) -> bool:
        """Wait until something holds; false if the process ended first."""
        until(lambda: condition() or (self.process.poll() is not None and not self._reader.is_alive()))
        return bool(condition())

    def wait_for_line(self, words: str) -> None:
        assert self.wait_for(lambda: any(words in line for line in self.lines)), "\n".join([words, *self.lines])

    def wait_until_held(self, processes: int = 1) -> None:
        """Wait until that many processes stand still in their training."""
        hold = self.held
        assert hold is not None
        assert self.wait_for(lambda: len(hold.pids) >= processes), "\n".join(["nobody was held", *self.lines])
        print(f"held in step {hold.at}: {hold.pids}")

    def signal(self, number: int) -> None:
        print(f"sent {signal.Signals(number).name} to the driver after {len(self.epochs)} epochs")
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. Never a traceback."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        text = "\n".join(self.lines)
        assert "Traceback" not in text, text
        return code, out, text


#: Training steps of ``faulty`` in one epoch, one cell and all three cells of the grid.
EPOCH, CELL, ALL = 12, 48, 144

PLUGIN = """
import os, signal, time
from pathlib import Path
import torch
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

class Faulty(Loss):
    \"\"\"Cross-entropy that does something else at one of its steps.\"\"\"
    name, expects, separable = 'faulty', 'classes', True
    steps, broken = 0, False  # of this process
    def __init__(self, *, do: str = 'nothing', at: int = 3) -> None:
        super().__init__()
        self.do, self.at, self.step = do, at, 0
    def forward(self, prediction, target):
        self.step += self.training
        Faulty.steps += self.training
        if (folder := os.environ.get('FAULTY_HOLD')) and Faulty.steps == int(os.environ['FAULTY_AT']):
            Path(folder, str(os.getpid())).touch()
            while not Path(folder, 'open').exists():
                time.sleep(0.01)
        loss = cross_entropy(prediction.score, target)
        if self.do == 'memory' and len(target) > self.at:
            raise MemoryError(f'{len(target)} examples are too many')
        if Faulty.broken:
            raise torch.AcceleratorError('CUDA error: device-side assert triggered\\nas for all that comes after it')
        if self.step != self.at:
            return loss
        if self.do == 'device':
            Faulty.broken = True
            raise RuntimeError('CUDA error: an illegal memory access was encountered\\nand more')
        if self.do == 'raise':
            raise ZeroDivisionError('a defect of the plugin')
        if self.do == 'hang':
            time.sleep(600)
        if self.do == 'die':
            os.kill(os.getpid(), signal.SIGKILL)
        return loss * float('nan') if self.do == 'nan' else loss

@hookimpl
def taskloom_components():
    return [Faulty]
"""


@contextmanager
def plugin(site: Path) -> Iterator[None]:
    """The plugin with the loss ``faulty`` in this process, and in those that it starts."""
    info = site / "faulty-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[taskloom]\nfaulty = faulty_loss\n")
    (site / "faulty_loss.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        patch.syspath_prepend(str(site))
        load_catalogue.cache_clear()
        yield
    load_catalogue.cache_clear()


def faulty_rows(**rows: dict[str, Any]) -> dict[str, Any]:
    """A grid with one row for each way in which the loss is faulty."""
    loss = {"tasks.sst.loss": {"name": "faulty"}}
    cells = [{"label": label, "set": {"tasks.sst.loss": {"name": "faulty", **how}}} for label, how in rows.items()]
    return {"axes": {}, "cells": [{"label": "fine", "set": loss}, *cells]}


def workers_of(pid: int) -> list[int]:
    """The worker processes that a driver has started and that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"taskloom.plugins.engines.worker" in command and command[4] == b"%d" % pid and state not in "ZX":
                found.append(int(folder.name))
    return sorted(found)


def read_until(terminal: int, words: str) -> str:
    """What is shown, until these words are."""
    shown, end = "", time.monotonic() + PATIENCE
    while words not in shown:
        try:
            if select.select([terminal], [], [], end - time.monotonic())[0]:
                shown += os.read(terminal, 65536).decode(errors="replace")
                continue
        except (OSError, ValueError):  # nobody has the other side; too late
            pass
        raise AssertionError(f"{words!r} was never shown: {shown}")
    return shown
