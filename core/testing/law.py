"""What a law is, and the words in which it says that it was broken."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskloom.core.component import Component


@dataclass(frozen=True)
class Subject:
    """A component class with the options under which it is tested."""

    component: type[Component]
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, **more: Any) -> Any:
        """A new component; options that are components themselves are not shared between two of them."""
        return self.component(**copy.deepcopy({**self.options, **more}))

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        kind, name = self.component.kind, self.component.name or self.component.__name__
        return f"{kind} {name!r} ({options})" if options else f"{kind} {name!r}"


@dataclass(frozen=True)
class Law:
    """One thing that every component of a kind must do. Call it with a class and options."""

    kind: str
    holds: Callable[[Subject], None]

    @property
    def name(self) -> str:
        return self.holds.__name__.replace("_", " ")

    def __str__(self) -> str:
        return self.name

    def __call__(self, component: type[Component], **options: Any) -> None:
        """Raise ``AssertionError`` if the class breaks this law."""
        subject = Subject(component, options)
        try:
            self.holds(subject)
        except Exception as error:
            raise AssertionError(f"{subject} breaks the law {self.name!r}: {_words(error)}") from error


def require(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` keeps."""
    if not condition:
        raise AssertionError(message)


def require_close(found: Tensor, expected: Tensor, message: str, *, within: float = 1e-5) -> None:
    """Equal up to ``within``, relative to the larger of 1 and the largest expected value."""
    require(found.shape == expected.shape, f"{message}: shape {list(found.shape)}, not {list(expected.shape)}")
    if not expected.numel():
        return
    gap = (found.double() - expected.double()).abs().max().item()
    scale = max(1.0, expected.double().abs().max().item())
    require(gap <= within * scale, f"{message}: they differ by {gap:.3g}")


@contextmanager
def given(text: str) -> Iterator[None]:
    """Say with which input a law was broken."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"with {text}: {_words(error)}") from error


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Raise if the block draws from (or seeds) a global random state of torch, numpy or Python."""
    before = _global_states()
    yield
    after = _global_states()
    touched = [name for name in before if before[name] != after[name]]
    require(not touched, f"the global random state of {', '.join(touched)} was touched; use the generator passed in")


def _global_states() -> dict[str, Any]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (np.asarray(keys).tobytes(), *rest),
        "Python": random.getstate(),
    }


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
