"""What a run says at its end: which cells failed, why, where their logs are, and how to try them again."""

import os
import shlex
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from taskloom.core.units import count
from taskloom.registry.results.records import GridCell, GridRecord
from taskloom.runs.analysis.tables import HOLES, why_missing

LOG = "log.txt"
#: More reasons, more cells for one reason, more rows in the command: counted, or left out.
MOST_REASONS, MOST_NAMES, MOST_ROWS = 12, 4, 6


def failures_summary(
    record: GridRecord, arguments: Sequence[str], folder: Path, cells: Collection[str] | None = None
) -> str:
    """The failed cells of a grid by reason, with their logs and the command that tries them again; "" if none failed.

    ``arguments`` are those that ``taskloom run`` was given, ``folder`` is the registry, and ``cells`` are the
    identities that the run was about (all by default).
    """
    chosen = [place for place in record.cells if cells is None or place.cell.id in cells]
    failed: dict[str, list[GridCell]] = {}
    for place in chosen:
        if place.cell.status in HOLES:
            failed.setdefault(why_missing(place.cell), []).append(place)
    if not failed:
        return ""
    ids = {place.cell.id for places in failed.values() for place in places}
    lines = [f"{len(ids)} of {count(len({place.cell.id for place in chosen}), 'cell')} did not succeed:"]
    for why, places in list(failed.items())[:MOST_REASONS]:
        lines += [f"  {_names(places)}: {why}", *_logs(places, folder)]
    if len(failed) > MOST_REASONS:
        lines.append(f"  and {len(failed) - MOST_REASONS} more reasons: `taskloom cells {shlex.quote(record.name)}`")
    labels = list(dict.fromkeys(place.label for place in chosen if place.cell.id in ids))
    rows = [] if {place.label for place in chosen} == set(labels) else labels
    command = retry_command(arguments, rows, [place.label for place in record.cells])
    return "\n".join([*lines, "This tries them again:", f"  {command}"])


def retry_command(arguments: Sequence[str], labels: Sequence[str] = (), known: Sequence[str] = ()) -> str:
    """``taskloom run`` as it was given, for these rows, ready for a shell; ``known`` are all labels of the grid.

    A registry that came from the environment is named: the next shell may not have it.

    >>> retry_command(["grid.json", "--only", "*", "--no-retry", "--registry", "my runs"], ["it's"])
    'taskloom run grid.json --registry \\'my runs\\' --only \\'it\\'"\\'"\\'s\\''
    """
    if 0 < len(labels) <= MOST_ROWS:
        rows = [part for label in labels for part in ("--only", _pattern(label, known))]
        arguments = [*_without_rows(arguments), *rows]
    kept = [argument for argument in arguments if argument != "--no-retry"]
    registry = os.environ.get("TASKLOOM_REGISTRY")
    if registry and not any(argument.split("=")[0] == "--registry" for argument in kept):
        kept += ["--registry", registry]
    return shlex.join(["taskloom", "run", *kept])


def _without_rows(arguments: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--only" and not argument.startswith("--only="):
            kept.append(argument)
        skip = argument == "--only" and not skip
    return kept


def _pattern(label: str, known: Sequence[str]) -> str:
    """What ``--only`` takes for one label and no other."""
    fits = [other for other in known if other != label and fnmatchcase(other, label)]
    return escape(label) if fits else label


def _names(places: Sequence[GridCell]) -> str:
    """Rows with their seeds: ``sum, seeds 0 and 1; pcgrad, seed 0``."""
    seeds: dict[str, list[str]] = {}
    for place in places:
        seeds.setdefault(" ".join(place.label.split()), []).append(str(place.seed))
    names = [f"{label}, seed{'s' if len(each) > 1 else ''} {', '.join(each)}" for label, each in seeds.items()]
    rest = f"; and {len(names) - MOST_NAMES} more rows" if len(names) > MOST_NAMES else ""
    return "; ".join(names[:MOST_NAMES]) + rest


def _logs(places: Sequence[GridCell], folder: Path) -> list[str]:
    """Where the logs are that exist."""
    paths = [folder / "cells" / id / LOG for id in dict.fromkeys(place.cell.id for place in places)]
    found = [str(path) for path in paths if path.is_file()]
    rest = [f"    and {len(found) - MOST_NAMES} more logs"] if len(found) > MOST_NAMES else []
    return [f"    log: {path}" for path in found[:MOST_NAMES]] + rest
