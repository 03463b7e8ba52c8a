"""Built-in engines: where cells are run."""

from taskloom.core import Engine, hookimpl
from taskloom.runs.engines.inline import Inline
from taskloom.runs.engines.local import Local
from taskloom.runs.engines.on_ray import Ray


@hookimpl
def taskloom_engines() -> list[type[Engine]]:
    return [Local, Inline, Ray]
