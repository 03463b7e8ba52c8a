"""Metrics to score stored predictions with: by name, or the F1 score of one class. Built-in ones need no torch."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

from taskloom.core.data import Metric
from taskloom.core.errors import TaskloomError, unknown
from taskloom.runs.analysis.contrasts import Values

#: Prefix of the name of a metric that is the F1 score of one class.
PER_CLASS = "f1:"


class ClassScore(Metric):
    """The F1 score of one class: 2·hits / (predicted as it + expected as it); 0 if neither happens."""

    reads = "classes"
    range = (0.0, 1.0)

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, predicted: Values, expected: Values) -> float:
        guessed, real = predicted == self.number, expected == self.number
        size = guessed.sum() + real.sum()
        return float(2 * (guessed & real).sum() / size) if size else 0.0

    def influence(self, predicted: Values, expected: Values) -> Values:
        guessed, real = predicted == self.number, expected == self.number
        size = guessed.mean() + real.mean()
        influence: Values = 2 * (guessed & real) - self(predicted, expected) * (guessed.astype(np.float64) + real)
        return (influence - influence.mean()) / size if size else np.zeros(len(expected))


def metric_named(name: str) -> Metric:
    """An installed metric, or ``f1:2``, the F1 score of class 2; ``TaskloomError`` if there is none."""
    if name.startswith(PER_CLASS):
        number = name.removeprefix(PER_CLASS)
        if not (number.isascii() and number.isdigit()):
            raise TaskloomError(f"--metric {name}: {PER_CLASS} takes the number of a class, such as {PER_CLASS}2")
        return ClassScore(int(number))
    if metric_class(name) is None:
        from taskloom.registry.installed.catalogue import load_catalogue

        known = load_catalogue().names(Metric.kind)
        raise TaskloomError(unknown("metric", name, [*known, f"{PER_CLASS}CLASS"], where="there are"))
    return light_metric({"name": name})


def metric_class(name: str) -> type[Metric] | None:
    """The class of a metric, None if it is not installed; built-in ones import no torch."""
    from taskloom.registry.installed.light import own_components

    metrics = own_components(Metric.kind)
    if name not in metrics:
        from taskloom.registry.installed.catalogue import load_catalogue

        metrics = {entry.name: entry.cls for entry in load_catalogue().entries if entry.kind == Metric.kind}
    return cast("type[Metric] | None", metrics.get(name))


def light_metric(spec: Mapping[str, Any]) -> Metric:
    """A metric by its name and options; built-in ones import no torch."""
    from taskloom.registry.installed.light import make_light

    return make_light(Metric, spec)


def asking(metric: Metric) -> AbstractContextManager[None]:
    """Call a metric, which may be a third party's, in this context: anything it raises becomes a ``PluginError``."""
    from taskloom.registry.installed.manager import guard

    return guard(f"metric {name_of(metric)!r}")


def name_of(metric: Metric) -> str:
    """The name by which :func:`metric_named` finds a metric."""
    return f"{PER_CLASS}{metric.number}" if isinstance(metric, ClassScore) else metric.name


def fits(metric: Metric, classes: int) -> bool:
    """Whether a metric accepts labels of this many classes, 0 for values."""
    if isinstance(metric, ClassScore) and metric.number >= classes:
        return False
    return metric.reads == "either" or (metric.reads == "classes") == bool(classes)


def width_of(metric: Metric) -> float:
    """The largest difference between two scores of a metric."""
    low, high = metric.range
    return high - low
