"""``taskloom claims``, ``taskloom effects`` and ``taskloom seeds``: what a grid's results mean."""

from pathlib import Path

import click

from taskloom.core.errors import TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.claims import claims_of
from taskloom.runs.analysis.contrasts import judge
from taskloom.runs.analysis.effects import effects_of
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.cli.common import recorded_grid, say, say_json
from taskloom.runs.cli.options import json_option, registry_option
from taskloom.runs.show.differences import format_difference, format_p, judged_json
from taskloom.runs.show.findings import claims_json, effects_json, format_seeds, list_claims, list_effects, more_seeds
from taskloom.runs.show.render import listing


def finished_results(ledger: Ledger, source: str) -> Results:
    """The results of a grid, of which at least one cell is finished."""
    results = Results(recorded_grid(ledger, source), ledger.folder)
    if not results.finished:
        raise TaskloomError(f"no cell of {results.grid.name!r} is finished yet; `taskloom cells {source}` shows why")
    return results


@click.command(short_help="Answer the claims of a grid: holds, contradicted, equal or open.")
@click.argument("grid")
@registry_option
@json_option
def claims(grid: str, registry: Path, as_json: bool) -> None:
    """Answer the claims that GRID makes about its rows.

    A claim is written into the grid, at best before it is run:

    \b
      "claims": [
        {"says": "PCGrad beats the summed loss", "better": "pcgrad", "than": "sum", "on": "overall"},
        {"says": "dropout hardly matters", "equal": "dropout 0.3", "than": "sum", "within": 0.01}
      ]

    A claim holds or is contradicted if the difference, with the noise of seeds and of examples, is on one side of
    zero; it is open otherwise. Claims are judged together (Holm), so that many of them do not make one true by chance.

    \b
    Examples:
      taskloom claims quickstart
      taskloom claims grid.json --json | jq '.[] | select(.answer == "open") | .more_seeds'
    """
    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
        found = claims_of(results, ledger.claims(results.grid.name), results.grid.spec.get("margin"))
    if as_json:
        say_json(claims_json(found))
        return
    say(list_claims(found) if found else f"{results.grid.name} makes no claims; `taskloom claims --help` shows one")


@click.command(short_help="Show what each axis of a grid does, over matched rows.")
@click.argument("grid")
@registry_option
@click.option("--on", "column", default=OVERALL, show_default=True, metavar="COLUMN", help="A task, or overall.")
@json_option
def effects(grid: str, registry: Path, column: str, as_json: bool) -> None:
    """Show what each axis of GRID does to a score.

    The effect of a change is the mean over the pairs of rows that differ in nothing else. Interactions are differences
    of such differences; where one is not zero, the effects are shown for each level of the other axis. The axes of a
    grid of labelled cells are the paths that they set. What always moves together cannot be told apart, and is named.

    \b
    Examples:
      taskloom effects surgery.json
      taskloom effects surgery.json --on sts --json
    """
    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
    check_column(results, column)
    found = effects_of(results, column)
    if as_json:
        say_json(effects_json(found))
    else:
        say(list_effects(found))


@click.command(short_help="Say how many more seeds settle each open comparison.")
@click.argument("grid")
@registry_option
@click.option("--on", "column", default=OVERALL, show_default=True, metavar="COLUMN", help="A task, or overall.")
@click.option("--queue", is_flag=True, help="Let the next `taskloom run` of the grid add the seeds.")
@json_option
def seeds(grid: str, registry: Path, column: str, queue: bool, as_json: bool) -> None:
    """Say how many more seeds would settle each open comparison with the baseline, and each open claim.

    The number has a power of 80 % for a difference as large as the one found, and is planned with an upper limit of the
    noise: a few seeds often understate it. Some differences no number of seeds settles, because the dev set is too
    small for them. `taskloom run GRID --seeds +3` adds seeds.

    \b
    Examples:
      taskloom seeds quickstart
      taskloom seeds quickstart --queue && taskloom run quickstart
    """
    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
        check_column(results, column)
        spec = results.grid.spec
        baseline = spec.get("baseline")
        rows = [row for row in results.rows if row != baseline] if baseline in results.rows else []
        judged = dict(
            zip(
                rows,
                judge([results.difference(column, row, str(baseline)) for row in rows], spec.get("margin")),
                strict=True,
            )
        )
        found = {f"{row} − {baseline}": each for row, each in judged.items()}
        claimed = claims_of(results, ledger.claims(results.grid.name), spec.get("margin"))
        found |= {claim.says: claim.judged for claim in claimed if claim.answer == "open"}
        most = max((more_seeds(each) or 0 for each in found.values() if each.verdict == "open"), default=0)
        if queue and most:
            ledger.queue_seeds(results.grid.name, most)
    if not found:
        raise TaskloomError(f"{results.grid.name} has no baseline and no claims, so there is nothing to compare")
    if as_json:
        say_json(
            [
                {"comparison": name, **judged_json(each), "more_seeds": more_seeds(each), "says": format_seeds(each)}
                for name, each in found.items()
            ]
        )
        return
    say(
        listing(
            [
                (name, format_difference(each), format_p(each.p), each.contrast.seeds, each.verdict, format_seeds(each))
                for name, each in found.items()
            ],
            ("comparison", f"Δ {column}", "p", "seeds", "verdict", "to settle it"),
        )
    )
    if most:
        say(f"\n{_next_step(grid, most, queued=queue)}")


def _next_step(grid: str, most: int, *, queued: bool) -> str:
    if queued:
        return f"The next `taskloom run {grid}` adds {most} seeds."
    return f"`taskloom run {grid} --seeds +{most}` adds them."


def check_column(results: Results, column: str) -> None:
    """Raise an error with what there is, if no finished cell has a score of that name."""
    known = list(dict.fromkeys(name for cell in results.finished.values() for name in cell.scores))
    if column not in known:
        raise TaskloomError(unknown("column", column, known, where=f"scores of {results.grid.name}"))
