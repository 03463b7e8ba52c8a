"""What the names in a specification stand for: data files and weights, each read, checked and hashed once."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from pydantic_core import to_json

from taskloom.core import DataError, DataSet, Examples, Problem, Split, TaskloomError
from taskloom.registry.installed.light import make_light
from taskloom.registry.installed.manager import guard
from taskloom.registry.installed.resolution import homes_of
from taskloom.registry.installed.words import join, kind_word, show
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
            content = self._content(kind, component, spec)
            if isinstance(content, TaskloomError):
                advice = ""  # which option of the command line may help, unless it was given already
                if kind == "data" and "dir" in component and self._overrides.data is None:
                    advice = "; --data FOLDER says where data sets are"
                elif kind == "encoder" and component.get("weights") and self._overrides.weights is None:
                    advice = "; --weights NAME_OR_FOLDER takes others, such as minilm"
                found.append(Problem(path, f"{str(content).rstrip('.')}{advice}" if advice else str(content)))
        return found

    def of(self, spec: dict[str, Any]) -> dict[str, str]:
        """Path → fingerprint of everything the run reads."""
        return {path: str(self._content(kind, component, spec)) for path, kind, component in _sources(spec)}

    def _content(self, kind: str, component: dict[str, Any], spec: dict[str, Any]) -> "str | TaskloomError":
        asked = self._poolings(spec) if kind == "encoder" else frozenset[str]()
        key = to_json([kind, component, sorted(asked)])
        if key not in self._known:
            entry = self._catalogue.get(kind, component["name"])
            try:
                with guard(f"{entry} cannot be used"):
                    self._known[key] = self._read(kind, component, asked)
            except TaskloomError as error:
                self._known[key] = error
        return self._known[key]

    def _poolings(self, spec: dict[str, Any]) -> frozenset[str]:
        """What the heads of a run ask of its encoder; a head that cannot be made asks nothing."""
        from taskloom.core import Head

        heads = [self._catalogue.try_out(Head, task["head"])[0] for task in spec["tasks"].values()]
        return frozenset(head.pooling for head in heads if head is not None and head.pooling is not None)

    def _read(self, kind: str, component: dict[str, Any], asked: frozenset[str]) -> str:
        if kind == "encoder":
            from taskloom.core import Encoder  # and with it torch

            encoder = self._catalogue.make(Encoder, component)
            encoder.asked = asked
            encoder.check()
            return _fingerprint(encoder)
        data = self._catalogue.make(DataSet, component)
        content = _fingerprint(data)
        splits: tuple[Split, Split] = ("train", "dev")
        for split in splits:
            examples = data.load(split)
            check_examples(data, split, examples)
            first, more = examples.skipped[:3], len(examples.skipped[3:])
            self.notes += [f"skipped: {row}" for row in first]
            self.notes += [f"skipped: {more} more rows of the same file"] if more else []
        return content


def _fingerprint(part: "DataSet | Encoder") -> str:
    content = part.fingerprint()
    if not isinstance(content, str) or (part.kind == "data" and not content):  # an encoder may have no weights to name
        where = f"{kind_word(part.kind)} {part.name!r}"
        raise TaskloomError(f"{where}: fingerprint() should be a string, a fingerprint. Found {show(content)}.")
    return content


#: A string that can be written down: to count its characters pydantic reads it, and refuses half a character.
_Text = Annotated[str, Strict(), Field(min_length=0)]


class _Texts(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    columns: tuple[tuple[_Text, ...], ...]
    ids: tuple[_Text, ...]


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
    try:
        _Texts.model_validate(examples)
    except ValidationError as error:
        item = error.errors()[0]
        wrong = f"{join(*item['loc'])} {item['msg'].removeprefix('Input ')}"
        raise DataError(f"{where}: {wrong}. Found {show(item['input'])}.") from None
    rows, sizes = len(examples), [len(column) for column in examples.columns]
    if not rows:
        raise DataError(f"{where}: there are no examples")
    if sizes != [rows] * data.columns:
        raise DataError(
            f"{where}: should have {data.columns} column(s) of {rows} strings. "
            f"Found {len(sizes)} of {', '.join(map(str, sizes))}."
        )
    labels: Any = examples.labels  # what a third party put there
    if data.labels is None or (split == "test" and labels is None):
        return
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "fiub" or labels.shape != (rows,):
        is_array = isinstance(labels, np.ndarray)
        found = f"an array of {labels.dtype}, {list(labels.shape)}" if is_array else type(labels).__name__
        raise DataError(f"{where}: labels should be an array of numbers, [{rows}]. Found {found}.")
    fits = (data.labels.low <= labels) & (labels <= data.labels.high)  # which nan does not
    if data.labels.classes:
        fits &= labels % 1 == 0
    if not fits.all():
        allowed = f"{'integers' if data.labels.classes else 'numbers'} from {data.labels.low:g} to {data.labels.high:g}"
        raise DataError(f"{where}: labels should be {allowed}. Found {labels[~fits][0]:g}.")


def _sources(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The components that read files, each with its path and kind."""
    return [(path, kind, home[key]) for path, home, key, kind in homes_of(spec) if kind in ("encoder", "data")]
