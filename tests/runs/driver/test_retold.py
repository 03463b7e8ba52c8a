"""What a driver missed because it was dead, asleep or locked out is told again when the cell goes on, and only that."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from resumed import Ear, cell_of, same_result, write_grid

from taskloom.core import Event, Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.grid.planned import PlannedCell
from taskloom.runs.training.train import train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Job, Ear]]:
    """Two rows that were run without a driver: each one's job, and what it said."""
    plan, found = make_plan(load_grid(str(write_grid(tmp_path_factory.mktemp("grid")))), load_catalogue(), None), {}
    for cell in plan.cells[:2]:
        folder, ear = tmp_path_factory.mktemp("undisturbed"), Ear()
        job = Job(cell.id, cell.label, 3, cell.spec, str(folder), cell.stage_keys)
        train(job, ear)
        found[cell.label] = (job, ear)
    return found


def planned(job: Job) -> PlannedCell:
    return PlannedCell(job.cell, job.label, job.seed, "new", job.spec, {}, job.stage_keys)


@dataclass
class Driver(Ear):
    """Writes what it hears, until it has heard of ``hears`` epochs and stages; stops a cell after ``epochs``."""

    ledger: Ledger | None = None
    hears: int = sys.maxsize
    epochs: int = sys.maxsize
    news: list[tuple[str, int, int]] = field(default_factory=list)  # the epochs and stages that it passed on

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        what, facts = event.what, event.facts
        self.hears -= what in ("epoch", "stage")
        self.epochs -= what == "epoch"
        assert self.ledger is not None
        if self.hears >= 0 and self.ledger.write(event) and what in ("epoch", "stage"):
            self.news.append((what, facts["stage" if what == "epoch" else "index"], facts.get("epoch", 0)))

    @property
    def stop_asked(self) -> bool:
        return super().stop_asked or self.epochs <= 0


def kept(ledger: Ledger, cell: str) -> list[str]:
    """A cell's epochs and stages in the ledger, less how long they took; as text, since a margin may be unknown."""
    return [str({**vars(one), "seconds": None}) for one in (*ledger.epochs(cell), *ledger.stages(cell))]


@pytest.mark.parametrize(
    ("label", "moment", "hears"),
    [
        *(("surgery", "in the last epoch", hears) for hears in range(5)),
        *(("surgery", "before the last epoch", hears) for hears in (0, 3)),
        *(("surgery", "never", hears) for hears in (0, 4)),
        ("state in losses", "in the last epoch", 1),
    ],
)
def test_what_a_deaf_driver_missed_is_told_again_and_nothing_twice(
    undisturbed: dict[str, tuple[Job, Ear]], tmp_path: Path, label: str, moment: str, hears: int
) -> None:
    """Stopped at some ``moment`` and resumed: the ledger and who listens get what they would have got."""
    before, heard = undisturbed[label]
    job = replace(before, folder=str(tmp_path))
    with Ledger.open(tmp_path / "undisturbed", create=True) as ledger:
        ledger.record_grid("grid", {}, [planned(job)])
        for event in heard.events:
            ledger.write(event)
        reference = kept(ledger, job.cell)
    assert len(reference) == 4 + 2
    stops: dict[str, dict[str, int]] = {
        "in the last epoch": {"patience": heard.scored - 1},
        "before the last epoch": {"epochs": 3},
        "never": {},
    }
    with Ledger.open(tmp_path, create=True) as ledger:
        ledger.record_grid("grid", {}, [planned(job)])
        deaf, again = Driver(ledger=ledger, hears=hears, **stops[moment]), Driver(ledger=ledger)
        train(job, deaf)
        assert deaf.events[-1].what == ("finished" if moment == "never" else "interrupted")
        assert bool(list(cell_of(tmp_path).glob("checkpoint-*-*-*"))) == (moment == "in the last epoch")
        assert len(kept(ledger, job.cell)) == hears
        train(job, again)
        assert kept(ledger, job.cell) == reference
    same_result(Path(before.folder), tmp_path)
    every = [("epoch", 0, 1), ("stage", 0, 0), *(("epoch", 1, n) for n in (1, 2, 3)), ("stage", 1, 0)]
    assert deaf.news + again.news == every, "each once, in the order of training"
