"""Built-in data sets."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.datasets.cs224n import CS224N
from taskloom.plugins.datasets.generated import Generated
from taskloom.plugins.datasets.nli import SICK, SNLI
from taskloom.plugins.datasets.table import Table


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Generated, CS224N, SICK, SNLI, Table]
