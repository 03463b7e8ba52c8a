"""The law of data sets, encoders and samplers: the same again, and in a new process.

There sets and ``hash()`` of strings come out differently. Starting Python and importing torch takes seconds, so that is
done once: a helper that has imported nothing of a plugin answers each question in a fork of itself, and ends with the
process that asks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from taskloom.core.testing.law import law, require, require_equal, untouched_randomness, words_of
from taskloom.core.testing.subjects import RAISED, Subject

_HINT = "the order of a set and hash() of a string change from process to process: use sorted() or zlib.crc32()"
#: What one component gives, in lines.
Describe = Callable[[Any], list[str]]


def law_of_repeating(kind: str, describe: Describe) -> None:
    """Hold a kind to the law that ``describe`` of a component gives the same lines wherever and whenever."""

    @law(kind)
    def it_gives_the_same_again_and_in_a_new_process(subject: Subject) -> None:
        """The same from one that is used twice, from another one and in a new process; no global state is touched.

        A class that cannot be imported there (made by a function, or in a script), or whose options JSON cannot hold,
        is not asked for in a new process.
        """
        with untouched_randomness():
            first = subject.make()
            lines, *others = (describe(one) for one in (first, first, subject.make()))
        for other in others:
            require_equal(other, lines, "the second time it gives something else")
        there = _lines_in_new_process(describe, subject)
        if there is not None:
            require_equal(there, lines, f"in a new process it gives something else ({_HINT})")


def _lines_in_new_process(describe: Describe, subject: Subject) -> list[str] | None:
    component = subject.component
    names = [f"{one.__module__}:{one.__qualname__}" for one in (describe, component)]
    here = {"path": sys.path, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    try:
        question = json.dumps({"describe": names[0], "component": names[1], "options": dict(subject.options), **here})
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
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import answer_questions; answer_questions()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def answer_questions() -> None:
    """Answer each line of the input with a line, until there are no more."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a plugin prints is not an answer
        for question in sys.stdin:
            if (child := os.fork()) == 0:
                print(json.dumps(_answer_to(json.loads(question))), file=answers, flush=True)
                os._exit(0)
            if status := os.waitpid(child, 0)[1]:
                print(json.dumps({"error": f"it ends with status {status}"}), file=answers, flush=True)


def _answer_to(question: dict[str, Any]) -> dict[str, Any]:
    """What was asked for; no lines where the class is not found, which is no fault of the class."""
    sys.path[:] = question["path"]
    os.chdir(question["folder"])
    os.environ.update(question["environment"])
    try:
        subject = Subject(resolve_name(question["component"]), question["options"])
    except (ImportError, AttributeError):
        return {"lines": None}
    try:
        return {"lines": resolve_name(question["describe"])(subject.make())}
    except RAISED as error:
        return {"error": words_of(error)}
