"""Errors that are messages to the user: what was given, what is allowed, what to do.

The command line prints a :class:`TaskloomError` without a traceback and exits with 2. Anything else that
escapes is a defect of ours.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


class TaskloomError(Exception):
    """The request cannot be carried out; the message says why and what to do.

    Example: ``raise DataError("sts.csv, line 7: label 9 is out of range; it should be 0 to 5")``
    """


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a request, and where: ``Problem("tasks.sst.head", "no head 'linaer' …")``."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{shortened(self.path)}: {self.message}" if self.path else self.message


class RequestError(TaskloomError):
    """Every problem of one request, gathered before any work was done.

    Example: ``raise RequestError("grid.json", [Problem("seeds", "should hold at least one seed. Found [].")])``
    """

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject = subject
        self.problems = list(dict.fromkeys(problems))
        head = f"{subject}: {count(len(self.problems), 'error')}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class DataError(TaskloomError):
    """A data file is missing, empty or wrong; the message names file and line."""


class WeightsError(TaskloomError):
    """Weights cannot be found, or do not fit the architecture."""


class RegistryError(TaskloomError):
    """The registry's folder or ledger cannot be used."""


class EngineError(TaskloomError):
    """The engine cannot run cells at present, through no fault of the request: it may succeed later.

    Example: ``raise EngineError("the cluster at 10.0.0.1:6379 has not answered for 60 s")``
    """


class DeviceError(TaskloomError):
    """The device assigned to a cell cannot be used; the cell may be retried on another one.

    Example: ``raise DeviceError("torch cannot use the GPU that this worker was given: no driver")``
    """


class PluginError(TaskloomError):
    """An installed plugin breaks the rules; the message names it."""


class TrainingError(TaskloomError):
    """A run cannot go on: the message names task, step and component. It fails the cell, not the grid."""


class NotFiniteError(TrainingError):
    """A loss or a gradient is not a finite number; the run adds what may have caused it."""


class OutOfMemory(TrainingError):  # noqa: N818 - a state of the cell, not its failure
    """A batch does not fit; the cell is retried with half of ``micro_batch``, the examples in memory at a time.

    Example: ``raise OutOfMemory("sst", micro_batch=32, batch=64)``
    """

    def __init__(self, task: str, *, micro_batch: int, batch: int, where: str = "") -> None:
        self.task, self.micro_batch, self.batch = task, micro_batch, batch
        many = "1 example" if micro_batch == 1 else f"{micro_batch} examples"
        super().__init__(f"out of memory with {many} of task {task!r} at a time (batch {batch}){where}")


def unknown(kind: str, name: object, allowed: Iterable[str], *, where: str = "allowed") -> str:
    """The message for a name that does not exist, with the nearest one that does.

    >>> unknown("combiner", "pcgard", ["sum", "pcgrad"], where="installed")
    "no combiner 'pcgard'; did you mean 'pcgrad'? (installed: pcgrad, sum)"
    """
    names, written = sorted(allowed), shortened(str(name))
    near = get_close_matches(written, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = map(repr, names) if any("," in known for known in names) else names
    shown = repr(written) if isinstance(name, str) else written
    return f"no {kind} {shown}{hint} ({where}: {', '.join(listed) or 'none'})"


def shortened(text: str, most: int = 200) -> str:
    """The text, cut where it is longer than ``most`` characters.

    >>> shortened("pcgrad", 4)
    'pcg…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(number: int, thing: str) -> str:
    """How many there are of something.

    >>> count(1, "example"), count(0, "epoch"), count(2, "process")
    ('1 example', '0 epochs', '2 processes')
    """
    return f"{number} {thing}{'' if number == 1 else 'es' if thing.endswith('s') else 's'}"
