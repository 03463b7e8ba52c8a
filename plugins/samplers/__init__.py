"""The built-in samplers."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.samplers.alternating import Alternating
from taskloom.plugins.samplers.mixed import Mixed
from taskloom.plugins.samplers.ordered import Ordered
from taskloom.plugins.samplers.round_robin import RoundRobin
from taskloom.plugins.samplers.sequential import Sequential


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Alternating, Mixed, Ordered, RoundRobin, Sequential]
