"""Data sets from files: round trips, the real files, and every way a file can be wrong."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskloom.core import DataError, Labels
from taskloom.plugins.datasets.cs224n import CS224N
from taskloom.plugins.datasets.table import Table
from taskloom.registry.installed.catalogue import load_catalogue

WRITERS = {"csv": ",", "tsv": "\t"}
in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def rows(examples):
    return list(zip(*examples.columns, strict=True))


def table(path: Path, **options) -> Table:
    given = {"train": str(path), "dev": str(path), "text": "text", "label": "label", "classes": 2}
    return Table(**{**given, **options})


def file(folder: Path, content: str | bytes, name: str = "data.tsv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def many(bad: str, at: int = 104, header: str = "text\tlabel") -> str:
    """A file of 150 good rows with a bad one at a line."""
    lines = [header, *(f"text number {n}\t{n % 2}" for n in range(150))]
    lines.insert(at - 1, bad)
    return "\n".join(lines) + "\n"


def refusal(data, split="train") -> str:
    with pytest.raises(DataError) as error:
        data.load(split)
    return str(error.value)


# What is written is read.


def written(format: str, header: list[str], records: list[list[object]]) -> str:
    if format == "jsonl":
        return "".join(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n" for row in records)
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=WRITERS[format]).writerows([header, *records])
    return out.getvalue()


@in_folder
@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("named", [True, False])
@given(records=st.lists(st.tuples(texts, texts, st.integers(0, 2)), min_size=1, max_size=8))
@example(records=[('"', '""', 0), ('a "b" c', "line one\nline two\r\nline\rfour", 1), ("\ufeffx", "\x00", 2)])
@example(records=[("word " * 100_000, "longer than the csv module allows", 0)])
@example(records=[("a,b\n1,2,0,c", "c\td\n\te", 0), ("'", "\\", 1), ("\u2028x\x85y", "\x1c z", 2)])
def test_any_text_survives_the_round_trip(tmp_path, format, named, records):
    path = file(
        tmp_path, written(format, ["a", "n", "label", "b"], [[a, n, y, b] for n, (a, b, y) in enumerate(records)])
    )
    data = table(path, text=["a", "b"], id="n", classes=3, format=format if named else "auto")
    examples = data.load("train")
    assert rows(examples) == [(a.strip(), b.strip()) for a, b, _ in records]
    assert examples.labels.tolist() == [y for *_, y in records]
    assert examples.ids == tuple(str(n) for n in range(len(records)))
    assert examples.skipped == ()


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_marks_do_no_harm(tmp_path, ends, mark):
    path = file(tmp_path, mark + ends.join(["text,label", "one,0", "", '"two, too",1']).encode(), "x.csv")
    examples = table(path).load("train")
    assert examples.columns == (("one", "two, too"),)
    assert examples.ids == ("2", "4")


def test_quotes_can_be_plain_characters(tmp_path):
    content = 'text\tlabel\n"so" he said\t1\n"\t0\n'
    assert table(file(tmp_path, content), quotes=False).load("train").columns == (('"so" he said', '"'),)
    assert 'with "quotes": false' in refusal(table(file(tmp_path, content)))


@pytest.mark.parametrize(
    ("content", "options", "labels"),
    [
        ("text\tlabel\na\tno\nb\tyes\nc\t no \n", {"classes": ["yes", "no"]}, [1, 0, 1]),
        ('{"text": "a", "label": true}\n{"text": "b", "label": false}\n', {}, [1, 0]),
        ("text,label\na,-1\nb,0.5\n", {"classes": None, "range": (-1, 1)}, [-1, 0.5]),
        ("text,label\na,bad\nb,good\nc,bad\n", {"classes": {"good": 1, "bad": 0}}, [0, 1, 0]),
        ("text,label\na,neg\nb,good\nc,bad\n", {"classes": {"good": 1, "bad": 0, "neg": 0}}, [0, 1, 0]),
        ("text,label\na,0\nb,1.0\nc,bad\n", {"classes": ["bad", "good"]}, [0, 1, 0]),
        ('{"text": "a", "label": 1}\n{"text": "b", "label": "bad"}\n', {"classes": ["bad", "good"]}, [1, 0]),
        ("text,label\na,-1\nb,1.0\nc,0\n", {"classes": {"-1": 0, "0": 1, "1": 2}}, [0, 2, 1]),
    ],
)
def test_labels_are_names_numbers_booleans_or_values(tmp_path, content, options, labels):
    assert table(file(tmp_path, content), **options).load("train").labels.tolist() == labels


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (3, ()),
        (["no", "so so", "yes"], ("no", "so so", "yes")),
        ({"yes": 2, "no": 0, "so so": 1, "yeah": 2}, ("no", "so so", "yes")),
    ],
)
def test_the_first_name_of_a_class_is_the_one_that_is_shown(tmp_path, classes, names):
    labels = table(tmp_path / "x.csv", classes=classes).labels
    assert (labels.classes, labels.names) == (3, names)


def test_a_label_that_is_no_class_is_named_with_those_that_are(tmp_path):
    path = file(tmp_path, many("fine\tgod").replace("\t0", "\tbad").replace("\t1", "\tgood"))
    (skipped,) = table(path, classes=["bad", "good"]).load("train").skipped
    assert skipped == "data.tsv, line 104: label: no class 'god'; did you mean 'good'? (allowed: bad, good)"
    # Where names are numbers, another number is no class.
    (skipped,) = table(file(tmp_path, many("fine\t2")), classes=["1", "0"]).load("train").skipped
    assert skipped == "data.tsv, line 104: label: no class '2' (allowed: 0, 1)"


# One file for several tasks, several files for one split.

TASKS = "text\tmood\ttopic\na\tgood\t\nb\t\t1\nc\tbad\t0\nd\t\t1\n\t\t1\n"


def test_a_row_without_the_tasks_label_is_left_out_and_counted(tmp_path):
    path = file(tmp_path, TASKS.removesuffix("\t\t1\n"))
    mood, topic = table(path, label="mood", classes=["bad", "good"]), table(path, label="topic")
    for data, found, left_out in ((mood, {"a": 1, "c": 0}, 2), (topic, {"b": 1, "c": 0, "d": 1}, 1)):
        for split in ("train", "dev"):
            examples = data.load(split)
            assert dict(zip(examples.columns[0], examples.labels, strict=True)) == found
            assert (examples.unlabelled, examples.skipped) == (left_out, ())
    # Neither strict nor a limit minds them, and they do not dilute the share of rows that cannot be read.
    assert table(path, label="topic", strict=True, limit=1).load("train").unlabelled == 1
    assert "1 of 4 rows cannot be read" in refusal(table(file(tmp_path, TASKS), label="topic"))


def test_a_column_without_a_label_is_an_error(tmp_path):
    path = file(tmp_path, "text\tmood\tlabel\na\t\t1\nb\t\t0\n")
    assert refusal(table(path, label="mood")) == (
        f"{path}: the column 'mood' is empty; a task needs rows that have its label"
    )
    lines = file(tmp_path, '{"text": "a", "label": null}\n{"text": "b"}\n', "x.jsonl")
    assert "the column 'label' is empty" in refusal(table(lines))


def parts(folder: Path, **contents: str) -> list[str]:
    return [str(file(folder, content, f"{name}.tsv")) for name, content in contents.items()]


def test_several_files_are_one_split_and_ids_say_which(tmp_path):
    files = parts(tmp_path, a="text\tlabel\nx\t1\ny\t0\n", b="other\tlabel\ttext\n-\t1\tz\n-\t\tw\n")
    examples = table(tmp_path, train=files, dev=files[::-1]).load("train")
    assert examples.columns == (("x", "y", "z"),)
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.ids == ("a.tsv:2", "a.tsv:3", "b.tsv:2")
    assert examples.unlabelled == 1
    assert table(tmp_path, train=files, dev=files[::-1]).load("dev").columns == (("z", "x", "y"),)
    assert rows(table(tmp_path, train=files[:1], dev=files).load("train")) == [("x",), ("y",)]


def test_ids_of_a_column_stay_as_they_are_unless_two_files_share_one(tmp_path):
    files = parts(tmp_path, a="id\ttext\nm1\tx\n", b="id\ttext\nm2\ty\n", c="id\ttext\nm1\tz\n")
    options = {"label": None, "classes": None, "id": "id", "dev": files[0]}
    assert table(tmp_path, train=files[:2], **options).load("train").ids == ("m1", "m2")
    assert table(tmp_path, train=files[1:], **options).load("train").ids == ("m2", "m1")
    assert table(tmp_path, train=files, **options).load("train").ids == ("a.tsv:m1", "b.tsv:m2", "c.tsv:m1")


def test_files_of_one_name_are_told_apart_by_their_folders_wherever_these_are(tmp_path):
    found = set()
    for home in ("here", "there"):
        files = []
        for year in ("2023", "2024"):
            (tmp_path / home / year).mkdir(parents=True)
            files.append(str(file(tmp_path / home / year, "text\tlabel\nx\t1\n", "x.tsv")))
        data = table(tmp_path, train=files, dev=files[0])
        found.add((data.load("train").ids, data.fingerprint()))
    ((ids, _),) = found
    assert ids == ("2023/x.tsv:2", "2024/x.tsv:2")
    for year in ("2023", "2024"):
        (tmp_path / "there" / year / "x.tsv").rename(tmp_path / "there" / f"{year}.tsv")
    renamed = [str(tmp_path / "there" / f"{year}.tsv") for year in ("2023", "2024")]
    assert table(tmp_path, train=renamed, dev=renamed[0]).fingerprint() not in {key for _, key in found}, "ids changed"


def test_test_files_have_labels_or_none_of_them_has(tmp_path):
    files = parts(tmp_path, a="text\tlabel\nx\t1\n", b="text\nz\n", c="text\nw\n")
    assert refusal(table(tmp_path, train=files[0], dev=files[0], test=files), "test") == (
        "b.tsv has no labels, and other test files have; give files that all have them, or none"
    )
    assert table(tmp_path, train=files[0], dev=files[0], test=files[1:]).load("test").labels is None


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("text\na\nb\n", None),
        ("text\tlabel\na\t\nb\t\n", None),
        ('{"text": "a"}\n{"text": "b", "label": null}\n', None),
        ('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n', [0, 1]),
    ],
)
def test_a_test_file_need_not_have_labels(tmp_path, content, labels):
    path = file(tmp_path, content)
    examples = table(path, test=str(path)).load("test")
    assert (examples.labels if labels is None else examples.labels.tolist()) == labels
    assert examples.columns == (("a", "b"),)


def test_a_table_without_labels(tmp_path):
    path = file(tmp_path, "a\tb\tc\nx\ty\tz\n")
    data = table(path, text=["a", "b", "c"], label=None, classes=None)
    assert (data.columns, data.labels, data.load("train").labels) == (3, None, None)
    assert rows(data.load("train")) == [("x", "y", "z")]


# Which part is held out, which sample is taken.


@in_folder
@given(
    numbers=st.lists(st.integers(0, 60), min_size=4, max_size=60).filter(lambda numbers: len(set(numbers)) > 3),
    share=st.floats(0.05, 0.3),
)
def test_holding_out_parts_the_rows_and_never_equal_texts(tmp_path, numbers, share):
    path = file(tmp_path, "text\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in numbers))
    data = table(path, dev=None, dev_share=share)
    train, dev = data.load("train"), data.load("dev")
    assert sorted(map(int, train.ids + dev.ids)) == list(range(2, len(numbers) + 2))
    assert not set(train.columns[0]) & set(dev.columns[0])
    assert len(dev) >= max(1, round(share * len(numbers)))
    for part in (train, dev):
        assert [int(id) for id in part.ids] == sorted(int(id) for id in part.ids)
        assert part.labels.tolist() == [int(text.split()[1]) % 2 for text in part.columns[0]]


def test_the_share_is_exact_where_texts_differ_and_does_not_depend_on_order(tmp_path):
    lines = [f"text {n}\t0\n" for n in range(200)]
    parts = []
    for order in (lines, lines[::-1]):
        dev = table(file(tmp_path, "text\tlabel\n" + "".join(order)), dev=None, dev_share=0.1).load("dev")
        parts.append(set(dev.columns[0]))
    assert parts[0] == parts[1]
    assert len(parts[0]) == 20


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_share_that_leaves_nothing_to_train_on_is_an_error(tmp_path, share):
    data = table(file(tmp_path, "text\tlabel\n" + "same text\t0\n" * 5), dev=None, dev_share=share)
    assert "leaves nothing to train on" in refusal(data)
    assert len(data.load("dev")) == 5


def course_folder(folder: Path, rows: int = 60) -> Path:
    for split in ("train", "dev"):
        lines = [f"{n}\tid{n}\t sentence {split} {n} \t{n * 5 // rows}\n" for n in range(rows)]
        file(folder, "\tid\tsentence\tsentiment\n" + "".join(lines), f"ids-sst-{split}.csv")
    return folder


@pytest.mark.parametrize(("option", "split", "other"), [("limit", "train", "dev"), ("dev_limit", "dev", "train")])
@pytest.mark.parametrize("kind", ["cs224n", "table"])
def test_a_limited_sample_grows_and_touches_only_its_split(tmp_path, option, split, other, kind):
    """That it is a part of the split in the same order is a law of the conformance kit."""
    folder = course_folder(tmp_path)

    def limited(most):
        if kind == "cs224n":
            return CS224N(task="sst", dir=str(folder), **{option: most})
        files = {part: str(folder / f"ids-sst-{part}.csv") for part in ("train", "dev")}
        return Table(**files, text="sentence", label="sentiment", classes=5, **{option: most})

    small, large = limited(10).load(split), limited(30).load(split)
    assert (len(small), len(large)) == (10, 30)
    assert set(small.ids) < set(large.ids)
    assert len(set(small.labels)) > 2  # the file is ordered by label
    assert len(limited(10).load(other)) == 60
    assert rows(limited(1000).load(split)) == rows(limited(None).load(split))


def test_a_limit_is_taken_of_what_is_not_held_out(tmp_path):
    path = file(tmp_path, "text\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in range(100)))
    options = {"dev": None, "dev_share": 0.3}
    whole, small = table(path, **options), table(path, **options, limit=20, dev_limit=10)
    for split, size in (("train", 20), ("dev", 10)):
        assert len(small.load(split)) == size
        assert set(small.load(split).ids) < set(whole.load(split).ids)


# The real files.


def naive(path: Path) -> list[dict[str, str]]:
    """The rows by splitting lines and undoubling quotes: a reader that shares nothing with ours."""

    def field(part: str) -> str:
        quoted = len(part) > 1 and part[0] == part[-1] == '"'
        return (part[1:-1] if quoted else part).replace('""', '"') if quoted else part

    header, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [dict(zip(header.split("\t"), map(field, line.split("\t")), strict=True)) for line in lines]


@pytest.mark.parametrize(
    ("task", "sizes", "labels"),
    [
        ("sst", (8544, 600), Labels.of_classes(5)),
        ("cfimdb", (1707, 245), Labels.of_classes(2)),
        ("para", (13_999, 2_499), Labels.of_classes(2)),
        ("sts", (6040, 450), Labels.of_range(0, 5)),
    ],
)
def test_the_courses_files_are_read_as_a_naive_reader_does(course_data, task, sizes, labels):
    data = CS224N(task=task, dir=str(course_data))
    assert data.labels == labels
    columns = ["sentence"] if data.columns == 1 else ["sentence1", "sentence2"]
    label = {"para": "is_duplicate", "sts": "similarity"}.get(task, "sentiment")
    for split, size in zip(("train", "dev"), sizes, strict=True):
        examples = data.load(split)
        theirs = [row for row in naive(data.path(split)) if all(row[column].strip() for column in [*columns, label])]
        assert len(examples) == size
        assert rows(examples) == [tuple(row[column].strip() for column in columns) for row in theirs]
        assert examples.labels.tolist() == [float(row[label]) for row in theirs]
        assert examples.ids == tuple(row["id"] for row in theirs)
        assert len(examples.skipped) == len(naive(data.path(split))) - len(theirs)
        assert (examples.labels.min(), examples.labels.max()) == (labels.low, labels.high)


def test_the_unreadable_quora_rows_are_named(course_data):
    """14,000 and 2,500 pairs, one of which in each file is cut short."""
    data = CS224N(task="para", dir=str(course_data))
    assert data.load("train").skipped == ("quora-train.csv, line 2577: is_duplicate is empty",)
    assert data.load("dev").skipped == ("quora-dev.csv, line 222: sentence2 is empty",)
    strict = CS224N(task="para", dir=str(course_data), strict=True)
    assert refusal(strict) == "quora-train.csv, line 2577: is_duplicate is empty (strict: true refuses such rows)"


@pytest.mark.parametrize(("task", "size"), [("sst", 2210), ("sts", 1725)])
def test_the_courses_test_files_have_no_labels(course_data, task, size):
    """The header of the SST one begins with a stray column."""
    examples = CS224N(task=task, dir=str(course_data)).load("test")
    assert len(examples) == size
    assert examples.labels is None
    assert all(len(id) == 25 for id in examples.ids)


def test_a_test_file_that_was_not_handed_out_is_missed_by_name(course_data):
    message = refusal(CS224N(task="para", dir=str(course_data)), "test")
    assert message.startswith("no file 'quora-test-student.csv'")


# Where files are.


def test_folders_may_be_relative_or_hold_variables(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    course_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    found = {
        CS224N(task="sst", dir=folder).fingerprint() for folder in ("data", "~/data", "$PLACE/data", "${PLACE}/data/")
    }
    assert len(found) == 1


# The fingerprint: what it depends on and what not.


def test_other_file_names(tmp_path):
    course_folder(tmp_path)
    (tmp_path / "ids-sst-train.csv").rename(tmp_path / "mine.csv")
    data = CS224N(task="sst", dir=str(tmp_path), train="mine.csv", test="ids-sst-dev.csv")
    assert len(data.load("train")) == len(data.load("test").labels) == 60


def test_making_a_data_set_reads_nothing(tmp_path):
    CS224N(task="sst", dir=str(tmp_path / "nowhere"))
    table(tmp_path / "nowhere.csv")


def test_the_fingerprint_changes_with_bytes_and_options_and_not_with_place(tmp_path):
    (tmp_path / "other").mkdir()
    here, there = course_folder(tmp_path), course_folder(tmp_path / "other")
    data = CS224N(task="sst", dir=str(here))
    first = data.fingerprint()
    assert first == CS224N(task="sst", dir=str(there), strict=True).fingerprint()
    assert first != CS224N(task="sst", dir=str(here), limit=5).fingerprint()
    file(here, "id\tsentence\n1\tx\n", "ids-sst-test-student.csv")
    assert data.fingerprint() == first  # no finished run depends on a test file
    with (here / "ids-sst-dev.csv").open("a") as out:
        out.write("9\tid9\tone more\t1\n")
    assert data.fingerprint() != first


def test_the_fingerprint_of_a_table_sees_what_changes_its_reading(tmp_path):
    path = file(tmp_path, "text\tlabel\tother\na\t1\t0\n")
    options = [
        {},
        {"text": "other"},
        {"label": "other"},
        {"id": "other"},
        {"classes": 3},
        {"classes": ["0", "1"]},
        {"classes": ["1", "0"]},
        {"classes": {"1": 0, "0": 1, "yes": 0}},
        {"classes": None, "range": (0, 2)},
        {"quotes": False},
        {"dev": None, "dev_share": 0.5},
    ]
    assert len({table(path, **option).fingerprint() for option in options}) == len(options)
    assert table(path).fingerprint() == table(path, strict=True).fingerprint()


def test_refusing_rows_changes_no_identity(tmp_path):
    catalogue = load_catalogue()
    for spec in (
        {"name": "cs224n", "task": "sst", "dir": "x"},
        {"name": "table", "train": "x", "text": "a", "dev_share": 0.1},
        {"name": "sick", "task": "triples", "dir": "x"},
        {"name": "snli", "task": "triples", "dir": "x"},
    ):
        given = [catalogue.resolve("data", {**spec, "strict": strict})[0] for strict in (False, True)]
        assert given[0] != given[1]
        assert catalogue.without_defaults("data", given[0]) == catalogue.without_defaults("data", given[1])


# Files that cannot be used.


def test_a_missing_file_is_named_with_the_nearest(tmp_path):
    file(tmp_path, "x", "quora-train.csv")
    for n in range(50):
        file(tmp_path, "x", f"a{n}.txt")
    message = refusal(table(tmp_path / "quora-trian.csv"))
    assert message.startswith("no file 'quora-trian.csv'; did you mean 'quora-train.csv'?")
    assert f"in {tmp_path}: a0.txt" in message
    assert message.count("a") < 60 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("dat/cs224n/x.csv", "no folder 'dat'; did you mean 'data'?"),
        ("data/x.csv", "no file 'x.csv'"),
        ("data", "is a folder; a file is needed"),
        ("$NOT_SET_AT_ALL/x", "environment variable NOT_SET_AT_ALL is not set"),
        ("~no-such-user/x", "no folder '~no-such-user'"),
        ("x" * 300, "File name too long"),
        ("null\0byte", "no file 'null\\x00byte'"),
        ("half \ud83d", "no file 'half \\ud83d'"),
    ],
)
def test_a_file_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, path, message):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    data = table(path)
    assert message in refusal(data)
    with pytest.raises(DataError):
        data.fingerprint()


def test_a_split_that_no_option_names(tmp_path):
    data = table(file(tmp_path, "text\tlabel\na\t0\n"))
    assert refusal(data, "test") == 'data set "table" has no test file; name one with the option "test"'


WHOLE = [
    ("", "data.tsv is empty"),
    ("\ufeff\n \n", "data.tsv is empty"),
    ("text\tlabel\n", "data.tsv has a header and no rows"),
    ("text\tlable\na\t1\n", "no column 'label'; did you mean 'lable'? (in the file: lable, text)"),
    ("\t\n1\t2\n", "no column 'text' (in the file: none); no column 'label'"),
    ("text\ttext\tlabel\na\tb\t1\n", "column 'text' appears 2 times"),
    ("text\tlabel\n".encode("utf-16"), "data.tsv is UTF-16; save it as UTF-8"),
    (b"PAR1\x15\x04\x00\x00", "data.tsv should be a text file: CSV, TSV or JSON lines. Found binary data."),
    ('"text\tlabel\na\t1\n', "line 1: a quote opens and does not close"),
    (b"text\tlab\xe9l\na\t1\n", "no column 'label'; did you mean 'lab?l'?"),
    ("text;label\na;1\n", "seems to be separated by ';'"),
    ('{"text": "a"}\n{"text": "b"}\n', "no column 'label' (in the file: text)"),
    ("{text: 1}\n", "line 1: not JSON: Expecting property name"),
]


@pytest.mark.parametrize(("content", "message"), WHOLE)
def test_a_file_that_is_wrong_as_a_whole(tmp_path, content, message):
    refused = refusal(table(file(tmp_path, content)))
    assert message in refused
    refused.encode()


# Rows that cannot be used: skipped and named, refused when strict or too many.

BAD = [
    ("\t1", "text is empty"),
    ("  \t1", "text is empty"),
    ("fine\t2", "label 2 is out of range; it should be an integer from 0 to 1"),
    ("fine\t-1", "label -1 is out of range; it should be an integer from 0 to 1"),
    ("fine\t0.5", "label 0.5 is out of range; it should be an integer from 0 to 1"),
    ("fine\tnan", "label nan is out of range; it should be an integer from 0 to 1"),
    ("fine\tgood", "label 'good' is not a number"),
    ("fine\t0_1", "label '0_1' is not a number"),
    ("fine", "the number of fields is 1; the header has 2"),
    ("fine\t1\tmore", "the number of fields is 3; the header has 2"),
    ("caf\udce9 au lait\t1", "text is not UTF-8 (byte 0xe9 after 'caf')"),
]


@pytest.mark.parametrize("at", [2, 104, 152])
@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_row_is_skipped_and_named_and_costs_no_other(tmp_path, bad, message, at):
    path = file(tmp_path, many(bad, at).encode("utf-8", "surrogateescape"))
    examples = table(path).load("train")
    assert examples.skipped == (f"data.tsv, line {at}: {message}",)
    assert examples.columns[0] == tuple(f"text number {n}" for n in range(150))
    assert examples.labels.tolist() == [n % 2 for n in range(150)]
    assert refusal(table(path, strict=True)) == f"data.tsv, line {at}: {message} (strict: true refuses such rows)"


JSON_BAD = [
    ("[1, 2]", 'not an object like {"text": "…"}: \'[1, 2]\''),
    ('{"text": "a", "label": 1', "not JSON: Expecting ',' delimiter"),
    ('{"label": 1}', "text is empty"),
    ('{"text": null, "label": 1}', "text is empty"),
    ('{"text": 7, "label": 1}', "text is '7', not a string"),
    ('{"text": "a", "label": [1]}', "label '[1]' is not a number"),
    ('{"text": "a", "label": NaN}', "label nan is out of range"),
    ('{"text": "half \\ud83d", "label": 1}', "text is not UTF-8 (\\ud83d after 'half ')"),
    ("[" * 100_000, "not JSON"),
    ("9" * 5000, "not"),
]


@pytest.mark.parametrize(("bad", "message"), JSON_BAD, ids=[message for _, message in JSON_BAD])
def test_a_bad_line_of_json_is_skipped_and_named(tmp_path, bad, message):
    lines = [json.dumps({"text": f"t{n}", "label": 1}) for n in range(150)]
    lines.insert(103, bad)
    examples = table(file(tmp_path, "\n".join(lines))).load("train")
    assert len(examples) == 150
    (skipped,) = examples.skipped
    assert skipped.startswith(f"data.tsv, line 104: {message}")


def test_lines_are_counted_as_an_editor_does(tmp_path):
    """A text over three lines and an empty line before the bad row."""
    content = 'text\tlabel\n"one\ntwo\nthree"\t1\n\nbad\n' + "fine\t1\n" * 200
    examples = table(file(tmp_path, content)).load("train")
    assert examples.skipped == ("data.tsv, line 6: the number of fields is 1; the header has 2",)
    assert examples.columns[0][0] == "one\ntwo\nthree"


@pytest.mark.parametrize("closing", ['x "y" z\t1', '"quoted"\t1', "nothing closes\t1"])
@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_an_open_quote_is_an_error(tmp_path, closing, delimiter):
    good = [f"text number {n}\t1" for n in range(300)]
    lines = ["text\tlabel", *good[:100], '"open\t1', *good[100:150], "", *good[150:200], closing, *good[200:]]
    path = file(tmp_path, "\n".join(lines).replace("\t", delimiter))
    assert "line 102: a quote opens and does not close" in refusal(table(path))
    assert len(table(path, quotes=False).load("train")) == 302


def test_a_quote_of_the_courses_files_swallows_no_rows(tmp_path):
    path = course_folder(tmp_path) / "ids-sst-train.csv"
    path.write_text(path.read_text().replace("\t sentence train 7 ", '\t"open').replace("train 8 ", 'closes"'))
    assert "id id7: a quote opens and swallows later rows" in refusal(CS224N(task="sst", dir=str(tmp_path)))


@pytest.mark.parametrize(("bad", "good", "refused"), [(1, 99, False), (1, 98, True), (2, 198, False), (5, 100, True)])
def test_one_per_cent_may_be_bad(tmp_path, bad, good, refused):
    path = file(tmp_path, "text\tlabel\n" + "\t1\n" * bad + "fine\t1\n" * good)
    if not refused:
        assert len(table(path).load("train").skipped) == bad
        return
    message = refusal(table(path))
    assert message.startswith(
        f"{path}: {bad} of {bad + good} rows cannot be read; up to 1% would be skipped: data.tsv, line 2"
    )
    assert ("and 2 more" in message) == (bad == 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": None}, "exactly one of classes and range should be given. Found none."),
        ({"range": (0, 1)}, "exactly one of classes and range should be given. Found classes and range."),
        ({"label": None}, "neither classes nor range without label should be given. Found classes."),
        ({"classes": None, "range": (5, 0)}, "range should go from low to high. Found [5, 0]."),
        ({"classes": ["a", "a"]}, "classes should be different names. Found ['a', 'a']."),
        ({"classes": ["1", "1.0"]}, "classes should be different names. Found ['1', '1.0']."),
        ({"classes": {"a": 0, "b": 2}}, "classes should have the numbers 0, 1, 2 … without a gap. Found 0, 2."),
        ({"classes": {"a": 0, "b": 0}}, "classes should have the numbers 0, 1, 2 … without a gap. Found 0."),
        ({"train": ["x.csv", "y.csv", "x.csv"]}, "train should list each file once. Found 'x.csv' 2 times."),
        (
            {"dev": None},
            "either dev (a file) or dev_share (the part of train to hold out, such as 0.1) should be given",
        ),
        ({"dev_share": 0.1}, "Found both."),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(tmp_path, options, message):
    with pytest.raises(ValueError, match="should") as error:
        table(tmp_path / "x.csv", **options)
    assert message in str(error.value)
