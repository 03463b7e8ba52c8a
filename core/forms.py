"""The form of an option as a JSON schema: what every value that fits it has, in words that all validators share.

Made from pydantic's own plan of the type, in a small language: types, choices, ranges, lengths, plain patterns, lists,
objects. What that language cannot say exactly – validators of a plugin's own, the text of a date, steps of 0.1,
patterns of Rust alone – is left out: it is no matter of form, and is checked when the value is read.
"""

import math
import re
from collections.abc import Mapping
from enum import Enum, Flag
from functools import partial
from typing import Any

from taskloom.core.field_texts import with_texts
from taskloom.core.limits import exact, exact_step, pushed

Schema = dict[str, Any]
#: Marks the place of a component in an option's form.
SLOT = "x-component"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_TOKEN = re.compile(
    r"(?P<class>\[\^?(?:[A-Za-z0-9 _.,:;/@%+*=!?()<>{}#$'\"]|-(?!-)|\\[\]\[\\^.\-])+\])"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<many>[*+]|\{\d{1,3}(?:,\d{0,3})?\})|(?P<maybe>\?)|(?P<end>\$)|(?P<any>\.)"
    r"|(?P<other>[\^|]|\\[\^$\\.*+?()\[\]{}|/]|[^\\^$.|?*+()\[\]{}])"
)


def form_of(plan: Mapping[str, Any]) -> Schema:
    """The form of what a core schema of pydantic's accepts as strict JSON; ``{}`` where nothing can be said.

    >>> from pydantic import TypeAdapter
    >>> form_of(TypeAdapter(dict[str, int] | None).core_schema)
    {'anyOf': [{'type': 'object', 'additionalProperties': {'type': 'integer'}}, {'type': 'null'}]}
    """
    form = _Reader({}).form(plan)
    return form if sound(form) else {}  # one that no validator can read would spoil the schema of everything


def component_form(kind: str) -> Schema:
    """The form of a component given as an option."""
    return {SLOT: kind}


class _Reader:
    """Walks a plan; ``parts`` are its shared parts by reference."""

    def __init__(self, parts: dict[str, Mapping[str, Any]], depth: int = 0) -> None:
        self.parts = parts
        self.depth = depth

    def form(self, plan: Mapping[str, Any]) -> Schema:
        kind = plan["type"]
        if kind == "function-after":
            return self.form(pushed(plan))
        if kind == "chain":
            return self.form(plan["steps"][0])
        if kind in _WRAPPERS:
            return self.form(plan[_WRAPPERS[kind]])
        if kind == "function-plain":
            function = plan["function"]["function"]
            slot = isinstance(function, partial) and function.func.__name__ == "nested"
            return component_form(function.args[0]) if slot else {}
        if kind == "definitions":
            self.parts |= {part["ref"]: part for part in plan["definitions"]}
            return self.form(plan["schema"])
        if kind == "definition-ref":  # a type that holds itself is followed a few steps
            part = self.parts.get(plan["schema_ref"])
            return _Reader(self.parts, self.depth + 1).form(part) if part and self.depth < 3 else {}
        if kind in ("model", "dataclass"):
            return {} if plan.get("custom_init") else self._model(plan)
        read = getattr(self, f"_{kind.replace('-', '_')}", None)
        return dict(read(plan)) if read else dict(_SIMPLE.get(kind, {}))

    def _int(self, plan: Mapping[str, Any]) -> Schema:
        step = exact_step(plan.get("multiple_of"))
        return {"type": "integer", **_bounds(plan), **({"multipleOf": step} if step else {})}

    def _float(self, plan: Mapping[str, Any]) -> Schema:
        return {**self._int(plan), "type": "number"}

    def _decimal(self, plan: Mapping[str, Any]) -> Schema:
        limits = {key: exact(plan.get(key)) for key in _BOUNDS}
        return any_of([{"type": "number", **_bounds(limits)}, {"type": "string"}])

    def _str(self, plan: Mapping[str, Any]) -> Schema:
        if plan.get("to_lower") or plan.get("to_upper"):
            return {"type": "string"}  # may be longer or shorter than what was written
        if plan.get("strip_whitespace"):
            return {"type": "string", **_lengths(plan, "Length", most=False)}
        rust = plan.get("regex_engine", "rust-regex") == "rust-regex"
        pattern = common_pattern(plan["pattern"]) if isinstance(plan.get("pattern"), str) and rust else None
        return {"type": "string", **_lengths(plan, "Length"), **({"pattern": pattern} if pattern else {})}

    def _literal(self, plan: Mapping[str, Any]) -> Schema:
        return _choices([one.value if isinstance(one, Enum) else one for one in plan["expected"]])

    def _enum(self, plan: Mapping[str, Any]) -> Schema:
        if plan.get("missing"):
            return {}
        if issubclass(plan.get("cls", Enum), Flag):
            return {"type": "integer"}  # sums of members too
        return _choices([member.value for member in plan["members"]])

    def _nullable(self, plan: Mapping[str, Any]) -> Schema:
        return any_of([self.form(plan["schema"]), {"type": "null"}])

    def _union(self, plan: Mapping[str, Any]) -> Schema:
        return any_of([self.form(one[0] if isinstance(one, tuple) else one) for one in plan["choices"]])

    def _tagged_union(self, plan: Mapping[str, Any]) -> Schema:
        return any_of([self.form(one) for one in plan["choices"].values() if isinstance(one, dict)])

    def _list(self, plan: Mapping[str, Any], *, most: bool = True) -> Schema:
        items = self.form(plan.get("items_schema", {"type": "any"}))
        return {"type": "array", **({"items": items} if items else {}), **_lengths(plan, "Items", most=most)}

    def _set(self, plan: Mapping[str, Any]) -> Schema:
        return self._list(plan, most=False)  # what stands twice counts once

    _frozenset = _deque = _set

    def _tuple(self, plan: Mapping[str, Any]) -> Schema:
        items, rest = [self.form(one) for one in plan["items_schema"]], plan.get("variadic_item_index")
        if rest is None:
            return _row(items, len(items))
        if len(items) > 1:
            return {"type": "array", "minItems": len(items) - 1}
        return {"type": "array", **({"items": items[0]} if items[0] else {}), **_lengths(plan, "Items")}

    def _named_tuple(self, plan: Mapping[str, Any]) -> Schema:
        row = _row([self.form(one["schema"]) for one in plan["fields"]], sum(map(self._needed, plan["fields"])))
        return any_of([row, self._model_fields(plan)])

    def _dict(self, plan: Mapping[str, Any]) -> Schema:
        keys = self.form(plan.get("keys_schema", {"type": "any"}))
        plain = keys.get("type") == "string" or all(isinstance(one, str) for one in keys.get("enum", [0]))
        named = {"propertyNames": keys} if plain and keys != {"type": "string"} else {}
        if keys.get("type") == "integer":
            named = {"propertyNames": {"pattern": _WHOLE_KEY}}
        values = self.form(plan.get("values_schema", {"type": "any"}))
        inner = {"additionalProperties": values} if values else {}
        return {"type": "object", **named, **inner, **_lengths(plan, "Properties", most=plain)}

    _ordered_dict = _counter = _dict

    def _model(self, plan: Mapping[str, Any]) -> Schema:
        form = _closed(plan, self.form(plan["schema"]))
        if plan.get("root_model") or "properties" not in form:
            return form
        return {**form, "properties": with_texts(form["properties"], plan["cls"])}

    def _model_fields(self, plan: Mapping[str, Any]) -> Schema:
        fields = plan["fields"] if isinstance(plan["fields"], dict) else {one["name"]: one for one in plan["fields"]}
        if any("validation_alias" in one for one in fields.values()):
            return {"type": "object"}
        needed = [name for name, one in fields.items() if self._needed(one)]
        properties = {name: self.form(one["schema"]) for name, one in fields.items()}
        return _closed(plan, {"type": "object", "properties": properties, **({"required": needed} if needed else {})})

    _dataclass_args = _typed_dict = _model_fields

    @staticmethod
    def _needed(field: Mapping[str, Any]) -> bool:
        return bool(field.get("required", field["schema"]["type"] != "default"))


_WRAPPERS = {
    "default": "schema",
    "json-or-python": "json_schema",
    "lax-or-strict": "strict_schema",
}
_TEXTS = ("date", "datetime", "time", "timedelta", "uuid", "url", "multi-host-url", "bytes", "json")
_SIMPLE = {"bool": {"type": "boolean"}, "none": {"type": "null"}, **{kind: {"type": "string"} for kind in _TEXTS}}
#: Every key that pydantic reads as a whole number, and few others.
_WHOLE_KEY = "^[^A-Za-z]*[0-9][^A-Za-z]*$"


def _row(items: list[Schema], needed: int) -> Schema:
    """A list of so many items, each of its own form."""
    return {"type": "array", **({"prefixItems": items} if items else {}), "minItems": needed, "maxItems": len(items)}


def _closed(plan: Mapping[str, Any], form: Schema) -> Schema:
    """The form of an object, closed if its type forbids other keys."""
    behaviours = plan.get("extra_behavior"), plan.get("config", {}).get("extra_fields_behavior")
    return {**form, "additionalProperties": False} if "forbid" in behaviours and "properties" in form else form


def sound(form: Any) -> bool:
    """Whether a form is a schema that every validator of the draft can read.

    >>> sound({"type": "array", "items": {"minimum": 1}}), sound({"prefixItems": []}), sound({"type": "whole"})
    (True, False, False)
    """
    return isinstance(form, dict) and all(_sound(word, said) for word, said in form.items())


def _sound(word: str, said: Any) -> bool:
    if word in ("anyOf", "prefixItems"):
        return isinstance(said, list) and bool(said) and all(map(sound, said))
    if word == "properties":
        return isinstance(said, dict) and all(map(sound, said.values()))
    if word in ("items", "propertyNames", "additionalProperties"):
        return said is False or sound(said)
    if word in ("required", "enum"):
        return isinstance(said, list) and (word == "enum" or all(isinstance(one, str) for one in said))
    if word in _BOUNDS.values() or word == "multipleOf":
        return _finite(said) and (word != "multipleOf" or said > 0)
    if word.startswith(("min", "max")):
        return type(said) is int and said >= 0
    if word in ("description", "default"):
        return word == "default" or isinstance(said, str)
    kinds = ("integer", "number", "string", "boolean", "null", "array", "object")
    known = {"type": lambda: said in kinds, "pattern": lambda: _compiles(said), SLOT: lambda: isinstance(said, str)}
    return word in known and bool(known[word]())


def any_of(forms: list[Schema]) -> Schema:
    """What fits one of several forms."""
    flat = [inner for one in forms for inner in (one["anyOf"] if set(one) == {"anyOf"} else [one])]
    different = [one for place, one in enumerate(flat) if one not in flat[:place]]
    if {} in different:
        return {}
    return different[0] if len(different) == 1 else {"anyOf": different}


def common_pattern(pattern: str) -> str | None:
    r"""A pattern that means the same to Rust, Python and JavaScript; None if there is none, or it may take for ever.

    >>> common_pattern("^[a-z]+.x$")
    '^[a-z]+[^\\n]x$(?!\\n)'
    >>> common_pattern(r"\p{L}+"), common_pattern("(a+)+"), common_pattern("[a-z&&b]")
    (None, None, None)
    """
    written, place, repeats, previous = "", 0, [False], ""
    closed = False  # the group that ended just now repeats something inside
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        what = token.lastgroup if token else None
        if token is None or (what in ("many", "maybe") and previous in ("", "many", "maybe", "open", "end")):
            return None
        if what == "many":
            if previous == "close" and closed:
                return None
            repeats[-1] = True
        elif what == "open":
            repeats.append(False)
        elif what == "close":
            if len(repeats) == 1:
                return None
            closed = repeats.pop()
            repeats[-1] = repeats[-1] or closed
        written += {"end": r"$(?!\n)", "any": r"[^\n]"}.get(str(what), token[0])
        place, previous = token.end(), str(what)
    return written if len(repeats) == 1 and _compiles(written) else None


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    return True


def _choices(values: list[Any]) -> Schema:
    return {"enum": [_bare(one) for one in values]} if all(map(_known, values)) else {}


def _known(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_known, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _bare(value: Any) -> Any:
    """A text or number without the class of its own that an enumeration may give it."""
    if isinstance(value, list | tuple):
        return [_bare(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    return str.__str__(value) if isinstance(value, str) else float(value) if isinstance(value, float) else int(value)


def _bounds(plan: Mapping[str, Any]) -> Schema:
    return {word: plan[key] for key, word in _BOUNDS.items() if _finite(plan.get(key))}


def _finite(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _lengths(plan: Mapping[str, Any], what: str, *, most: bool = True) -> Schema:
    limits = {f"min{what}": plan.get("min_length"), f"max{what}": plan.get("max_length") if most else None}
    return {word: limit for word, limit in limits.items() if isinstance(limit, int)}
