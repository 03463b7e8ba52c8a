"""The options of a component: annotated keyword arguments of its ``__init__``, with their lines in the docstring."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from taskloom.core.component import Component
from taskloom.core.errors import PluginError

_FOREIGN = ("builtins", "torch")


@dataclass(frozen=True)
class Option:
    """One option: its name, what it takes, its default, and its line in the docstring."""

    name: str
    annotation: Any
    required: bool
    default: Any
    text: str


def options_of(cls: type[Component]) -> dict[str, Option]:
    """The options of a component class; ``PluginError`` if its constructor breaks a rule.

    An ``__init__`` that ends in ``**options`` passes them on, so the component also has the options of the next class
    in its method resolution order that defines ``__init__``. An option and its text are taken from the class nearest
    to the component.
    """
    texts = {key: text for base in reversed(cls.__mro__) for key, text in option_texts(base.__doc__ or "").items()}
    # The constructors of Python and torch have no options.
    bases = [base for base in cls.__mro__ if "__init__" in vars(base) and base.__module__.split(".")[0] not in _FOREIGN]
    declared: dict[str, Option] = {}
    for base in bases:
        constructor: Callable[..., None] = vars(base)["__init__"]
        try:
            hints = get_type_hints(constructor, include_extras=True)
        except Exception as error:
            raise PluginError(f"the annotations of __init__ should be names that exist: {error}") from error
        _, *parameters = inspect.signature(constructor).parameters.values()
        passes_on = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        if passes_on and base is not bases[-1]:
            parameters.pop()
        for parameter in parameters:
            name, default = parameter.name, parameter.default
            if name not in declared:
                _check_parameter(parameter, hints)
                declared[name] = Option(name, hints[name], default is parameter.empty, default, texts.get(name, ""))
        if not passes_on:
            break
    return declared


def _check_parameter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise PluginError(f"__init__ should name its options. Found '{parameter}'.")
    if parameter.kind is not parameter.KEYWORD_ONLY:
        raise PluginError(f"option {name!r} should be keyword-only: put '*' before it")
    if name == "name":
        raise PluginError("an option should not be called 'name': that is the component's own")
    if name not in hints:
        raise PluginError(f"option {name!r} should be annotated with its type")


def option_texts(doc: str) -> dict[str, str]:
    """The ``Options:`` block of a docstring: option → text.

    >>> option_texts("Focal.\\n\\nOptions:\\n    gamma: how much easy\\n        examples count less\\n\\nSiblings:")
    {'gamma': 'how much easy examples count less'}
    """
    block = re.search(r"^Options:((?:\n(?: .*)?)*)", inspect.cleandoc(doc), re.MULTILINE)
    entries = re.findall(r"^ {1,4}(\w+): *(.*(?:\n {5,}.*)*)", block[1] if block else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
