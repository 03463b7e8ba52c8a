"""Laws of every component."""

import inspect
import re
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from taskloom.core.options import options_of
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.subjects import REFUSALS, Subject


@law("component")
def it_has_a_name_and_a_summary(subject: Subject) -> None:
    name, text = subject.component.name, inspect.cleandoc(subject.component.__doc__ or "")
    typed = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
    require(bool(typed), f"the name should be lower-case letters, digits and underscores. Found {name!r}.")
    require(bool(text.split("\n")[0].strip()), "the class should have a docstring that begins with a summary")


@law("component")
def its_options_are_annotated_and_documented(subject: Subject) -> None:
    """Keyword arguments of a type and a default that a grid can hold, with a line in the docstring."""
    options = options_of(subject.component)
    for option in options.values():
        with given(f"option {option.name!r}"):
            annotation = FieldInfo.from_annotation(option.annotation).annotation
            require(annotation not in (Any, object), f"annotate it with the type it takes, not with {annotation}")
            adapter = TypeAdapter[Any](option.annotation)
            if not option.required and option.default is not None:
                with given(f"the default {option.default!r}"):
                    adapter.validate_json(adapter.dump_json(option.default, warnings=False), strict=True)
            line = f"Options:\n    {option.name}: what it is"
            require(bool(option.text), f"the docstring should say what it is, in a line of its own: {line!r}")
    unknown = sorted(set(subject.component.location_options) - options.keys())
    require(not unknown, f"location_options should name options. Found {', '.join(unknown)}.")


@law("component")
def making_one_leaves_its_defaults_as_they_are(subject: Subject) -> None:
    """Python keeps one default for all that are ever made."""
    before = {name: repr(option.default) for name, option in subject.known.items()}
    subject.make()
    for name, option in options_of(subject.component).items() if before else ():
        with given(f"option {name!r}"):
            changed = f"the constructor changes its default, for every later one: {before[name]} → {option.default!r}"
            require(repr(option.default) == before[name], changed)


@law("component")
def it_takes_what_its_options_allow_or_says_why_not(subject: Subject) -> None:
    """Every edge of an option's range makes a component, or is refused by a message (ValueError or TaskloomError)."""
    for edge in subject.edges():
        with given(str(edge)):
            try:
                edge.make()
            except REFUSALS as error:
                require(bool(str(error).strip()), f"{type(error).__name__} has no message")
