"""What the study answers: ``python runs/study/summary.py`` prints the tables of its page.

It imports the study's archives into a registry of its own. The first table has a line for each statement of the papers:
one with several columns is shown by the column in which the paper's difference is largest, or by the overall score if
the paper has no figures. The others show what surgery does to the gradients, what single runs would have said, and the
scores of all rows. ``--figure study.svg`` draws every claim, with all of its columns.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from tabulate import tabulate

from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid, Registry
from taskloom.runs.analysis.claims import Claim
from taskloom.runs.analysis.results import Results
from taskloom.runs.show.differences import format_difference
from taskloom.runs.show.plots import draw_claims, saved

STUDY = Path(__file__).parent
#: The study's tables, then those of the first study, whose claims count where no other table asks the same.
TABLES = ("surgery", "losing", "reading", "updates", "smart", "margins", "frozen")
FIRST_STUDY = (
    "margin-for-error",
    "finetuning-techniques",
    "robust-order",
    "robust-batches",
    "robust-surgery",
    "same-loss",
)
#: How many claims each paper makes, by its letter (papers/CLAIMS.md).
CLAIMS = {"M": 5, "C": 9, "T": 9, "L": 5, "R": 11}
#: What all tables of the study count as equal.
MARGIN = 0.02
TASKS = ("sst", "cfimdb", "para", "sts", "overall")
#: Parts of a run over which the size of a cosine is shown.
FIFTHS = 5
DECIDED = ("holds", "contradicted", "equal", "not that large")


@dataclass(frozen=True)
class Asked:
    """A claim, and the steps that its rows were trained for."""

    claim: Claim
    steps: tuple[str, ...]

    @property
    def number(self) -> str:
        """Such as ``M1``, or ``T1 (control)``."""
        return self.claim.says.partition(":")[0]


def import_archives(folder: Path) -> Registry:
    """A registry with all that the study has run."""
    registry = Registry(folder)
    for archive in sorted(STUDY.glob("*.zip")):
        registry.import_archive(archive)
    return registry


def asked(registry: Registry) -> list[Asked]:
    """The papers' claims whose rows were run, in order; the first study's where no other table asks them."""
    order = [*CLAIMS, "X"]  # X: across papers
    return sorted(_asked(registry), key=lambda line: (order.index(line.number[0]), int(line.number[1:].split()[0])))


def _asked(registry: Registry) -> Iterator[Asked]:
    recorded = {grid["name"] for grid in registry.grids().found}
    seen = set[str]()
    for name in (*TABLES, *FIRST_STUDY):
        if f"study-{name}" not in recorded:
            continue
        grid = Grid(f"study-{name}", registry=registry.folder)
        steps = {state.label: _steps(state.cell.spec) for state in grid.cells().found}
        claims = [
            Asked(claim, tuple(dict.fromkeys(steps[row] for pair in claim.pairs for row in pair)))
            for claim in grid.claims().found
            if claim.within is None and not claim.judged.contrast.why and claim.says not in seen
        ]
        seen.update(claim.claim.says for claim in claims)
        yield from claims


def _steps(spec: Mapping[str, Any]) -> str:
    """The steps of a run, such as ``1,000``, or the examples of each task in its epoch."""
    lengths = [(stage["epochs"], stage["sampler"]["iterations"]) for stage in spec["stages"]]
    if all(isinstance(iterations, int) for _, iterations in lengths):
        return f"{sum(epochs * iterations for epochs, iterations in lengths):,}"
    (limit,) = {task["data"]["limit"] for task in spec["tasks"].values()}
    return f"an epoch of {limit}" if limit else "an epoch"


def headlines(claims: list[Asked]) -> list[Asked]:
    """One claim for each statement: that with the largest published difference, or that on the overall score."""

    def rank(question: Asked) -> tuple[float, bool]:
        return abs(question.claim.reported or 0.0), question.claim.column == "overall"

    statements: dict[str, list[Asked]] = {}
    for question in claims:
        statements.setdefault(question.claim.says, []).append(question)
    return [max(same, key=rank) for same in statements.values()]


def table(lines: list[Asked]) -> str:
    """The statements as a Markdown table."""
    rows = [
        (
            question.claim.says,
            f"**{question.claim.answer}**" if question.claim.answer in DECIDED else question.claim.answer,
            question.claim.column,
            format_difference(question.claim.judged),
            "" if question.claim.reported is None else f"{question.claim.reported:+.3f}",
            f"{question.claim.judged.contrast.seeds} × {', '.join(question.steps)}",
        )
        for question in lines
    ]
    headers = ("statement", "answer", "on", "difference", "published", "seeds × steps")
    return _markdown(rows, headers)


def decided(lines: list[Asked]) -> tuple[list[str], list[str], list[str]]:
    """The papers' claims that are decided, those that are open, and those that were not asked.

    A claim is decided if all of its statements are; controls are further claims, of ours.
    """
    answers: dict[str, list[bool]] = {}
    for question in lines:
        answers.setdefault(question.number, []).append(question.claim.answer in DECIDED)
    numbers = [f"{paper}{number}" for paper, count in CLAIMS.items() for number in range(1, count + 1)]
    return (
        [number for number in numbers if number in answers and all(answers[number])],
        [number for number in numbers if number in answers and not all(answers[number])],
        [number for number in numbers if number not in answers],
    )


def verdict(lines: list[Asked]) -> str:
    """How many of the papers' claims are decided."""
    settled, unsettled, missing = decided(lines)
    return (
        f"{len(settled)} of {sum(CLAIMS.values())} claims are decided: {', '.join(settled)}. "
        f"Open: {', '.join(unsettled)}. Not asked: {', '.join(missing)}."
    )


def gradients(registry: Registry) -> str:
    """What gradient surgery meets and does: for each row that has it, over all of its seeds."""
    history: dict[str, list[Mapping[str, Any]]] = {}
    with Ledger.open(registry.folder, create=False) as ledger:
        for grid_cell in ledger.grid("study-surgery").cells:
            for epoch in ledger.epochs(grid_cell.cell.id):
                if "pairs" in epoch.diagnostics:
                    history.setdefault(grid_cell.label, []).append(epoch.diagnostics)
    rows = []
    for label, runs in history.items():
        conflicts = [pair["conflicts"] for run in runs for pair in run["pairs"].values()]
        angle = math.degrees(math.asin(fmean(run["removed"] for run in runs)))
        sizes: list[list[float]] = [[] for _ in range(FIFTHS)]
        for run in runs:
            for number, (_, cosines) in enumerate(run["points"]):
                sizes[FIFTHS * number // len(run["points"])] += map(abs, cosines.values())
        over_run = (f"{fmean(part):.3f}" for part in sizes)
        rows.append((label, f"{min(conflicts):.2f} to {max(conflicts):.2f}", f"{angle:.1f}°", *over_run))
    headers = ("row", "conflicts", "turned by", *(f"{number}/{FIFTHS}" for number in range(1, FIFTHS + 1)))
    return _markdown(rows, headers)


def single_runs(registry: Registry) -> str:
    """What single runs would have said of surgery and STS: the differences seed by seed, beside the published one."""
    with Ledger.open(registry.folder, create=False) as ledger:
        grid = ledger.grid("study-surgery")
    scores = {(cell.label, cell.seed): cell.cell.scores for cell in grid.cells if cell.cell.status == "finished"}
    published = {cell.label: cell.reported.get("sts") for cell in grid.cells}
    seeds = sorted({seed for _, seed in scores})
    rows = []
    for claim in Grid("study-surgery", registry=registry.folder).claims().found:
        ((row, other), *more) = claim.pairs
        if not more and claim.within is not None:  # one pair, said to be equal: that of surgery and sum
            treated, control = published[row], published[other]
            differences = (f"{scores[row, seed]['sts'] - scores[other, seed]['sts']:+.3f}" for seed in seeds)
            theirs = "" if treated is None or control is None else f"{treated - control:+.3f}"
            rows.append((row, *differences, theirs))
    return _markdown(rows, ("with surgery, less without", *(f"seed {seed}" for seed in seeds), "published"))


def rows_of(registry: Registry) -> str:
    """The scores of all rows: means over their seeds, with ‡ where they are no better than a constant prediction."""
    lines = []
    with Ledger.open(registry.folder, create=False) as ledger:
        for name in (*TABLES, "same-loss"):
            if f"study-{name}" not in {grid.name for grid in ledger.grids()}:
                continue
            results = Results(ledger.grid(f"study-{name}"), ledger.folder, epochs=ledger.epochs)
            for label in results.rows:
                cells = [cell for (row, _), cell in results.finished.items() if row == label]
                if cells:
                    tasks = [task for task in TASKS if task in cells[0].scores]
                    means = {task: f"{fmean(cell.scores[task] for cell in cells):.3f}" for task in tasks}
                    marks = {task: " ‡" for task in tasks if results.untrained(label, task)}
                    shown = (means.get(task, "") + marks.get(task, "") for task in TASKS)
                    lines.append((name, label, f"{len(cells)} × {_steps(cells[0].spec)}", *shown))
    return _markdown(lines, ("table", "row", "seeds × steps", *TASKS))


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)


def drawn(claims: list[Asked], suffix: str) -> bytes:
    """The figure of all claims."""
    return saved(lambda figure: draw_claims(figure, [question.claim for question in claims], MARGIN), suffix)


@click.command(help=__doc__)
@click.option("--registry", type=click.Path(path_type=Path), help="A registry with the study's tables, if not anew.")
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="Draw all claims: .svg, .pdf or .png.")
def main(registry: Path | None, figure: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Registry(registry) if registry else import_archives(Path(folder))
        claims = asked(results)
        lines = headlines(claims)
        parts = (table(lines), verdict(lines), gradients(results), single_runs(results), rows_of(results))
    print("\n\n".join(parts))
    if figure:
        figure.write_bytes(drawn(claims, figure.suffix))


if __name__ == "__main__":
    main()
