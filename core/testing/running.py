"""Holding a subject to laws, and telling what broke: one cause once."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from taskloom.core.component import Component
from taskloom.core.testing.edges import edges_of
from taskloom.core.testing.law import RAISED, REFUSALS, Law, Plugin, Subject, Target, words_of


@dataclass(frozen=True)
class Breach:
    """A law that was broken: by whom, and what was raised."""

    law: Law
    subject: Subject | Plugin
    error: BaseException

    @property
    def cause(self) -> BaseException:
        """What was raised first, before anybody added the input to it."""
        error = self.error
        while isinstance(error, AssertionError) and error.__cause__ is not None:
            error = error.__cause__
        return error

    @property
    def reason(self) -> tuple[Any, ...]:
        """Equal for two breaches where one and the same line of the component raised one and the same thing."""
        cause = self.cause
        if isinstance(cause, AssertionError):
            return (id(self),)
        trace = cause.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else ()
        return (type(cause), str(cause), *place)

    @property
    def input(self) -> str:
        """The law and the input that broke it, without what was raised."""
        given = words_of(self.error).removesuffix(words_of(self.cause)).rstrip(": ")
        options = f"{self.subject}, " if isinstance(self.subject, Subject) and self.subject.quick else ""
        return f"{self.law.name!r}: {options}{given}".rstrip(": ,")

    def __str__(self) -> str:
        return f"{self.subject} breaks the law {self.law.name!r}: {words_of(self.error)}"


def subject_of(target: Target, options: dict[str, Any]) -> Subject | Plugin:
    """A class with options, or a module."""
    if isinstance(target, type) and issubclass(target, Component):
        return Subject(target, options)
    if options or isinstance(target, type):
        raise TypeError(f"a law holds for a component class with options, or for a plugin's module. Found {target!r}.")
    return Plugin(target)


def breach_of(law: Law, subject: Subject | Plugin) -> Breach | None:
    """How a subject breaks a law, first as it was given, then at the edges of its options; None if it keeps it."""
    with one_thread():
        breach = _tried(law, subject)
        if breach is None and law.at_edges and isinstance(subject, Subject):
            found = (_tried(law, edge) for edge in edges_of(subject) if not _refused(edge))
            breach = next((one for one in found if one is not None), None)
    return breach


def _tried(law: Law, subject: Subject | Plugin) -> Breach | None:
    try:
        law.holds(subject)
    except RAISED as error:
        return Breach(law, subject, error)
    return None


def _refused(edge: Subject) -> bool:
    """Whether the constructor says that this value does not go with the others."""
    try:
        edge.make()
    except REFUSALS:
        return True
    except RAISED:
        return False
    return False


def breaches_of(found: Iterable[Law], subject: Subject | Plugin) -> list[Breach]:
    """Every breach of the laws given."""
    return [breach for law in found if (breach := breach_of(law, subject)) is not None]


def report(breaches: list[Breach]) -> str:
    """All breaches in words; those that have one reason stand together."""
    groups: dict[tuple[Any, ...], list[Breach]] = {}
    for breach in breaches:
        groups.setdefault((str(type(breach.subject)), *breach.reason), []).append(breach)
    return "\n".join(_told(group) for group in groups.values())


def _told(group: list[Breach]) -> str:
    first = group[0]
    if len(group) == 1:
        return str(first)
    lines = [f"{first.subject}: {len(group)} laws break for one reason: {words_of(first.cause)}"]
    place = _place_of(first.cause)
    return "\n  ".join([lines[0] + (f" ({place})" if place else ""), *(breach.input for breach in group)])


def _place_of(error: BaseException) -> str:
    """The last line of the component's own code that the error went through."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    own = [f for f in frames if "/torch/" not in f.filename and "/taskloom/core/" not in f.filename]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors as small as the kit's are slower on many threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
