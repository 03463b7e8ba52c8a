"""One component in the catalogue, and the rules for entering it."""

import inspect
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
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
)
from taskloom.core.options import Option, options_of
from taskloom.registry.installed.docstring import Docstring, parse
from taskloom.registry.installed.failures import BUILTIN, Plugin, cut

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
HOOKS = {
    "encoder": "taskloom_encoders",
    "head": "taskloom_heads",
    "loss": "taskloom_losses",
    "sampler": "taskloom_samplers",
    "combiner": "taskloom_combiners",
    "data": "taskloom_datasets",
    "metric": "taskloom_metrics",
    "engine": "taskloom_engines",
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


def checked_name(kind: str, cls: Any) -> str:
    """The name of a class that may enter the catalogue as this kind; ``PluginError`` if it may not."""
    interface, hook = INTERFACES[kind], HOOKS[kind]
    if not isinstance(cls, type) or not issubclass(cls, interface):
        found = cls.__name__ if isinstance(cls, type) else f"{cut(repr(cls))}, which is no class"
        raise PluginError(f"{hook}() should return subclasses of {interface.__name__}. Found {found}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PluginError(f"{cls.__name__} should define every method of {interface.__name__}. Missing: {missing}.")
    name: object = cls.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(
            f"{cls.__name__}.name should be what users type: letters, digits and any of _ . : - Found {name!r}."
        )
    return name


def make_entry(kind: str, name: str, cls: type[Component], plugin: Plugin) -> Entry:
    """The entry of a class; ``PluginError`` if its options break a rule."""
    if not isinstance(cls.__doc__, str | None):
        raise PluginError(f"its docstring should be a text. Found {cut(repr(cls.__doc__))}.")
    options = options_of(cls)
    stray = sorted(set(cls.location_options) - options.keys())
    if stray:
        raise PluginError(f"places should name options. Found {', '.join(stray)}.")
    if isinstance(cls.relies_on, str) or not all(isinstance(name, str) and name for name in cls.relies_on):
        raise PluginError(f"relies_on should be names of distributions. Found {cut(repr(cls.relies_on))}.")
    _check_choices(INTERFACES[kind], cls)
    return Entry(kind, name, cls, plugin.name, plugin.distribution, plugin.version, options)


def _check_choices(interface: type[Component], cls: type[Component]) -> None:
    """``PluginError`` if an attribute that an interface declares as a choice of texts is none of them."""
    for attribute, annotation in interface.__annotations__.items():
        home: Any = get_origin(annotation)
        choice = get_args(annotation)[0] if home is ClassVar else annotation
        found = inspect.getattr_static(cls, attribute, None)
        if get_origin(choice) is not Literal or hasattr(found, "__get__"):  # a property is known of an object alone
            continue
        allowed = get_args(choice)
        if not isinstance(found, str) or found not in allowed:
            near = get_close_matches(str(found), allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            words = f"{attribute} should be one of {', '.join(allowed)}"
            raise PluginError(f"{words}. Found {cut(repr(found))}{hint}")
