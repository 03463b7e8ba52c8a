"""A task as the trainer holds it: everything that belongs to one objective."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from taskloom.core.data import DataSet, Labels, Metric
from taskloom.core.errors import TrainingError
from taskloom.core.head import Head, SharedModules
from taskloom.core.loss import Loss
from taskloom.core.tokens import COLUMNS, SEQUENCES


@dataclass(frozen=True, eq=False)
class Task:
    """A task with its components, constructed and not yet built."""

    name: str
    data: DataSet
    head: Head
    loss: Loss
    metric: Metric

    @property
    def labels(self) -> Labels:
        """The meaning of the labels; a data set without labels counts as having a single value, which is not read."""
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
        """Components that do not fit together, before any training: the one to change, and why."""
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
            else:
                if loss.expects == "score":
                    yield from self._number_problems()
        elif loss.expects != "vectors":
            yield "loss", f"loss {loss.name!r} needs labels; data set {data.name!r} has none"

    def _number_problems(self) -> Iterator[tuple[str, str]]:
        """Why one number per example cannot stand for the classes."""
        head, loss, classes = self.head, self.loss, self.labels.classes
        if classes > 2 and loss.score_means == "logit":
            yield "loss", f"loss {loss.name!r} needs two classes; {self._described}: use 'cross_entropy'"
        elif classes > 2 and self.labels.names:
            advice = "use 'cross_entropy', or number classes that are in order instead of naming them"
            yield "loss", f"loss {loss.name!r} compares one number with the label; {self._described}: {advice}"
        if classes == 2 and loss.score_means is None:
            allowed = "'logit' (the second counts above 0) or 'value' (0 or 1: the nearest counts)"
            yield (
                "loss",
                f"loss {loss.name!r} should say what one number means for two classes: score_means = {allowed}",
            )
        elif classes == 2 and loss.score_means == "value" and head.cut is not None and not 0 <= head.cut <= 1:
            counts = f"head {head.name!r} takes scores from {head.cut:g} on for the second class"
            yield "head", f"{counts}; loss {loss.name!r} draws them to 0 and 1: scale its scores to 1"

    def build_head(self, *, width: int, generator: torch.Generator, shared: SharedModules) -> None:
        """Build the head for the labels and for the loss's interpretation of its score."""
        self.head.labels, self.head.score_means = self.labels, self.loss.score_means
        self.head.build(width=width, outputs=self.outputs, labels=self.labels, generator=generator, shared=shared)

    def unfit(self, metric: Metric) -> Iterator[str]:
        """Why a metric, the task's own or a further one, cannot score its labels."""
        if self._has_values and metric.reads == "classes":
            yield f"metric {metric.name!r} counts classes; {self._described}: use 'pearson' or 'spearman'"
        if metric.reads == "values" and not self._has_values:
            yield f"metric {metric.name!r} measures values; {self._described}: use 'accuracy' or 'macro_f1'"
        elif metric.correlation and metric.reads != "classes" and self.labels.names:
            yield f"metric {metric.name!r} is a correlation; {self._described}: use 'accuracy' or 'macro_f1'"
        elif metric.reads == "classes" and self.labels.classes > 1 and _is_blind(metric, self.labels.classes):
            why = f"metric {metric.name!r} with these options gives all predictions the same score"
            yield f"{why}; {self._described}, numbered from 0"

    @property
    def _has_values(self) -> bool:
        return self.data.labels is not None and not self.data.labels.classes

    @property
    def _described(self) -> str:
        labels = self.labels
        if labels.names:
            description = f"named classes ({', '.join(labels.names[:3])}{' …' * (len(labels.names) > 3)})"
        else:
            description = (
                f"{labels.classes} classes" if labels.classes else f"values from {labels.low:g} to {labels.high:g}"
            )
        return f"the labels of data set {self.data.name!r} are {description}"


def _is_blind(metric: Metric, classes: int) -> bool:
    """Whether perfect predictions score as two constant ones do, such as by the F1 of a class that does not exist."""
    labels = np.arange(classes, dtype=np.float64)  # one of each
    with suppress(Exception):  # a metric may need more examples
        return len({float(metric(predicted, labels)) for predicted in (labels, 0 * labels, 0 * labels + 1)}) == 1
    return False
