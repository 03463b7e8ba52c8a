"""``taskloom predict --input``: new texts get what the run itself would have predicted, whatever they come in."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from small_runs import run_grid

from taskloom.registry.results.scores import load_examples, read_scores
from taskloom.runs.cli import cli
from taskloom.runs.predict import sheets

ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
LEVELS = ("low", "medium", "high")
WORDS = {"low": "dull and bad", "medium": "neither here nor there", "high": "fine, warm and great"}
PAIR = {"text": ["question", "answer"], "id": "key"}
Invoke = Callable[..., Result]
Ran = tuple[Path, str]


def write_rows(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]], delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([columns, *rows])


def read_rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A cell with named classes, two classes from one logit, and values, on files of one's own."""
    folder = tmp_path_factory.mktemp("input")
    single = [(f"r{n}", f'a "{WORDS[LEVELS[n % 3]]}" film,\nnumber {n}', LEVELS[n % 3]) for n in range(60)]
    pairs = [(f"k{n}", f"who is {n}?", f"{n * n % 7} or {n}", n % 2, n % 5 / 4) for n in range(60)]
    write_rows(folder / "single.csv", ("id", "review", "level"), single)
    write_rows(folder / "pairs.tsv", ("key", "question", "answer", "same", "near"), pairs, "\t")
    mine = {"name": "table", "train": str(folder / "single.csv"), "dev_share": 0.4, "text": "review", "id": "id"}
    theirs = {"name": "table", "train": str(folder / "pairs.tsv"), "dev_share": 0.4, **PAIR}
    tasks: dict[str, Any] = {
        "level": {"data": {**mine, "label": "level", "classes": LEVELS}},
        "same": {
            "data": {**theirs, "label": "same", "classes": 2},
            "head": {"name": "linear", "reads": "joint"},
            "loss": "binary_cross_entropy",
        },
        "near": {
            "data": {**theirs, "label": "near", "range": [0, 1]},
            "head": {"name": "linear", "reads": "pair"},
            "loss": "mse",
            "metric": "pearson",
        },
    }
    stage = {"epochs": 12, "optimizer": {"lr": 0.02}}
    grid = {"base": {"encoder": ENCODER, "tasks": tasks, "stages": [stage]}}
    plan, outcome, _ = run_grid(folder / "registry", grid, name="mine")
    assert outcome.finished == 1
    return folder / "registry", plan.cells[0].id


@pytest.fixture
def predict(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def invoke(task: str | None, *arguments: object, stdin: bytes | None = None) -> Result:
        chosen = [] if task is None else ["--task", task]
        options = ["--registry", str(ran[0]), *chosen, *map(str, arguments)]
        return CliRunner().invoke(cli, ["predict", ran[1], *options], input=stdin)

    return invoke


def source(ran: Ran, task: str) -> Path:
    return ran[0].parent / ("single.csv" if task == "level" else "pairs.tsv")


@pytest.mark.parametrize("task", ["level", "same", "near"])
def test_what_the_run_predicted_for_its_dev_texts_it_predicts_for_them_as_new_ones(
    predict: Invoke, ran: Ran, task: str
) -> None:
    result = predict(task, "--input", source(ran, task), "--out", "new.csv")
    assert result.exit_code == 0, result.output
    stored = read_scores(ran[0] / "cells" / ran[1] / "scores-dev.safetensors")
    expected = dict(
        zip(load_examples(ran[0], stored.tasks[task].examples).ids, stored.read(task, "predicted"), strict=True)
    )
    assert len(expected) == 24
    key = "id" if task == "level" else "key"
    new = {row[key]: row["prediction"] for row in read_rows(Path("new.csv"))}
    assert len(new) == 60
    if task == "near":
        assert [float(new[id]) for id in expected] == pytest.approx(list(expected.values()), abs=1e-5)
        assert len(set(new.values())) > 20
    else:
        assert [new[id] for id in expected] == [
            LEVELS[int(n)] if task == "level" else str(int(n)) for n in expected.values()
        ]


def test_the_columns_are_id_texts_prediction_and_the_probabilities_of_classes_by_name(
    predict: Invoke, ran: Ran
) -> None:
    result = predict("level", "--input", source(ran, "level"))
    assert result.exit_code == 0
    assert "60 rows of task 'level' predicted" in result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines(keepends=True)))
    assert list(rows[0]) == ["id", "review", "prediction", "p_low", "p_medium", "p_high"]
    assert [(row["id"], row["review"]) for row in rows] == [
        (row["id"], row["review"]) for row in read_rows(source(ran, "level"))
    ]
    assert len({row["prediction"] for row in rows} & set(LEVELS)) > 1
    for row in rows:
        probabilities = {name: float(row[f"p_{name}"]) for name in LEVELS}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert max(probabilities, key=lambda name: probabilities[name]) == row["prediction"]


@pytest.mark.parametrize("task", ["level", "same", "near"])
def test_every_format_says_the_same(predict: Invoke, ran: Ran, task: str) -> None:
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        assert predict(task, "--input", source(ran, task), "--out", name).exit_code == 0
    table = parquet.read_table("a.parquet").to_pylist()
    assert [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()] == table
    assert (
        read_rows(Path("a.csv"))
        == read_rows(Path("a.tsv"), "\t")
        == [{column: str(value) for column, value in row.items()} for row in table]
    )
    assert type(table[0]["prediction"]) is {"level": str, "same": int, "near": float}[task]


def test_stdin_and_other_ways_to_write_the_rows_give_the_same(
    predict: Invoke, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(ran, "level")
    expected = predict("level", "--input", path).stdout
    assert predict("level", "--input", "-", stdin=path.read_bytes()).stdout == expected
    lines = [json.dumps({"id": row["id"], "review": row["review"], "extra": [1]}) for row in read_rows(path)]
    assert predict("level", "--input", "-", stdin="\n".join(lines).encode()).stdout == expected
    renamed = path.read_bytes().replace(b"review", b"text", 1)
    usual = predict("level", "--input", "-", stdin=renamed).stdout
    assert usual == expected.replace("review", "text", 1)
    other = path.read_bytes().replace(b"review", b"words", 1)
    assert predict("level", "--input", "-", "--text", "words", stdin=other).stdout == expected.replace(
        "review", "words", 1
    )
    assert predict("level", "--input", path, "--out", "-", "--format", "csv").stdout == expected

    monkeypatch.setattr("taskloom.runs.predict.predict.BATCH", 7)
    in_parts = list(csv.reader(predict("level", "--input", path).stdout.splitlines(keepends=True)))
    whole = list(csv.reader(expected.splitlines(keepends=True)))
    assert [row[:3] for row in in_parts] == [row[:3] for row in whole]
    numbers = [np.array([row[3:] for row in rows[1:]], float) for rows in (in_parts, whole)]
    np.testing.assert_allclose(*numbers, atol=1e-5)


def test_rows_that_cannot_be_read_are_named_and_the_others_predicted(predict: Invoke) -> None:
    content = "id,text\n1,fine\n2,\n4,a,b\n5,\xff\n6,warm\n".encode("latin-1")
    result = predict("level", "--input", "-", stdin=content)
    assert result.exit_code == 1
    assert [row["id"] for row in csv.DictReader(result.stdout.splitlines())] == ["1", "6"]
    for line, why in ((3, "text is empty"), (4, "fields is 3"), (5, "text is not UTF-8")):
        assert (
            f"skipped: stdin, line {line}: {why}" in result.stderr
            or f"line {line}: the number of {why}" in result.stderr
        )
    assert "3 rows skipped" in result.stderr

    lines = b'{"text": "fine"}\n\n{"text": 3}\n{"words": "a"}\n["a"]\n{oh\n{"text": "warm"}\n'
    result = predict("level", "--input", "-", stdin=lines)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 3
    for line, why in ((3, "text is '3', not a string"), (4, "text is empty"), (5, "not an object"), (6, "not JSON")):
        assert f"skipped: stdin, line {line}: {why}" in result.stderr

    result = predict("level", "--input", "-", stdin=b"id,text\n" + b"1,\n" * 30 + b"2,fine\n")
    assert result.stderr.count("skipped: stdin") == 10
    assert "30 rows skipped" in result.stderr


@pytest.mark.parametrize(
    ("task", "arguments", "stdin", "words"),
    [
        (None, [], b"text\nfine\n", "choose it with --task NAME: level (1 text per row), same (2 texts per row)"),
        ("levle", [], b"text\nfine\n", "did you mean 'level'?"),
        ("level", [], b"title,body\na,b\n", "--text COLUMN (columns in the file: 'title', 'body')"),
        ("near", [], b"title,body\na,b\n", "--text COLUMN --text COLUMN"),
        ("near", ["--text", "title"], b"title,body\na,b\n", "--text should name 2 columns"),
        ("level", ["--text", "titel"], b"title,body\na,b\n", "did you mean 'title'?"),
        ("level", [], b"text,text\na,b\n", "column 'text' appears 2 times"),
        ("level", ["--text", "prediction"], b"prediction\na\n", "column 'prediction' would be there twice"),
        ("level", [], b"", "stdin is empty"),
        ("level", [], b'text\n"fine" film\n', "stdin, line 2: a quote opens and does not close"),
        ("level", [], b"a fine film\n", "no rows below the first line, which names the columns"),
        ("level", [], b"text\n \n", "nothing was predicted"),
        ("level", [], "text\nfine\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("level", [], b"\x1f\x8b\x08\x00\n", "stdin is compressed; unpack it first (gunzip)"),
        ("level", [], b"a\x00b\n", "stdin should be a text file: CSV, TSV or JSON lines. Found binary data."),
        ("level", ["--out", "deep/er/new.csv"], b"text\n", "no rows below the first line"),
        ("level", ["--input", "none.csv"], b"", "none.csv cannot be read: No such file"),
        ("level", ["--input", "."], b"", "cannot be read: Is a directory"),
        ("level", ["--out", "new.doc"], b"", "should end in .csv, .tsv, .jsonl, .parquet, or --format say"),
        ("level", ["--out", "."], b"", "is a folder; with --input it should be a file"),
        ("level", ["--out", "file/new.csv"], b"text\nfine\n", "new.csv cannot be written"),
        ("level", ["--out", "registry/new.csv"], b"text\nfine\n", "is inside the registry"),
        ("level", ["--input", "file", "--out", "file", "--format", "csv"], b"", "is a file that this command reads"),
        ("level", ["--format", "parquet"], b"text\nfine\n", "needs a file: --out FILE"),
        ("level", ["--format", "submission"], b"", "should be csv or tsv or jsonl or parquet with --input"),
        ("level", ["--split", "dev"], b"", "--split does not apply with --input"),
        ("level", ["--data", "."], b"", "--data does not apply with --input"),
    ],
)
def test_requests_that_cannot_be_met(
    predict: Invoke, ran: Ran, task: str | None, arguments: list[str], stdin: bytes, words: str
) -> None:
    Path("file").write_text("text\nold\n")
    Path("registry").symlink_to(ran[0])
    result = predict(task, "--input", "-", *arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("deep").exists()
    assert sorted(path.name for path in Path().iterdir()) == ["file", "registry"]
    assert Path("file").read_text() == "text\nold\n"


@pytest.mark.parametrize(("option", "value"), [("--text", "a"), ("--input-format", "csv"), ("--format", "tsv")])
def test_options_of_new_texts_without_any(predict: Invoke, option: str, value: str) -> None:
    result = predict("level", option, value)
    assert result.exit_code == 2
    assert "--input" in result.stderr


def test_a_file_is_replaced_whole_or_stays_as_it_was(
    predict: Invoke, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("new.csv").write_text("old")
    assert predict("level", "--input", "-", "--out", "new.csv", "--force", stdin=b"text\n \n").exit_code == 2
    assert Path("new.csv").read_text() == "old"
    assert predict("level", "--input", "-", "--out", "new.csv", "--force", stdin=b"text\nfine\n").exit_code == 0
    assert len(read_rows(Path("new.csv"))) == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = predict("level", "--input", "-", "--out", "new.parquet", stdin=b"text\nfine\n")
    assert result.exit_code == 2
    assert "pip install 'taskloom[parquet]'" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["new.csv"]


def test_a_cell_without_a_test_file_says_how_to_predict_new_texts(predict: Invoke) -> None:
    result = predict("level")
    assert result.exit_code == 2
    assert "its data set has no test file" in result.stderr
    assert "--input FILE" in result.stderr
    assert 'option "test"' not in result.stderr, "which would lead back to the same message"
    assert predict("level", "--split", "dev").exit_code == 0
    written = {row["prediction"] for row in read_rows(Path("predictions/level-dev-output.csv"))}
    assert written <= set(LEVELS)
    assert len(written) > 1


def test_a_reader_that_has_enough_ends_it_quietly(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "many.csv").write_text("text\n" + "a fine film\n" * 5_000)
    arguments = ["predict", ran[1], "--task", "level", "--registry", str(ran[0]), "--input", str(tmp_path / "many.csv")]
    command = [sys.executable, "-m", "taskloom.runs.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("text,prediction,p_low")
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait() == 0
    assert said == ""


def test_the_format_is_the_one_asked_for_or_that_of_the_suffix() -> None:
    assert sheets.format_of(Path("A.JSONL"), None) == "jsonl"
    assert sheets.format_of(Path("a.txt"), "tsv") == "tsv"
    assert sheets.format_of(None, None) == "csv"
