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
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from taskloom.core.component import Component

PROJECT = "taskloom"
hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function of a plugin's module as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def taskloom_components() -> "Sequence[type[Component]]":  # type: ignore[empty-body]
    """The components that this plugin adds: losses, heads, encoders, data sets, engines, trackers and all other kinds.

    Called: once in every process that needs components; it should only name classes.

    Returns: concrete subclasses of ``Encoder``, ``Head``, ``Loss``, ``Sampler``, ``GradientCombiner``, ``DataSet``,
    ``Metric``, ``Engine`` or ``Tracker``, each with a ``name`` that no other component of its kind has.

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
