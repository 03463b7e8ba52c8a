"""What a law is, and the words in which it says that it was broken."""

import copy
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskloom.core.component import Component
from taskloom.core.errors import TaskloomError

#: How a component says that it does not take what it was given.
REFUSALS = (TaskloomError, ValueError)
#: What breaks a law when it is raised: a plugin may not end the program either.
RAISED = (Exception, SystemExit)


@dataclass(frozen=True, eq=False)
class Subject:
    """A component class with the options under which it is tested.

    ``quick`` marks one at the edge of an option's range, which is shown fewer inputs; there it may refuse them all.
    """

    component: type[Component]
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False

    def make(self, /, **more: Any) -> Any:
        """A new component; options that are components themselves are not shared between two of them."""
        return self.component(**copy.deepcopy({**self.options, **more}))

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        kind, name = self.component.kind, self.component.name or self.component.__name__
        return f"{kind} {name!r} ({options})" if options else f"{kind} {name!r}"


@dataclass(frozen=True)
class Plugin:
    """A plugin's module, or anything with hooks as attributes."""

    module: Any

    def __str__(self) -> str:
        return f"plugin {getattr(self.module, '__name__', type(self.module).__name__)!r}"


Target = type[Component] | ModuleType | Any


@dataclass(frozen=True)
class Law:
    """One thing that every component of a kind must do. Call it with a class and options, or with a plugin's module."""

    kind: str
    holds: Callable[[Any], None]

    @property
    def name(self) -> str:
        return self.holds.__name__.replace("_", " ")

    @property
    def at_edges(self) -> bool:
        """Whether it is also held at the edges of each option's range."""
        return getattr(self.holds, "at_edges", False)

    def __str__(self) -> str:
        return self.name

    def __call__(self, target: Target, /, **options: Any) -> None:
        """Raise ``AssertionError`` if the class (or module) breaks this law."""
        from taskloom.core.testing.running import breach_of, subject_of

        breach = breach_of(self, subject_of(target, options))
        if breach is not None:
            raise AssertionError(str(breach)) from breach.error


def at_edges(holds: Callable[[Any], None]) -> Callable[[Any], None]:
    """Mark a law that is also held at the edges of each option's range."""
    holds.at_edges = True  # type: ignore[attr-defined]
    return holds


def require(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` keeps."""
    if not condition:
        raise AssertionError(message)


def require_close(found: Tensor, expected: Tensor, message: str, *, within: float = 1e-5, least: float = 1.0) -> None:
    """Equal up to ``within``, relative to the largest expected value, and at least to ``least``."""
    require(found.shape == expected.shape, f"{message}: shape {list(found.shape)}, not {list(expected.shape)}")
    if not expected.numel():
        return
    one, other = found.detach().double(), expected.detach().double()
    gaps = (one - other).abs()
    gap, scale = gaps.max().item(), max(least, other.abs().max().item())
    where = _where(gaps.isnan() if gap != gap else gaps == gap, one, other)
    require(gap <= within * scale, f"{message}: {where}, a difference of {gap:.3g}")


def require_equal(found: Tensor, expected: Tensor, message: str) -> None:
    """Equal to the last bit; the message shows the first place where they are not, and both values there."""
    require(found.shape == expected.shape, f"{message}: shape {list(found.shape)}, not {list(expected.shape)}")
    one, other = found.detach(), expected.detach()
    differ = ~((one == other) | (one.isnan() & other.isnan()))
    if differ.any():
        raise AssertionError(f"{message}: {_where(differ, one, other)}")


def _where(places: Tensor, one: Tensor, other: Tensor) -> str:
    """The first of the places, and the values there."""
    index = tuple(places.nonzero()[0].tolist())
    values = f"{one[index].item():.9g} and not {other[index].item():.9g}"
    return f"at {list(index)} it is {values}" if index else f"it is {values}"


def require_finite(value: Tensor, what: str) -> None:
    if not value.isfinite().all():
        index = (~value.isfinite()).nonzero()[0].tolist()
        raise AssertionError(f"{what} is not finite: {value[tuple(index)].item()}{f' at {index}' if index else ''}")


@contextmanager
def given(text: str) -> Iterator[None]:
    """Say with which input a law was broken."""
    try:
        yield
    except RAISED as error:
        raise AssertionError(f"with {text}: {words_of(error)}") from error


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


def words_of(error: BaseException) -> str:
    """What was raised, in a line; our own assertions as they are."""
    if isinstance(error, AssertionError):
        return str(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 400 else text[:399] + '…'}"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
