"""The options of a component, read from the annotated keyword arguments of its ``__init__``.

Each option has a form, a JSON schema (:mod:`taskloom.core.forms`), and a strict validator of pydantic's: JSON in,
Python values out, ``"3"`` is no number and ``true`` no whole number, but 1 will do for 1.0 and 1.0 for 1. What the form
refuses is wrong in how it is written; what only the validator refuses is wrong in fact. An argument annotated with an
interface (``loss: Loss``) takes a component there.
"""

import inspect
import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial, reduce
from operator import getitem, or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PlainValidator, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticCustomError, SchemaError, to_jsonable_python

from taskloom.core.component import Component
from taskloom.core.errors import PluginError
from taskloom.core.fits import fits, same
from taskloom.core.forms import Schema, form_of
from taskloom.core.words import describe, refusal, show

_STRICT_JSON = json.JSONEncoder(allow_nan=False).encode


class FormError(ValueError):
    """A value that an option's form refuses, so that an editor with the schema refuses it too."""


@dataclass(frozen=True)
class Nested:
    """A component given as an option: its kind and what was written, not yet looked up."""

    kind: str
    given: Any


@dataclass(frozen=True)
class Option:
    """One option: its name, what it takes, its default as a JSON value, and its line in the docstring."""

    name: str
    annotation: Any
    adapter: TypeAdapter[Any]
    required: bool
    default: Any
    text: str
    form: Schema = field(default_factory=dict)

    @property
    def allowed(self) -> str:
        """What its value should be, in words."""
        return describe(self.annotation)

    def read(self, value: Any) -> Any:
        """A JSON value → what the constructor takes (components as :class:`Nested`).

        ``FormError`` if it does not fit the option's form, another ``ValueError`` if it fits that and still cannot be.
        """
        if not fits(self.form, value):
            raise FormError(refusal(self.annotation, value))
        try:
            return self._read(value)
        except ValueError as error:
            for choice in _choices(self.adapter.core_schema):  # pydantic loses those above 2**63, and lists
                if same(dump(choice.value if isinstance(choice, Enum) else choice), value):
                    return choice
            whole = as_whole(value)
            if repr(whole) == repr(value):
                raise error from None
            return self._read(whole)  # JSON knows no difference between 1 and 1.0

    def kept(self, value: Any, read: Any) -> Any:
        """What a resolved spec keeps of a JSON value that was ``read``: always something that reads as the same.

        That is what was read, written in one way (1 as 1.0 for a number, sets in order). Where a validator would make
        something else of it (50 is read as 0.5, which would be read as 0.005), it is the value as it was given.
        """
        try:
            written = dump(read)
            if alike(self.read(fill(written, lambda inner, _: inner.given, "")), read):
                return written
        except Exception:  # cannot be written at all, or not be read again
            written = None
        try:
            whole = as_whole(value)
            return whole if alike(self.read(whole), read) else value
        except ValueError:
            return value

    def _read(self, value: Any) -> Any:
        try:
            return self.adapter.validate_json(_STRICT_JSON(value), strict=True)
        except ValidationError as error:
            own = [item for item in error.errors() if item["type"] in ("value_error", "assertion_error")]
            if own:  # a validator of the plugin's own explains itself
                raise ValueError(f"{own[0]['msg'].split(', ', 1)[-1]}. Found {show(value)}.") from None
            raise ValueError(refusal(self.annotation, value)) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # not JSON: NaN, an object of Python's; or a plugin's validator fails, or exits
            known = isinstance(error, TypeError | ValueError)
            why = "" if known else f" ({type(error).__name__}: {error})"
            raise ValueError(f"{refusal(self.annotation, value)}{why}") from None


def _choices(plan: Mapping[str, Any]) -> list[Any]:
    if plan["type"] == "nullable":
        return _choices(plan["schema"])
    return list(plan.get("expected", ())) if plan["type"] == "literal" else list(plan.get("members", ()))


def alike(one: Any, other: Any) -> bool:
    """Whether two values that were read are the same; those that cannot be compared are if they are written so."""
    try:
        plain = getattr(type(one), "__eq__", None) is object.__eq__
        return dump(one) == dump(other) if plain else bool(one == other)
    except Exception:
        return False


def as_whole(value: Any) -> Any:
    """A JSON value with every 1.0 written as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [as_whole(item) for item in value]
    return {key: as_whole(item) for key, item in value.items()} if isinstance(value, dict) else value


def options_of(cls: type[Component]) -> dict[str, Option]:
    """The options of a component class; ``PluginError`` if its constructor breaks a rule.

    An ``__init__`` that ends in ``**options`` passes them on, so the component also has the options of the next class
    in its method resolution order that defines ``__init__``. An option and its text are taken from the class nearest
    to the component.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= option_texts(base.__doc__ or "")
    options: dict[str, Option] = {}
    constructors = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and not _foreign(base)]
    for place, constructor in enumerate(constructors):
        try:
            hints = get_type_hints(constructor, include_extras=True)
        except Exception as error:
            raise PluginError(f"the annotations of __init__ should be names that exist: {error}") from error
        _, *parameters = inspect.signature(constructor).parameters.values()
        passes_on = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        if passes_on and place + 1 < len(constructors):
            parameters.pop()
        for one in parameters:
            if one.name not in options:
                options[one.name] = _option(one, hints, texts.get(one.name, ""))
        if not passes_on:
            break
    return options


def _foreign(base: type) -> bool:
    """Whether a base's ``__init__`` takes no options: Python's own, or torch's."""
    return base is object or base.__module__.partition(".")[0] == "torch"


def _option(parameter: inspect.Parameter, hints: Mapping[str, Any], text: str) -> Option:
    name = parameter.name
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise PluginError(f"__init__ should name its options. Found '{parameter}'.")
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise PluginError(f"option {name!r} should be keyword-only: put '*' before it")
    if name == "name":
        raise PluginError("an option should not be called 'name': that is the component's own")
    if name not in hints:
        raise PluginError(f"option {name!r} should be annotated with its type")
    annotation = hints[name]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_with_slots(annotation))
        if adapter.core_schema["type"] == "generator":
            raise TypeError("a generator can be read only once")
        if _secret(annotation):
            raise PluginError("should not be a secret: options are recorded with every result. Read it from a file.")
    except PluginError as error:
        raise PluginError(f"option {name!r} {error}") from None
    except Exception as error:  # pydantic has several, and a type of the plugin's own may raise any
        why = "" if isinstance(error, PydanticSchemaGenerationError) else str(error).strip()
        why = re.sub(r"^\w*Error: ", "", why.rpartition("\n")[2].strip() if isinstance(error, SchemaError) else why)
        text = f"option {name!r} should be of a type that JSON can hold. Found {annotation}"
        raise PluginError(f"{text}: {why.partition(chr(10))[0]}" if why else f"{text}.") from None
    required = parameter.default is inspect.Parameter.empty
    option = Option(name, annotation, adapter, required, None, text, form_of(adapter.core_schema))
    return option if required else replace(option, default=_checked_default(option, parameter.default))


def _checked_default(option: Option, default: Any) -> Any:
    """A default as a JSON value. It should be one that a grid could give, and the same when it is read back."""
    message = f"the default of option {option.name!r} {refusal(option.annotation, default)}"
    try:
        value = option.adapter.validate_python(default, strict=True)
        written = dump(value)
        if isinstance(written, Nested):  # in Python the default would be a text where the class expects a component
            raise PluginError(f"option {option.name!r} should have no default, or None: it takes a component")
        again = option.read(written)
    except PluginError:
        raise
    except (Exception, SystemExit):  # a validator of the plugin's own may raise any
        raise PluginError(message) from None
    if dump(again) != written or (type(again) is type(value) and not alike(again, value)):
        changed = f"{show(default)} is read as {again!r}"
        raise PluginError(f"{message} It should be the same when it is read: {changed}.")
    return written


def dump(value: Any) -> Any:
    """What :meth:`Option.read` gave, as JSON values again, always in the same form; components stay ``Nested``."""
    if isinstance(value, Nested):
        return value
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(key)): dump(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((dump(item) for item in value), key=json.dumps)
    return to_jsonable_python(value)


def fill(value: Any, place: Callable[[Nested, str], Any], path: str) -> Any:
    """A value with every component in it replaced by what ``place`` makes of it and its path."""
    if isinstance(value, Nested):
        return place(value, path)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, fill(item, place, f"{path}.{key}")) for key, item in value.items())
    if type(value) in (list, tuple, deque):
        return type(value)(fill(item, place, f"{path}.{index}") for index, item in enumerate(value))
    return value


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


def _with_slots(annotation: Any) -> Any:
    """The annotation with every interface in it replaced by a validator for a component of that kind."""
    if isinstance(annotation, type) and issubclass(annotation, Component):
        if "kind" not in vars(annotation) or annotation is Component:
            raise PluginError(f"should be annotated with an interface such as Loss. Found {annotation.__name__}.")
        kind = annotation.kind
        return Annotated[Any, PlainValidator(partial(nested, kind))]
    origin, args = get_origin(annotation), get_args(annotation)
    if not args or not any(_mentions_component(arg) for arg in args):
        return annotation
    inner = tuple(_with_slots(arg) for arg in args)
    if origin is Annotated:
        return getitem(Annotated, inner)
    if origin in (Union, UnionType):
        if sum(_mentions_component(arg) for arg in args) > 1:
            raise PluginError(f"should name one interface, not a choice of several. Found {annotation}.")
        return reduce(or_, inner)
    return origin[inner]


def _secret(annotation: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Whether there is a secret in a type, which pydantic does not write; ``seen`` are the models around it."""
    home, inner = get_origin(annotation) or annotation, get_args(annotation)
    if isinstance(home, type) and issubclass(home, SecretStr | SecretBytes | Secret):
        return True
    if isinstance(home, type) and issubclass(home, BaseModel) and home not in seen:
        seen, inner = (*seen, home), tuple(one.annotation for one in home.model_fields.values())
    return any(_secret(one, seen) for one in inner)


def _mentions_component(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Component):
        return True
    return any(_mentions_component(arg) for arg in get_args(annotation))


def nested(kind: str, value: Any) -> Nested:
    """A component where an option takes one."""
    if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("name"), str)):
        return Nested(kind, value)
    raise PydanticCustomError("component", "no component")
