"""A task as the trainer holds it: everything that belongs to one objective."""

from collections.abc import Iterator
from dataclasses import dataclass

from taskloom.core.data import DataSet, Labels, Metric
from taskloom.core.errors import TrainingError
from taskloom.core.head import Head
from taskloom.core.loss import Loss
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
        """What the labels mean; a data set without labels counts as having a value that is not read."""
        return self.data.labels or Labels.of_range(0, 0)

    @property
    def outputs(self) -> int:
        """How many numbers the head should give per example."""
        return self.labels.classes if self.loss.expects == "classes" else 1

    @property
    def predicts(self) -> bool:
        """Whether it has predictions to score or to write."""
        return self.data.labels is not None and self.head.gives != "vectors"

    def problems(self) -> Iterator[tuple[str, str]]:
        """What does not fit together, found before anything is trained: the part to change, and why."""
        head, loss, data = self.head, self.loss, self.data
        texts, vectors = COLUMNS[head.reads], SEQUENCES[head.reads]
        if texts > data.columns:
            needs = f"reads {head.reads!r}, which needs {texts} texts per example"
            yield "head", f"head {head.name!r} {needs}; data set {data.name!r} gives {data.columns}"
        if loss.expects == "classes" and self._has_values:
            yield "loss", f"loss {loss.name!r} needs classes; {self._described}"
        if loss.expects != "vectors" and head.gives not in ("either", loss.expects):
            scores = {"classes": "one logit per class", "score": "one number per example", "vectors": "only vectors"}
            needs, gives = scores[loss.expects], scores[head.gives]
            yield "loss", f"loss {loss.name!r} needs {needs}; head {head.name!r} gives {gives}"
        if loss.vectors is not None and vectors not in loss.vectors:
            needs = f"{' or '.join(map(str, loss.vectors))} vectors per example"
            gives = f"reads {head.reads!r}, which gives {vectors}"
            yield "loss", f"loss {loss.name!r} needs {needs}; head {head.name!r} {gives}"
        if data.labels is not None:
            try:
                loss.prepare(labels=data.labels, rows=1)
            except TrainingError as error:
                yield "loss", str(error)
        elif loss.expects != "vectors":
            yield "loss", f"loss {loss.name!r} needs labels; data set {data.name!r} has none"

    def unfit(self, metric: Metric) -> Iterator[str]:
        """Why a metric, its own or a further one, cannot judge its labels."""
        if self._has_values and metric.reads == "classes":
            yield f"metric {metric.name!r} counts classes; {self._described}: use 'pearson' or 'spearman'"
        if metric.correlation and self.labels.names:
            named = (
                f"the labels of data set {self.data.name!r} are named classes ({', '.join(self.labels.names[:3])} …)"
            )
            yield f"metric {metric.name!r} is a correlation; {named}: use 'accuracy' or 'macro_f1'"

    @property
    def _has_values(self) -> bool:
        return self.data.labels is not None and not self.data.labels.classes

    @property
    def _described(self) -> str:
        low, high = self.labels.low, self.labels.high
        return f"the labels of data set {self.data.name!r} are values from {low:g} to {high:g}"
