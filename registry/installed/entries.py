"""One component in the catalogue, and the rules for entering it."""

import inspect
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, get_args, get_origin

from taskloom.core import (
    Component,
    DataSet,
    Encoder,
    Engine,
    GradientCombiner,
    Head,
    Loss,
    Metric,
    PluginError,
    Sampler,
    unknown,
)
from taskloom.core.guard import shorten
from taskloom.core.options import Option, options_of
from taskloom.registry.installed.docstring import Docstring, parse
from taskloom.registry.installed.failures import BUILTIN, Plugin

#: Kind → the base class that says so, in the order of listings.
INTERFACES: dict[str, type[Component]] = {
    "encoder": Encoder,
    "head": Head,
    "loss": Loss,
    "sampler": Sampler,
    "combiner": GradientCombiner,
    "data": DataSet,
    "metric": Metric,
    "engine": Engine,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


@dataclass(frozen=True)
class Entry:
    """One component: its class, its options, and the plugin that brings it."""

    kind: str
    name: str
    cls: type[Component]
    plugin: str
    distribution: str
    version: str
    options: dict[str, Option] = field(repr=False)

    @property
    def builtin(self) -> bool:
        """Whether it came with taskloom itself."""
        return self.distribution == BUILTIN

    @property
    def doc(self) -> str:
        """The whole docstring."""
        return inspect.cleandoc(self.cls.__doc__ or "")

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.doc.partition("\n")[0]

    @property
    def docstring(self) -> Docstring:
        """The docstring taken apart."""
        return parse(self.cls.__doc__ or "")

    @property
    def origin(self) -> str:
        """The plugin in words."""
        return f"plugin {self.plugin!r} of {self.distribution} {self.version}"

    @property
    def versions(self) -> list[tuple[str, str]]:
        """The distribution that brings it and those it relies on, each with its version."""
        return [(self.distribution, self.version), *((name, _version(name)) for name in self.cls.relies_on)]

    def as_dict(self) -> dict[str, Any]:
        """The entry for a listing, as JSON values."""
        options = [
            {"name": one.name, "takes": one.allowed, "required": one.required, "default": one.default, "text": one.text}
            for one in self.options.values()
        ]
        origin = {"plugin": self.plugin, "distribution": self.distribution, "version": self.version}
        return {"kind": self.kind, "name": self.name, **origin, "summary": self.summary, "options": options}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"


def checked_key(cls: Any) -> tuple[str, str]:
    """The kind and name of a class that may enter the catalogue; ``PluginError`` if it may not."""
    kind = getattr(cls, "kind", "")
    interface: type[Component] | None = INTERFACES.get(kind)
    if interface is None or not isinstance(cls, type) or not issubclass(cls, interface):
        found = cls.__name__ if isinstance(cls, type) else f"{shorten(repr(cls))}, which is not a class"
        names = ", ".join(one.__name__ for one in INTERFACES.values())
        raise PluginError(f"taskloom_components() should return subclasses of {names}. Found {found}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PluginError(f"{cls.__name__} should define every method of {interface.__name__}. Missing: {missing}.")
    name: object = cls.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = "what users type: letters, digits and any of _ . : -"
        raise PluginError(f"{cls.__name__}.name should be {allowed} Found {name!r}.")
    return kind, name


def make_entry(kind: str, name: str, cls: type[Component], plugin: Plugin) -> Entry:
    """The entry of a class; ``PluginError`` if its options or attributes break a rule."""
    options = options_of(cls)
    stray = sorted(set(cls.location_options) - options.keys())
    if stray:
        raise PluginError(f"location_options should name options. Found {', '.join(stray)}.")
    if isinstance(cls.relies_on, str) or not all(isinstance(name, str) and name for name in cls.relies_on):
        raise PluginError(f"relies_on should be names of distributions. Found {shorten(repr(cls.relies_on))}.")
    _check_choices(INTERFACES[kind], cls)
    return Entry(kind, name, cls, plugin.name, plugin.distribution, plugin.version, options)


def _check_choices(interface: type[Component], cls: type[Component]) -> None:
    """``PluginError`` if an attribute that an interface declares as a ``Literal`` is none of its values."""
    for attribute, annotation in interface.__annotations__.items():
        home: Any = get_origin(annotation)
        choice = get_args(annotation)[0] if home is ClassVar else annotation
        found = inspect.getattr_static(cls, attribute, None)
        if get_origin(choice) is not Literal or hasattr(found, "__get__"):  # only an object knows its property
            continue
        if found not in get_args(choice):
            raise PluginError(f"{attribute}: {shorten(unknown('value', found, get_args(choice)))}")
