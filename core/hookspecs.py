"""The whole plugin surface: every hook that a plugin may implement.

A plugin is a module that an installed package names in the entry-point group ``taskloom``::

    [project.entry-points.taskloom]
    focal = "taskloom_focal"

and that implements any of these functions, marked with ``@hookimpl``. The built-ins enter the same way.
A module that only implements ``taskloom_grids`` is named in the group ``taskloom.grids`` instead, so that grids
can be listed without importing torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from taskloom.core.combiner import GradientCombiner
    from taskloom.core.data import DataSet
    from taskloom.core.encoder import Encoder
    from taskloom.core.engine import Engine
    from taskloom.core.head import Head
    from taskloom.core.loss import Loss
    from taskloom.core.metric import Metric
    from taskloom.core.sampler import Sampler

PROJECT = "taskloom"
#: The version of the plugin interface: raised when a plugin that worked would no longer work.
INTERFACE = 1
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def taskloom_encoders() -> "Sequence[type[Encoder]]":  # type: ignore[empty-body]
    """The encoders this plugin adds."""


@hookspec
def taskloom_heads() -> "Sequence[type[Head]]":  # type: ignore[empty-body]
    """The heads this plugin adds."""


@hookspec
def taskloom_losses() -> "Sequence[type[Loss]]":  # type: ignore[empty-body]
    """The losses this plugin adds."""


@hookspec
def taskloom_samplers() -> "Sequence[type[Sampler]]":  # type: ignore[empty-body]
    """The samplers this plugin adds."""


@hookspec
def taskloom_combiners() -> "Sequence[type[GradientCombiner]]":  # type: ignore[empty-body]
    """The gradient combiners this plugin adds."""


@hookspec
def taskloom_datasets() -> "Sequence[type[DataSet]]":  # type: ignore[empty-body]
    """The data sets this plugin adds."""


@hookspec
def taskloom_metrics() -> "Sequence[type[Metric]]":  # type: ignore[empty-body]
    """The metrics this plugin adds."""


@hookspec
def taskloom_engines() -> "Sequence[type[Engine]]":  # type: ignore[empty-body]
    """The engines this plugin adds."""


@hookspec
def taskloom_grids() -> Sequence[Path]:  # type: ignore[empty-body]
    """JSON files of packaged grids; a grid's name is its file's. Only in the entry-point group ``taskloom.grids``."""


@hookspec
def taskloom_run_started(cell: str, label: str, spec: dict[str, Any]) -> None:
    """A cell begins (or goes on from a checkpoint). Called in the driver."""


@hookspec
def taskloom_epoch_ended(cell: str, label: str, facts: dict[str, Any]) -> None:
    """An epoch of a cell has ended: ``facts`` hold stage, epoch, train losses and dev scores."""


@hookspec
def taskloom_run_finished(cell: str, label: str, facts: dict[str, Any]) -> None:
    """A cell has finished: ``facts`` hold its final scores, wall time and peak memory."""


@hookspec
def taskloom_run_failed(cell: str, label: str, reason: str) -> None:
    """A cell has failed, with the reason that the table shows."""
