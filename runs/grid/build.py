"""Components from resolved specifications."""

from typing import TYPE_CHECKING, Any, TypeVar

from taskloom.core import Component, DataSet, Head, Loss, Metric
from taskloom.registry.installed.task import Task

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

C = TypeVar("C", bound=Component)


def make(catalogue: "Catalogue", interface: type[C], spec: dict[str, Any]) -> C:
    """The component that a resolved spec names: ``make(catalogue, Loss, {"name": "mse", …})``."""
    component = catalogue.make(interface.kind, spec)
    assert isinstance(component, interface)  # the catalogue admits nothing else under a kind
    return component


def make_task(catalogue: "Catalogue", name: str, spec: dict[str, Any]) -> Task:
    """A task with its four components."""
    return Task(
        name,
        data=make(catalogue, DataSet, spec["data"]),
        head=make(catalogue, Head, spec["head"]),
        loss=make(catalogue, Loss, spec["loss"]),
        metric=make(catalogue, Metric, spec["metric"]),
    )
