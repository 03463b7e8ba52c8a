"""Built-in data sets."""

from taskloom.core import DataSet, hookimpl
from taskloom.plugins.datasets.cs224n import CS224N
from taskloom.plugins.datasets.generated import Generated
from taskloom.plugins.datasets.nli import SICK, SNLI
from taskloom.plugins.datasets.table import Table


@hookimpl
def taskloom_datasets() -> list[type[DataSet]]:
    return [Generated, CS224N, SICK, SNLI, Table]
