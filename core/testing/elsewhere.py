"""The same once more in a new process, where sets and ``hash()`` of texts come out in another order."""

import atexit
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from taskloom.core.testing.law import Subject, require, words_of

Tell = Callable[[Subject], list[str]]
_HINT = "; the order of a set and hash() of a text change from process to process: use sorted() or zlib.crc32()"


def require_same_elsewhere(tell: Tell, subject: Subject) -> None:
    """What ``tell`` says of a subject, a new process should say too.

    A class that only lives in this process (made by a function, or in a script), or whose options JSON cannot hold,
    is not looked at.
    """
    component = subject.component
    name = f"{component.__module__}:{component.__qualname__}"
    try:
        question = json.dumps(
            {
                "tell": f"{tell.__module__}:{tell.__qualname__}",
                "component": name,
                "options": dict(subject.options),
                "path": sys.path,
                "environment": dict(os.environ),
                "folder": os.getcwd(),  # noqa: PTH109 - as it is
            }
        )
    except (TypeError, ValueError):
        return
    if component.__module__ == "__main__" or "<locals>" in name:
        return
    answer = _elsewhere(question)
    if answer is None:
        return
    require("told" in answer, f"a new process does not get so far: {answer.get('error')}")
    here, there = tell(subject), answer["told"]
    for one, other in zip(here, there, strict=False):
        require(one == other, f"here it gives {one}, in a new process {other}{_HINT}")
    require(len(here) == len(there), f"here it gives {len(here)} parts, in a new process {len(there)}{_HINT}")


class _Server:
    """A process that has everything imported and answers each question in a copy of itself, which is new to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from taskloom.core.testing.elsewhere import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            encoding="utf-8",
        )
        atexit.register(self.end)

    def ask(self, question: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or "{}")

    def end(self) -> None:
        if self.owner == os.getpid() and self.process.poll() is None:
            self.process.communicate()


_servers: list[_Server] = []


def _elsewhere(question: str) -> Any:
    """The answer of a new process."""
    while _servers and (_servers[0].owner != os.getpid() or _servers[0].process.poll() is not None):
        _servers.pop()
    if not _servers:
        _servers.append(_Server())
    server = _servers[0]
    answer = server.ask(question)
    if not hasattr(os, "fork"):  # then it has answered itself, and is not new any more
        server.end()
    return answer


def serve() -> None:
    """Answer questions, one a line, until there are no more."""
    for line in sys.stdin:
        if hasattr(os, "fork"):
            answer = _of_a_copy(line)
        else:
            answer = _answered(line)
        print(answer or json.dumps({"error": "it ended without a word"}), flush=True)


def _of_a_copy(question: str) -> str:
    ours, theirs = os.pipe()
    copy = os.fork()
    if not copy:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what a component prints is no answer
            with os.fdopen(theirs, "w", encoding="utf-8") as pipe:
                pipe.write(_answered(question))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(copy, 0)
    return answer


def _answered(line: str) -> str:
    question = json.loads(line)
    os.environ.clear()
    os.environ.update(question["environment"])
    os.chdir(question["folder"])
    sys.path[:] = [*question["path"], question["folder"]]  # from where test runners find what they import
    importlib.invalidate_caches()
    try:
        subject = Subject(_found(question["component"]), question["options"])
    except Exception:
        return json.dumps(None)  # it does not find the class, which is no fault of the class
    try:
        return json.dumps({"told": _found(question["tell"])(subject)})
    except BaseException as error:  # a component may call sys.exit
        return json.dumps({"error": words_of(error)})


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
