"""Built-in metrics."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.plugins.metrics.f1 import F1
from taskloom.plugins.metrics.macro_f1 import MacroF1
from taskloom.plugins.metrics.mae import MAE
from taskloom.plugins.metrics.mcc import MCC
from taskloom.plugins.metrics.pearson import Pearson
from taskloom.plugins.metrics.spearman import Spearman


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Accuracy, F1, MAE, MCC, MacroF1, Pearson, Spearman]
