"""Data sets and metrics without the rest of the catalogue, and so without torch."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from taskloom.core.component import Component
from taskloom.registry.installed.manager import COMPONENTS, Plugins, installed
from taskloom.registry.installed.options import read_options

#: Kind → the entry point of ours that has its components and imports no torch.
LIGHT = {"data": "datasets", "metric": "metrics"}
C = TypeVar("C", bound=Component)


def make_light(interface: type[C], spec: Mapping[str, Any]) -> C:
    """Construct a data set or a metric: ``make_light(Metric, {"name": "accuracy"})``; ``RequestError`` if it fails.

    One of ours imports no torch. Its name cannot be anybody else's, so the object is what ``Catalogue.make`` gives,
    which makes a third party's, and says what is wrong with options.
    """
    cls = own_components(interface.kind).get(str(spec.get("name")))
    if cls is not None and issubclass(cls, interface):
        try:
            return cls(**read_options(cls)[0].read(spec).arguments())
        except ValueError:  # of pydantic or of the constructor
            pass  # the catalogue puts it into words
    from taskloom.registry.installed.catalogue import load_catalogue

    return load_catalogue().make(interface, spec)


@cache
def own_components(kind: str) -> dict[str, type[Component]]:
    """Our own components of a light kind by name; imports the module that has them and no other."""
    plugins = Plugins()
    for plugin, entry in installed((COMPONENTS,)):
        if plugin.builtin and plugin.name == LIGHT.get(kind):
            plugins.load(plugin, entry)
    return {cls.name: cls for _, classes in plugins.results("taskloom_components") for cls in classes}
