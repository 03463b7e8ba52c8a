"""Builds a pydantic model from each component's options, which validates, serializes and describes them.

Values are read strictly as JSON has them: ``"3"`` is not a number and ``true`` is not 1, but 1 will do for 1.0 and 1.0
for 1. An argument annotated with an interface (``loss: Loss``) takes a component.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, field_serializer
from pydantic_core import PydanticCustomError, to_json

from taskloom.core.component import Component
from taskloom.core.errors import PluginError
from taskloom.core.options import Option, options_of
from taskloom.registry.installed.manager import guard

#: Replaces a component nested in an option: called with its kind and its JSON value.
ReplaceNested = Callable[[str, Any], Any]
_PREFIX = "option_"  # before the names of fields: a model has attributes of its own, such as "copy"


class Options(BaseModel):
    """A component's name and options, checked; each component has a subclass of its own (:func:`read_options`)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def read(cls, options: Mapping[str, Any], replace_nested: ReplaceNested | None = None) -> "Options":
        """Validate JSON values; ``replace_nested`` is called for each component among them."""
        return cls.model_validate_json(_as_json(options), strict=True, context=replace_nested)

    def written(self) -> dict[str, Any]:
        """The options as JSON values, in canonical form."""
        return self.model_dump(mode="json", by_alias=True, warnings=False)

    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of the constructor."""
        return {field.removeprefix(_PREFIX): value for field, value in self if field.startswith(_PREFIX)}

    @field_serializer("*", mode="wrap", check_fields=False)
    def _in_order(self, value: Any, write: Any) -> Any:
        # A result's identity needs an order, and a set has none.
        return sorted(write(value), key=json.dumps) if isinstance(value, set | frozenset) else write(value)


def _new_model(cls: type[Component], declared: Mapping[str, Option]) -> type[Options]:
    fields: dict[str, Any] = {"name": (Literal[cls.name], ...)}
    for name, option in declared.items():
        default = ... if option.required else option.default
        fields[f"{_PREFIX}{name}"] = (option.annotation, Field(default, alias=name, description=option.text or None))
    try:
        model = create_model(f"{cls.kind}.{cls.name}", __base__=Options, **fields)
        with warnings.catch_warnings(action="ignore"):
            model.model_json_schema()
    except Exception:  # pydantic has several, and a type of the plugin's own may raise any
        for name, option in declared.items():
            with guard(f"option {name!r} should be of a type that JSON can hold. Found {option.annotation}"):
                TypeAdapter(option.annotation).json_schema()
        raise
    return model


def read_options(cls: type[Component]) -> tuple[type[Options], dict[str, Option]]:
    """Build the model of a component's options; returns it and the options with their defaults as JSON values.

    ``PluginError`` if its constructor breaks a rule, or if a grid could not give one of the defaults.
    """
    declared = options_of(cls)
    model, defaults = _new_model(cls, declared), dict[str, Any]()
    blank = model.model_construct()

    def refuse_component(kind: str, written: Any) -> None:
        raise PydanticCustomError("default", "it should be None, or left out: the option takes a component")

    for name in [name for name, option in declared.items() if not option.required]:
        with guard(f"the default of option {name!r} cannot be written in a grid. Found {declared[name].default!r}"):
            defaults |= blank.model_dump(mode="json", include={f"{_PREFIX}{name}"}, by_alias=True, warnings=False)
            try:
                model.read({"name": cls.name, **defaults}, refuse_component)
            except ValidationError as error:
                messages = [
                    detail["msg"] for detail in error.errors() if detail["type"] != "missing" or len(detail["loc"]) > 1
                ]
                if messages:
                    raise PluginError(messages[0]) from None
    return model, {name: replace(option, default=defaults.get(name)) for name, option in declared.items()}


def _as_json(value: Any) -> bytes:
    return to_json(_with_integers(value), inf_nan_mode="constants")


def _with_integers(value: Any) -> Any:
    """A JSON value with whole floats as integers: JSON does not distinguish 1.0 from 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list | tuple):
        return [_with_integers(element) for element in value]
    return {key: _with_integers(inner) for key, inner in value.items()} if isinstance(value, dict) else value
