"""The data files and weights that a specification names, each read, checked and hashed once."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from pydantic_core import to_json

from taskloom.core import DataError, DataSet, Examples, Metric, Problem, Split, TaskloomError
from taskloom.core.data import SEVERAL_LABELS
from taskloom.registry.installed.light import make_light
from taskloom.registry.installed.manager import guard
from taskloom.registry.installed.resolution import homes_of, split_metrics
from taskloom.registry.installed.words import join, kind_word, show
from taskloom.registry.results.scores import best_constant
from taskloom.runs.grid.data_facts import (
    CHARACTERS,
    SplitFacts,
    count_cut,
    may_be_cut,
    pointless,
    rate_remarks,
    remarks,
    sample_of,
    split_facts,
)
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.run_files import FileLocator, candidates, path_options

if TYPE_CHECKING:
    from taskloom.core import Encoder
    from taskloom.registry.installed.catalogue import Catalogue

#: Says what is being read, and, at level DEBUG, that it was read.
LOGGER = logging.getLogger("taskloom.data")


@dataclass(frozen=True)
class _ReadSplit:
    """What is kept of a split that was read: its facts, its labels and the texts whose tokens are counted."""

    facts: SplitFacts
    labels: NDArray[np.float64] | None
    sample: tuple[tuple[str, ...], ...]


class Contents:
    """The content of data files and weights that runs name, each read and hashed once."""

    def __init__(self, catalogue: "Catalogue", overrides: Overrides, resolver: FileLocator | None = None) -> None:
        self._catalogue = catalogue
        self._overrides = overrides
        self._resolver = resolver
        self._known: dict[bytes, str | TaskloomError] = {}
        self._splits: dict[bytes, list[_ReadSplit]] = {}
        self._encoders: dict[bytes, Encoder] = {}
        self._lengths: dict[bytes, NDArray[np.int64]] = {}
        self._facts: dict[bytes, list[SplitFacts]] = {}
        self.notes: list[str] = []

    def problems(self, spec: dict[str, Any], known: set[str]) -> list[Problem]:
        """Missing or unreadable files, except of components at ``known`` paths, whose options are wrong already."""
        problems = []
        for path, kind, component in _sources(spec):
            if any(other == path or other.startswith(f"{path}.") for other in known):
                continue
            content = self._content(kind, component, spec)
            if isinstance(content, TaskloomError):
                advice, is_missing = "", False
                if self._resolver and self._resolver.is_missing(component) and str(content).startswith("no "):
                    advice, is_missing = self._resolver.advice(kind), True
                # Name the command-line option that may help, unless it is in use already.
                if kind == "data" and ("dir" in component or is_missing) and self._overrides.data is None:
                    advice += "; --data FOLDER says where data sets are"
                elif kind == "encoder" and component.get("weights") and self._overrides.weights is None:
                    advice += "; --weights NAME_OR_FOLDER takes others, such as minilm"
                problems.append(Problem(path, f"{str(content).rstrip('.')}{advice}" if advice else str(content)))
        return problems

    def of(self, spec: dict[str, Any]) -> dict[str, str]:
        """Path → fingerprint of all data and weights that the run reads."""
        return {path: str(self._content(kind, component, spec)) for path, kind, component in _sources(spec)}

    def facts(self, spec: dict[str, Any]) -> Iterator[SplitFacts]:
        """What the run's data sets hold, by task and split."""
        for name, task in split_metrics(spec)[0]["tasks"].items():
            key = to_json([name, task, spec["encoder"]])
            if key not in self._facts:
                self._facts[key] = [self._task_facts(name, task, spec["encoder"], part) for part in self._parts(task)]
            yield from self._facts[key]

    def pointless(self, spec: dict[str, Any]) -> Iterator[Problem]:
        """The trained tasks that no model can learn from their training data."""
        from taskloom.core import Loss

        trained = {name for stage in spec["stages"] if stage["epochs"] for name in stage["tasks"]}
        for facts in self.facts(spec):
            if facts.task in trained and facts.split == "train":
                task = spec["tasks"][facts.task]
                loss, _ = self._catalogue.try_out(Loss, task["loss"])
                if why := pointless(facts, needs_labels=loss is not None and loss.expects != "vectors"):
                    yield Problem(f"tasks.{facts.task}.data", f"data set {task['data']['name']!r}: {why}")

    def remarks(self, spec: dict[str, Any]) -> Iterator[str]:
        """What a reader of this run's scores should know of its data and learning rates."""
        for facts in self.facts(spec):
            yield from remarks(facts)
        yield from self.rate_remarks(spec)

    def rate_remarks(self, spec: dict[str, Any]) -> Iterator[str]:
        """What a reader should know of this run's learning rates."""
        weights = self._content("encoder", spec["encoder"], spec)
        yield from rate_remarks(spec, pretrained=bool(weights) and spec["encoder"].get("trainable") is not False)

    def _parts(self, task: dict[str, Any]) -> list[_ReadSplit]:
        return self._splits[to_json(task["data"])]

    def _task_facts(self, name: str, task: dict[str, Any], encoder: dict[str, Any], part: _ReadSplit) -> SplitFacts:
        from taskloom.core import Head

        facts = replace(part.facts, task=name)
        metric, _ = self._catalogue.try_out(Metric, task["metric"])
        if part.labels is not None and metric is not None:
            best = best_constant(metric, part.labels, len(facts.classes))
            facts = replace(facts, constant=best[1] if best else None)
        head, _ = self._catalogue.try_out(Head, task["head"])
        reader = self._encoders.get(to_json(encoder))
        if head is None or reader is None:
            return facts
        with suppress(TaskloomError), guard():  # a plugin that fails here fails in its cells, which name it
            lengths = self._token_counts(reader, task["data"], part)
            cut = count_cut(lengths, head.reads, head.frame(reader.special_tokens), reader.max_length)
            sampled = len(part.sample[0])
            return replace(facts, cut=cut / sampled, max_length=reader.max_length, sampled=sampled)
        return facts

    def _token_counts(self, encoder: "Encoder", data: dict[str, Any], part: _ReadSplit) -> NDArray[np.int64]:
        """Tokens of each text in the rows of the sample that may be cut, [columns, rows]."""
        key = to_json([data, part.facts.split, encoder.vocabulary_key(), encoder.max_length])
        if key not in self._lengths:
            most = encoder.max_length * CHARACTERS
            rows = [texts for texts in zip(*part.sample, strict=True) if may_be_cut(texts, encoder.max_length)]
            ids = encoder.tokenize([text[:most] for texts in rows for text in texts])
            counts = np.array([len(sequence) for sequence in ids], np.int64)
            self._lengths[key] = counts.reshape(len(rows), len(part.sample)).T
        return self._lengths[key]

    def _content(self, kind: str, component: dict[str, Any], spec: dict[str, Any]) -> "str | TaskloomError":
        poolings = self._poolings(spec) if kind == "encoder" else frozenset[str]()
        key = to_json([kind, component, sorted(poolings)])
        if key not in self._known:
            entry = self._catalogue.get(kind, component["name"])
            try:
                with guard(f"{entry} cannot be used"):
                    self._known[key] = self._read(kind, component, poolings)
            except TaskloomError as error:
                self._known[key] = error
            finally:
                LOGGER.debug("%s was read", entry)
        return self._known[key]

    def _poolings(self, spec: dict[str, Any]) -> frozenset[str]:
        """The poolings that a run's heads request of its encoder; a head that cannot be built requests none."""
        from taskloom.core import Head

        heads = [self._catalogue.try_out(Head, task["head"])[0] for task in spec["tasks"].values()]
        return frozenset(head.pooling for head in heads if head is not None and head.pooling is not None)

    def _read(self, kind: str, component: dict[str, Any], poolings: frozenset[str]) -> str:
        if kind == "encoder":
            from taskloom.core import Encoder  # and with it torch

            encoder = self._catalogue.make(Encoder, component)
            encoder.requested_poolings = poolings
            encoder.check()
            if hasattr(encoder, "max_length") and hasattr(encoder, "special_tokens"):
                self._encoders[to_json(component)] = encoder
            return _fingerprint(encoder)
        data_set = self._catalogue.make(DataSet, component)
        content = _fingerprint(data_set)
        splits: tuple[Split, Split] = ("train", "dev")
        parts, train = self._splits.setdefault(to_json(component), []), None
        for split in splits:
            LOGGER.info("reading data set %r, split %r", data_set.name, split)
            examples = data_set.load(split)
            check_examples(data_set, split, examples)
            train = train or examples
            facts = split_facts(split, examples, data_set.labels, train)
            labels = examples.labels if data_set.labels is not None else None
            parts.append(_ReadSplit(facts, labels, sample_of(examples)))
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


#: A valid Unicode string: to count its characters pydantic decodes it, and rejects lone surrogates.
_Text = Annotated[str, Strict(), Field(min_length=0)]


class _Texts(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    columns: tuple[tuple[_Text, ...], ...]
    ids: tuple[_Text, ...]


def read_split(spec: Mapping[str, Any], split: Split, folder: Path | None = None) -> Examples:
    """Read a split of a recorded data set where the run had it, or in ``folder`` (see :func:`candidates`).

    Built-in data sets are read without torch.
    """
    options = path_options(type(make_light(DataSet, spec)), spec)
    # The folder named after the data set first: if no file is found, the message should be about that one.
    locations = [dict(spec)] if folder is None else candidates(spec, folder, options)[::-1] or [dict(spec)]
    problems = []
    for location in locations:
        try:
            data_set = make_light(DataSet, location)
            examples = data_set.load(split)
            check_examples(data_set, split, examples)
            return examples
        except DataError as error:
            problems.append(error)
    raise problems[0]


def check_examples(data: DataSet, split: str, examples: Examples) -> None:
    """Raise ``DataError`` for a split that cannot be used. Only a test split may lack the labels of its data set."""
    where = f"data set {data.name!r}, split {split!r}"
    if not isinstance(examples, Examples):
        raise DataError(f"{where}: load() should return Examples. Found {type(examples).__name__}.")
    try:
        _Texts.model_validate(examples)
    except ValidationError as error:
        detail = error.errors()[0]
        wrong = f"{join(*detail['loc'])} {detail['msg'].removeprefix('Input ')}"
        raise DataError(f"{where}: {wrong}. Found {show(detail['input'])}.") from None
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
        actual = f"an array of {labels.dtype}, {list(labels.shape)}" if is_array else type(labels).__name__
        several = f" ({SEVERAL_LABELS})" if is_array and labels.ndim > 1 else ""
        raise DataError(f"{where}: labels should be an array of numbers, [{rows}]. Found {actual}{several}.")
    fits = (data.labels.low <= labels) & (labels <= data.labels.high)  # which nan does not
    if data.labels.classes:
        fits &= labels % 1 == 0
    if not fits.all():
        allowed = f"{'integers' if data.labels.classes else 'numbers'} from {data.labels.low:g} to {data.labels.high:g}"
        raise DataError(f"{where}: labels should be {allowed}. Found {labels[~fits][0]:g}.")


def _sources(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The components that read files, each with its path and kind."""
    return [(path, kind, home[key]) for path, home, key, kind in homes_of(spec) if kind in ("encoder", "data")]
