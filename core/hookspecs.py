"""The whole plugin surface: every hook that a plugin may implement.

A plugin is a module that an installed package names in the entry-point group ``taskloom``::

    [project.entry-points.taskloom]
    focal = "taskloom_focal"

and that implements any of these functions, marked with ``@hookimpl``. The built-ins are registered the same way.
``taskloom_grids`` alone goes into a module of the group ``taskloom.grids``, so that grids can be listed without
importing torch.

A plugin that cannot be imported, or whose hook raises, exits or returns something else, is reported by
`taskloom plugins`; the others are not affected. Which versions of taskloom a plugin works with is said by its
package's dependency on taskloom.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from taskloom.core.component import Component

PROJECT = "taskloom"
hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function of a plugin's module as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def taskloom_components() -> "Sequence[type[Component]]":  # type: ignore[empty-body]
    """The components that this plugin adds: encoders, heads, losses, samplers, combiners, data sets, metrics, engines.

    Called: once in every process that needs components; it should only name classes.

    Returns: concrete subclasses of ``Encoder``, ``Head``, ``Loss``, ``Sampler``, ``GradientCombiner``, ``DataSet``,
    ``Metric`` or ``Engine``, each with a ``name`` that no other component of its kind has.

    Example::

        @hookimpl
        def taskloom_components() -> list[type[Component]]:
            return [Focal]
    """


@hookspec
def taskloom_grids() -> Sequence[Path]:  # type: ignore[empty-body]
    """The packaged grids that this plugin adds: JSON files that can be run by name.

    Called: whenever grids are listed or looked up, so the module should import nothing heavy.

    Returns: paths. A grid is named after its file: ``surgery.json`` is run by ``taskloom run surgery``.

    Example::

        @hookimpl
        def taskloom_grids() -> Sequence[Path]:
            return sorted(Path(__file__).parent.glob("*.json"))
    """


@hookspec
def taskloom_run_started(cell: str, label: str, spec: dict[str, Any]) -> None:
    """A cell starts, or resumes from a checkpoint.

    Called: in the process that drives the grid, once per attempt. As with every tracker hook, an exception is reported
    and does not stop the run, the arguments are copies, and those that are not needed may be left out.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        spec: its whole specification with every default filled in, including ``spec["seed"]``

    Example::

        @hookimpl
        def taskloom_run_started(cell: str, label: str) -> None:
            print(f"{label} starts as {cell[:12]}", file=sys.stderr)
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
            score, and ``overall``; empty where nothing is scored), ``train`` (the same of a sample of the training
            data; empty unless the run asks for it), ``diagnostics`` (learning rate, norms and conflicts of the
            gradients; empty in epoch 0), ``metrics`` (task, or "combiner" → name → what its loss or the combiner
            reports of its state), ``seconds`` (of the cell so far), ``memory`` (the most so far, in bytes)

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
            ``test`` (the same of the test split; empty unless the run asks for it), ``best_epoch``, ``costs``
            (examples seen and backward passes), ``seconds``, ``peak_memory`` in bytes
    """


@hookspec
def taskloom_run_failed(cell: str, label: str, reason: str) -> None:
    """A cell has failed.

    Called: in the process that drives the grid, when no further attempt is made.

    Arguments:
        cell: the cell's identity, a hash
        label: its row in the table
        reason: why, in one line, as the table shows it
    """
