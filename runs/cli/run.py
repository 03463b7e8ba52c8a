"""``taskloom run``."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import TaskloomError
from taskloom.runs.api.run import InterruptedRun
from taskloom.runs.cli.common import how_to_continue, is_strict, note, say_answer, valid_grid
from taskloom.runs.cli.completion import GRID
from taskloom.runs.cli.options import (
    engine_options,
    format_option,
    keep_option,
    plan_options,
    registry_option,
    tracker_option,
)
from taskloom.runs.driver.signals import INTERRUPTED, Stop

if TYPE_CHECKING:
    from taskloom.registry.results.tensors import Keep


@click.command(short_help="Run a grid and print its comparison table.")
@click.argument("grid", type=GRID)
@registry_option
@engine_options
@keep_option
@tracker_option
@click.option("--retry/--no-retry", default=True, show_default=True, help="Try failed cells again.")
@plan_options
@click.option("-q", "--quiet", is_flag=True, help="No notes and no progress: problems, failures and the table.")
@click.option("-v", "--verbose", is_flag=True, help="A line for every report of a cell, on a terminal, too.")
@format_option
@click.pass_context
def run(
    context: click.Context,
    /,
    grid: str,
    registry: Path,
    engine: dict[str, Any],
    trackers: tuple[dict[str, Any], ...],
    timeout: float | None,
    attempts: int,
    retry: bool,
    keep: "Keep",
    form: str,
    quiet: bool,
    verbose: bool,
    devices: str | None,
    threads: int | None,
    cells_per_gpu: int | None,
    address: str | None,
    workers: int | None,
    **planning: Any,
) -> None:
    """Run every cell of GRID that is not finished, then print the comparison table.

    GRID is the name of a packaged grid (see `taskloom grids`) or the path of a JSON file. All errors are reported
    before anything is trained. Progress goes to stderr and the table to stdout. Exits with 0 when every cell is
    finished, 1 when some cell failed, the ledger could not be written or the cluster is gone, 2 when the request was
    wrong, 130 when it was interrupted.

    Ctrl-C, SIGTERM or a closed terminal lets the running cells write a checkpoint; Ctrl-C twice ends at once. The
    same command continues from there. Several runs may share a registry, and a grid: each cell is run by one of them,
    and the others wait for it.

    --seeds adds seeds to those of the grid, which stay with it in this registry: later runs and tables have them, too.
    `taskloom seeds GRID` says how many are worth it.

    With --weights, --epochs or --set the run has a table of its own, named after what they change, such as
    quickstart+lr=0.001, or as --name says. Rows keep their labels, the baseline and claims hold, and later runs of that
    name have the same settings; cells that are the same in both tables are run once. With --only the other rows keep
    their place and their results; errors in what the grid says of them are reported, but their data need not be here. A
    smoke run is recorded as GRID-smoke. Two files of one name are two grids; the second is recorded as FOLDER/NAME.

    A grid with a `search` runs its trials first, recorded as GRID+trials, then its rows with the settings of their best
    trials. With --untuned its rows are run as they are written, in the table GRID+untuned.

    \b
    Examples:
      taskloom run quickstart
      taskloom run quickstart --seeds +3
      taskloom run quickstart --set stages.0.optimizer.lr=0.001
      taskloom run quickstart --only sum --set stages.0.optimizer.lr=0.001 --name slow
      taskloom run losing-to-win --smoke
      taskloom run finetuning-techniques --data ~/data --weights minilm --epochs 1 --only 'SMART*'
      taskloom run grid.json --registry results --workers 2
      taskloom run grid.json --devices cuda:0,cuda:1 --cells-per-gpu 2
      taskloom run grid.json --tracker tensorboard
      taskloom run grid.json --quiet --format csv > table.csv
      taskloom run grid.json --format github > table.md
    """
    if quiet and verbose:
        raise TaskloomError("--quiet and --verbose exclude each other")
    requested_grid = valid_grid(grid, registry, quiet=quiet, progress=not quiet)
    flags = {"devices": devices, "threads": threads, "cells_per_gpu": cells_per_gpu, "address": address}
    stop = Stop()
    try:
        run_result = requested_grid.run(
            engine=engine | {flag: setting for flag, setting in flags.items() if setting is not None},
            workers=workers,
            progress="lines" if verbose else not quiet,
            retry=retry,
            attempts=attempts,
            timeout=timeout,
            keep=keep,
            trackers=trackers,
            stop=stop,
            **planning,
        )
    except InterruptedRun as interrupted:
        note(interrupted)
        note(how_to_continue())
        if stop.asked > 1:  # a thread that does not listen must not hold up the end
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        context.exit(INTERRUPTED)
    say_answer(replace(run_result, notes=()) if quiet else run_result, form)
    if run_result.failures:
        note(run_result.failures)
    broken = run_result.untracked if is_strict() else ()
    for failure in broken:
        note(f"--strict-plugins: {failure}")
    context.exit(1 if run_result.outcome.failed or broken else 0)
