"""The whole plugin surface: every hook that a plugin may implement.

A plugin is a module that an installed package names in the entry-point group ``taskloom``::

    [project.entry-points.taskloom]
    focal = "taskloom_focal"

and that implements any of these functions, marked with ``@hookimpl``. The built-ins enter the same way.
A module that only implements ``taskloom_grids`` is named in the group ``taskloom.grids`` instead, so that grids
can be listed without importing torch.

A module may say which plugin interface it needs: ``TASKLOOM_INTERFACE = 1``, or a range such as ``">=1,<3"``. Where
that does not fit :data:`INTERFACE`, it is not loaded, and the message names both versions and what to upgrade. A hook
that raises, exits or returns something else is reported by `taskloom plugins`; the other plugins go on. What a plugin
prints goes to stderr under its name.
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
#: Marks a function of this file as a hook that plugins may implement. Plugins do not need it.
hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function of a plugin's module as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def taskloom_encoders() -> "Sequence[type[Encoder]]":  # type: ignore[empty-body]
    """The encoders this plugin adds: text → vectors.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Encoder``, each with a ``name`` that no other encoder has.

    In a grid: ``"encoder": {"name": "bag", "width": 64}``

    Example::

        @hookimpl
        def taskloom_encoders() -> list[type[Encoder]]:
            return [Bag]
    """


@hookspec
def taskloom_heads() -> "Sequence[type[Head]]":  # type: ignore[empty-body]
    """The heads this plugin adds: vectors → prediction.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Head``, each with a ``name`` that no other head has.

    In a grid: ``"head": {"name": "gated", "hidden": 64}``

    Example::

        @hookimpl
        def taskloom_heads() -> list[type[Head]]:
            return [Gated]
    """


@hookspec
def taskloom_losses() -> "Sequence[type[Loss]]":  # type: ignore[empty-body]
    """The losses this plugin adds: prediction and target → one number to be made small.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Loss``, each with a ``name`` that no other loss has.

    In a grid: ``"loss": {"name": "focal", "gamma": 2.0}``

    Example::

        @hookimpl
        def taskloom_losses() -> list[type[Loss]]:
            return [Focal]
    """


@hookspec
def taskloom_samplers() -> "Sequence[type[Sampler]]":  # type: ignore[empty-body]
    """The samplers this plugin adds: which task batches make up one step.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Sampler``, each with a ``name`` that no other sampler has.

    In a grid: ``"sampler": {"name": "sized", "alpha": 0.5}``

    Example::

        @hookimpl
        def taskloom_samplers() -> list[type[Sampler]]:
            return [Sized]
    """


@hookspec
def taskloom_combiners() -> "Sequence[type[GradientCombiner]]":  # type: ignore[empty-body]
    """The gradient combiners this plugin adds: per-task gradients → one update.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``GradientCombiner``, each with a ``name`` that no other combiner has.

    In a grid: ``"combiner": {"name": "even", "power": 1.0}``

    Example::

        @hookimpl
        def taskloom_combiners() -> list[type[GradientCombiner]]:
            return [Even]
    """


@hookspec
def taskloom_datasets() -> "Sequence[type[DataSet]]":  # type: ignore[empty-body]
    """The data sets this plugin adds: texts with labels.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``DataSet``, each with a ``name`` that no other data set has.

    In a grid: ``"data": {"name": "reviews", "dir": "data/reviews"}``

    Example::

        @hookimpl
        def taskloom_datasets() -> list[type[DataSet]]:
            return [Reviews]
    """


@hookspec
def taskloom_metrics() -> "Sequence[type[Metric]]":  # type: ignore[empty-body]
    """The metrics this plugin adds: predictions and labels → one number, larger is better.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Metric``, each with a ``name`` that no other metric has.

    In a grid: ``"metric": {"name": "nearness", "scale": 0.5}``

    Example::

        @hookimpl
        def taskloom_metrics() -> list[type[Metric]]:
            return [Nearness]
    """


@hookspec
def taskloom_engines() -> "Sequence[type[Engine]]":  # type: ignore[empty-body]
    """The engines this plugin adds: where cells are run.

    Called: once in every process that needs components; it should only name classes.

    Returns: a list of concrete subclasses of ``Engine``, each with a ``name`` that no other engine has.

    On the command line: ``taskloom run GRID --engine threads``. Where a cell runs is no part of its identity.

    Example::

        @hookimpl
        def taskloom_engines() -> list[type[Engine]]:
            return [Threads]
    """


@hookspec
def taskloom_grids() -> Sequence[Path]:  # type: ignore[empty-body]
    """The packaged grids this plugin adds: JSON files that can be run by name.

    Called: whenever grids are listed or looked up. Only in modules of the entry-point group ``taskloom.grids``, which
    should import nothing heavy.

    Returns: a list of paths; a grid is called as its file, so ``surgery.json`` is run by ``taskloom run surgery``.

    Example::

        @hookimpl
        def taskloom_grids() -> Sequence[Path]:
            return sorted(Path(__file__).parent.glob("*.json"))
    """


@hookspec
def taskloom_run_started(cell: str, label: str, spec: dict[str, Any]) -> None:
    """A cell begins, or goes on from a checkpoint.

    Called: in the process that drives the grid, once per attempt. What is raised is reported and stops no run; what
    is done to the arguments is seen by nobody else. Arguments that a tracker does not need may be left out.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        spec: its whole specification with every default filled in, ``spec["seed"]`` among it

    Example::

        @hookimpl
        def taskloom_run_started(cell: str, label: str) -> None:
            print(f"{label} begins as {cell[:12]}", file=sys.stderr)
    """


@hookspec
def taskloom_epoch_ended(cell: str, label: str, facts: dict[str, Any]) -> None:
    """An epoch of a cell has ended.

    Called: in the process that drives the grid, after each epoch of each stage.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        facts: ``stage`` (from 0), ``epoch`` (from 1 in each stage; 0 where a last stage of no epochs is scored),
            ``step`` (of the stage), ``losses`` (task → mean training loss; empty in epoch 0), ``scores`` (task → dev
            score, and ``overall``; empty where nothing is scored), ``metrics`` (task → name → what its loss reports
            of its state), ``seconds`` (of the cell so far), ``memory`` (the most so far, in bytes)

    Example::

        @hookimpl
        def taskloom_epoch_ended(label: str, facts: dict[str, Any]) -> None:
            print(label, facts["epoch"], facts["scores"], file=sys.stderr)
    """


@hookspec
def taskloom_run_finished(cell: str, label: str, facts: dict[str, Any]) -> None:
    """A cell has finished.

    Called: in the process that drives the grid, once per cell.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        facts: ``scores`` (task → dev score of the best epoch, and ``overall``; empty where nothing is scored),
            ``best_epoch``, ``seconds``, ``peak_memory`` in bytes

    Example::

        @hookimpl
        def taskloom_run_finished(label: str, facts: dict[str, Any]) -> None:
            print(label, facts["scores"].get("overall"), file=sys.stderr)
    """


@hookspec
def taskloom_run_failed(cell: str, label: str, reason: str) -> None:
    """A cell has failed.

    Called: in the process that drives the grid, when no further attempt is made.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        reason: why, in one line, as the table shows it

    Example::

        @hookimpl
        def taskloom_run_failed(label: str, reason: str) -> None:
            print(f"{label} failed: {reason}", file=sys.stderr)
    """
