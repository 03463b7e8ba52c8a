"""The catalogue of installed components: kind and name → class and options, and all checks before a run.

Names and options come from a grid, classes from plugins. The catalogue is where the two meet: :meth:`Catalogue.resolve`
fills in every default and gathers every problem, :meth:`Catalogue.make` turns the outcome into an object.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticCustomError, from_json, to_json

from taskloom.core import (
    Component,
    DataSet,
    Head,
    Loss,
    Metric,
    PluginError,
    Problem,
    RequestError,
    RunSpec,
    TaskloomError,
    unknown,
)
from taskloom.core.specs import plain
from taskloom.registry.installed.entries import INTERFACES, Entry, make_entry
from taskloom.registry.installed.manager import LIMIT, Failure, Plugin, Plugins, load_plugins, name_conflict
from taskloom.registry.installed.options import ReplaceNested
from taskloom.registry.installed.problems import INNER, below, noted, problems_of, read_spec
from taskloom.registry.installed.resolution import fill_gaps, fit_problems, homes_of, name_problems
from taskloom.registry.installed.task import Task
from taskloom.registry.installed.words import component_words, kind_word, show

C = TypeVar("C", bound=Component)
Resolved = tuple[dict[str, Any], list[Problem]]


class Catalogue:
    """Every usable component of a set of plugins."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self._claims: dict[tuple[str, str], list[Entry]] = {}  # a name that several plugins claim is nobody's
        self._known: dict[tuple[str, str, bytes], Any] = {}  # what was computed of a component's JSON
        for plugin, classes in plugins.results("taskloom_components"):
            with plugins.isolated(plugin, "taskloom_components"):
                for cls in classes:
                    self._add(cls, plugin)
        for key, claims in self._claims.items():
            if len(claims) > 1:
                self.failed.extend(Failure(entry.plugin, self._absent(*key)) for entry in claims)

    @property
    def failed(self) -> list[Failure]:
        """Plugins and single components that cannot be used, and why."""
        return self.plugins.failed

    @property
    def entries(self) -> list[Entry]:
        """All components, sorted by kind and name."""
        kinds = list(INTERFACES)
        alone = [claims[0] for claims in self._claims.values() if len(claims) == 1]
        return sorted(alone, key=lambda entry: (kinds.index(entry.kind), entry.name))

    def names(self, kind: str) -> list[str]:
        """The names of all components of a kind."""
        return [entry.name for entry in self.entries if entry.kind == kind]

    def kinds_with(self, option: str) -> list[str]:
        """The kinds of the components that have an option of this name."""
        return list(dict.fromkeys(entry.kind for entry in self.entries if option in entry.options))

    def get(self, kind: str, name: str) -> Entry:
        """The entry of a component; ``RequestError`` if there is none."""
        claims = self._claims.get((kind, name), [])
        if len(claims) != 1:
            raise RequestError(f"{kind_word(kind)} {name!r}", [Problem("", self._absent(kind, name))])
        return claims[0]

    def resolve(self, kind: str, written: Any, path: str = "") -> Resolved:
        """Resolve a component as a user wrote it; returns its name and all options, with defaults, and all problems."""
        text, problems = self._once(self._resolve, kind, written)
        return from_json(text), below(path, problems)

    def resolve_run(self, spec: RunSpec | Mapping[str, Any]) -> Resolved:
        """Resolve a whole run; returns its canonical form, with every default written out, and all problems."""
        valid, problems = read_spec(RunSpec, spec, owners=self.kinds_with)
        run: dict[str, Any] = {} if valid is None else plain(valid)
        if problems:
            for path, parent, key, kind in homes_of(run):
                problems += self.resolve(kind, parent[key], path)[1]
            return {}, problems
        components: dict[str, Component] = {}
        for path, parent, key, kind in homes_of(run):
            parent[key], component_problems = self.resolve(kind, parent[key], path)
            if not component_problems:
                component, component_problems = self.try_out(INTERFACES[kind], parent[key], path)
                components |= {} if component is None else {path: component}
            problems += component_problems
        problems += name_problems(run)
        fill_gaps(run)
        problems += fit_problems(run, components)
        # A task that no stage trains changes no result: without it, runs with equal results have equal identities.
        trained = {name for stage in run["stages"] for name in stage["tasks"]}
        run["tasks"] = {name: task for name, task in run["tasks"].items() if name in trained}
        return run, problems

    def make(self, interface: type[C], spec: Mapping[str, Any]) -> C:
        """Construct a component and those nested in it: ``make(Loss, {"name": "mse"})``.

        ``RequestError`` if that fails.
        """
        component, problems = self._make(interface.kind, spec)
        if problems:
            raise RequestError(f"{kind_word(interface.kind)} {str(spec.get('name'))!r}", problems)
        assert isinstance(component, interface)  # the catalogue admits nothing else under a kind
        return component

    def make_task(self, name: str, spec: Mapping[str, Any]) -> Task:
        """Construct a task with its four components; of several metrics it has the first."""
        metrics = spec["metric"] if isinstance(spec["metric"], list) else [spec["metric"]]
        return Task(
            name,
            data=self.make(DataSet, spec["data"]),
            head=self.make(Head, spec["head"]),
            loss=self.make(Loss, spec["loss"]),
            metric=self.make(Metric, metrics[0]),
        )

    def try_out(self, interface: type[C], spec: Mapping[str, Any], path: str = "") -> tuple[C | None, list[Problem]]:
        """Construct a component only as a check, once per spec. Never train with it."""
        component, problems = self._once(self._make, interface.kind, spec)
        return component, below(path, problems)

    def versions(self, resolved_run: Mapping[str, Any]) -> dict[str, str]:
        """Distribution → version of every plugin that a resolved run uses, and of what its components rely on."""
        used: dict[str, str] = {}
        for entry in self.used(resolved_run):
            used |= entry.versions
        return dict(sorted(used.items()))

    def code(self, resolved_run: Mapping[str, Any]) -> dict[str, int | str]:
        """What each component of a run does: its revision, or a fingerprint of its code.

        A built-in of the first revision is left out.
        """
        entries = [entry for entry in self.used(resolved_run) if entry.code != 1 or not entry.plugin.builtin]
        return dict(sorted((f"{entry.kind} {entry.name}", entry.known_by) for entry in entries))

    def without_defaults(self, kind: str, resolved: Mapping[str, Any]) -> dict[str, Any]:
        """A resolved component without locations and options at their defaults, nested components included."""
        bare: dict[str, Any] = self._once(self._without_defaults, kind, resolved)
        return bare

    def _without_defaults(self, kind: str, resolved: Mapping[str, Any]) -> dict[str, Any]:
        try:
            entry = self.get(kind, resolved["name"])
        except RequestError:  # recorded when its plugin was installed
            return dict(resolved)
        written: Mapping[str, Any] = resolved
        with suppress(ValidationError):  # recorded without locations and nested components
            written = entry.model.read(resolved, self.without_defaults).written()
        defaults = {name: option.default for name, option in entry.options.items() if not option.required}
        locations = entry.cls.location_options | entry.cls.path_options
        return {
            key: value
            for key, value in written.items()
            if key not in locations and (key not in defaults or value != defaults[key])
        }

    def used(self, resolved_run: Mapping[str, Any]) -> list[Entry]:
        """Every component that a resolved run uses, nested ones included, once each."""
        used: dict[tuple[str, str], Entry] = {}
        for _, parent, component_key, kind in homes_of(resolved_run):
            entries = self._once(self.used_by, kind, parent[component_key])
            used |= {(entry.kind, entry.name): entry for entry in entries}
        return list(used.values())

    def _once(self, compute: Callable[[str, Any], Any], kind: str, written: Any) -> Any:
        """What is computed of a component, once for the same JSON."""
        key = compute.__name__, kind, _write(written)
        if key not in self._known:
            self._known[key] = compute(kind, written)
        return self._known[key]

    def _add(self, cls: Any, plugin: Plugin) -> None:
        with self.plugins.isolated(plugin):
            entry = make_entry(cls, plugin)
            claims = self._claims.setdefault((entry.kind, entry.name), [])
            if claims and claims[0].plugin.builtin and not plugin.builtin:
                raise PluginError(name_conflict(f"{kind_word(entry.kind)} {entry.name!r}", claims[0].plugin))
            if all(other.cls is not cls for other in claims):
                claims.append(entry)

    def _absent(self, kind: str, name: str) -> str:
        """Why a name cannot be used: claimed twice, or unknown – perhaps because its plugin failed to load."""
        claims = self._claims.get((kind, name), [])
        if claims:
            plugins = " and by ".join(str(entry.plugin) for entry in claims)
            return f"{kind_word(kind)} {name!r} is claimed by {plugins}; uninstall one, or leave it out of {LIMIT}"
        message = unknown(kind_word(kind), name, self.names(kind), where="installed")
        of_name = [failure for failure in self.failed if failure.reason.startswith(f"{kind_word(kind)} {name!r}: ")]
        notes = {failure.plugin: f"not loaded: {failure}" for failure in of_name or self.failed}
        return "; ".join(filter(None, [message, self.plugins.hidden_note, *notes.values()]))

    def _resolve(self, kind: str, written: Any) -> tuple[bytes, list[Problem]]:
        """Resolve a component; the options come as JSON, so that nobody changes those that are kept."""
        resolved, problems = self._resolve_anew(kind, from_json(_write(written)))
        return _write(resolved), problems

    def _resolve_anew(self, kind: str, written: Any) -> Resolved:
        written = {"name": written} if isinstance(written, str) else written
        if not isinstance(written, dict) or not isinstance(written.get("name"), str):
            return {}, [Problem("", f"should be {component_words(kind)}. Found {show(written)}.")]
        try:
            entry = self.get(kind, written["name"])
        except RequestError as error:
            return written, error.problems
        model, problems = entry.model, list[Problem]()
        with _gathered(entry, "cannot read its options", problems):
            first = model.read(written, _nested_by(self.resolve)).written()
            resolved = model.read(first, _nested_by(self.resolve)).written()
            advice = "what an option's validator returns should be valid, and stay the same"
            problems += (
                Problem(key, f"{entry} reads {show(first[key])} as {show(value)}; {advice}")
                for key, value in resolved.items()
                if value != first[key]
            )
            return resolved, problems
        return written, problems

    def _make(self, kind: str, spec: Any) -> tuple[Any, list[Problem]]:
        resolved, problems = self.resolve(kind, spec)
        if problems:
            return None, problems
        entry = self.get(kind, resolved["name"])
        with _gathered(entry, "cannot be constructed", problems):
            options = entry.model.read(resolved, _nested_by(self._make))
            return entry.cls(**options.arguments()), problems
        return None, problems

    def used_by(self, kind: str, resolved: Mapping[str, Any]) -> list[Entry]:
        """The entries of a component and of those nested in it; recorded without its locations, it has none nested."""
        entry = self.get(kind, resolved["name"])
        entries = [entry]

        def add_nested(kind: str, inner: Any) -> Any:
            entries.extend(self.used_by(kind, inner))
            return inner

        with suppress(ValidationError):
            entry.model.read(resolved, add_nested)
        return entries


@cache
def load_catalogue() -> Catalogue:
    """The catalogue of everything installed, built once per process."""
    return Catalogue(load_plugins())


def _nested_by(convert: Callable[[str, Any], tuple[Any, list[Problem]]]) -> ReplaceNested:
    """Replace a nested component by what ``convert`` returns; its problems become an error of the outer component."""

    def replace_nested(kind: str, nested: Any) -> Any:
        converted, problems = convert(kind, nested)
        if problems:
            raise PydanticCustomError("component", "the component is wrong", {INNER: problems})
        return converted

    return replace_nested


@contextmanager
def _gathered(entry: Entry, doing: str, problems: list[Problem]) -> Iterator[None]:
    """Run a component's code and add to ``problems`` what is wrong with its options and whatever it raises."""
    with noted(f"{entry} {doing}", problems):
        try:
            yield
        except ValidationError as error:
            problems += problems_of(error, entry.model)
        except ValueError as error:  # what a constructor says of its options
            raise TaskloomError(str(error)) from error


def _write(value: Any) -> bytes:
    """A value as JSON, fast: the key under which results are kept."""
    return to_json(value, inf_nan_mode="constants")
