"""The built-in gradient combiners."""

from taskloom.core import GradientCombiner, hookimpl
from taskloom.plugins.combiners.mean import Mean
from taskloom.plugins.combiners.pcgrad import PCGrad
from taskloom.plugins.combiners.sum import Sum


@hookimpl
def taskloom_combiners() -> list[type[GradientCombiner]]:
    return [Mean, PCGrad, Sum]
