"""What is installed: kind + name → class, its options, and everything that can be checked before a run.

Names and options come from a grid, classes from plugins. The catalogue is where the two meet: :meth:`Catalogue.resolve`
fills in every default and gathers every problem, :meth:`Catalogue.make` turns the outcome into an object.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError, from_json, to_json

from taskloom.core import (
    Component,
    ComponentSpec,
    PluginError,
    Problem,
    RequestError,
    RunSpec,
    TaskloomError,
    plain,
    unknown,
)
from taskloom.core.guard import guard
from taskloom.registry.installed.entries import INTERFACES, Entry, make_entry
from taskloom.registry.installed.failures import Failure, Plugin, conflict, hidden_note, taken
from taskloom.registry.installed.manager import Plugins, load_plugins
from taskloom.registry.installed.options import Place, model_of
from taskloom.registry.installed.problems import INNER, problems_of
from taskloom.registry.installed.resolution import (
    fill_gaps,
    fit_problems,
    homes_of,
    leave_out_untrained,
    name_problems,
    slots_of,
)
from taskloom.registry.installed.words import component_words, join, kind_word, show

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
            raise RequestError(f"{kind_word(kind)} {name!r}", [Problem("", self._absent(kind, name))])
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
        try:
            run: dict[str, Any] = plain(spec if isinstance(spec, RunSpec) else RunSpec.model_validate(spec))
        except ValidationError as error:
            return {}, self._as_far_as_possible(spec, problems_of(error, RunSpec))
        problems: list[Problem] = []
        made: dict[str, Component] = {}
        for path, home, kind in list(homes_of(run)):
            home[kind], found = self.resolve(kind, home[kind], path)
            if not found:
                tried = self.try_out(kind, home[kind])
                if isinstance(tried, Component):
                    made[path] = tried
                else:
                    found = [Problem(join(path, one.path), one.message) for one in tried]
            problems += found
        problems += name_problems(run)
        fill_gaps(run)
        problems += fit_problems(run, made)
        leave_out_untrained(run)
        return run, problems

    def make(self, kind: str, resolved: Mapping[str, Any]) -> Any:
        """Construct a component, and those inside it; ``RequestError`` if it cannot be."""
        made, problems = self._make(kind, resolved)
        if problems:
            raise RequestError(f"{kind_word(kind)} {str(resolved.get('name'))!r}", problems)
        return made

    def try_out(self, kind: str, resolved: Mapping[str, Any]) -> Component | list[Problem]:
        """Construct a component only to see whether it can be; the same one is tried once. Never train with it."""
        key = kind, _write(resolved)
        if key not in self._tried:
            made, problems = self._make(kind, resolved)
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
            return {}, [Problem("", f"should be {component_words(kind)}. Found {show(given)}.")]
        try:
            entry = self.get(kind, given["name"])
        except RequestError as error:
            return given, error.problems
        model = model_of(entry.cls)
        try:
            with guard(f"{_origin(entry)} cannot read its options"):
                try:
                    first = model.read(given, _inside(self.resolve)).written()
                    resolved = model.read(first, _inside(self.resolve)).written()
                except ValidationError as error:
                    return given, problems_of(error, model)
        except TaskloomError as error:
            return given, [Problem("", str(error))]
        return resolved, [
            Problem(
                key,
                f"{_origin(entry)} reads {show(first[key])} as {show(value)}; what an option's validator "
                "returns should be valid, and stay the same",
            )
            for key, value in resolved.items()
            if value != first[key]
        ]

    def _as_far_as_possible(self, run: Any, problems: list[Problem]) -> list[Problem]:
        """The components' problems of a run that is not valid, so that the user sees all at once."""
        known = {problem.path for problem in problems}
        for path, kind, component in slots_of(run if isinstance(run, Mapping) else {}):
            found = self.resolve(kind, component, path)[1]
            problems += [one for one in found if one.path not in known and join(one.path, "name") not in known]
        return problems

    def _make(self, kind: str, given: Any) -> tuple[Any, list[Problem]]:
        complete, problems = self.resolve(kind, given)
        if problems:
            return None, problems
        entry = self.get(kind, complete["name"])
        model = model_of(entry.cls)
        try:
            options = model.read(complete, _inside(self._make))
        except ValidationError as error:
            return None, problems_of(error, model)
        try:
            with guard(f"{_origin(entry)} cannot be constructed"):
                try:
                    return entry.cls(**options.arguments()), []
                except ValueError as error:  # what a constructor says of its options
                    raise TaskloomError(str(error)) from error
        except TaskloomError as error:
            return None, [Problem("", str(error))]

    def _used(self, kind: str, resolved: Mapping[str, Any]) -> list[Entry]:
        """The entries of a component and of those inside it."""
        used = [self.get(kind, resolved["name"])]

        def place(kind: str, inner: Any) -> Any:
            used.extend(self._used(kind, {"name": inner} if isinstance(inner, str) else inner))
            return inner

        model_of(used[0].cls).read(resolved, place)
        return used


@cache
def load_catalogue() -> Catalogue:
    """The catalogue of everything installed, made once per process."""
    return Catalogue(load_plugins())


def _inside(do: Callable[[str, Any], tuple[Any, list[Problem]]]) -> Place:
    """What becomes of a component inside another's options: what ``do`` makes of it; its problems are the outer's."""

    def place(kind: str, inner: Any) -> Any:
        done, problems = do(kind, inner)
        if problems:
            raise PydanticCustomError("component", "the component is wrong", {INNER: problems})
        return done

    return place


def _origin(entry: Entry) -> str:
    return f"{kind_word(entry.kind)} {entry.name!r} ({entry.origin})"


def _write(value: Any) -> bytes:
    """A value as JSON, quickly: what is written the same way is the same, and is worked out once."""
    return to_json(value, inf_nan_mode="constants")
