"""One cell from near: what it is, every attempt, every epoch, and the end of its log. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from taskloom.core.units import count, duration, figures, memory, out_of_memory
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.cell_states import CellState

LOG = "log.txt"
#: Lines of the log that are shown, and the bytes in which they are looked for.
LINES, BYTES = 20, 1 << 16
#: Epochs that are shown; the json form has them all.
EPOCHS = 20


def view_json(ledger: Ledger, places: Sequence[CellState]) -> dict[str, Any]:
    """Everything known of a cell; ``places`` are its rows in grids, at least one."""
    first = places[0]
    return {
        **first.as_json(),
        "facts": first.cell.facts,
        "grids": [{"grid": place.grid, "label": place.label, "seed": place.seed} for place in places if place.grid],
        "attempts": [vars(attempt) for attempt in ledger.attempts(first.cell.id)],
        "stages": [vars(stage) for stage in ledger.stages(first.cell.id)],
        "epochs": [_finite(vars(epoch)) for epoch in ledger.epochs(first.cell.id)],
        "log": str(log_path(ledger, first.cell.id)),
        "log_end": log_end(ledger, first.cell.id),
    }


def view_text(ledger: Ledger, places: Sequence[CellState]) -> str:
    """The same for people."""
    state, cell = places[0], places[0].cell
    facts = [
        ("cell", cell.id),
        *((("row" if place is state else ""), f"{place.grid}: {place.label}, seed {place.seed}") for place in places),
        ("state", _state(state)),
        *(("encoder" if name == "" else f"task {name}", text) for name, text in _parts(cell.spec)),
        *((f"stage {place}", _stage(stage)) for place, stage in enumerate(cell.spec.get("stages", ()), start=1)),
        ("scores", _figures(cell.scores)),
        ("took", "" if cell.seconds is None else duration(cell.seconds)),
        ("memory", "" if cell.peak_memory is None else f"{memory(cell.peak_memory)} at most"),
        ("device", cell.device or ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in cell.versions.items())),
    ]
    head = tabulate(
        [(name, _line(text)) for name, text in facts if text],
        tablefmt="plain",
        disable_numparse=True,
        colalign=["left"],
    )
    return "\n\n".join(filter(None, [head, _attempts(ledger, state), _epochs(ledger, cell.id), _log(ledger, cell.id)]))


def _state(state: CellState) -> str:
    done, total = state.own_epochs
    text = f"{state.state}, {count(done, 'epoch')} done of {total}"
    text += f" (and {state.shared} shared with another cell)" if state.shared else ""
    if state.driver is not None:
        text += f", on {state.worker or 'an unknown worker'}, driven by process {state.driver}"
    reason = out_of_memory(state.reason or "") if state.state == "oom" else state.reason
    return f"{text}: {reason}" if reason else text


def _parts(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The encoder, under the name "", and each task in a line."""
    parts = [("", _component(spec["encoder"]))] if "encoder" in spec else []
    for name, task in spec.get("tasks", {}).items():
        kinds = ("data", "head", "loss", "metric")
        parts.append((name, ", ".join(_component(task[kind]) for kind in kinds if kind in task)))
    return parts


def _component(value: Any) -> str:
    """``{"name": "minbert", "layers": 1}`` → ``minbert (layers 1)``; what is not set is left out."""
    if not isinstance(value, Mapping):
        return str(value)
    options = [f"{key} {_component(option)}" for key, option in value.items() if key != "name" and option is not None]
    name = str(value.get("name", ""))
    return f"{name} ({', '.join(options)})".strip() if options else name


def _stage(stage: Mapping[str, Any]) -> str:
    epochs = f"{count(stage.get('epochs', 0), 'epoch')} of {', '.join(stage.get('tasks') or ()) or 'every task'}"
    rest = [f"{key} {_component(value)}" for key, value in stage.items() if key not in ("epochs", "tasks") and value]
    return ", ".join([epochs, *rest])


def _attempts(ledger: Ledger, state: CellState) -> str:
    attempts = ledger.attempts(state.cell.id)
    if not attempts:
        return ""
    at_present = "goes on" if state.state == "running" else "broke off"
    rows = [
        (
            *(each.number, _moment(each.began), _moment(each.ended), each.how or at_present),
            *(each.worker, each.micro_batch, _line(each.reason or "")),
        )
        for each in attempts
    ]
    return _table(rows, ("attempt", "began", "ended", "how", "worker", "micro_batch", "reason"))


def _epochs(ledger: Ledger, cell: str) -> str:
    epochs = ledger.epochs(cell)
    rows = [
        (
            *(each.stage + 1, each.epoch, "" if each.seconds is None else duration(each.seconds)),
            *map(_figures, (each.losses, each.scores)),
        )
        for each in epochs[-EPOCHS:]
    ]
    if not rows:
        return ""
    earlier = f"({count(len(epochs) - EPOCHS, 'earlier epoch')})\n" if len(epochs) > EPOCHS else ""
    return earlier + _table(rows, ("stage", "epoch", "after", "train loss", "dev score"))


def _log(ledger: Ledger, cell: str) -> str:
    lines = log_end(ledger, cell)
    path = log_path(ledger, cell)
    head = f"the end of {path}:" if path.is_file() else "its last words:"
    return "\n".join([head, *(f"  {line}" for line in lines)]) if lines else ""


def log_path(ledger: Ledger, cell: str) -> Path:
    """Where a cell's log file is, if it has one."""
    return ledger.folder / "cells" / cell / LOG


def log_end(ledger: Ledger, cell: str) -> list[str]:
    """The last lines of a cell's log file, or what the ledger keeps of them; nothing in them moves a terminal."""
    try:
        with log_path(ledger, cell).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        text = ""
    lines = text.removesuffix("\n").split("\n") if text else []
    shown = [line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines[-LINES:]]
    return ["".join(sign if sign.isprintable() else "�" for sign in line) for line in shown]


def _figures(values: Mapping[str, float]) -> str:
    """Figures with the overall score at the end, or nothing."""
    return figures(dict(sorted(values.items(), key=lambda item: item[0] == "overall"))) if values else ""


def _moment(text: str | None) -> str:
    return "" if text is None else text[:19].replace("T", " ")


def _line(text: str) -> str:
    return " ".join(text.split())


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    """Rows under headers; a column that is empty in all rows is left out."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    kept = [place for place in range(len(headers)) if any(row[place] for row in cells)]
    return tabulate(
        [[row[place] for place in kept] for row in cells],
        headers=[headers[place] for place in kept],
        tablefmt="simple",
        disable_numparse=True,
    )


def _finite(value: Any) -> Any:
    """JSON has no NaN: a figure that is no number is null."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
