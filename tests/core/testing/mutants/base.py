"""Making mutants: a sound class with one slip in it."""

from typing import Any


def mutant(sound: type, slip: str, **overrides: Any) -> Any:
    """A class as the sound one, but for what is overridden; its docstring says what is wrong with it."""
    return type("Mutant", (sound,), {"name": "mutant", "__doc__": slip, **overrides})


def then(method: Any, change: Any) -> Any:
    """A method that does something more: what ``change(self, result, *arguments)`` returns, it returns."""
    return lambda self, *given, **named: change(self, method(self, *given, **named), *given, *named.values())
