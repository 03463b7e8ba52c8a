"""``taskloom gc``."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import say, say_json
from taskloom.runs.cli.options import json_option, keep_option, registry_option
from taskloom.runs.driver.disk import WITHOUT_ROW, collect, items, without_row
from taskloom.runs.driver.wording import file_size
from taskloom.runs.show.render import listing

if TYPE_CHECKING:
    from taskloom.runs.training.checkpoint import Keep


@click.command(short_help="Show what takes disk space in the registry, and remove what may go.")
@registry_option
@click.option("--dry-run", is_flag=True, help="Only show it.")
@keep_option
@click.option("--cell", "cells", multiple=True, metavar="ID", help="Also this cell without a row; may be repeated.")
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
    with Ledger.open(registry, create=False) as ledger:
        named = without_row(ledger, cells)
        uses = items(ledger, keep, named)
        freed = 0 if dry_run else collect(ledger, keep, named)
    kinds = list(dict.fromkeys(use.what for use in uses))
    sums = {
        kind: [sum(getattr(use, key) for use in uses if use.what == kind) for key in ("bytes", "may_go")]
        for kind in kinds
    }
    rowless = Counter[str]()
    for use in uses:
        if use.what == WITHOUT_ROW:
            rowless[use.path.parent.name] += use.bytes
    total, may_go = (sum(column) for column in zip(*sums.values(), strict=True))
    if as_json:
        by_kind = {kind: {"bytes": size, "may_go": free} for kind, (size, free) in sums.items()}
        totals = {"bytes": total, "may_go": may_go, "freed": freed}
        say_json({"uses": by_kind, **totals, "without_row": dict(rowless)})
        return
    rows = sorted(sums.items(), key=lambda pair: -pair[1][0])
    say(listing([(kind, *map(file_size, pair)) for kind, pair in rows], ("what", "takes", "may go")))
    if rowless:
        listed = [(cell, file_size(size), "may go" if cell in named else "kept") for cell, size in rowless.items()]
        say(f"\n{listing(listed, ('cell without a row', 'takes', ''))}")
    took = f"{registry} {'takes' if dry_run else 'took'} {file_size(total)}"
    say(f"\n{took}; {file_size(may_go)} may go." if dry_run else f"\n{took}; {file_size(freed)} freed.")
