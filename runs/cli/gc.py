"""``taskloom gc``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import say_answer
from taskloom.runs.cli.completion import CELL
from taskloom.runs.cli.options import json_option, keep_option, registry_option

if TYPE_CHECKING:
    from taskloom.registry.results.tensors import Keep


@click.command(short_help="Show what takes disk space in the registry, and remove what may go.")
@registry_option
@click.option("--dry-run", is_flag=True, help="Only show it.")
@keep_option
@click.option(
    "--cell", "cells", type=CELL, multiple=True, metavar="ID", help="Also this cell without a row; may be repeated."
)
@json_option
def gc(registry: Path, dry_run: bool, keep: "Keep", cells: tuple[str, ...], as_json: bool) -> None:
    """Show what takes disk space in the registry, and remove what may go.

    That is: tokenized texts, which are made again when they are needed; what stages handed on to other cells, once all
    cells are finished; and what killed processes left. With --keep it is also what a finished cell has of its weights
    beyond that. Scores, predictions, curves and logs always stay, so tables and reports do not change. A registry that
    a run is using is left alone.

    Cells that are no row of any grid, because a grid was edited or by accident, are listed and keep their weights and
    checkpoints until they are named with --cell. `taskloom explain ID` says which rows such a cell was.

    A cell without weights can no longer predict or be exported; with --keep heads it can if its encoder was not
    trained.

    \b
    Examples:
      taskloom gc --dry-run
      taskloom gc
      taskloom gc --keep none --dry-run
      taskloom gc --cell 3f0c9a --cell 51b2e0
    """
    answer = Registry(registry).collect(dry_run=dry_run, keep=keep, cells=cells)
    say_answer(answer, "json" if as_json else "plain")
