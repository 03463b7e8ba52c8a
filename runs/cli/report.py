"""``taskloom report`` and ``taskloom plot``: a grid's results as a page, and as figures for a paper."""

from dataclasses import replace
from pathlib import Path

import click

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import counted_look, note, recorded_grid, say
from taskloom.runs.cli.options import path_option, registry_option

KINDS = ("forest", "curves", "bars", "effects", "conflicts", "confusion")


@click.command(short_help="Write a grid's results as one HTML page.")
@click.argument("grid")
@registry_option
@path_option("-o", "--out", help="The page.", metavar="FILE", default="report.html")
def report(grid: str, registry: Path, out: Path) -> None:
    """Write the results of GRID as one HTML page that needs nothing else: no network, no library, no server.

    It has the differences of all rows to the baseline with verdicts in words, the table (sort it, filter it, choose
    another baseline), claims, effects, learning curves, margins and conflicts, scores by task beside published figures,
    errors, failures and the environment. Every number leads to its cells. It can be read with scripts off, printed,
    and on a phone.

    \b
    Examples:
      taskloom report quickstart
      taskloom report grid.json -o grid.html
    """
    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.report.page import render_report

    with Ledger.open(registry, create=False) as ledger:
        overview = overview_of(ledger, recorded_grid(ledger, grid))
        page = render_report(replace(overview, table=counted_look(ledger, overview.table)))
    _write(out, page.encode())
    say(f"{out} ({len(page.encode()) / 1000:.0f} kB)")


@click.command(short_help="Draw a figure of a grid's results for a paper.")
@click.argument("grid")
@registry_option
@click.option("--kind", type=click.Choice(KINDS), default="forest", show_default=True, help="What is drawn.")
@path_option("-o", "--out", help="A .pdf, .svg or .png file.", metavar="FILE", required=True)
def plot(grid: str, registry: Path, kind: str, out: Path) -> None:
    """Draw one figure of the results of GRID, as wide as a column of a paper, in colours that everybody can tell apart.

    \b
      forest     the difference of each row to the baseline, with its interval and verdict
      curves     scores over the epochs, dev and train
      bars       scores by task, with published figures
      effects    what each axis does
      conflicts  how often the gradients of two tasks disagree
      confusion  what the baseline predicted for what

    Needs matplotlib: pip install 'taskloom[plots]'.

    \b
    Examples:
      taskloom plot quickstart -o forest.pdf
      taskloom plot quickstart --kind curves -o curves.pdf
    """
    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.plots import draw

    with Ledger.open(registry, create=False) as ledger:
        overview = overview_of(ledger, recorded_grid(ledger, grid))
    if overview.baseline != (stated := overview.results.grid.spec.get("baseline")) and stated:
        note(f"{stated!r}, the grid's baseline, has no result; differences are to {overview.baseline!r}.")
    _write(out, draw(overview, kind, out.suffix))
    say(str(out))


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise TaskloomError(f"{path} cannot be written: {error.strerror}") from error
