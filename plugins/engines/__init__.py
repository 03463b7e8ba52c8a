"""Built-in engines: where cells are run."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.engines.local import Local
from taskloom.plugins.engines.on_ray import Ray


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Local, Inline, Ray]
