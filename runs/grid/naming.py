"""The names under which a grid's tables are recorded: its own, a derived one, or that of --name."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import Problem, RequestError
from taskloom.core.specs import GridSpec
from taskloom.registry.installed.problems import read_spec
from taskloom.registry.results.records import SOURCE, TRIALS_OF, GridRecord
from taskloom.runs.grid.expansion import with_name
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.identity import digest
from taskloom.runs.grid.overrides import Overrides, recorded_overrides

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger

#: A smoke run is recorded under a name of its own.
SMOKE = "-smoke"
#: So is what a search tries.
TRIALS = "+trials"
#: Characters of a name before that, and of a digest in it.
LONGEST, DIGEST = 100 - len(SMOKE), 6


def table_for(
    grid: GridFile, request: Overrides, ledger: "Ledger | None"
) -> tuple[GridFile, Overrides, GridRecord | None]:
    """The grid under the name of the table that a request is about, all overrides of that table, and its last record.

    --weights, --epochs and --set make a table of its own, ``quickstart+lr=0.001``, unless --name names one. A table
    keeps its overrides; those of the request are added to them. A smoke run has a separate table and only one seed.
    """

    @cache  # a record is large
    def recorded(name: str) -> tuple[str, GridRecord | None]:
        """The name that a table of the grid has in the registry, and its record there."""
        if ledger is None:
            return name, None
        name = ledger.name_for(name, grid.source, grid.raw)
        return name, ledger.grid(name) if name in ledger.grid_names() else None

    name, record = recorded(grid.name)
    if record is not None and TRIALS_OF in record.spec:
        text = f"has the trials of {record.spec[TRIALS_OF]!r}; plan or run that grid, which runs its trials first"
        raise RequestError(name, [Problem("", text)])
    own = recorded_overrides(record)
    overrides = request.on_top_of(own)
    if not request.tuned and grid.spec.search is None:
        raise RequestError("--untuned", [Problem("", f"the grid {grid.name!r} has no search; leave it out")])
    if overrides.name is not None:
        _check_name(overrides.name, grid)
        names = [overrides.name]
    else:
        names = [grid.name] if overrides.has_same_runs(own) else derived_names(name, request)
    if overrides.smoke and not (own.smoke and names == [grid.name]):
        names = [f"{name[:LONGEST]}{SMOKE}" for name in names]
    for candidate in names:
        name, record = recorded(candidate)
        if overrides.name is not None and name != candidate:
            text = f"another grid is called {candidate!r} here; choose another name"
            raise RequestError("--name", [Problem("", text)])
        if record is None or overrides.has_same_runs(recorded_overrides(record)):
            break
    else:
        overrides = _continued(name, overrides, recorded_overrides(record))
    raw = {**grid.raw, **({SOURCE: grid.source} if grid.source else {})}
    spec = grid.spec.model_copy(update={"seeds": grid.spec.seeds[:1]}) if overrides.smoke else grid.spec
    return replace(grid, name=name, raw=raw, spec=spec), overrides, record


def trials_table(grid: GridFile, ledger: "Ledger | None") -> tuple[GridFile, GridRecord | None]:
    """The table of the trials of a named grid's search, and its record."""
    name = f"{grid.name}{TRIALS}"
    if len(name) > LONGEST:
        name = f"{grid.name[: LONGEST - len(TRIALS) - DIGEST - 1]}-{digest(grid.name)[:DIGEST]}{TRIALS}"
    record = ledger.grid(name) if ledger is not None and name in ledger.grid_names() else None
    if record is not None and record.spec.get(TRIALS_OF) != grid.name:
        text = (
            f"another grid is called {name!r}, which the trials of its search would be; give one of them another name"
        )
        raise RequestError(grid.name, [Problem("search", text)])
    return replace(grid, name=name, raw={**grid.raw, TRIALS_OF: grid.name}), record


def derived_names(base: str, overrides: Overrides) -> list[str]:
    """Names for the table of a grid under overrides, in order of preference: the second is unique.

    >>> derived_names("quickstart", Overrides(epochs=1, settings={"stages.0.optimizer.lr": 0.001}))
    ['quickstart+max-epochs=1+lr=0.001', 'quickstart+max-epochs=1+lr=0.001-fc04c0']
    """
    settings = [] if overrides.epochs is None else [("max-epochs", overrides.epochs)]
    settings += overrides.ordered_settings
    short_values = [(path, _base_name(value)) for path, value in settings]
    parts = [re.sub("[^A-Za-z0-9._=-]+", "-", with_name(*setting)).strip("-") for setting in short_values]
    parts += [] if overrides.tuned else ["untuned"]
    short = "+".join([base, *parts])
    unique = f"{short[: LONGEST - DIGEST - 1]}-{digest([base, settings, *parts[len(settings) :]])[:DIGEST]}"
    return [short, unique] if len(short) <= LONGEST else [unique]


def _base_name(value: Any) -> Any:
    """The last part of a path, any other value as it is."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _check_name(name: str, grid: GridFile) -> None:
    """Raise an error if --name is no valid name for another table than the grid's own."""
    problems = read_spec(GridSpec, {**grid.raw, "name": name})[1]
    if name == grid.name:
        problems = [Problem("name", f"{name!r} is the grid's own name; leave it out, or choose another")]
    if wrong := [problem for problem in problems if problem.path == "name"]:
        raise RequestError("--name", [replace(problem, path="") for problem in wrong])


def _continued(name: str, overrides: Overrides, recorded: Overrides) -> Overrides:
    """The overrides of a table that was run before with those recorded; others are an error."""
    if overrides.changes_runs:
        text = f"{name!r} was run with {recorded.in_words or 'nothing laid over the grid'}"
        advice = "Give the same or none of it, or choose another name"
        raise RequestError("--name", [Problem("", f"{text}. {advice}. Found {overrides.in_words}.")])
    return overrides.on_top_of(recorded)
