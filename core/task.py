"""A task as the trainer holds it: everything that belongs to one objective."""

from dataclasses import dataclass

from taskloom.core.data import DataSet, Labels
from taskloom.core.errors import Problem, TrainingError
from taskloom.core.head import Head
from taskloom.core.loss import Loss
from taskloom.core.metric import Metric
from taskloom.core.tokens import COLUMNS, SEQUENCES


@dataclass(frozen=True, eq=False)
class Task:
    """One task, its components made from their options and not yet built."""

    name: str
    data: DataSet
    head: Head
    loss: Loss
    metric: Metric

    @property
    def labels(self) -> Labels:
        """What the labels mean; a data set without labels counts as a value that nobody reads."""
        return self.data.labels or Labels.of_range(0, 0)

    @property
    def outputs(self) -> int:
        """How many numbers the head should give per example."""
        return self.labels.classes if self.loss.expects == "classes" else 1

    def problems(self) -> list[Problem]:
        """What does not fit together, found before anything is trained."""
        here, found = f"tasks.{self.name}", []
        head, loss, data = self.head, self.loss, self.data
        if COLUMNS[head.reads] > data.columns:
            found.append(
                Problem(
                    f"{here}.head",
                    f"head {head.name!r} reads {head.reads!r}, which needs {COLUMNS[head.reads]} texts per example; "
                    f"data set {data.name!r} gives {data.columns}",
                )
            )
        if loss.expects == "classes" and data.labels is not None and not data.labels.classes:
            found.append(
                Problem(
                    f"{here}.loss",
                    f"loss {loss.name!r} needs classes; the labels of data set {data.name!r} are values from "
                    f"{data.labels.low:g} to {data.labels.high:g}",
                )
            )
        if loss.expects != "vectors" and head.gives not in ("either", loss.expects):
            wants = {"classes": "one logit per class", "score": "one number per example"}[loss.expects]
            gives = {
                "classes": "one logit per class",
                "score": "one number per example",
                "vectors": "only vectors",
            }
            found.append(
                Problem(
                    f"{here}.loss",
                    f"loss {loss.name!r} needs {wants}; head {head.name!r} gives {gives[head.gives]}",
                )
            )
        count = SEQUENCES[head.reads]
        if loss.vectors is not None and count not in loss.vectors:
            wants = " or ".join(map(str, loss.vectors))
            found.append(
                Problem(
                    f"{here}.loss",
                    f"loss {loss.name!r} needs {wants} vectors per example; head {head.name!r} reads {head.reads!r}, "
                    f"which gives {count}",
                )
            )
        if data.labels is not None and not data.labels.classes and self.metric.reads == "classes":
            found.append(
                Problem(
                    f"{here}.metric",
                    f"metric {self.metric.name!r} counts classes; the labels of data set {data.name!r} are values from "
                    f"{data.labels.low:g} to {data.labels.high:g}: use 'pearson' or 'spearman'",
                )
            )
        if data.labels is not None:
            try:
                loss.prepare(labels=data.labels, rows=1)
            except TrainingError as error:
                found.append(Problem(f"{here}.loss", str(error)))
        if data.labels is None and loss.expects != "vectors":
            found.append(Problem(f"{here}.loss", f"loss {loss.name!r} needs labels; data set {data.name!r} has none"))
        return found
