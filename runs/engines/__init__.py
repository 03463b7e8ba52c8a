"""Built-in engines: where cells are run."""

from taskloom.core import Engine, hookimpl
from taskloom.runs.engines.inline import Inline


class Local(Inline):
    """Runs the cells in this process, one after another.

    Example: ``taskloom run quickstart --engine local``
    """

    name = "local"


@hookimpl
def taskloom_engines() -> list[type[Engine]]:
    return [Inline, Local]
