"""What is installed: kind + name → class, its options, and everything that can be checked before a run.

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
from taskloom.registry.installed.manager import LIMIT, Failure, Plugin, Plugins, load_plugins, taken
from taskloom.registry.installed.options import Place
from taskloom.registry.installed.problems import INNER, below, noted, problems_of, read_spec
from taskloom.registry.installed.resolution import fill_gaps, fit_problems, homes_of, name_problems
from taskloom.registry.installed.task import Task
from taskloom.registry.installed.words import component_words, kind_word, show

C = TypeVar("C", bound=Component)
Resolved = tuple[dict[str, Any], list[Problem]]


class Catalogue:
    """Every usable component of the given plugins."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self._claims: dict[tuple[str, str], list[Entry]] = {}  # a name that several plugins claim is nobody's
        self._resolved: dict[tuple[str, bytes], tuple[bytes, list[Problem]]] = {}
        self._tried: dict[tuple[str, bytes], tuple[Any, list[Problem]]] = {}
        self._used: dict[tuple[str, bytes], list[Entry]] = {}
        self._bare: dict[tuple[str, bytes], dict[str, Any]] = {}
        for plugin, classes in plugins.results("taskloom_components"):
            with plugins.isolated(plugin, "taskloom_components"):
                for cls in classes:
                    self._add(cls, plugin)
        for key, claims in self._claims.items():
            if len(claims) > 1:
                self.failed.extend(Failure(entry.plugin, self._absent(*key)) for entry in claims)

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

    def resolve(self, kind: str, given: Any, path: str = "") -> Resolved:
        """A component as a user wrote it → name and every option, defaults filled in, and all problems found."""
        key = kind, _write(given)
        if key not in self._resolved:
            resolved, problems = self._resolve(kind, from_json(key[1]))
            self._resolved[key] = _write(resolved), problems
        text, problems = self._resolved[key]
        return from_json(text), below(path, problems)

    def resolve_run(self, spec: RunSpec | Mapping[str, Any]) -> Resolved:
        """A whole run → its canonical form with nothing left to default, and all problems found."""
        valid, problems = read_spec(RunSpec, spec)
        run: dict[str, Any] = {} if valid is None else plain(valid)
        if problems:
            for path, home, key, kind in homes_of(run):
                problems += self.resolve(kind, home[key], path)[1]
            return {}, problems
        made: dict[str, Component] = {}
        for path, home, key, kind in homes_of(run):
            home[key], found = self.resolve(kind, home[key], path)
            if not found:
                component, found = self.try_out(INTERFACES[kind], home[key], path)
                made |= {} if component is None else {path: component}
            problems += found
        problems += name_problems(run)
        fill_gaps(run)
        problems += fit_problems(run, made)
        # A task that no stage trains decides nothing: without it, runs that give the same result are the same run.
        trained = {name for stage in run["stages"] for name in stage["tasks"]}
        run["tasks"] = {name: task for name, task in run["tasks"].items() if name in trained}
        return run, problems

    def make(self, interface: type[C], spec: Mapping[str, Any]) -> C:
        """Construct a component, and those inside it: ``make(Loss, {"name": "mse"})``; ``RequestError`` if it fails."""
        made, problems = self._make(interface.kind, spec)
        if problems:
            raise RequestError(f"{kind_word(interface.kind)} {str(spec.get('name'))!r}", problems)
        assert isinstance(made, interface)  # the catalogue admits nothing else under a kind
        return made

    def make_task(self, name: str, spec: Mapping[str, Any]) -> Task:
        """A task with its four components; of several metrics it has the first."""
        metrics = spec["metric"] if isinstance(spec["metric"], list) else [spec["metric"]]
        return Task(
            name,
            data=self.make(DataSet, spec["data"]),
            head=self.make(Head, spec["head"]),
            loss=self.make(Loss, spec["loss"]),
            metric=self.make(Metric, metrics[0]),
        )

    def try_out(self, interface: type[C], spec: Mapping[str, Any], path: str = "") -> tuple[C | None, list[Problem]]:
        """Construct a component only to see whether it can be; the same one is tried once. Never train with it."""
        key = interface.kind, _write(spec)
        if key not in self._tried:
            self._tried[key] = self._make(interface.kind, spec)
        made, problems = self._tried[key]
        return made, below(path, problems)

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
        """A resolved component without locations and options at their defaults, and so are those inside it."""
        key = kind, _write(resolved)
        if key not in self._bare:
            self._bare[key] = self._without_defaults(kind, resolved)
        return self._bare[key]

    def _without_defaults(self, kind: str, resolved: Mapping[str, Any]) -> dict[str, Any]:
        try:
            entry = self.get(kind, resolved["name"])
        except RequestError:  # it was recorded when that was installed
            return dict(resolved)
        written: Mapping[str, Any] = resolved
        with suppress(ValidationError):  # of a recorded one locations are not known, and nothing is inside
            written = entry.model.read(resolved, self.without_defaults).written()
        defaults = {name: option.default for name, option in entry.options.items() if not option.required}
        locations = entry.cls.location_options | entry.cls.path_options
        return {
            key: value
            for key, value in written.items()
            if key not in locations and (key not in defaults or value != defaults[key])
        }

    def used(self, resolved_run: Mapping[str, Any]) -> list[Entry]:
        """Every component that a resolved run uses, those inside others too, once each."""
        used: dict[tuple[str, str], Entry] = {}
        for _, home, place, kind in homes_of(resolved_run):
            key = kind, _write(home[place])
            if key not in self._used:
                self._used[key] = self.used_by(kind, home[place])
            used |= {(entry.kind, entry.name): entry for entry in self._used[key]}
        return list(used.values())

    def _add(self, cls: Any, plugin: Plugin) -> None:
        with self.plugins.isolated(plugin):
            entry = make_entry(cls, plugin)
            claims = self._claims.setdefault((entry.kind, entry.name), [])
            if claims and claims[0].plugin.builtin and not plugin.builtin:
                raise PluginError(taken(f"{kind_word(entry.kind)} {entry.name!r}", claims[0].plugin))
            if all(other.cls is not cls for other in claims):
                claims.append(entry)

    def _absent(self, kind: str, name: str) -> str:
        """Why a name cannot be used: claimed twice, or unknown – perhaps because its plugin failed to load."""
        claims = self._claims.get((kind, name), [])
        if claims:
            plugins = " and by ".join(str(entry.plugin) for entry in claims)
            return f"{kind_word(kind)} {name!r} is claimed by {plugins}; uninstall one, or leave it out of {LIMIT}"
        message = unknown(kind_word(kind), name, self.names(kind), where="installed")
        mine = [one for one in self.failed if one.reason.startswith(f"{kind_word(kind)} {name!r}: ")]
        failed = {one.plugin: f"not loaded: {one}" for one in mine or self.failed}
        return "; ".join(filter(None, [message, self.plugins.hidden_note, *failed.values()]))

    def _resolve(self, kind: str, given: Any) -> Resolved:
        given = {"name": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return {}, [Problem("", f"should be {component_words(kind)}. Found {show(given)}.")]
        try:
            entry = self.get(kind, given["name"])
        except RequestError as error:
            return given, error.problems
        model, problems = entry.model, list[Problem]()
        with _gathered(entry, "cannot read its options", problems):
            first = model.read(given, _inside(self.resolve)).written()
            resolved = model.read(first, _inside(self.resolve)).written()
            wrong = "what an option's validator returns should be valid, and stay the same"
            problems += (
                Problem(key, f"{entry} reads {show(first[key])} as {show(value)}; {wrong}")
                for key, value in resolved.items()
                if value != first[key]
            )
            return resolved, problems
        return given, problems

    def _make(self, kind: str, given: Any) -> tuple[Any, list[Problem]]:
        complete, problems = self.resolve(kind, given)
        if problems:
            return None, problems
        entry = self.get(kind, complete["name"])
        with _gathered(entry, "cannot be constructed", problems):
            options = entry.model.read(complete, _inside(self._make))
            return entry.cls(**options.arguments()), problems
        return None, problems

    def used_by(self, kind: str, resolved: Mapping[str, Any]) -> list[Entry]:
        """A component and those inside it; a recorded one without its locations has none inside."""
        entry = self.get(kind, resolved["name"])
        found = [entry]

        def place(kind: str, inner: Any) -> Any:
            found.extend(self.used_by(kind, inner))
            return inner

        with suppress(ValidationError):
            entry.model.read(resolved, place)
        return found


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


@contextmanager
def _gathered(entry: Entry, doing: str, problems: list[Problem]) -> Iterator[None]:
    """Run a component's code: what is wrong with its options, and whatever it raises, is added to ``problems``."""
    with noted(f"{entry} {doing}", problems):
        try:
            yield
        except ValidationError as error:
            problems += problems_of(error, entry.model)
        except ValueError as error:  # what a constructor says of its options
            raise TaskloomError(str(error)) from error


def _write(value: Any) -> bytes:
    """A value as JSON, quickly: what is written the same way is the same, and is worked out once."""
    return to_json(value, inf_nan_mode="constants")
