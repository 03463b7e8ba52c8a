"""What the study answers: ``python runs/study/summary.py`` prints a line for each statement of the papers.

It imports the study's archives into a registry of its own. A statement with several columns is shown by the one in
which the paper's difference is largest, or by the overall score if the paper has no figures. ``--figure study.svg``
draws every claim, with all of its columns.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from taskloom.runs import Grid, Registry
from taskloom.runs.analysis.claims import Claim
from taskloom.runs.show.differences import format_difference
from taskloom.runs.show.plots import draw_claims, saved

STUDY = Path(__file__).parent
#: The study's tables, then those of the first study, whose claims count where no other table asks the same.
TABLES = ("surgery", "losing", "reading", "updates", "smart", "margins", "frozen")
FIRST_STUDY = ("margin-for-error", "finetuning-techniques", "robust-order", "robust-batches", "robust-surgery")
#: How many claims each paper makes, by its letter (papers/CLAIMS.md).
CLAIMS = {"M": 5, "C": 9, "T": 9, "L": 5, "R": 11}
#: What all tables of the study count as equal.
MARGIN = 0.02
DECIDED = ("holds", "contradicted", "equal", "not that large")


@dataclass(frozen=True)
class Asked:
    """A claim, and the steps that its rows were trained for."""

    claim: Claim
    steps: tuple[int, ...]

    @property
    def length(self) -> str:
        """Such as ``1,000``, or ``333, 999`` where the rows differ."""
        return ", ".join(f"{steps:,}" if steps else "an epoch" for steps in self.steps)

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


def asked(registry: Registry) -> Iterator[Asked]:
    """The papers' claims whose rows were run; those of the first study where no other table asks them."""
    recorded = {grid["name"] for grid in registry.grids().found}
    seen = set[str]()
    for name in (*TABLES, *FIRST_STUDY):
        if f"study-{name}" not in recorded:
            continue
        grid = Grid(f"study-{name}", registry=registry.folder)
        steps = {state.label: _steps(state.cell.spec["stages"]) for state in grid.cells().found}
        claims = [
            Asked(claim, tuple(sorted({steps[row] for pair in claim.pairs for row in pair})))
            for claim in grid.claims().found
            if claim.within is None and not claim.judged.contrast.why and claim.says not in seen
        ]
        seen.update(claim.claim.says for claim in claims)
        yield from claims


def _steps(stages: list[dict[str, Any]]) -> int:
    """The steps of a run whose stages say them; 0 where it is an epoch of the data."""
    lengths = [(stage["epochs"], stage["sampler"]["iterations"]) for stage in stages]
    return sum(epochs * iterations for epochs, iterations in lengths if isinstance(iterations, int))


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
            f"{question.claim.judged.contrast.seeds} × {question.length}",
        )
        for question in lines
    ]
    headers = ("statement", "answer", "on", "difference", "published", "seeds × steps")
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)


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


def drawn(claims: list[Asked], suffix: str) -> bytes:
    """The figure of all claims."""
    return saved(lambda figure: draw_claims(figure, [question.claim for question in claims], MARGIN), suffix)


@click.command(help=__doc__)
@click.option("--registry", type=click.Path(path_type=Path), help="A registry with the study's tables, if not anew.")
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="Draw all claims: .svg, .pdf or .png.")
def main(registry: Path | None, figure: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        claims = list(asked(Registry(registry) if registry else import_archives(Path(folder))))
    lines = headlines(claims)
    print(table(lines))
    print()
    print(verdict(lines))
    if figure:
        figure.write_bytes(
            saved(lambda page: draw_claims(page, [claim.claim for claim in claims], 0.02), figure.suffix)
        )


if __name__ == "__main__":
    main()
