"""What the tests of catalogues share."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from taskloom.core import Component, hookimpl
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.manager import COMPONENTS, Plugin, Plugins, load_plugins


@pytest.fixture(scope="session")
def catalogue_of() -> Callable[..., Catalogue]:
    """A catalogue with the classes of one more plugin."""

    def make(*classes: type[Component], plugins: Plugins | None = None, name: str = "mine") -> Catalogue:
        @hookimpl
        def taskloom_components() -> list[type[Component]]:
            return list(classes)

        plugins = plugins or load_plugins()
        module = SimpleNamespace(taskloom_components=taskloom_components)
        plugins.add(module, Plugin(name, COMPONENTS, f"dist-{name}", "1.0"))
        return Catalogue(plugins)

    return make
