"""Any CSV, TSV or JSON-lines file."""

from typing import Annotated

from pydantic import Field

from taskloom.core import DataError, DataSet, Examples, Labels, Split
from taskloom.plugins.datasets.files import expand, fingerprint_of
from taskloom.plugins.datasets.folder import lots_of, take
from taskloom.plugins.datasets.reading import Layout, read_examples
from taskloom.plugins.datasets.rows import Format


class Table(DataSet):
    """Examples from CSV, TSV or JSON-lines files of your own.

    Columns are found by the names in the header, or by the keys of the objects. Texts are stripped. A row that
    cannot be read is skipped and named; more than 1 % of a file is an error. Files are UTF-8. A test file may lack
    the label's column.

    Reads: the files named by ``train``, ``dev`` and ``test``; relative to the current folder, ``~`` and
    environment variables are expanded.

    Options:
        train: the training file.
        text: the column of the text, or a list of two or three columns.
        label: the column of the label; without one the data set has no labels.
        classes: how many classes (labels are then numbers from 0), or the list of their names in order.
        range: the lowest and highest value, for labels that are not classes.
        dev: the dev file.
        dev_share: instead of a dev file, the share of the training file to hold out, always the same rows.
        test: the test file.
        id: the column of the id; without one, ids are line numbers.
        format: csv, tsv or jsonl; auto decides by the file's first line.
        quotes: false takes quotes as plain characters, for files written without quoting.
        strict: refuse the first row that cannot be read.

    Siblings: ``cs224n`` knows the columns of the course's files.

    Example: ``{"name": "table", "train": "nli.tsv", "dev_share": 0.1, "text": ["a", "b"], "label": "relation",
    "classes": ["entailment", "neutral", "contradiction"]}``
    """

    name = "table"
    location_options = frozenset({"train", "dev", "test", "strict"})  # strict refuses rows and changes none

    def __init__(
        self,
        *,
        train: str,
        text: str | Annotated[list[str], Field(min_length=1, max_length=3)],
        label: str | None = None,
        classes: Annotated[int, Field(ge=2)] | Annotated[list[str], Field(min_length=2)] | None = None,
        range: tuple[float, float] | None = None,
        dev: str | None = None,
        dev_share: Annotated[float, Field(gt=0, lt=1)] | None = None,
        test: str | None = None,
        id: str | None = None,
        format: Format = "auto",
        quotes: bool = True,
        strict: bool = False,
    ) -> None:
        if (dev is None) == (dev_share is None):
            raise ValueError(
                "either dev (a file) or dev_share (the part of train to hold out, such as 0.1) should be given. "
                f"Found {'neither' if dev is None else 'both'}."
            )
        self.files: dict[Split, str | None] = {"train": train, "dev": dev, "test": test}
        self.dev_share = dev_share
        texts = (text,) if isinstance(text, str) else tuple(text)
        self.columns = len(texts)
        self.labels = _labels(label, classes, range)
        self.layout = Layout(
            texts=texts,
            label=label,
            id=id,
            labels=self.labels,
            names=tuple(classes) if isinstance(classes, list) else (),
            format=format,
            quotes=quotes,
            strict=strict,
        )

    def load(self, split: Split) -> Examples:
        if split == "test" or self.dev_share is None:
            return self._read(split)
        examples = self._read("train")
        lots = lots_of(examples)  # equal texts have equal lots, so they are never parted
        last = sorted(lots)[max(1, round(self.dev_share * len(examples))) - 1]
        rows = [row for row, lot in enumerate(lots) if (lot <= last) == (split == "dev")]
        if not rows:
            raise DataError(f"{self.files['train']}: dev_share {self.dev_share:g} leaves nothing to train on")
        return take(examples, rows)

    def fingerprint(self) -> str:
        """Of the training and dev files only: a test file may come later and make no finished run anew."""
        used = [file for file in (self.files["train"], self.files["dev"]) if file is not None]
        layout = self.layout
        options = {
            "columns": [layout.texts, layout.label, layout.id],
            "labels": [repr(layout.labels), layout.names],
            "format": [layout.format, layout.quotes],
            "dev_share": self.dev_share,
        }
        return fingerprint_of([expand(file) for file in used], options)

    def _read(self, split: Split) -> Examples:
        file = self.files[split]
        if file is None:
            raise DataError(f'data set "table" has no {split} file; name one with the option "{split}"')
        return read_examples(expand(file), self.layout, needs_labels=split != "test")


def _labels(label: str | None, classes: int | list[str] | None, range: tuple[float, float] | None) -> Labels | None:
    """What the labels mean, from the options that say so."""
    given = [name for name, value in (("classes", classes), ("range", range)) if value is not None]
    if len(given) != (label is not None):
        needs = "exactly one of classes and range" if label is not None else "neither classes nor range without label"
        raise ValueError(f"{needs} should be given. Found {' and '.join(given) or 'none'}.")
    if isinstance(classes, list) and len(set(classes)) < len(classes):
        raise ValueError(f"classes should be different names. Found {classes}.")
    if range is not None:
        if not range[0] < range[1]:
            raise ValueError(f"range should go from low to high. Found {list(range)}.")
        return Labels.of_range(*range)
    if classes is None:
        return None
    return Labels.of_classes(classes) if isinstance(classes, int) else Labels.of_classes(len(classes), classes)
