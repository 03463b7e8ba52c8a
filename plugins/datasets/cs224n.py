"""The files of the course project."""

from pathlib import Path
from typing import Any, Literal

from taskloom.core import Examples, Labels, Split
from taskloom.plugins.datasets.files import FolderDataSet, expand, fingerprint_of
from taskloom.plugins.datasets.reading import Layout, read_examples

CourseTask = Literal["sst", "cfimdb", "para", "sts"]
STEMS: dict[CourseTask, str] = {"sst": "ids-sst", "cfimdb": "ids-cfimdb", "para": "quora", "sts": "sts"}
LABELS = {
    "sst": Labels.of_classes(5),
    "cfimdb": Labels.of_classes(2),
    "para": Labels.of_classes(2),
    "sts": Labels.of_range(0, 5),
}
LABEL_COLUMNS = {"sst": "sentiment", "cfimdb": "sentiment", "para": "is_duplicate", "sts": "similarity"}


class CS224N(FolderDataSet):
    """SST, CFIMDB, Quora and STS as the course hands them out: tab-separated, quoted, named .csv.

    Columns are found by name, so the odd first columns of some files do no harm. Texts are stripped and otherwise
    left as they are. A row that cannot be read (no second sentence, no label, a label out of range …) is skipped
    and named; more than 1 % of a file is an error. Test files have no labels.

    Reads: ``ids-sst-*.csv``, ``ids-cfimdb-*.csv``, ``quora-*.csv``, ``sts-*.csv``, where * is train, dev, test-student.

    Options:
        task: sst (5 classes), cfimdb (2 classes), para (pairs, 2 classes) or sts (pairs, 0 to 5).
        train: another name of the training file.
        dev: another name of the dev file.
        test: another name of the test file.

    Siblings: ``table`` reads files with other columns, ``generated`` needs none.

    Reference: CS 224N default final project, minBERT and downstream tasks.

    Example: ``{"tasks": {"sst": {"data": {"name": "cs224n", "task": "sst", "dir": "$DATA/cs224n"}}}}``
    """

    name = "cs224n"
    location_options = FolderDataSet.location_options | {"train", "dev", "test"}

    def __init__(
        self,
        *,
        task: CourseTask,
        train: str | None = None,
        dev: str | None = None,
        test: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        stem = STEMS[task]
        self.files: dict[Split, str] = {
            "train": train or f"{stem}-train.csv",
            "dev": dev or f"{stem}-dev.csv",
            "test": test or f"{stem}-test-student.csv",
        }
        self.labels = LABELS[task]
        self.columns = 2 if task in ("para", "sts") else 1
        self.layout = Layout(
            texts=("sentence1", "sentence2") if self.columns == 2 else ("sentence",),
            label=LABEL_COLUMNS[task],
            id="id",
            labels=self.labels,
            format="tsv",
            strict=self.strict,
        )

    def path(self, split: Split) -> Path:
        return expand(self.dir) / self.files[split]

    def read(self, split: Split) -> Examples:
        return read_examples(self.path(split), self.layout, needs_labels=split != "test")

    def fingerprint(self) -> str:
        """Of the training and dev files only: a test file may come later and make no finished run anew."""
        options = {"columns": [self.layout.texts, self.layout.label], "limit": self.limit}
        return fingerprint_of([self.path("train"), self.path("dev")], options)
