"""Laws of every component."""

import inspect
import re

from taskloom.core.component import Component
from taskloom.core.testing.law import Subject, require, untouched_randomness


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
    # A class that defines no __init__ has no options; nn.Module's own says nothing.
    home = next((c for c in subject.component.__mro__ if "__init__" in vars(c) and issubclass(c, Component)), None)
    if home is None:
        return
    for option in list(inspect.signature(home.__init__).parameters.values())[1:]:
        require(
            option.kind is inspect.Parameter.KEYWORD_ONLY,
            f"option {option.name!r} should be keyword-only: write `def __init__(self, *, {option.name}: …)`",
        )
        require(option.annotation is not inspect.Parameter.empty, f"option {option.name!r} should have a type")


def making_one_draws_no_random_numbers(subject: Subject) -> None:
    with untouched_randomness():
        subject.make()


LAWS = (
    it_has_a_name_that_users_can_type,
    it_says_what_it_does,
    its_options_are_annotated_keyword_arguments,
    making_one_draws_no_random_numbers,
)
