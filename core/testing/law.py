"""What a law is, how a class is held to it, and how violations are reported: each cause once, with its input."""

import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain, islice, zip_longest
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from taskloom.core.component import Component
from taskloom.core.errors import TaskloomError
from taskloom.core.testing.specimens import RAISED, Specimen

#: A component class, or a plugin's module (or anything with hooks as attributes).
Target = type[Component] | ModuleType | Any
#: The cases in which a law is tried on a specimen, each with its description.
Cases = Callable[[Any], Iterable[tuple[str, Any]]]
F = TypeVar("F", bound=Callable[..., None])


def require(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` keeps."""
    if not condition:
        raise AssertionError(message)


def require_equal(actual: Sequence[Any], expected: Sequence[Any], message: str) -> None:
    """Require equal lists; the message says where they differ first."""
    for index, (got, wanted) in enumerate(zip_longest(actual, expected, fillvalue="nothing")):
        require(got == wanted, f"{message}: number {index} is {got}, not {wanted}")


def accepted(
    specimen: Specimen,
    cases: Iterable[tuple[str, Any]],
    use: Callable[[Any], object],
    refusals: tuple[type[Exception], ...] = (TaskloomError,),
) -> Iterator[tuple[str, Any]]:
    """The cases that a component accepts. It may refuse some, and at the edge of an option all of them."""
    any_accepted, refused = False, []
    for words, case in cases:
        with given(words):
            try:
                use(case)
            except refusals as error:
                refused.append(f"{words} ({error})")
                continue
        any_accepted = True
        yield words, case
    require(any_accepted or specimen.edge, f"it refuses everything: {'; '.join(refused)}")


@contextmanager
def given(text: str) -> Iterator[None]:
    """Add the input under which a law was broken as a note to the exception, the innermost first."""
    try:
        yield
    except RAISED as error:
        error.add_note(text)
        raise


def words_of(error: BaseException) -> str:
    """An exception in one line; assertions without their type."""
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        return text
    return f"{type(error).__name__}: {text if len(text) <= 400 else text[:399] + '…'}"


@dataclass(frozen=True)
class Law:
    """One property of every component of a kind. Call it with a class and options, or with a plugin's module.

    ``at_edges``: it also holds at the edges of each option's range.
    """

    kind: str
    holds: Callable[[Any], None]
    at_edges: bool = False

    @property
    def name(self) -> str:
        return self.holds.__name__.replace("_", " ")

    def __str__(self) -> str:
        return self.name

    def __call__(self, target: Target, /, **options: Any) -> None:
        """Raise ``AssertionError`` if the class (or module) breaks this law."""
        raise_if_any(violations_of([self], specimen_of(target, options)))

    def violations(self, specimen: Any) -> "Iterator[Violation]":
        """The violation by a specimen, if there is one."""
        try:
            self.holds(specimen)
        except RAISED as error:
            yield Violation(self, specimen, error)


#: The laws of each kind; those of "component" hold for all of them.
LAWS: dict[str, list[Law]] = {}


def law(kind: str, *, cases: Cases | None = None, at_edges: bool = False) -> Callable[[F], F]:
    """Register a function as a law of this kind, named by its name.

    It is called with the specimen, or with specimen and case for each of its ``cases``: a violation names the case.
    """

    def register(function: F) -> F:
        @wraps(function)
        def holds(specimen: Any) -> None:
            if cases is None:
                return function(specimen)
            for words, case in cases(specimen):
                with given(words):
                    function(specimen, case)

        LAWS.setdefault(kind, []).append(Law(kind, holds, at_edges))
        return function

    return register


@dataclass(frozen=True)
class Violation:
    """A broken law: by which specimen or module, and the exception."""

    law: Law
    specimen: Any
    error: BaseException

    @property
    def name(self) -> str:
        """The component with its options, or the plugin."""
        if isinstance(self.specimen, Specimen):
            return str(self.specimen)
        return f"plugin {getattr(self.specimen, '__name__', type(self.specimen).__name__)!r}"

    @property
    def input(self) -> str:
        """The input that broke the law, the outermost description first."""
        notes = getattr(self.error, "__notes__", [])
        return f": with {', '.join(reversed(notes))}" if notes else ""


def specimen_of(target: Target, options: dict[str, Any]) -> Any:
    """The specimen of a class with options; a module stays as it is."""
    if isinstance(target, type) and issubclass(target, Component):
        specimen = Specimen(target, options)
        missing = [name for name, option in specimen.known.items() if option.required and name not in options]
        if missing:
            example = ", ".join(f"{name}=…" for name in missing)
            raise TypeError(f"{target.__name__} requires options; give them: check({target.__name__}, {example})")
        return specimen
    if isinstance(target, type | str | list | tuple):
        raise TypeError(f"laws are for a component class or a plugin's module. Found {target!r}.")
    return target


def violations_of(laws: Iterable[Law], specimen: Any) -> Iterator[Violation]:
    """The first violation of each law, by the specimen itself or at an edge of its options."""
    for law in laws:
        edges = (edge for edge in specimen.edges() if edge.can_be_made()) if law.at_edges else ()
        yield from islice((violation for tried in chain([specimen], edges) for violation in law.violations(tried)), 1)


def raise_if_any(violations: Iterable[Violation]) -> None:
    """Raise one ``AssertionError`` for all violations, grouped by cause."""
    groups: dict[tuple[str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((violation.name, words_of(violation.error)), []).append(violation)
    lines = []
    for (name, cause), (first, *more) in groups.items():
        if more:
            lines.append(f"{name}: {1 + len(more)} laws break for one reason: {cause}{location_of(first.error)}")
            lines += [f"  {violation.law.name!r}{violation.input}" for violation in (first, *more)]
        else:
            lines.append(f"{name} breaks the law {first.law.name!r}{first.input}: {cause}")
    if groups:
        raise AssertionError("\n".join(lines)) from next(iter(groups.values()))[0].error


def location_of(error: BaseException) -> str:
    """The line of the tested code that raised the exception."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    own = [frame for frame in frames if Path(__file__).parent not in Path(frame.filename).parents]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Raise if the block draws from (or seeds) a global random state of torch, numpy or Python.

    The block starts from unpredictable states, so that setting a seed is always noticed; afterwards the caller's states
    are restored.
    """
    ours = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(secrets.randbits(63))
        np.random.seed(secrets.randbits(32))
        random.seed(secrets.randbits(63))
        before = _global_states()
        yield
        after = _global_states()
    finally:
        torch.set_rng_state(ours[0])
        np.random.set_state(ours[1])
        random.setstate(ours[2])
    touched = [name for name in before if before[name] != after[name]]
    require(not touched, f"the global random state of {', '.join(touched)} was touched; use the generator passed in")


def _global_states() -> dict[str, Any]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (np.asarray(keys).tobytes(), *rest),
        "Python": random.getstate(),
    }
