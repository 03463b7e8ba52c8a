"""What lies behind the names in a specification: data files and weights, each read, checked and hashed once."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from taskloom.core import DataError, DataSet, Encoder, Examples, Problem, Split, TaskloomError
from taskloom.registry.quiet import aside
from taskloom.runs.build import make
from taskloom.runs.canonical import canonical
from taskloom.runs.overrides import Overrides

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue


class Contents:
    """What lies behind the names in a spec – data files and weights – each read and hashed once."""

    def __init__(self, catalogue: "Catalogue", overrides: Overrides) -> None:
        self._catalogue = catalogue
        self._overrides = overrides
        self._known: dict[str, str | TaskloomError] = {}
        self.notes: list[str] = []

    def problems(self, spec: dict[str, Any], known: set[str]) -> list[Problem]:
        """What is missing or unreadable, beside the components whose options are wrong already."""
        found = []
        for path, kind, component in _sources(spec):
            if any(other == path or other.startswith(f"{path}.") for other in known):
                continue
            content = self._content(kind, component)
            if isinstance(content, TaskloomError):
                found.append(Problem(path, f"{content}{self._advice(kind, component)}"))
        return found

    def _advice(self, kind: str, component: dict[str, Any]) -> str:
        """Which option of the command line may help, unless it was given already."""
        if kind == "data" and "dir" in component and self._overrides.data is None:
            return "; --data FOLDER says where data sets are"
        if kind == "encoder" and component.get("weights") and self._overrides.weights is None:
            return "; --weights NAME_OR_FOLDER takes others, such as minilm"
        return ""

    def of(self, spec: dict[str, Any]) -> dict[str, str]:
        """Path → fingerprint of everything the run reads."""
        return {path: str(self._content(kind, component)) for path, kind, component in _sources(spec)}

    def _content(self, kind: str, component: dict[str, Any]) -> "str | TaskloomError":
        key = canonical([kind, component])
        if key not in self._known:
            try:
                self._known[key] = self._read(kind, component)
            except TaskloomError as error:
                self._known[key] = error
            except Exception as error:  # a third party's class may raise anything
                entry = self._catalogue.get(kind, component["name"])
                what = f"{kind} {entry.name!r} ({entry.origin}) cannot be used"
                self._known[key] = TaskloomError(f"{what}: {type(error).__name__}: {error}")
        return self._known[key]

    def _read(self, kind: str, component: dict[str, Any]) -> str:
        with aside():  # what a plugin prints is no part of a command's output
            return self._encoder(component) if kind == "encoder" else self._data(component)

    def _encoder(self, component: dict[str, Any]) -> str:
        encoder = make(self._catalogue, Encoder, component)
        encoder.check()
        return encoder.content()

    def _data(self, component: dict[str, Any]) -> str:
        data = make(self._catalogue, DataSet, component)
        content = data.content()
        splits: tuple[Split, Split] = ("train", "dev")
        for split in splits:
            examples = data.load(split)
            check_examples(data, split, examples)
            self.notes += summary_of_skipped(examples.skipped)
        return content


def check_examples(data: DataSet, split: str, examples: Examples) -> None:
    """Refuse a split that training could not use, whoever wrote the data set."""
    where = f"data set {data.name!r}, split {split!r}"
    if not len(examples):
        raise DataError(f"{where}: there are no examples")
    sizes = {len(column) for column in examples.columns} | {len(examples)}
    if len(examples.columns) != data.columns or len(sizes) != 1:
        raise DataError(
            f"{where}: should have {data.columns} column(s) of {len(examples)} texts. "
            f"Found {len(examples.columns)} of {', '.join(str(len(column)) for column in examples.columns)}."
        )
    if data.labels is None:
        return
    if examples.labels is None or len(examples.labels) != len(examples):
        raise DataError(f"{where}: every example should have a label")
    low, high = float(examples.labels.min()), float(examples.labels.max())
    if not (data.labels.low <= low and high <= data.labels.high):
        allowed = f"{data.labels.low:g} to {data.labels.high:g}"
        raise DataError(f"{where}: labels should be {allowed}. Found {low:g} to {high:g}.")


def summary_of_skipped(skipped: Iterable[str], *, most: int = 3) -> list[str]:
    """The log lines for rows that could not be read: the first few in full, the rest counted."""
    rows = list(skipped)
    lines = [f"skipped: {row}" for row in rows[:most]]
    return lines + ([f"skipped: {len(rows) - most} more rows of the same file"] if len(rows) > most else [])


def _sources(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    if not spec:
        return []
    sources = [("encoder", "encoder", spec["encoder"])]
    return sources + [(f"tasks.{name}.data", "data", task["data"]) for name, task in spec["tasks"].items()]
