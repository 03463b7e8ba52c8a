"""One component in the catalogue: its class, its options, its docstring, and the rules for entering."""

import inspect
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
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
    Tracker,
    unknown,
)
from taskloom.core.options import Option
from taskloom.registry.installed.code import Code, component_code
from taskloom.registry.installed.manager import Plugin, guard
from taskloom.registry.installed.options import Options, read_options
from taskloom.registry.installed.words import kind_word, show

#: Kind → its interface, in the order of listings.
INTERFACES: dict[str, type[Component]] = {
    interface.kind: interface
    for interface in (Encoder, Head, Loss, Sampler, GradientCombiner, DataSet, Metric, Engine, Tracker)
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
#: The words that begin a part of a component's docstring, in their order there.
_PART = re.compile(r"^(Reads|Decides|Options|Siblings|Reference|Example):(?= |$)", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts: its first line, what follows it (formula and reasons), and the parts with a name.

    >>> doc = Docstring.parse("Focal.\\n\\nL = 1/B Σ l\\n\\nReference: Lin et al.\\n\\nExample:\\n    {\\"a\\": 1}")
    >>> doc.summary, doc.text, doc.parts["Reference"], doc.example
    ('Focal.', 'L = 1/B Σ l', 'Lin et al.', {'a': 1})
    """

    summary: str
    text: str
    parts: dict[str, str]

    @classmethod
    def parse(cls, doc: str) -> "Docstring":
        summary, _, rest = inspect.cleandoc(doc).partition("\n")
        text, *parts = _PART.split(rest)
        named = zip(parts[::2], parts[1::2], strict=True)
        return cls(summary, text.strip(), {name: inspect.cleandoc(part).strip() for name, part in named})

    @property
    def example(self) -> Any:
        """The example as a JSON value; None where there is none, or one that is not JSON."""
        try:
            return json.loads(self.parts.get("Example", "").strip("` \n"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Entry:
    """One component: its class, its options, and the plugin that brings it."""

    kind: str
    name: str
    cls: type[Component]
    plugin: Plugin
    options: dict[str, Option] = field(repr=False)
    model: type[Options] = field(repr=False)

    def __str__(self) -> str:
        return f"{kind_word(self.kind)} {self.name!r} ({self.plugin})"

    @property
    def docstring(self) -> Docstring:
        """The docstring in parts."""
        return Docstring.parse(self.cls.__doc__ or "")

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.docstring.summary

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version: the one that brings it, and those it relies on."""
        return {self.plugin.distribution: self.plugin.version} | {name: _version(name) for name in self.cls.relies_on}

    @cached_property
    def code(self) -> int | str:
        """Identifies what it computes: its revision, or else the fingerprint of its distribution's code.

        For a class without a source file (defined in a session) it is the version of its distribution.
        """
        return self._revision or (self._code.fingerprint if self._code.files else self.plugin.version)

    @property
    def known_by(self) -> int | str:
        """Its code as part of identities; a third party's revision comes with the name of its distribution."""
        third = isinstance(self.code, int) and not self.plugin.builtin
        return f"{self.plugin.distribution} {self.code}" if third else self.code

    @property
    def code_files(self) -> dict[str, str]:
        """File → hash of the files in the fingerprint; empty for a component with a revision."""
        return {} if self._revision else self._code.files

    @property
    def _revision(self) -> int | None:
        """The revision that its author states: the class itself or a base class of the same package."""
        package = self.cls.__module__.partition(".")[0]
        parents = [vars(parent) for parent in self.cls.__mro__ if parent.__module__.partition(".")[0] == package]
        stated: int | None = next((parent["revision"] for parent in parents if "revision" in parent), None)
        return stated or (1 if self.plugin.builtin else None)

    @cached_property
    def _code(self) -> Code:
        return component_code(self.cls, self.plugin.distribution)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"


def make_entry(cls: Any, plugin: Plugin) -> Entry:
    """The entry of a class that a plugin lists; ``PluginError`` if the class breaks a rule."""
    kind = getattr(cls, "kind", "")
    interface: type[Component] | None = INTERFACES.get(kind)
    if interface is None or not isinstance(cls, type) or not issubclass(cls, interface):
        listed = cls.__name__ if isinstance(cls, type) else f"{show(cls)}, which is not a class"
        names = ", ".join(parent.__name__ for parent in INTERFACES.values())
        raise PluginError(f"taskloom_components() should return subclasses of {names}. Found {listed}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PluginError(f"{cls.__name__} should define every method of {interface.__name__}. Missing: {missing}.")
    name: object = cls.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = "what users type: letters, digits and any of _ . : -"
        raise PluginError(f"{cls.__name__}.name should be {allowed} Found {name!r}.")
    revision: object = cls.revision
    if revision is not None and (type(revision) is not int or revision < 1):
        raise PluginError(f"{cls.__name__}.revision should be None or an integer from 1 on. Found {show(revision)}.")
    with guard(f"{kind_word(kind)} {name!r}"):
        model, options = read_options(cls)
        _check_choices(interface, cls)
    return Entry(kind, name, cls, plugin, options, model)


def _check_choices(interface: type[Component], cls: type[Component]) -> None:
    """``PluginError`` if an attribute of the class is none of the values that its interface declares."""
    for attribute, annotation in interface.__annotations__.items():
        home: Any = get_origin(annotation)
        choice = get_args(annotation)[0] if home is ClassVar else annotation
        if get_origin(choice) is not Literal:
            continue
        value = inspect.getattr_static(cls, attribute, None)
        if value is None and attribute not in vars(interface):  # it has no default: an annotation alone is set later
            subclasses = cls.__mro__[: cls.__mro__.index(interface)]
            if not any(attribute in inspect.get_annotations(parent) for parent in subclasses):
                values = (
                    f"one of {', '.join(map(repr, get_args(choice)))}, or its annotation if the constructor sets it"
                )
                raise PluginError(f"{attribute} should be stated in the class: {values}")
        elif value not in get_args(choice) and not hasattr(value, "__get__"):  # only an object knows its property
            raise PluginError(f"{attribute}: {unknown('value', value, filter(None, get_args(choice)))}")
