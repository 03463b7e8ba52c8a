"""The built-in samplers."""

from taskloom.core import Sampler, hookimpl
from taskloom.plugins.samplers.alternating import Alternating
from taskloom.plugins.samplers.round_robin import RoundRobin


@hookimpl
def taskloom_samplers() -> list[type[Sampler]]:
    return [Alternating, RoundRobin]
