"""What is installed: kind + name → class, its options, and everything that can be checked before a run.

Names and options come from a grid, classes from plugins. The catalogue is where the two meet: :meth:`Catalogue.resolve`
fills in every default and gathers every problem, :meth:`Catalogue.make` turns the outcome into an object.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic_core import from_json, to_json

from taskloom.core import (
    Component,
    ComponentSpec,
    PluginError,
    Problem,
    RequestError,
    RunSpec,
    TaskloomError,
    unknown,
)
from taskloom.core.guard import guard
from taskloom.core.options import FormError, Nested, Option, fill
from taskloom.core.words import join, kind_word, show
from taskloom.registry.installed.entries import INTERFACES, Entry, make_entry
from taskloom.registry.installed.failures import Failure, Plugin, conflict, hidden_note, taken
from taskloom.registry.installed.manager import Plugins, load_plugins
from taskloom.registry.installed.resolution import resolve_run, slots_of

Resolved = tuple[dict[str, Any], list[Problem]]


class Catalogue:
    """Every usable component of the given plugins."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self._claims: dict[tuple[str, str], list[Entry]] = {}  # a name that several plugins claim is nobody's
        self._resolved: dict[tuple[str, bytes], tuple[bytes, list[Problem]]] = {}
        self._tried: dict[tuple[str, bytes], Component | list[Problem]] = {}
        self._versions: dict[tuple[str, bytes], dict[str, str]] = {}
        for plugin, classes in plugins.results("taskloom_components"):
            with plugins.isolated(plugin, "taskloom_components()"):
                if not isinstance(classes, Sequence) or isinstance(classes, str):
                    raise PluginError(f"should return a list of classes. Found {show(classes)}.")
                for cls in classes:
                    self._add(cls, plugin)
        for key, claims in self._claims.items():
            if len(claims) > 1:
                reason = self._absent(*key)
                for one in claims:
                    rivals = tuple(other.distribution for other in claims if other is not one)
                    self.failed.append(Failure(one.plugin, one.distribution, one.version, reason, rivals))

    @property
    def failed(self) -> list[Failure]:
        """What cannot be used, and why: whole plugins, and single components."""
        return self.plugins.failed

    @property
    def entries(self) -> list[Entry]:
        """All components, in the order of the kinds and by name."""
        kinds = list(INTERFACES)
        alone = [claims[0] for claims in self._claims.values() if len(claims) == 1]
        return sorted(alone, key=lambda entry: (kinds.index(entry.kind), entry.name))

    def names(self, kind: str) -> list[str]:
        """The names of one kind."""
        return [entry.name for entry in self.entries if entry.kind == kind]

    def get(self, kind: str, name: str) -> Entry:
        """The entry of a name; ``RequestError`` if there is none."""
        claims = self._claims.get((kind, name), [])
        if len(claims) != 1:
            raise RequestError(f"{kind_word(kind)} {name!r}", [Problem("", self._absent(kind, name), "form")])
        return claims[0]

    def resolve(self, kind: str, spec: ComponentSpec | str | Mapping[str, Any], path: str = "") -> Resolved:
        """A component as a user wrote it → name and every option, defaults filled in, and all problems found."""
        given = {"name": spec.name, **spec.options} if isinstance(spec, ComponentSpec) else spec
        try:
            key = kind, _write(given)
        except ValueError:
            return {}, [Problem(path, f"should hold JSON values only. Found {show(given)}.")]
        if key not in self._resolved:
            resolved, problems = self._resolve(kind, from_json(key[1]))
            self._resolved[key] = _write(resolved), problems
        text, problems = self._resolved[key]
        return from_json(text), [replace(one, path=join(path, one.path)) for one in problems]

    def resolve_run(self, spec: RunSpec | Mapping[str, Any]) -> Resolved:
        """A whole run → its canonical form with nothing left to default, and all problems found."""
        return resolve_run(self, spec)

    def make(self, kind: str, resolved: Mapping[str, Any]) -> Any:
        """Construct a component, and those inside it; ``RequestError`` if it cannot be."""
        name = str(resolved.get("name"))
        problems: list[Problem] = []
        made = self._make(kind, resolved, "", problems)
        if problems:
            raise RequestError(f"{kind_word(kind)} {name!r}", problems)
        return made

    def try_out(self, kind: str, resolved: Mapping[str, Any]) -> Component | list[Problem]:
        """Construct a component only to see whether it can be; the same one is tried once. Never train with it."""
        key = kind, _write(resolved)
        if key not in self._tried:
            problems: list[Problem] = []
            made = self._make(kind, resolved, "", problems)
            self._tried[key] = problems or made
        return self._tried[key]

    def versions(self, resolved_run: Mapping[str, Any]) -> dict[str, str]:
        """Distribution → version of every plugin that a resolved run uses, and of what its components rely on."""
        used: dict[str, str] = {}
        for _, kind, component in slots_of(resolved_run):
            key = kind, _write(component)
            if key not in self._versions:
                self._versions[key] = dict(pair for entry in self._used(kind, component) for pair in entry.versions)
            used |= self._versions[key]
        return dict(sorted(used.items()))

    def _add(self, cls: Any, plugin: Plugin) -> None:
        with self.plugins.isolated(plugin):
            entry = make_entry(cls, plugin)
            claims = self._claims.setdefault((entry.kind, entry.name), [])
            if not plugin.builtin and any(other.builtin for other in claims):
                raise PluginError(taken(f"{kind_word(entry.kind)} {entry.name!r}"))
            if all(other.cls is not cls for other in claims):
                claims.append(entry)

    def _absent(self, kind: str, name: str) -> str:
        """Why a name cannot be used: claimed twice, or unknown – perhaps because its plugin failed to load."""
        claims = self._claims.get((kind, name), [])
        if claims:
            return conflict(f"{kind_word(kind)} {name!r}", [entry.origin for entry in claims])
        message = unknown(kind_word(kind), name, self.names(kind), where="installed")
        hidden = hidden_note(self.plugins.hidden)
        mine = [one for one in self.failed if one.reason.startswith(f"{kind_word(kind)} {name!r}: ")]
        failed = {(one.plugin, one.distribution): str(one) for one in mine or self.failed}
        return "; ".join([message, *([hidden] if hidden else []), *(f"not loaded: {one}" for one in failed.values())])

    def _resolve(self, kind: str, given: Any) -> Resolved:
        given = {"name": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            words = f'should be a {kind_word(kind)}: a name, or an object with "name" and options'
            return {}, [Problem("", f"{words}. Found {show(given)}.", "form")]
        name = given["name"]
        try:
            options = self.get(kind, name).options
        except RequestError as error:
            return dict(given), error.problems
        resolved: dict[str, Any] = {"name": name}
        problems = [
            Problem(key, _no_option(key, kind, name, options), "form")
            for key in given
            if key not in options and key != "name"
        ]

        def place(nested: Nested, path: str) -> None:
            problems.extend(self.resolve(nested.kind, nested.given, path)[1])

        for option in options.values():
            if option.name in given:
                try:
                    read = option.read(given[option.name])
                    fill(read, place, option.name)
                    kept = option.kept(given[option.name], read)
                    resolved[option.name] = fill(kept, lambda one, _: self.resolve(one.kind, one.given)[0], "")
                except ValueError as error:
                    form = isinstance(error, FormError)
                    problems.append(Problem(option.name, str(error), "form" if form else "fact"))
            elif option.required:
                problems.append(Problem(option.name, f"is missing; it should be {option.allowed}", "form"))
            else:
                resolved[option.name] = option.default
        return resolved, problems

    def _make(self, kind: str, resolved: Mapping[str, Any], path: str, problems: list[Problem]) -> Any:
        known = len(problems)
        complete, found = self.resolve(kind, resolved, path)
        if found:
            problems.extend(found)
            return None
        entry = self.get(kind, complete["name"])

        def place(nested: Nested, inner: str) -> Any:
            return self._make(nested.kind, nested.given, join(path, inner), problems)

        values: dict[str, Any] = {}
        for option in entry.options.values():
            try:
                values[option.name] = fill(option.read(complete[option.name]), place, option.name)
            except ValueError as error:  # a validator that changes its mind
                problems.append(Problem(join(path, option.name), str(error)))
        if len(problems) > known:
            return None
        origin = f"{kind_word(kind)} {entry.name!r} ({entry.origin})"
        try:
            with guard(f"{origin} cannot be constructed"):
                try:
                    return entry.cls(**values)
                except ValueError as error:  # what a constructor says of its options
                    raise TaskloomError(str(error)) from error
        except TaskloomError as error:
            problems.append(Problem(path, str(error)))
        return None

    def _used(self, kind: str, resolved: Mapping[str, Any]) -> Iterator[Entry]:
        entry = self.get(kind, resolved["name"])
        yield entry
        inner: list[Nested] = []
        for option in entry.options.values():
            if option.name in resolved:
                fill(option.read(resolved[option.name]), lambda nested, _: inner.append(nested), option.name)
        for nested in inner:
            given = nested.given
            yield from self._used(nested.kind, {"name": given} if isinstance(given, str) else given)


@cache
def load_catalogue() -> Catalogue:
    """The catalogue of everything installed, made once per process."""
    return Catalogue(load_plugins())


def _no_option(key: str, kind: str, name: str, options: Mapping[str, Option]) -> str:
    message = unknown("option", key, options, where="options")
    return message.replace(repr(key), f"{key!r} of {kind_word(kind)} {name!r}", 1)


def _write(value: Any) -> bytes:
    """A value as JSON, quickly: what is written the same way is the same, and is worked out once."""
    return to_json(value, inf_nan_mode="constants")
