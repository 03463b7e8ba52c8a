"""``taskloom gc``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import say, say_json
from taskloom.runs.cli.options import json_option, keep_option, registry_option
from taskloom.runs.driver.disk import collect, items
from taskloom.runs.driver.wording import file_size
from taskloom.runs.show.render import listing

if TYPE_CHECKING:
    from taskloom.runs.training.checkpoint import Keep


@click.command(short_help="Show what takes disk space in the registry, and remove what may go.")
@registry_option
@click.option("--dry-run", is_flag=True, help="Only show it.")
@keep_option
@json_option
def gc(registry: Path, dry_run: bool, keep: "Keep", as_json: bool) -> None:
    """Show what takes disk space in the registry, and remove what may go.

    That is: tokenized texts, which are made again when they are needed; what stages handed on to other cells, once all
    cells are finished; weights and checkpoints of cells that no grid has any more; and what killed processes left.
    With --keep it is also what a finished cell has of its weights beyond that. Scores, predictions, curves and logs
    always stay, so tables and reports do not change. A registry that a run is using is left alone.

    A cell without weights can no longer predict or be exported; with --keep heads it can if its encoder was not
    trained.

    \b
    Examples:
      taskloom gc --dry-run
      taskloom gc
      taskloom gc --keep none --dry-run
    """
    with Ledger.open(registry, create=False) as ledger:
        found = items(ledger, keep)
        freed = 0 if dry_run else collect(ledger, keep)
    kinds = list(dict.fromkeys(item.what for item in found))
    sums = {
        what: [sum(getattr(item, key) for item in found if item.what == what) for key in ("bytes", "may_go")]
        for what in kinds
    }
    total, may_go = (sum(column) for column in zip(*sums.values(), strict=True))
    if as_json:
        uses = {what: {"bytes": taken, "may_go": free} for what, (taken, free) in sums.items()}
        say_json({"uses": uses, "bytes": total, "may_go": may_go, "freed": freed})
        return
    rows = sorted(sums.items(), key=lambda pair: -pair[1][0])
    say(listing([(what, *map(file_size, pair)) for what, pair in rows], ("what", "takes", "may go")))
    took = f"{registry} {'takes' if dry_run else 'took'} {file_size(total)}"
    say(f"\n{took}; {file_size(may_go)} may go." if dry_run else f"\n{took}; {file_size(freed)} freed.")
