"""Any CSV, TSV or JSON-lines files."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from taskloom.core import DataError, Examples, Split
from taskloom.core.rows import Format
from taskloom.plugins.datasets.files import expand, fingerprint_of
from taskloom.plugins.datasets.folder import FileDataSet, lots_of, take
from taskloom.plugins.datasets.labels import Classes, is_number, labels_of, spellings_of
from taskloom.plugins.datasets.reading import FileLayout, read_examples

Files = str | Annotated[list[str], Field(min_length=1)]


class Table(FileDataSet):
    """Examples from CSV, TSV or JSON-lines files of your own.

    Columns are found by the names in the header, or by the keys of the objects. Texts are stripped. A row whose label
    is empty is another task's: it is left out and counted, so that one file may hold the labels of several tasks. A
    row that cannot be read is skipped and named; more than 1 % of a file is an error. Files are UTF-8. A test file may
    lack the label's column.

    Reads: the files named by ``train``, ``dev`` and ``test``; relative to the grid's file, ``~`` and environment
    variables are expanded.

    Options:
        train: the training file, or a list of files with the same columns.
        text: the column of the text, or a list of two or three columns.
        label: the column of the label; without one the data set has no labels.
        classes: how many classes (labels are then numbers from 0); or the list of their names in order; or an object
            from every name in the file to the class's number; several names may have the same number. With names, the
            file may also hold the numbers, and all output has the names.
        range: the lowest and highest value, for labels that are not classes.
        dev: the dev file, or a list.
        dev_share: instead of a dev file, the share of the training examples to hold out, always the same.
        test: the test file, or a list.
        id: the column of the id; without one, ids are line numbers, after the file's name if there are several.
        format: csv, tsv or jsonl; auto decides by the file's first line.
        quotes: false takes quotes as plain characters, for files written without quoting.

    Siblings: ``cs224n`` knows the columns of the course's files.

    Example: ``{"name": "table", "train": ["a.tsv", "b.tsv"], "dev_share": 0.1, "text": ["premise", "hypothesis"],
    "label": "relation", "classes": {"entailment": 0, "neutral": 1, "contradiction": 2}}``
    """

    name = "table"
    path_options = frozenset({"train", "dev", "test"})

    def __init__(
        self,
        *,
        train: Files,
        text: str | Annotated[list[str], Field(min_length=1, max_length=3)],
        label: str | None = None,
        classes: Classes | None = None,
        range: tuple[float, float] | None = None,
        dev: Files | None = None,
        dev_share: Annotated[float, Field(gt=0, lt=1)] | None = None,
        test: Files | None = None,
        id: str | None = None,
        format: Format = "auto",
        quotes: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (dev is None) == (dev_share is None):
            raise ValueError(
                "either dev (a file) or dev_share (the part of train to hold out, such as 0.1) should be given. "
                f"Found {'neither' if dev is None else 'both'}."
            )
        self.files = {"train": _listed("train", train), "dev": _listed("dev", dev), "test": _listed("test", test)}
        self.dev_share = dev_share
        texts = (text,) if isinstance(text, str) else tuple(text)
        self.columns = len(texts)
        spellings = spellings_of(classes)
        self.labels = labels_of(label, classes, range)
        self.layout = FileLayout(
            texts=texts,
            label=label,
            id=id,
            labels=self.labels,
            spellings=spellings,
            numbers=not any(map(is_number, spellings)),
            partial=True,
            format=format,
            quotes=quotes,
            strict=self.strict,
        )

    def read(self, split: Split) -> Examples:
        if split == "test" or self.dev_share is None:
            return self._read(split)
        examples = self._read("train")
        lots = lots_of(examples)  # equal texts have equal lots, so they stay together
        last = sorted(lots)[max(1, round(self.dev_share * len(examples))) - 1]
        rows = [row for row, lot in enumerate(lots) if (lot <= last) == (split == "dev")]
        if not rows:
            files = ", ".join(self.files["train"])
            raise DataError(f"{files}: dev_share {self.dev_share:g} leaves nothing to train on")
        return take(examples, rows)

    def fingerprint(self) -> str:
        """A hash of the training and dev files only: a test file that comes later changes no finished run."""
        used, layout = [self.files["train"], self.files["dev"]], self.layout
        options = {
            "columns": [layout.texts, layout.label, layout.id],
            "labels": [repr(layout.labels), layout.spellings],
            "format": [layout.format, layout.quotes],
            "dev_share": self.dev_share,
            "limits": self.limits,
            "files": [_short_names(files) if len(files) > 1 else len(files) for files in used],  # they are in ids
        }
        return fingerprint_of([expand(file) for files in used for file in files], options)

    def _read(self, split: Split) -> Examples:
        files = self.files[split]
        if not files:
            raise DataError(f'data set "table" has no {split} file; name one with the option "{split}"')
        parts = [read_examples(expand(file), self.layout, needs_labels=split != "test") for file in files]
        return parts[0] if len(parts) == 1 else _joined(parts, _short_names(files), has_ids=self.layout.id is not None)


def _listed(option: str, files: Files | None) -> tuple[str, ...]:
    paths = (files,) if isinstance(files, str) else tuple(files or ())
    if repeated := [path for path, times in Counter(paths).items() if times > 1]:
        raise ValueError(
            f"{option} should list each file once. Found {repeated[0]!r} {paths.count(repeated[0])} times."
        )
    return paths


def _short_names(files: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell them apart, so that names do not depend on where a folder is.

    >>> _short_names(["x/a/1.csv", "x/b/1.csv"])
    ['a/1.csv', 'b/1.csv']
    """
    parts = [Path(file).parts for file in files]
    for size in range(1, max(map(len, parts))):
        names = ["/".join(path_parts[-size:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return list(files)


def _joined(parts: Sequence[Examples], names: Sequence[str], *, has_ids: bool) -> Examples:
    """The examples of several files, one after the other."""
    ids = [id for part in parts for id in part.ids]
    if not has_ids or len(set(ids)) < len(ids):
        ids = [f"{name}:{id}" for name, part in zip(names, parts, strict=True) for id in part.ids]
    labels = [part.labels for part in parts if part.labels is not None]
    if labels and len(labels) < len(parts):
        without = next(name for name, part in zip(names, parts, strict=True) if part.labels is None)
        raise DataError(f"{without} has no labels, and other test files have; give files that all have them, or none")
    columns = zip(*(part.columns for part in parts), strict=True)
    return Examples(
        tuple(tuple(chain.from_iterable(column)) for column in columns),
        np.concatenate(labels) if labels else None,
        tuple(ids),
        tuple(line for part in parts for line in part.skipped),
        sum(part.unlabelled for part in parts),
    )
