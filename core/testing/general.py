"""Laws of every component."""

import copy
import inspect
import io
import re
from contextlib import redirect_stdout
from time import perf_counter
from typing import Any

from pydantic import JsonValue

from taskloom.core.options import Option, options_of
from taskloom.core.testing.edges import edges_of, read_option, write_option, written_edges
from taskloom.core.testing.law import REFUSALS, Subject, given, require, untouched_randomness
from taskloom.core.words import bare

#: How long making a component may take, in seconds: it only checks options. What needs time belongs into build.
PATIENCE = 10.0
#: One value of every type that JSON has; most options take one or two of them.
_TYPES: tuple[Any, ...] = (None, True, -7, 0.5, "no such value", [["no such value"]], {"no such key": {}})
#: Numbers that are seldom a default.
_NUMBERS = (0, 1, 2, 50, 0.25, 3.0)


def it_has_a_name_that_users_can_type(subject: Subject) -> None:
    name = subject.component.name
    require(
        isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None,
        f"the name should be lower-case letters, digits and underscores. Found {name!r}.",
    )


def it_says_what_it_does(subject: Subject) -> None:
    text = inspect.cleandoc(subject.component.__doc__ or "")
    require(bool(text.split("\n")[0].strip()), "the class should have a docstring that begins with a summary")


def its_options_are_annotated_keyword_arguments(subject: Subject) -> None:
    options = options_of(subject.component)
    stray = sorted(set(subject.component.location_options) - options.keys())
    require(not stray, f"places should name options. Found {', '.join(stray)}.")


def its_options_are_in_the_schema_with_their_text(subject: Subject) -> None:
    for option in options_of(subject.component).values():
        with given(f"option {option.name!r}"):
            line = f"Options:\n    {option.name}: what it is"
            require(bool(option.text), f"the docstring should say what it is, in a line of its own: {line!r}")


def a_wrong_value_of_an_option_is_refused(subject: Subject) -> None:
    """Each option takes some types of JSON's and not others, and says so."""
    for option in options_of(subject.component).values():
        with given(f"option {option.name!r}"):
            if bare(option.annotation)[0] is JsonValue:
                continue  # it says that it takes anything
            messages = [words for value in _TYPES if (words := _refusal(option, value)) is not None]
            require(bool(messages), "no value is refused; annotate it with the type that the constructor expects")
            require(all(messages), "a wrong value is refused without a word")


def _refusal(option: Option, value: Any) -> str | None:
    with given(f"the value {value!r}"):
        try:
            read_option(option, value)
        except ValueError as error:
            return str(error)
    return None


def a_value_of_an_option_means_the_same_each_time(subject: Subject) -> None:
    """What is kept of a value in the record of a run is read as the value was, so that a run can be repeated."""
    for option in options_of(subject.component).values():
        for value in (*_TYPES, *_NUMBERS, *written_edges(option)):
            with given(f"option {option.name!r}, value {value!r}"):
                _require_one_meaning(option, value)


def _require_one_meaning(option: Option, value: Any) -> None:
    try:
        read = read_option(option, value)
    except ValueError:
        return
    with given("written down again"):
        again = read_option(option, write_option(option, read))
    require(write_option(option, again) == write_option(option, read), f"it is read as {read!r}, and then as {again!r}")


def _comparable(value: Any) -> bool:
    """Whether a value is equal to its copy."""
    return _alike(copy.deepcopy(value), value)


def _alike(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


def making_one_leaves_its_defaults_as_they_are(subject: Subject) -> None:
    """Python keeps one default for all that are ever made."""
    constructors = [vars(base)["__init__"] for base in subject.component.__mro__ if "__init__" in vars(base)]
    for defaults in [found for one in constructors if (found := getattr(one, "__kwdefaults__", None))]:
        before = {name: copy.deepcopy(value) for name, value in defaults.items() if _comparable(value)}
        subject.make()
        for name, value in before.items():
            words = f"the constructor changes it, for the next one that is made too: {value!r} → {defaults[name]!r}"
            require(_alike(defaults[name], value), f"with option {name!r}: {words}")


def its_defaults_can_be_written_in_a_grid(subject: Subject) -> None:
    """A default goes through JSON and comes back as itself, and the constructor takes it."""
    for option in options_of(subject.component).values():
        if option.required or option.name in subject.options:
            continue
        with given(f"option {option.name!r}, default {option.default!r}"):
            value = read_option(option, option.default)
            require(write_option(option, value) == option.default, f"JSON gives {value!r} back")
            subject.make(**{option.name: value})


def it_takes_what_its_options_allow_or_says_why_not(subject: Subject) -> None:
    """Every edge of an option's range makes a component, or is refused by a message (ValueError or TaskloomError)."""
    for edge in edges_of(subject):
        with given(str(edge)):
            try:
                edge.make()
            except REFUSALS as error:
                require(bool(str(error).strip()), f"{type(error).__name__} says nothing")


def making_one_is_quick_and_prints_nothing(subject: Subject) -> None:
    printed, seconds = io.StringIO(), []
    for _ in range(2):  # the first may have to import a library
        start = perf_counter()
        with redirect_stdout(printed):
            subject.make()
        seconds.append(perf_counter() - start)
        if seconds[-1] <= PATIENCE:
            break
    require(min(seconds) <= PATIENCE, f"it takes {min(seconds):.1f} s; what needs time belongs into build or prepare")
    require(not printed.getvalue(), f"it prints {printed.getvalue()[:80]!r}")


def making_one_draws_no_random_numbers(subject: Subject) -> None:
    with untouched_randomness():
        subject.make()


LAWS = (
    it_has_a_name_that_users_can_type,
    it_says_what_it_does,
    its_options_are_annotated_keyword_arguments,
    its_options_are_in_the_schema_with_their_text,
    a_wrong_value_of_an_option_is_refused,
    a_value_of_an_option_means_the_same_each_time,
    making_one_leaves_its_defaults_as_they_are,
    its_defaults_can_be_written_in_a_grid,
    making_one_is_quick_and_prints_nothing,
    making_one_draws_no_random_numbers,
    it_takes_what_its_options_allow_or_says_why_not,
)
