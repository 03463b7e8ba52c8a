"""The same once more in a new process, where sets and ``hash()`` of texts come out in another order."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from taskloom.core.testing.law import Subject, require, words_of

#: How a new process says that it does not find the class, which is no fault of the class.
UNKNOWN = 77
PATIENCE = 600.0
PROGRAM = "from taskloom.core.testing.elsewhere import answer; answer()"

Tell = Callable[[Subject], list[str]]


def require_same_elsewhere(tell: Tell, subject: Subject) -> None:
    """What ``tell`` says of a subject, a new process should say too.

    A class that only lives in this process (made by a function, or in a script), or whose options JSON cannot hold,
    is not looked at.
    """
    component = subject.component
    name = f"{component.__module__}:{component.__qualname__}"
    try:
        question = json.dumps([f"{tell.__module__}:{tell.__qualname__}", name, dict(subject.options)])
    except (TypeError, ValueError):
        return
    if component.__module__ == "__main__" or "<locals>" in name:
        return
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=question,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode == UNKNOWN:
        return
    last = (done.stdout or done.stderr).strip().rpartition("\n")[2]
    require(done.returncode == 0, f"a new process does not get so far: {last}")
    here, there = tell(subject), json.loads(last)
    differ = [(one, other) for one, other in zip(here, there, strict=False) if one != other]
    words = "; the order of a set and hash() of a text change from process to process: use sorted() or zlib.crc32()"
    if differ:
        one, other = differ[0]
        raise AssertionError(f"here it gives {one}, in a new process {other}{words}")
    require(len(here) == len(there), f"here it gives {len(here)} parts, in a new process {len(there)}{words}")


def answer() -> None:
    """Answer the question on stdin, as the last line on stdout."""
    tell, component, options = json.loads(sys.stdin.read())
    try:
        subject = Subject(_found(component), options)
    except Exception:
        sys.exit(UNKNOWN)
    try:
        print(json.dumps(_found(tell)(subject)))
    except Exception as error:
        print(words_of(error))
        sys.exit(1)


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
