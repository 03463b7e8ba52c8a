"""Laws of every component, and the law of kinds whose output must be reproducible.

In a new process the order of sets and ``hash()`` of strings change. As starting Python and importing torch takes
seconds, one helper process, which has imported nothing of a plugin, answers each question in a fork of itself; it ends
with the process that asks.
"""

import atexit
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from taskloom.core.options import options_of
from taskloom.core.testing.law import given, law, require, require_equal, untouched_randomness, words_of
from taskloom.core.testing.specimens import RAISED, REFUSALS, Specimen

_HINT = "the order of a set and hash() of a string change from process to process: use sorted() or zlib.crc32()"
#: Writes down the output of a component, in lines.
Describe = Callable[[Any], list[str]]


@law("component")
def it_has_a_name_and_a_summary(specimen: Specimen) -> None:
    name, text = specimen.component.name, inspect.cleandoc(specimen.component.__doc__ or "")
    typed = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
    require(bool(typed), f"the name should be lower-case letters, digits and underscores. Found {name!r}.")
    require(bool(text.split("\n")[0].strip()), "the class should have a docstring that begins with a summary")


@law("component")
def its_options_are_annotated_and_documented(specimen: Specimen) -> None:
    """They are keyword arguments whose type and default a grid can hold, each with a line in the docstring."""
    options = options_of(specimen.component)
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
    for attribute in ("location_options", "path_options"):
        unknown = sorted(set(getattr(specimen.component, attribute)) - options.keys())
        require(not unknown, f"{attribute} should name options. Found {', '.join(unknown)}.")


@law("component")
def making_one_leaves_its_defaults_as_they_are(specimen: Specimen) -> None:
    """Python keeps one default for all instances."""
    before = {name: repr(option.default) for name, option in specimen.known.items()}
    specimen.make()
    for name, option in options_of(specimen.component).items() if before else ():
        with given(f"option {name!r}"):
            changed = f"the constructor changes its default, for every later one: {before[name]} → {option.default!r}"
            require(repr(option.default) == before[name], changed)


@law("component")
def it_takes_what_its_options_allow_or_says_why_not(specimen: Specimen) -> None:
    """Every edge of an option's range makes a component or is refused with a message (ValueError or TaskloomError)."""
    for edge in specimen.edges():
        with given(str(edge)):
            try:
                edge.make()
            except REFUSALS as error:
                require(bool(str(error).strip()), f"{type(error).__name__} has no message")


def law_of_repeating(kind: str, describe: Describe) -> None:
    """Hold a kind to the law that ``describe`` of equal components gives the same lines."""

    @law(kind)
    def it_gives_the_same_again_and_in_a_new_process(specimen: Specimen) -> None:
        """The same from one that is used twice, from another one and in a new process; no global state is touched.

        A new process is left out for a class that cannot be imported (made by a function, or in a script) and for
        options that JSON cannot hold.
        """
        with untouched_randomness():
            first = specimen.make()
            lines, *others = (describe(component) for component in (first, first, specimen.make()))
        for other in others:
            require_equal(other, lines, "the second time it gives something else")
        lines_there = _lines_in_new_process(describe, specimen)
        if lines_there is not None:
            require_equal(lines_there, lines, f"in a new process it gives something else ({_HINT})")


def _lines_in_new_process(describe: Describe, specimen: Specimen) -> list[str] | None:
    component = specimen.component
    names = [f"{named.__module__}:{named.__qualname__}" for named in (describe, component)]
    here = {"path": sys.path, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    try:
        question = json.dumps({"describe": names[0], "component": names[1], "options": dict(specimen.options), **here})
        if component.__module__ == "__main__" or resolve_name(names[1]) is not component:
            return None
    except (TypeError, ValueError, AttributeError, ImportError):
        return None
    helper = _helper()
    print(question, file=helper.stdin, flush=True)
    answer = json.loads(helper.stdout.readline() or '{"error": "it cannot be started"}')  # type: ignore[union-attr]
    require("error" not in answer, f"it fails in a new process: {answer.get('error')}")
    return answer["lines"]  # type: ignore[no-any-return]


@cache
def _helper() -> "subprocess.Popen[str]":
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    helper = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import answer_questions; answer_questions()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    atexit.register(helper.communicate)  # closes its input, and waits
    return helper


def answer_questions() -> None:
    """Answer each line of standard input with a line."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a plugin prints is not an answer
        for question in sys.stdin:
            if (child := os.fork()) == 0:
                print(json.dumps(_answer_to(json.loads(question))), file=answers, flush=True)
                os._exit(0)
            if status := os.waitpid(child, 0)[1]:
                print(json.dumps({"error": f"it ends with status {status}"}), file=answers, flush=True)


def _answer_to(question: dict[str, Any]) -> dict[str, Any]:
    """The lines of a component, or the error; None for a class that is not found, which is no fault of its own."""
    sys.path[:] = question["path"]
    os.chdir(question["folder"])
    os.environ.update(question["environment"])
    try:
        specimen = Specimen(resolve_name(question["component"]), question["options"])
    except (ImportError, AttributeError):
        return {"lines": None}
    try:
        return {"lines": resolve_name(question["describe"])(specimen.make())}
    except RAISED as error:
        return {"error": words_of(error)}
