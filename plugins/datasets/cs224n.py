"""The files of the course project."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core import DataError, Examples, Labels, Split
from taskloom.plugins.datasets.folder import FolderDataSet
from taskloom.plugins.datasets.reading import FileLayout

CourseTask = Literal["sst", "cfimdb", "para", "sts"]
PAIR = ("sentence1", "sentence2")
#: Of each task the start of its file names, its text and label columns, and the meaning of its labels.
TASKS: dict[CourseTask, tuple[str, tuple[str, ...], str, Labels]] = {
    "sst": ("ids-sst", ("sentence",), "sentiment", Labels.of_classes(5)),
    "cfimdb": ("ids-cfimdb", ("sentence",), "sentiment", Labels.of_classes(2)),
    "para": ("quora", PAIR, "is_duplicate", Labels.of_classes(2)),
    "sts": ("sts", PAIR, "similarity", Labels.of_range(0, 5)),
}
#: Of each task the header of its predictions; ``Similiary`` is spelt as in the course's code.
HEADERS = {"sst": "Predicted_Sentiment", "cfimdb": "Predicted_Sentiment"}
HEADERS |= {"para": "Predicted_Is_Paraphrase", "sts": "Predicted_Similiary"}


class CS224N(FolderDataSet):
    """SST, CFIMDB, Quora and STS as the course hands them out: tab-separated, quoted, named .csv.

    Columns are found by name, so the odd first columns of some files do no harm. Texts are stripped and otherwise
    left as they are. A row that cannot be read (no second sentence, no label, a label out of range …) is skipped
    and named; more than 1 % of a file is an error. So is a quote that reaches into later rows. Test files have no
    labels.

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
    location_options = FolderDataSet.location_options | {"train", "dev", "test"}  # names in the folder

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
        self.task = task
        stem, texts, label, self.labels = TASKS[task]
        self.files = {
            "train": train or f"{stem}-train.csv",
            "dev": dev or f"{stem}-dev.csv",
            "test": test or f"{stem}-test-student.csv",
        }
        self.columns = len(texts)
        self.layout = FileLayout(texts, label, id="id", labels=self.labels, format="tsv", strict=self.strict)
        self.reading = {"columns": [texts, label]}

    def read(self, split: Split) -> Examples:
        examples = super().read(split)
        for column in examples.columns:
            for row_id, text in zip(examples.ids, column, strict=True):
                if "\t" in text and "\n" in text:  # no text of the course has both, and rows have
                    raise DataError(f"{self.path(split)}, id {row_id}: a quote opens and swallows later rows")
        return examples

    def submission_name(self, task: str, split: Split) -> str:
        return f"{self.task}-{split}-output.csv"

    def submission(self, ids: Sequence[str], predicted: NDArray[np.float64]) -> str:
        """The file that the course's own code writes: the last lines of ``test_multitask``.

        The header has a tab with a space on either side, a line is ``id , value``, and every line ends in a space. A
        class of SST or CFIMDB is an integer (``3``), one of Quora and a value of STS a number in single precision
        (``1.0``, ``3.7041292``). The course names its files for CFIMDB after how the encoder was trained, in words that
        differ from year to year; here they are ``cfimdb-test-output.csv``.
        """
        integers = self.task in ("sst", "cfimdb")
        values = [f"{value:g}" if integers else str(np.float32(value)) for value in predicted]
        rows = "".join(f"{id} , {value} \n" for id, value in zip(ids, values, strict=True))
        return f"id \t {HEADERS[self.task]} \n{rows}"
