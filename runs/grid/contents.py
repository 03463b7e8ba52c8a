"""What the names in a specification stand for: data files and weights, each read, checked and hashed once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_json

from taskloom.core import DataError, DataSet, Examples, Problem, Split, TaskloomError
from taskloom.registry.installed.guard import guard
from taskloom.registry.installed.light import make_light
from taskloom.registry.installed.words import kind_word, show
from taskloom.runs.grid.overrides import Overrides

if TYPE_CHECKING:
    from taskloom.core import Encoder
    from taskloom.registry.installed.catalogue import Catalogue


class Contents:
    """The content of data files and weights that runs name, each read and hashed once."""

    def __init__(self, catalogue: "Catalogue", overrides: Overrides) -> None:
        self._catalogue = catalogue
        self._overrides = overrides
        self._known: dict[bytes, str | TaskloomError] = {}
        self.notes: list[str] = []

    def problems(self, spec: dict[str, Any], known: set[str]) -> list[Problem]:
        """What is missing or unreadable, beside the components whose options are wrong already."""
        found = []
        for path, kind, component in _sources(spec):
            if any(other == path or other.startswith(f"{path}.") for other in known):
                continue
            content = self._content(kind, component)
            if isinstance(content, TaskloomError):
                advice = self._advice(kind, component)
                found.append(Problem(path, f"{str(content).rstrip('.')}{advice}" if advice else str(content)))
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
        key = to_json([kind, component])
        if key not in self._known:
            entry = self._catalogue.get(kind, component["name"])
            try:
                with guard(f"{entry} cannot be used"):
                    self._known[key] = self._read(kind, component)
            except TaskloomError as error:
                self._known[key] = error
        return self._known[key]

    def _read(self, kind: str, component: dict[str, Any]) -> str:
        if kind == "encoder":
            from taskloom.core import Encoder  # and with it torch

            encoder = self._catalogue.make(Encoder, component)
            encoder.check()
            return self._fingerprint(encoder)
        data = self._catalogue.make(DataSet, component)
        content = self._fingerprint(data)
        splits: tuple[Split, Split] = ("train", "dev")
        for split in splits:
            examples = data.load(split)
            check_examples(data, split, examples)
            self.notes += _summary_of_skipped(examples.skipped)
        return content

    def _fingerprint(self, part: "DataSet | Encoder") -> str:
        """What the part says of its content; a third party's is asked twice, for an identity has to last."""
        where = f"{kind_word(part.kind)} {part.name!r}"
        content = part.fingerprint()
        filled = part.kind == "encoder" or bool(content)  # an encoder without weights has nothing to say
        if not isinstance(content, str) or not filled:
            raise TaskloomError(f"{where}: fingerprint() should be a string, a fingerprint. Found {show(content)}.")
        if not self._catalogue.get(part.kind, part.name).plugin.builtin and (again := part.fingerprint()) != content:
            found = f"Found {show(content, 40)}, then {show(again, 40)}."
            raise TaskloomError(f"{where}: fingerprint() should be the same every time, or no result lasts. {found}")
        return content


def read_split(spec: Mapping[str, Any], split: Split, folder: Path | None = None) -> Examples:
    """A split of a recorded data set: where the run had it, or in ``folder`` or a folder of the data set's name in it.

    Our own data sets are read without torch.
    """
    candidates = [dict(spec)]
    if folder is not None and "dir" in spec:
        inner = sorted(path for path in folder.glob(f"{spec['name']}*") if path.is_dir())
        # The folder of its name first: if no file is found, the message should be about the place that was meant.
        candidates = [{**spec, "dir": str(place)} for place in (*inner, folder)]
    problems = []
    for candidate in candidates:
        try:
            data = make_light(DataSet, candidate)
            examples = data.load(split)
            check_examples(data, split, examples)
            return examples
        except DataError as error:
            problems.append(error)
    raise problems[0]


def check_examples(data: DataSet, split: str, examples: Examples) -> None:
    """Refuse a split that cannot be used, whoever wrote the data set. Only one to predict may lack labels."""
    where = f"data set {data.name!r}, split {split!r}"
    if not isinstance(examples, Examples):
        raise DataError(f"{where}: load() should return Examples. Found {type(examples).__name__}.")
    if not len(examples):
        raise DataError(f"{where}: there are no examples")
    sizes = {len(column) for column in examples.columns} | {len(examples)}
    if len(examples.columns) != data.columns or len(sizes) != 1:
        raise DataError(
            f"{where}: should have {data.columns} column(s) of {len(examples)} strings. "
            f"Found {len(examples.columns)} of {', '.join(str(len(column)) for column in examples.columns)}."
        )
    _check_texts(where, examples)
    if data.labels is None or (split == "test" and examples.labels is None):
        return
    labels: Any = examples.labels  # what a third party put there
    if labels is None:
        raise DataError(f"{where}: every example should have a label. Found None.")
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "fiub":
        kind = f"an array of {labels.dtype}" if isinstance(labels, np.ndarray) else type(labels).__name__
        raise DataError(f"{where}: labels should be an array of numbers. Found {kind}.")
    if labels.shape != (len(examples),):
        shape = list(labels.shape)
        raise DataError(f"{where}: every example should have a label, [{len(examples)}] in all. Found {shape}.")
    if not np.isfinite(labels).all():
        raise DataError(f"{where}: labels should be numbers. Found {labels[~np.isfinite(labels)][0]}.")
    if data.labels.classes and (broken := labels[labels != np.round(labels)]).size:
        raise DataError(f"{where}: labels are classes and should be integers. Found {broken[0]:g}.")
    low, high = float(labels.min()), float(labels.max())
    if not (data.labels.low <= low and high <= data.labels.high):
        allowed = f"{data.labels.low:g} to {data.labels.high:g}"
        raise DataError(f"{where}: labels should be {allowed}. Found {low:g} to {high:g}.")


def _check_texts(where: str, examples: Examples) -> None:
    """Every text and every id is a string that can be written down."""
    for what, texts in (*(("text", column) for column in examples.columns), ("id", examples.ids)):
        if isinstance(texts, str):
            raise DataError(f"{where}: a column should hold a string per example. Found a single string.")
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: {what} {place} should be a string. Found {type(text).__name__} {show(text)}."
                )
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            place = next(place for place, text in enumerate(texts) if any("\ud800" <= c <= "\udfff" for c in text))
            raise DataError(
                f"{where}: {what} {place} holds half a character (a lone surrogate). Found {texts[place]!a:.100}."
            ) from None


def _summary_of_skipped(rows: Sequence[str]) -> list[str]:
    """The log lines for rows that could not be read: the first three in full, the rest counted."""
    lines = [f"skipped: {row}" for row in rows[:3]]
    return lines + ([f"skipped: {len(rows) - 3} more rows of the same file"] if len(rows) > 3 else [])


def _sources(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    if not spec:
        return []
    sources = [("encoder", "encoder", spec["encoder"])]
    return sources + [(f"tasks.{name}.data", "data", task["data"]) for name, task in spec["tasks"].items()]
