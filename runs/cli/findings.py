"""``taskloom claims``, ``taskloom effects`` and ``taskloom seeds``: what a grid's results mean."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import TaskloomError, count, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import program, recorded_grid, say, say_json
from taskloom.runs.cli.options import json_option, registry_option

if TYPE_CHECKING:  # which imports numpy
    from taskloom.runs.analysis.contrasts import Judged
    from taskloom.runs.analysis.results import Results
    from taskloom.runs.show.findings import Comparison

column_option = click.option(
    "--on", "column", default="overall", show_default=True, metavar="COLUMN", help="A task, overall, or task:metric."
)


def finished_results(ledger: Ledger, source: str) -> "Results":
    """The results of a grid, of which at least one cell is finished."""
    from taskloom.runs.analysis.results import Results

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
    Where figures were published for both rows, their difference is shown beside ours.

    \b
    Examples:
      taskloom claims quickstart
      taskloom claims grid.json --json | jq '.[] | select(.answer == "open") | .more_seeds'
    """
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.show.findings import claims_json, list_claims

    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
        found = claims_of(results, ledger.claims(results.grid.name), results.grid.spec.get("margin"))
    if as_json:
        say_json(claims_json(found))
        return
    say(list_claims(found) if found else f"{results.grid.name} makes no claims; `taskloom claims --help` shows one")
    _say_one_seed(claim.judged for claim in found)


@click.command(short_help="Show what each axis of a grid does, over matched rows.")
@click.argument("grid")
@registry_option
@column_option
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
    from taskloom.runs.analysis.effects import effects_of
    from taskloom.runs.show.findings import effects_json, list_effects

    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
    check_column(results, column)
    found = effects_of(results, column)
    if as_json:
        say_json(effects_json(found))
    else:
        say(list_effects(found))
        say("\nIntervals and p are corrected over the changes of each axis, or pair of axes (Holm).")
        _say_one_seed(effect.judged for effect in found.main if effect.judged)


@click.command(short_help="Say how many more seeds settle each open comparison.")
@click.argument("grid")
@registry_option
@column_option
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
    from taskloom.runs.show.findings import advised_seeds, list_seeds, seeds_json, seeds_settle

    with Ledger.open(registry, create=False) as ledger:
        results = finished_results(ledger, grid)
        check_column(results, column)
        found = _comparisons(results, ledger, column)
        number = advised_seeds([comparison.judged for comparison in found])
        if queue and number:
            ledger.queue_seeds(results.grid.name, number)
    if not found:
        raise TaskloomError(f"{results.grid.name} has no baseline and no open claims, so there is nothing to compare")
    if as_json:
        say_json(seeds_json(found))
        return
    say(list_seeds(found))
    _say_one_seed(comparison.judged for comparison in found)
    if number:
        said = seeds_settle([comparison.judged for comparison in found], number)
        run = f"{program()} run {grid}"
        added = f"The next `{run}` adds {count(number, 'seed')}, which" if queue else f"`{run} --seeds +{number}`"
        say(f"\n{added} {said}.")


def _comparisons(results: "Results", ledger: Ledger, column: str) -> "list[Comparison]":
    """Every row with the baseline, and the claims that are open."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.analysis.contrasts import judge
    from taskloom.runs.show.findings import Comparison

    spec = results.grid.spec
    baseline = results.baseline
    rows = [row for row in results.rows if row != baseline] if baseline in results.rows else []
    judged = judge([results.difference(column, row, str(baseline)) for row in rows], spec.get("margin"))
    claims = claims_of(results, ledger.claims(results.grid.name), spec.get("margin"))
    return [
        *(Comparison(f"{row} − {baseline}", column, each) for row, each in zip(rows, judged, strict=True)),
        *(Comparison(claim.says, claim.column, claim.judged) for claim in claims if claim.answer == "open"),
    ]


def _say_one_seed(judged: "Iterable[Judged]") -> None:
    if any(each.contrast.seeds == 1 for each in judged):
        say("\nWhere there is one seed, this is about these models, not about their methods: add seeds.")


def check_column(results: "Results", column: str) -> None:
    """Raise an error with what there is, if no finished cell has a score of that name."""
    if column not in results.columns:
        raise TaskloomError(unknown("column", column, results.columns, where=f"scores of {results.grid.name}"))
