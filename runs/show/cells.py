"""Cells as ``taskloom cells`` shows them: listed once, listed until they are done, or one in detail. No torch."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from taskloom.core.errors import count
from taskloom.core.work import LOG, open_log
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import IMPORTED
from taskloom.registry.results.wording import duration, format_reason, format_scores, memory
from taskloom.runs.analysis.cell_states import SHORT, STATES, CellState, counted, finite
from taskloom.runs.show.parts import Listing, Part, as_text
from taskloom.runs.show.progress import can_redraw
from taskloom.runs.show.render import listing
from taskloom.runs.show.visible import one_line, visible

#: The most lines of the log, and epochs, that are shown; JSON has all epochs.
LINES, EPOCHS = 20, 20
#: Seconds between two reads of the ledger, and after which watching ends if no cell is running.
LOOK, IDLE = 1.0, 30.0
#: The columns that fit on a terminal while cells are watched.
WATCHED = ("label", "seed", "status", "epochs", "overall", "worker", "reason")


def list_cells(states: Sequence[CellState]) -> Part:
    """List cells, a line each."""
    return _listing(map(_columns, states), ("worker", "driver", "reason", IMPORTED)) if states else "no cells"


def _columns(state: CellState) -> dict[str, object]:
    return {
        "cell": state.cell.id[:SHORT],
        "grid": state.grid,
        "label": state.label,
        "seed": state.seed,
        "status": state.state,
        "epochs": state.epochs,
        "overall": None if state.score is None else f"{state.score:.3f}",
        "seconds": None if state.seconds is None else f"{state.seconds:.1f}",
        "attempts": state.cell.attempts,
        "worker": state.worker,
        "driver": state.driver,
        "reason": format_reason(state.state, state.reason),
        IMPORTED: state.cell.imported,
    }


def watch_cells(
    look: Callable[[], list[CellState]],
    write: Callable[[Sequence[CellState]], str],
    say: Callable[[str], None],
    stream: TextIO,
    *,
    plain: bool = False,
    every: float = LOOK,
) -> None:
    """Show cells until none is running or planned, none has run for ``IDLE`` seconds, or Ctrl-C.

    A terminal is redrawn, and the whole listing printed at the end. Elsewhere, and if ``plain`` (JSON), the output of
    ``write`` is printed whenever a cell has changed.
    """
    live = None
    if can_redraw(stream) and not plain:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        live = Live(console=Console(file=stream), auto_refresh=False, transient=True)
    states, busy = look(), time.monotonic()
    active: set[str] = set()
    shown: object = None
    try:
        with live or nullcontext():
            while True:
                # A listing is printed again if one of these has changed; the seconds always have.
                progress = [
                    (state.cell.id, state.state, state.cell.epochs, state.cell.attempts, state.worker)
                    for state in states
                ]
                heading = f"{datetime.now():%Y-%m-%d %H:%M:%S}  {counted(states)}"
                if live:  # a terminal cuts off what does not fit: the most urgent cells first, and few columns
                    urgent = map(_columns, sorted(states, key=lambda state: STATES.index(state.state)))
                    rows = listing([[row[name] for name in WATCHED] for row in urgent], WATCHED)
                    live.update(Text(f"{heading}\n{rows}", no_wrap=True, overflow="ellipsis"), refresh=True)
                elif progress != shown:
                    shown = progress
                    say(write(states) if plain else f"{heading}\n{write(states)}\n")
                active = {state.state for state in states} & {"running", "planned"}
                if "running" in active:
                    busy = time.monotonic()
                if not active or time.monotonic() - busy > IDLE:
                    break
                time.sleep(every)
                states = look()
    except KeyboardInterrupt:
        pass
    if live:
        say(f"{write(states)}\n\n{counted(states)}")
    if active and not plain:
        say("The run continues." if "running" in active else "Cells are waiting, but no run is at work on them.")


def cell_json(ledger: Ledger, states: Sequence[CellState]) -> dict[str, Any]:
    """Return everything known of a cell as JSON values; ``states`` are its states by row of a grid, at least one."""
    first = states[0]
    return {
        **first.as_json(),
        "facts": first.cell.facts,
        "grids": [{"grid": state.grid, "label": state.label, "seed": state.seed} for state in states if state.grid],
        "attempts": [vars(attempt) for attempt in ledger.attempts(first.cell.id)],
        "stages": [vars(stage) for stage in ledger.stages(first.cell.id)],
        "epochs": [finite(vars(epoch)) for epoch in ledger.epochs(first.cell.id)],
        "log": str(log := ledger.folder / "cells" / first.cell.id / LOG),
        "log_end": _log_end(log),
    }


def describe_cell(ledger: Ledger, states: Sequence[CellState]) -> str:
    """Describe a cell in words: its specification, every attempt, its last epochs, and the end of its log."""
    state, cell = states[0], states[0].cell
    spec = cell.spec
    facts = [
        ("cell", cell.id),
        *(
            (("row" if row_state is state else ""), f"{row_state.grid}: {row_state.label}, seed {row_state.seed}")
            for row_state in states
        ),
        ("state", _state(state)),
        ("encoder", _component(spec.get("encoder", ""))),
        *((f"task {name}", ", ".join(map(_component, task.values()))) for name, task in spec.get("tasks", {}).items()),
        *((f"stage {number}", _options(stage)) for number, stage in enumerate(spec.get("stages", ()), start=1)),
        ("scores", format_scores(cell.scores)),
        ("took", "" if cell.seconds is None else duration(cell.seconds)),
        ("memory", "" if cell.peak_memory is None else f"{memory(cell.peak_memory)} at most"),
        ("device", cell.device),
        ("versions", ", ".join(f"{name} {version}" for name, version in cell.versions.items())),
    ]
    rows = [(name, one_line(text)) for name, text in facts if text]
    from tabulate import tabulate  # which takes long to import

    head = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=["left"])
    log = ledger.folder / "cells" / cell.id / LOG
    end = "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines)]) if (lines := _log_end(log)) else ""
    return "\n\n".join(filter(None, [head, _attempts(ledger, state), _epochs(ledger, cell.id), end]))


def _state(state: CellState) -> str:
    done, total = state.own_epochs
    text = f"{state.state}, {done} of {count(total, 'epoch')} done"
    text += f" (and {state.shared} shared with another cell)" if state.shared else ""
    text += f", on worker {state.worker or 'unknown'}, driver process {state.driver}" if state.driver else ""
    reason = format_reason(state.state, state.reason)
    return f"{text}: {reason}" if reason else text


def _component(component: Any) -> str:
    """``{"name": "minbert", "layers": 1}`` → ``minbert (layers 1)``."""
    if isinstance(component, list):
        return " and ".join(map(_component, component))
    if not isinstance(component, Mapping):
        return str(component)
    options = _options({key: option for key, option in component.items() if key != "name"})
    return " ".join(filter(None, [component.get("name", ""), f"({options})" if options else ""]))


def _options(options: Mapping[str, Any]) -> str:
    """Format options as names with their values; those that are not set are left out."""
    return ", ".join(f"{key} {_component(value)}" for key, value in options.items() if value not in (None, [], {}))


def _attempts(ledger: Ledger, state: CellState) -> str:
    now = "running" if state.state == "running" else "broken off"
    rows = [
        {
            "attempt": attempt.number,
            "began": attempt.began[:19].replace("T", " "),
            "ended": (attempt.ended or "")[:19].replace("T", " "),
            "how": attempt.how or now,
            "worker": attempt.worker,
            "micro_batch": attempt.micro_batch,
            "reason": attempt.reason,
        }
        for attempt in ledger.attempts(state.cell.id)
    ]
    return _table(rows, ("ended", "worker", "micro_batch", "reason"))


def _epochs(ledger: Ledger, cell: str) -> str:
    epochs = ledger.epochs(cell)
    earlier = f"({count(len(epochs) - EPOCHS, 'earlier epoch')})\n" if len(epochs) > EPOCHS else ""
    rows = [
        {
            "stage": epoch.stage + 1,
            "epoch": epoch.epoch,
            "after": None if epoch.seconds is None else duration(epoch.seconds),
            "train loss": format_scores(epoch.losses),
            "dev score": format_scores(epoch.scores),
        }
        for epoch in epochs[-EPOCHS:]
    ]
    return earlier + _table(rows, ("after", "train loss", "dev score"))


def _log_end(path: Path) -> list[str]:
    """Read the last lines of a cell's log file; of a progress bar only its last state."""
    try:
        with os.fdopen(
            open_log(path.parent, flags=os.O_RDONLY), encoding="utf-8", errors="replace", newline="\n"
        ) as file:
            lines = deque(file, LINES)
    except OSError:
        return []
    return [visible(line.rstrip("\r\n").rpartition("\r")[2].expandtabs()) for line in lines]


def _listing(rows: Iterable[Mapping[str, object]], optional: Sequence[str]) -> Listing:
    """List rows under the names of their columns; an ``optional`` column that is empty in all rows is left out."""
    rows = list(rows)
    names = [name for name in (rows[0] if rows else ()) if name not in optional or any(row[name] for row in rows)]
    return Listing([[row[name] for name in names] for row in rows], names)


def _table(rows: Iterable[Mapping[str, object]], optional: Sequence[str]) -> str:
    listed = _listing(rows, optional)
    return as_text([listed]) if listed.rows else ""
