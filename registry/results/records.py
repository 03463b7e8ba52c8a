"""The ledger's records: plain and immutable. Light to import, like the ledger itself."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from taskloom.registry.results.shapes import FactsShape, GridShape, RunShape

#: Keys of a recorded grid that its file does not have: the overrides of the command line in words, the seeds that it
#: added, the overrides of a table with a name of its own, the path of the file; and, by task, the metrics of its rows
#: after the first, which are no part of any cell. Up to 0.2 a table could also have changed rows.
OVERRIDES, ADDED_SEEDS, CHANGES, LAID, SOURCE = "overrides", "added_seeds", "changes", "laid", "source"
METRICS = "metrics"
#: Further: what the search of the grid has chosen for each row, and of which table another one has the trials.
TUNED, TRIALS_OF = "tuned", "trials_of"
#: What the data hold that its rows read, by task and split. Archives leave it out.
DATA = "data"
#: The source of a grid that comes with a plugin; that of any other is its file.
PACKAGED = "packaged"


@dataclass(frozen=True)
class CellRecord:
    """One cell and its state.

    ``status`` is ``planned``, ``running``, ``finished``, ``failed``, ``oom`` (it ran out of memory) or
    ``interrupted`` (it goes on from its checkpoint); a cell whose driver was killed stays ``running`` until somebody
    resumes it. ``scores`` are the final dev scores by task, and ``overall``; a score that is no number is NaN. ``test``
    are those of the test split, where it was scored; ``costs`` what training cost beside time: ``examples`` seen and
    ``backwards``, the number of backward passes.
    ``epochs`` counts the epochs that were reported. ``facts`` are what the identity is made of – ``spec``,
    ``content``, ``code`` (what each component does) and ``trainer``; up to 0.2 ``plugins`` (distribution → version)
    stood in the place of code. ``identity`` is its identity in this version, None if an older version made it and it
    was not planned since. ``digests`` bind its score files and its scores, by split (``binding.py``).
    """

    id: str
    spec: Annotated[dict[str, Any], RunShape]
    status: str
    reason: str | None = None
    attempts: int = 0
    created: str = ""
    started: str | None = None
    finished: str | None = None
    seconds: float | None = None
    peak_memory: int | None = None
    device: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    best_epoch: int | None = None
    epochs: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    costs: dict[str, int] = field(default_factory=dict)
    facts: Annotated[dict[str, Any], FactsShape] = field(default_factory=dict)
    identity: str | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def imported(self) -> str:
        """The archive that its result came from; empty if it was run here."""
        return str(self.versions.get(IMPORTED, ""))

    @property
    def files(self) -> list[str]:
        """The data files and folders that its specification names by absolute paths."""
        sources = [task.get("data") for task in self.spec.get("tasks", {}).values()]
        options = [value for data in sources if isinstance(data, dict) for value in data.values()]
        names = [name for value in options for name in (value if isinstance(value, list) else [value])]
        return [name for name in names if isinstance(name, str) and os.path.isabs(name)]  # noqa: PTH117 - no path yet


#: Where the versions of a cell say which archive its result was imported from.
IMPORTED = "imported from"


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt at a cell: which process drove it, and how it ended.

    ``how`` is ``finished``, ``failed``, ``interrupted``, ``oom`` or ``lost``, and ``None`` while it goes on.
    ``micro_batch`` is what the driver set, not the spec; of an attempt that ran out of memory, what it had in memory.
    ``versions`` are those of plugins and machine: a cell may be resumed on another machine than it was started on.
    """

    number: int
    driver: int | None
    began: str
    ended: str | None
    how: str | None
    reason: str | None
    micro_batch: int | None
    worker: str | None
    versions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GridCell:
    """A row of a grid with a seed: its label, its cell, and the figures published for it."""

    label: str
    seed: int
    reported: dict[str, float]
    cell: CellRecord


def metric_column(task: str, metric: str) -> str:
    """The name of the column of a task's further metric; no task's name has a colon."""
    return f"{task}:{metric}"


@dataclass(frozen=True)
class GridRecord:
    """A grid as it was last planned, joined with the records of its cells, in grid order.

    ``queued`` is the number of seeds that its next run adds, ``stale`` are rows that would be other runs now, with why.
    """

    name: str
    spec: Annotated[dict[str, Any], GridShape]
    created: str
    updated: str
    cells: tuple[GridCell, ...]
    queued: int = 0
    stale: dict[str, str] = field(default_factory=dict)

    @property
    def basis(self) -> str:
        """The basis of its next plan, as text: the recorded grid and the cells of its rows."""
        return repr([self.spec, self.queued, *([row.label, row.seed, row.cell.id] for row in self.cells)])

    @property
    def files(self) -> list[str]:
        """The grid's file, and the data files that its rows name."""
        return [str(self.spec.get(SOURCE, "")), *dict.fromkeys(file for row in self.cells for file in row.cell.files)]

    @property
    def written(self) -> dict[str, Any]:
        """The grid as its file has it."""
        ours = (OVERRIDES, ADDED_SEEDS, CHANGES, LAID, SOURCE, METRICS, TUNED, TRIALS_OF, DATA)
        return {key: value for key, value in self.spec.items() if key not in ours}

    @cached_property
    def further(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The columns of further metrics: ``task:metric`` → the task, and the metric with its options."""
        metrics = self.spec.get(METRICS, {})
        return {metric_column(task, metric["name"]): (task, metric) for task in metrics for metric in metrics[task]}

    @property
    def added_seeds(self) -> list[int]:
        """The seeds that the command line has added to the file's."""
        return list(self.spec.get(ADDED_SEEDS, ()))


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: mean train losses and dev scores by task, and further metrics by task and name.

    ``train`` are the scores of a fixed sample of the training data, ``diagnostics`` what was seen of the gradients.
    ``seconds`` count from the beginning of the run, ``step`` from the beginning of the stage.
    """

    stage: int
    epoch: int
    step: int | None
    seconds: float | None
    losses: dict[str, float]
    scores: dict[str, float]
    metrics: dict[str, dict[str, float]]
    train: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageRecord:
    """One stage of a cell; ``shared`` says that another cell had computed it already."""

    index: int
    key: str
    shared: bool
    seconds: float | None


@dataclass(frozen=True)
class PastRow:
    """A grid row that a cell has occupied, and when; ``now`` is the row's present cell, None if the row is gone."""

    grid: str
    label: str
    seed: int
    first: str
    last: str
    now: str | None
