"""What an editor shows of the fields of a model: each one's text and default, beside its form."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python


def with_texts(properties: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The forms of a model's fields, each with its description and its default where it has them.

    >>> from pydantic import BaseModel, Field
    >>> class Warm(BaseModel):
    ...     steps: int = Field(5, description="how many")
    >>> with_texts({"steps": {"type": "integer"}}, Warm)
    {'steps': {'type': 'integer', 'description': 'how many', 'default': 5}}
    """
    fields = getattr(cls, "__pydantic_fields__", None) or getattr(cls, "model_fields", {})
    return {name: {**form, **_said(fields.get(name))} for name, form in properties.items()}


def _said(field: object) -> dict[str, Any]:
    if not isinstance(field, FieldInfo):
        return {}
    said: dict[str, Any] = {"description": field.description} if isinstance(field.description, str) else {}
    if field.default is PydanticUndefined or isinstance(field.default, set | frozenset):  # a set has no order
        return said
    try:
        return {**said, "default": json.loads(json.dumps(to_jsonable_python(field.default), allow_nan=False))}
    except Exception:  # not a value that a grid could give, or a type of the plugin's own that cannot be written
        return said
