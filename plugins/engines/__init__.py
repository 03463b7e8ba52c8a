"""Built-in engines: where cells are run."""

from taskloom.core import Engine, hookimpl
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.engines.local import Local
from taskloom.plugins.engines.on_ray import Ray


@hookimpl
def taskloom_engines() -> list[type[Engine]]:
    return [Local, Inline, Ray]
