"""What a law is, how a class is held to it, and how what broke is reported: each cause once, with its input."""

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
from taskloom.core.testing.subjects import RAISED, Subject

#: A component class, or a plugin's module (or anything with hooks as attributes).
Target = type[Component] | ModuleType | Any
#: The cases in which a law is tried on a subject, each with the words that name it.
Cases = Callable[[Any], Iterable[tuple[str, Any]]]
F = TypeVar("F", bound=Callable[..., None])


def require(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` keeps."""
    if not condition:
        raise AssertionError(message)


def require_equal(found: Sequence[Any], expected: Sequence[Any], message: str) -> None:
    """Two lists are equal; else say where they differ first."""
    for place, (one, other) in enumerate(zip_longest(found, expected, fillvalue="nothing")):
        require(one == other, f"{message}: number {place} is {one}, not {other}")


def accepted(
    subject: Subject,
    cases: Iterable[tuple[str, Any]],
    use: Callable[[Any], object],
    refusals: tuple[type[Exception], ...] = (TaskloomError,),
) -> Iterator[tuple[str, Any]]:
    """The cases that a component takes; refusing some breaks no law, nor does refusing all at the edge of an option."""
    taken, refused = False, []
    for words, case in cases:
        with given(words):
            try:
                use(case)
            except refusals as error:
                refused.append(f"{words} ({error})")
                continue
        taken = True
        yield words, case
    require(taken or subject.edge, f"it refuses everything: {'; '.join(refused)}")


@contextmanager
def given(text: str) -> Iterator[None]:
    """Say with which input a law was broken: in a note on what was raised, the innermost first."""
    try:
        yield
    except RAISED as error:
        error.add_note(text)
        raise


def words_of(error: BaseException) -> str:
    """What was raised, in a line; our own assertions as they are."""
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        return text
    return f"{type(error).__name__}: {text if len(text) <= 400 else text[:399] + '…'}"


@dataclass(frozen=True)
class Law:
    """One thing that every component of a kind must do. Call it with a class and options, or with a plugin's module.

    ``at_edges``: it must do that at the edges of each option's range, too.
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
        raise_if_any(breaches_of([self], subject_of(target, options)))

    def tried(self, subject: Any) -> "Iterator[Breach]":
        """How a subject breaks the law, if it does."""
        try:
            self.holds(subject)
        except RAISED as error:
            yield Breach(self, subject, error)


#: The laws of each kind; those of "component" hold for all of them.
LAWS: dict[str, list[Law]] = {}


def law(kind: str, *, cases: Cases | None = None, at_edges: bool = False) -> Callable[[F], F]:
    """Make a function a law of this kind: its name, in words, is the law's.

    It is called with the subject, or for each of its ``cases`` with subject and case, so that a breach names the case.
    """

    def register(function: F) -> F:
        @wraps(function)
        def holds(subject: Any) -> None:
            if cases is None:
                return function(subject)
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
    def name(self) -> str:
        """The component with its options, or the plugin."""
        if isinstance(self.subject, Subject):
            return str(self.subject)
        return f"plugin {getattr(self.subject, '__name__', type(self.subject).__name__)!r}"

    @property
    def input(self) -> str:
        """With what the law was broken, the widest first."""
        notes = getattr(self.error, "__notes__", [])
        return f": with {', '.join(reversed(notes))}" if notes else ""


def subject_of(target: Target, options: dict[str, Any]) -> Any:
    """A class with options as a subject; a module as it is."""
    if isinstance(target, type) and issubclass(target, Component):
        subject = Subject(target, options)
        missing = [name for name, option in subject.known.items() if option.required and name not in options]
        if missing:
            given = ", ".join(f"{name}=…" for name in missing)
            raise TypeError(f"{target.__name__} requires options; give them: check({target.__name__}, {given})")
        return subject
    if isinstance(target, type | str | list | tuple):
        raise TypeError(f"laws are for a component class or a plugin's module. Found {target!r}.")
    return target


def breaches_of(laws: Iterable[Law], subject: Any) -> Iterator[Breach]:
    """The first breach of each law: by the subject as it was given, or else at the edges of its options."""
    for one in laws:
        edges = (edge for edge in subject.edges() if edge.can_be_made()) if one.at_edges else ()
        yield from islice((breach for each in chain([subject], edges) for breach in one.tried(each)), 1)


def raise_if_any(breaches: Iterable[Breach]) -> None:
    """Raise one ``AssertionError`` for all breaches, in which those that have one reason stand together."""
    groups: dict[tuple[str, str], list[Breach]] = {}
    for breach in breaches:
        groups.setdefault((breach.name, words_of(breach.error)), []).append(breach)
    lines = []
    for (name, cause), (first, *more) in groups.items():
        if more:
            lines.append(f"{name}: {1 + len(more)} laws break for one reason: {cause}{place_of(first.error)}")
            lines += [f"  {breach.law.name!r}{breach.input}" for breach in (first, *more)]
        else:
            lines.append(f"{name} breaks the law {first.law.name!r}{first.input}: {cause}")
    if groups:
        raise AssertionError("\n".join(lines)) from next(iter(groups.values()))[0].error


def place_of(error: BaseException) -> str:
    """Where it was raised, in the code that is held to the law."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    own = [frame for frame in frames if Path(__file__).parent not in Path(frame.filename).parents]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


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
