"""The options of a component: one pydantic model, made from the annotated keyword arguments of its ``__init__``.

Values are read strictly as JSON has them: ``"3"`` is not a number and ``true`` is not 1, but 1 will do for 1.0 and 1.0
for 1. An argument annotated with an interface (``loss: Loss``) takes a component.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, field_serializer
from pydantic_core import PydanticCustomError, to_json

from taskloom.core.component import Component
from taskloom.core.errors import PluginError

#: What becomes of a component inside an option, given its kind and what was written.
Place = Callable[[str, Any], Any]
_MODELS: "WeakKeyDictionary[type[Component], type[Options]]" = WeakKeyDictionary()
_PREFIX = "option_"  # before the names of fields: a model has attributes of its own, such as "copy"


@dataclass(frozen=True)
class Option:
    """One option: its name, what it takes, its default as a JSON value, and its line in the docstring."""

    name: str
    annotation: Any
    required: bool
    default: Any
    text: str


class Options(BaseModel):
    """A component's name and options, checked; each component has a subclass of its own (:func:`model_of`)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def read(cls, given: Mapping[str, Any], place: Place | None = None) -> "Options":
        """The options that JSON values state; ``place`` says what becomes of the components among them."""
        return cls.model_validate_json(_as_json(given), strict=True, context=place)

    def written(self) -> dict[str, Any]:
        """The same as JSON values, always in the same form."""
        return self.model_dump(mode="json", by_alias=True, warnings=False)

    def arguments(self) -> dict[str, Any]:
        """The options as the constructor takes them."""
        return {field.removeprefix(_PREFIX): value for field, value in self if field.startswith(_PREFIX)}

    @field_serializer("*", mode="wrap", check_fields=False)
    def _in_order(self, value: Any, write: Any) -> Any:
        # A set has no order of its own, and a result's identity needs one.
        return sorted(write(value), key=json.dumps) if isinstance(value, set | frozenset) else write(value)


def options_of(cls: type[Component]) -> dict[str, Option]:
    """The options of a component class; ``PluginError`` if its constructor breaks a rule.

    An ``__init__`` that ends in ``**options`` passes them on, so the component also has the options of the next class
    in its method resolution order that defines ``__init__``. An option and its text are taken from the class nearest
    to the component.
    """
    declared = _declared(cls)
    defaults = _defaults(cls, declared)
    return {name: replace(option, default=defaults.get(name)) for name, option in declared.items()}


def model_of(cls: type[Component]) -> type[Options]:
    """The model of a component's name and options, made once; ``PluginError`` if its constructor breaks a rule."""
    if cls not in _MODELS:
        _MODELS[cls] = _new_model(cls)
    return _MODELS[cls]


def _new_model(cls: type[Component]) -> type[Options]:
    declared = _declared(cls)
    fields: dict[str, Any] = {"name": (Literal[cls.name], ...)}
    for name, option in declared.items():
        default = ... if option.required else option.default
        fields[f"{_PREFIX}{name}"] = (option.annotation, Field(default, alias=name, description=option.text or None))
        try:
            TypeAdapter(option.annotation)
        except Exception as error:  # pydantic has several, and a type of the plugin's own may raise any
            why = f"{option.annotation}: {' '.join(str(error).partition(chr(10))[0].split())}"
            raise PluginError(f"option {name!r} should be of a type that JSON can hold. Found {why}") from None
    return create_model(f"{cls.kind}.{cls.name}", __base__=Options, **fields)


def _declared(cls: type[Component]) -> dict[str, Option]:
    """The options as the constructor declares them, their defaults as Python values."""
    texts = {key: text for base in reversed(cls.__mro__) for key, text in option_texts(base.__doc__ or "").items()}
    bases = [base for base in cls.__mro__ if "__init__" in vars(base) and not _is_foreign(base)]
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
        for one in parameters:
            if one.name not in declared:
                _check_parameter(one, hints)
                required, text = one.default is one.empty, texts.get(one.name, "")
                declared[one.name] = Option(one.name, hints[one.name], required, one.default, text)
        if not passes_on:
            break
    return declared


def _is_foreign(base: type) -> bool:
    """Whether a base's ``__init__`` has no options: Python's own, or torch's."""
    return base is object or base.__module__.partition(".")[0] == "torch"


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


def _defaults(cls: type[Component], declared: Mapping[str, Option]) -> dict[str, Any]:
    """The defaults as JSON values; ``PluginError`` for one that a grid could not give."""

    def refused(name: str, why: str) -> PluginError:
        return PluginError(
            f"the default of option {name!r} cannot be written in a grid. Found {declared[name].default!r}: {why}"
        )

    def refuse_component(kind: str, given: Any) -> None:
        raise PydanticCustomError("default", "it should be None, or left out: the option takes a component")

    defaults: dict[str, Any] = {}
    model = model_of(cls)
    blank = model.model_construct()
    for name in [name for name, option in declared.items() if not option.required]:
        try:
            defaults |= blank.model_dump(mode="json", include={f"{_PREFIX}{name}"}, by_alias=True, warnings=False)
        except Exception as error:
            raise refused(name, str(error).partition("\n")[0]) from None
    try:
        model.read({"name": cls.name, **defaults}, refuse_component)
    except ValidationError as error:
        for item in error.errors():
            if item["type"] != "missing" or len(item["loc"]) > 1:
                raise refused(str(item["loc"][0]), item["msg"]) from None
    return defaults


def option_texts(doc: str) -> dict[str, str]:
    """The ``Options:`` block of a docstring: option → text.

    >>> option_texts("Focal.\\n\\nOptions:\\n    gamma: how much easy\\n        examples count less\\n\\nSiblings:")
    {'gamma': 'how much easy examples count less'}
    """
    lines = inspect.cleandoc(doc).splitlines()
    start = next((place for place, line in enumerate(lines) if line.strip() == "Options:"), len(lines))
    texts: dict[str, str] = {}
    for line in lines[start + 1 :]:
        if line and not line.startswith(" "):
            break
        match = re.match(r" {1,4}(\w+): *(.*)$", line)
        if match:
            texts[match[1]] = match[2]
        elif texts and line.strip():
            texts[next(reversed(texts))] += f" {line.strip()}"
    return texts


def _as_json(value: Any) -> bytes:
    return to_json(_with_integers(value), inf_nan_mode="constants")


def _with_integers(value: Any) -> Any:
    """A JSON value with every 1.0 written as 1, which JSON does not tell apart."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list | tuple):
        return [_with_integers(item) for item in value]
    return {key: _with_integers(item) for key, item in value.items()} if isinstance(value, dict) else value
