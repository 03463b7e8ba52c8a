"""What a law is, how a class is held to it, and how what broke is reported: each cause once."""

import inspect
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from taskloom.core.component import Component
from taskloom.core.testing.require import BrokenLaw, given, require, words_of
from taskloom.core.testing.subjects import RAISED, Subject

#: A component class, or a plugin's module (or anything with hooks as attributes).
Target = type[Component] | ModuleType | Any
Holds = Callable[[Any], None]
#: The cases in which a law is tried on a subject, each with the words that name it.
Cases = Callable[[Any], Iterable[tuple[str, Any]]]
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class Law:
    """One thing that every component of a kind must do. Call it with a class and options, or with a plugin's module.

    ``at_edges``: it must do that at the edges of each option's range, too.
    """

    kind: str
    holds: Holds
    at_edges: bool = False

    @property
    def name(self) -> str:
        return self.holds.__name__.replace("_", " ")

    def __str__(self) -> str:
        return self.name

    def __call__(self, target: Target, /, **options: Any) -> None:
        """Raise ``AssertionError`` if the class (or module) breaks this law."""
        breach = self.breach(subject_of(target, options))
        if breach is not None:
            raise AssertionError(str(breach)) from breach.error

    def breach(self, subject: Any) -> "Breach | None":
        """How a subject breaks the law, first as it was given, then at the edges of its options."""
        found = self._tried(subject)
        if found is None and self.at_edges:
            edges = (self._tried(edge) for edge in subject.edges() if edge.can_be_made())
            found = next((one for one in edges if one is not None), None)
        return found

    def _tried(self, subject: Any) -> "Breach | None":
        try:
            self.holds(subject)
        except RAISED as error:
            return Breach(self, subject, error)
        return None


#: The laws of each kind; those of "component" hold for all of them.
LAWS: dict[str, list[Law]] = {}


def law(kind: str, *, cases: Cases | None = None, at_edges: bool = False) -> Callable[[F], F]:
    """Make a function a law of this kind: its name, in words, is the law's.

    It is called with the subject, or for each of its ``cases`` with subject and case, so that a breach names the case.
    """

    def register(function: F) -> F:
        holds: Holds = function
        if cases is not None:

            @wraps(function)
            def holds(subject: Any) -> None:
                for words, case in cases(subject):
                    with given(words):
                        function(subject, case)

        LAWS.setdefault(kind, []).append(Law(kind, holds, at_edges))
        return function

    return register


@dataclass(frozen=True)
class Breach:
    """A law that was broken: by whom (a subject or a module), and what was raised."""

    law: Law
    subject: Any
    error: BaseException

    @property
    def cause(self) -> BaseException:
        """What was raised first, before anybody added the input to it."""
        return self.error.cause if isinstance(self.error, BrokenLaw) else self.error

    @property
    def reason(self) -> tuple[Any, ...]:
        """Equal for two breaches where, of one subject, the same line raised the same thing."""
        frames = _frames(self.cause)
        place = (frames[-1].filename, frames[-1].lineno) if frames else ()
        return (_name_of(self.subject), type(self.cause), str(self.cause), *place)

    @property
    def input(self) -> str:
        """The law and the input that broke it, without what was raised."""
        inputs = f": with {', '.join(self.error.inputs)}" if isinstance(self.error, BrokenLaw) else ""
        return f"{self.law.name!r}{inputs}"

    def __str__(self) -> str:
        return f"{_name_of(self.subject)} breaks the law {self.law.name!r}: {words_of(self.error)}"


def subject_of(target: Target, options: dict[str, Any]) -> Any:
    """A class with options as a subject; a module as it is."""
    if isinstance(target, type) and issubclass(target, Component):
        return Subject(target, options).completed()
    if options or isinstance(target, type | str | list | tuple):
        raise TypeError(f"a law holds for a component class with options, or for a plugin's module. Found {target!r}.")
    return target


def breaches_of(laws: Iterable[Law], subject: Any) -> list[Breach]:
    """Every breach of the laws given."""
    return [breach for one in laws if (breach := one.breach(subject)) is not None]


def report(breaches: Iterable[Breach]) -> str:
    """All breaches in words, those that have one reason together."""
    groups: dict[tuple[Any, ...], list[Breach]] = {}
    for breach in breaches:
        groups.setdefault(breach.reason, []).append(breach)
    return "\n".join(_described(group) for group in groups.values())


def _described(group: list[Breach]) -> str:
    first = group[0]
    if len(group) == 1:
        return str(first)
    frames = [frame for frame in _frames(first.cause) if "/torch/" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    head = f"{_name_of(first.subject)}: {len(group)} laws break for one reason: {words_of(first.cause)}{place}"
    return "\n  ".join([head, *(breach.input for breach in group)])


def _frames(error: BaseException) -> list[inspect.FrameInfo]:
    return inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []


def _name_of(subject: Any) -> str:
    if isinstance(subject, Subject):
        return str(subject)
    return f"plugin {getattr(subject, '__name__', type(subject).__name__)!r}"


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Raise if the block draws from (or seeds) a global random state of torch, numpy or Python.

    The block starts from states that nobody can foresee, so that a seed set there is noticed whatever was set before;
    afterwards the states are the caller's again.
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
