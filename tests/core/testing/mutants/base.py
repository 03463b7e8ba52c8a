"""Making mutants: a sound class with one slip in it."""

from typing import Any


def mutant(sound: type, slip: str, **overrides: Any) -> Any:
    """A class as the sound one, but for what is overridden; its docstring says what is wrong with it."""
    return type("Mutant", (sound,), {"name": "mutant", "__doc__": slip, **overrides})


#: What makes a module save an object, which would have to be unpickled.
PICKLED: dict[str, Any] = {"get_extra_state": lambda self: {1, 2}, "set_extra_state": lambda self, state: None}
