"""Predictions as text: the files that the course requires, plain tables, and JSON lines.

The course's files are as its own code writes them (CS 224N, default final project about minBERT: the last lines of
``test_model_multitask`` in ``evaluation.py``, in later years of ``test_multitask`` in ``multitask_classifier.py``,
whose options give the names)::

    sst-test-output.csv     id \\t Predicted_Sentiment       a class number, such as 3
    para-test-output.csv    id \\t Predicted_Is_Paraphrase   0.0 or 1.0
    sts-test-output.csv     id \\t Predicted_Similiary       a number in single precision, such as 3.7041292

The header has a tab with a space on either side, a line is ``id , value``, every line ends in a space, and Similiary
is spelt as there. The course names its files for CFIMDB after how the encoder was trained, in words that differ from
year to year; here they are ``cfimdb-test-output.csv``, with the header and lines of SST.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Examples, Labels

Form = Literal["submission", "jsonl"]
COURSE = "cs224n"


def single(value: float) -> str:
    """Format a number in single precision, with the fewest digits that identify it.

    >>> single(1.0), single(3.7041292190551758)
    ('1.0', '3.7041292')
    """
    return str(np.float32(value))


#: The data set's task → the header's name for a prediction, and the format of one.
COURSE_FILES: dict[str, tuple[str, Callable[[float], str]]] = {
    "sst": ("Predicted_Sentiment", "{:g}".format),
    "cfimdb": ("Predicted_Sentiment", "{:g}".format),
    "para": ("Predicted_Is_Paraphrase", single),
    "sts": ("Predicted_Similiary", single),
}


def file_name(task: str, data: Mapping[str, Any], split: str, form: Form) -> str:
    """Return the name of a task's file; files for the course's data are named after the data's task.

    >>> file_name("sentiment", {"name": "cs224n", "task": "sst"}, "test", "submission")
    'sst-test-output.csv'
    """
    if form == "jsonl":
        return f"predictions-{task}-{split}.jsonl"
    return f"{data['task'] if data['name'] == COURSE else task}-{split}-output.csv"


def file_text(
    data: Mapping[str, Any], examples: Examples, values: NDArray[np.float64], labels: Labels, form: Form
) -> str:
    """Return the content of a task's file."""
    if form == "jsonl":
        return json_lines(examples, values)
    if data["name"] == COURSE:
        rows = zip(examples.ids, values.tolist(), strict=True)
        header, write = COURSE_FILES[data["task"]]
        return f"id \t {header} \n" + "".join(f"{id} , {write(value)} \n" for id, value in rows)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["id", "prediction"])
    lines.writerows(zip(examples.ids, as_labels(labels, values), strict=True))
    return text.getvalue()


def json_lines(examples: Examples, values: NDArray[np.float64]) -> str:
    """Write an object per example: ``id``, ``predicted`` and ``expected``, which is null where there is no label."""
    expected = [None] * len(examples) if examples.labels is None else examples.labels.tolist()
    rows = zip(examples.ids, values.tolist(), expected, strict=True)
    return "".join(json.dumps({"id": i, "predicted": p, "expected": e}) + "\n" for i, p, e in rows)


def as_labels(labels: Labels, values: NDArray[np.float64]) -> list[str] | list[int] | list[float]:
    """Convert predictions to the labels of the data: names of classes, class numbers, or values.

    >>> as_labels(Labels.of_classes(2, ["low", "high"]), np.array([1.0, 0.0]))
    ['high', 'low']
    """
    if not labels.classes:
        return [float(value) for value in values]
    return [labels.names[int(value)] for value in values] if labels.names else [int(value) for value in values]
