"""The usual mistakes in data and settings are named before anything is trained; sound data cause no remark."""

import csv
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from taskloom.core import DataError, DataSet, Examples, Labels, RequestError, Split, hookimpl
from taskloom.registry.installed.catalogue import Catalogue, load_catalogue
from taskloom.registry.installed.manager import COMPONENTS, Plugin, load_plugins
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid
from taskloom.runs.cli import cli
from taskloom.runs.grid.contents import check_examples
from taskloom.runs.grid.data_facts import FAR_ABOVE, SAMPLE, USUAL_RATES, count_sharing
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import Plan, make_plan

ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256, "pooling": "mean"}
WORDS = {"sad": "dull", "glad": "lovely"}
Rows = Sequence[tuple[str, object]]


def reviews(first: int, count: int, classes: Sequence[str] = tuple(WORDS)) -> list[tuple[str, object]]:
    labels = [classes[n % len(classes)] for n in range(count)]
    return [(f"film {first + n} is {WORDS.get(label, label)}", label) for n, label in enumerate(labels)]


TRAIN, DEV = reviews(0, 60), reviews(60, 20)


def planned(
    folder: Path,
    train: Rows = TRAIN,
    dev: Rows = DEV,
    *,
    lr: float = 0.003,
    encoder: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    catalogue: Catalogue | None = None,
    **task: Any,
) -> Plan:
    """The plan of a grid with one task on a table of these rows, or on other ``data``."""
    for name, rows in (("train", train), ("dev", dev)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "mood"), *rows])
    table = {"name": "table", "train": "train.csv", "dev": "dev.csv", "text": "text", "label": "mood"}
    chosen = {**table, "classes": ["sad", "glad"]} if data is None else data if "name" in data else {**table, **data}
    stages = [{"epochs": 1, "optimizer": {"lr": lr}}]
    base = {"encoder": {**ENCODER, **(encoder or {})}, "tasks": {"mood": {"data": chosen, **task}}, "stages": stages}
    (folder / "grid.json").write_text(json.dumps({"base": base}))
    return make_plan(load_grid(str(folder / "grid.json")), catalogue or load_catalogue(), None)


def test_sound_data_cause_no_remark(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.remarks == plan.notes == ()
    train, dev = plan.data
    assert train.record() == {
        "task": "mood",
        "split": "train",
        "examples": 60,
        "unreadable": 0,
        "unlabelled": 0,
        "classes": {"sad": 30, "glad": 30},
        "constant": 0.5,
        "words": 4,
        "longest": 4,
        "shared": 0,
        "cut": 0.0,
        "max_length": 512,
        "sampled": 60,
    }
    assert (dev.examples, dev.seen, dev.sampled) == (20, 0, 20)


ONE_CLASS = reviews(0, 30, ["sad"])
VALUES: dict[str, Any] = {"data": {"range": [0, 5]}, "loss": "mse", "metric": "pearson"}

#: What was done, and the error that it is: its path and a part of its message.
ERRORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "one class in train": ({"train": ONE_CLASS}, "tasks.mood.data", "all 30 training labels are 'sad'"),
    "one training example": ({"train": TRAIN[:1]}, "tasks.mood.data", "have a single example"),
    "labels of one value": (
        {"train": [(text, 3) for text, _ in TRAIN], "dev": [(text, 3) for text, _ in DEV], **VALUES},
        "tasks.mood.data",
        "all 60 training labels are 3,",
    ),
    "mse on named classes": (
        {"data": {"classes": ["sad", "glad", "so so"]}, "loss": "mse", "head": "linear"},
        "tasks.mood.loss",
        "compares one number with the label",
    ),
    "empty dev": ({"dev": []}, "tasks.mood.data", "has a header and no rows"),
    "labels inf": (
        {"train": [(text, "inf") for text, _ in TRAIN], **VALUES},
        "tasks.mood.data",
        "mood inf is out of range; it should be 0 to 5",
    ),
    "a multi-label column": (
        {"train": [(text, "sad|glad") for text, _ in TRAIN]},
        "tasks.mood.data",
        "60 of 60 rows have several labels per text: see that section of the page",
    ),
    "a multi-label column with commas": (
        {"train": [(text, "0, 1") for text, _ in TRAIN], "data": {"classes": 2}},
        "tasks.mood.data",
        "several labels per text: see",
    ),
    "a multi-label column as pandas writes lists": (
        {"train": [(text, "['sad', 'glad']") for text, _ in TRAIN]},
        "tasks.mood.data",
        "60 of 60 rows have several labels per text: see",
    ),
    "a tag column": (
        {"train": [(text, "O O O PER") for text, _ in TRAIN], "data": {"classes": ["O", "PER"]}},
        "tasks.mood.data",
        "mood 'O O O PER' is a label for each word",
    ),
}


@pytest.mark.parametrize(("mistake", "path", "message"), ERRORS.values(), ids=ERRORS)
def test_a_mistake_that_makes_training_pointless_is_an_error(
    mistake: dict[str, Any], path: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        planned(tmp_path, **mistake)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert message in problem.message


LONG = [(f"film {n} is " + "dull " * 40, label) for n, (_, label) in enumerate(TRAIN)]

#: What was done, and the remarks that it causes.
REMARKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "texts longer than the encoder takes": (
        {"train": LONG, "encoder": {"max_length": 16}},
        ["100% of the sequences of its training data are longer than 16 tokens"],
    ),
    "texts of 20,000 words": (
        {"train": [*TRAIN, ("word " * 20_000, "sad")]},
        ["2% of the sequences of its training data are longer than 512 tokens, the encoder's max_length, and are cut"],
    ),
    "max_length 8": (
        {"train": LONG, "encoder": {"max_length": 8}},
        ["longer than 8 tokens, the encoder's max_length, and are cut; its longest text has 43 words"],
    ),
    "dev = train": ({"dev": TRAIN}, ["all 60 dev examples are in the training data"]),
    "dev inside train": ({"dev": TRAIN[:7]}, ["all 7 dev examples are in the training data"]),
    "dev partly inside train": ({"dev": [*TRAIN[:7], *DEV]}, ["7 of 27 dev examples are in the training data"]),
    "lr 30": ({"lr": 30}, ["stages.0.optimizer.lr: 30 is more than 100 times the learning rates in common use"]),
    "a class missing in train": (
        {"data": {"classes": ["sad", "glad", "so so"]}, "dev": [*DEV, ("film 80 is plain", "so so")]},
        ["its training data have no example of the class 'so so'"],
    ),
    "a class missing in train and dev": (
        {"data": {"classes": ["sad", "glad", "so so"]}},
        ["its training data have no example", "its dev data have no example of the class 'so so'"],
    ),
    "one class in dev": ({"dev": reviews(60, 9, ["glad"])}, ["all 9 labels of its dev data are 'glad'"]),
}


@pytest.mark.parametrize(("mistake", "messages"), REMARKS.values(), ids=REMARKS)
def test_a_mistake_that_misleads_is_a_remark(mistake: dict[str, Any], messages: list[str], tmp_path: Path) -> None:
    plan = planned(tmp_path, **mistake)
    assert len(plan.remarks) == len(messages), plan.remarks
    assert all(message in remark for message, remark in zip(messages, plan.remarks, strict=True)), plan.remarks
    assert {*plan.remarks} <= {*plan.notes}


def test_the_facts_and_remarks_are_shown_wherever_one_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, dev=TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLOOM_REGISTRY", str(tmp_path / "registry"))
    answer = Grid("grid.json").data()
    assert answer.found == plan.data
    assert answer.as_json() == {"data": [facts.record() for facts in plan.data], "remarks": [*plan.remarks]}
    assert "sad: 30; glad: 30" in str(answer)
    for command in ("validate", "plan", "data"):
        result = CliRunner().invoke(cli, [command, "grid.json"])
        assert result.exit_code == 0
        assert plan.remarks[0] in result.stderr
        assert json.loads(CliRunner().invoke(cli, [command, "grid.json", "--json"]).stdout)["remarks"] == [
            *plan.remarks
        ]
    assert not (tmp_path / "registry").exists()


def test_the_page_shows_the_facts_of_training_data_too_and_what_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, LONG, encoder={"max_length": 16})
    monkeypatch.chdir(tmp_path)
    grid = Grid("grid.json", registry=tmp_path / "registry")
    remark = grid.data().json["remarks"][0]
    grid.run(engine="inline", progress=False)
    for file in ("train.csv", "dev.csv"):  # the page does not read them
        (tmp_path / file).unlink()
    grid.report(tmp_path / "report.html")
    shown = (tmp_path / "report.html").read_text().partition('id="data-sets"')[2].partition("</section>")[0]
    for part in (">train<", ">dev<", "sad: 30; glad: 30", "100.0% at 16", escape(remark)):
        assert part in shown, part


def test_facts_of_data_that_are_not_here_stay_as_the_last_run_found_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path)
    raw = json.loads((tmp_path / "grid.json").read_text())
    other = {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16}
    axes = {"tasks": {"mood": raw["base"]["tasks"], "other": {"sst": {"data": other}}}}
    (tmp_path / "grid.json").write_text(json.dumps({**raw, "axes": axes}))
    monkeypatch.chdir(tmp_path)
    grid = Grid("grid.json", registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    (tmp_path / "train.csv").unlink()
    grid.run(engine="inline", progress=False, only="other")
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        recorded = ledger.grid("grid").spec["data"]
    assert {(facts["task"], facts["examples"]) for facts in recorded} == {
        *(("mood", number) for number in (60, 20)),
        *(("sst", number) for number in (32, 16)),
    }


def test_a_list_of_labels_in_json_is_several_labels(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        lines = (json.dumps({"text": f"{name} {n}", "mood": ["sad", "glad"][: n % 2 + 1]}) for n in range(9))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = {"train": "train.jsonl", "dev": "dev.jsonl", "classes": ["sad", "glad"]}
    with pytest.raises(RequestError, match="4 of 9 rows have several labels per text"):
        planned(tmp_path, data=data)


def test_a_combination_that_is_declared_as_a_class_is_one(tmp_path: Path) -> None:
    rows = [*TRAIN, *(("both", "sad|glad") for _ in range(9))]
    assert planned(tmp_path, rows, [*DEV, rows[-1]], data={"classes": ["sad", "glad", "sad|glad"]}).remarks == ()


def test_a_loss_that_reads_no_labels_may_have_one_class(tmp_path: Path) -> None:
    data = {"classes": ["sad", "glad"], "text": ["text", "mood"]}
    plan = planned(tmp_path, ONE_CLASS, data=data, loss="simcse", head="embedding")
    assert plan.remarks == ()


class OneClass(DataSet):
    """A third party's data set, all of one class in train."""

    name = "theirs"
    labels: ClassVar[Labels] = Labels.of_classes(2, ["sad", "glad"])

    def __init__(self, *, one_class: bool = True) -> None:
        self.one_class = one_class

    def load(self, split: Split) -> Examples:
        labels = np.zeros(8) if self.one_class else np.arange(8.0) % 2
        return Examples((tuple(f"text {n}" for n in range(8)),), labels, tuple(map(str, range(8))))

    def fingerprint(self) -> str:
        return f"theirs {self.one_class}"


def test_a_third_partys_data_set_meets_the_same_checks(tmp_path: Path) -> None:
    plugins = load_plugins()
    hooks = SimpleNamespace(taskloom_components=hookimpl(lambda: [OneClass]))
    plugins.add(hooks, Plugin("theirs", COMPONENTS, "dist-theirs", "1.0"))
    catalogue = Catalogue(plugins)
    with pytest.raises(RequestError, match=r"tasks\.mood\.data: data set 'theirs': all 8 training labels are 'sad'"):
        planned(tmp_path, data={"name": "theirs"}, catalogue=catalogue)
    plan = planned(tmp_path, data={"name": "theirs", "one_class": False}, catalogue=catalogue)
    assert [remark.partition(" are in")[0] for remark in plan.remarks] == ["task 'mood': all 8 dev examples"]


def test_labels_of_several_columns_are_several_labels() -> None:
    examples = Examples((("a", "b"),), np.zeros((2, 3)), ("0", "1"))
    with pytest.raises(DataError, match=r"\[2, 3\] \(several labels per text: see"):
        check_examples(OneClass(), "train", examples)


def test_a_loss_that_is_not_finite_says_what_may_have_caused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, lr=1e30)
    monkeypatch.chdir(tmp_path)
    grid = Grid("grid.json", registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    (cell,) = grid.cells().found
    reason = cell.reason
    for part in ("task 'mood'", "(stage 1, epoch 1, step ", "lr 1e+30", "clip", "last losses before: mood 0.", "try "):
        assert part in reason, reason


def test_counted_texts_are_a_fixed_sample_and_long_texts_cost_little(tmp_path: Path) -> None:
    rows = [(f"film {n} is dull", label) for n, (_, label) in enumerate(reviews(0, SAMPLE + 500))]
    plan = planned(tmp_path, [*rows, ("word " * 20_000, "sad")], DEV)
    assert plan.data[0].sampled == SAMPLE
    assert plan.data[0].longest == 20_000
    assert plan.data == planned(tmp_path, [*rows, ("word " * 20_000, "sad")], DEV).data


def test_the_usual_rates_are_far_below_what_is_remarked_upon() -> None:
    assert max(USUAL_RATES.values()) * FAR_ABOVE == 1


@pytest.mark.parametrize(("texts", "count"), [([[0], [1]], 0), ([[0], [0], [1]], 2), ([[0, 0], [1, 2]], 0)])
def test_an_example_shares_a_text_with_another_not_with_itself(texts: list[list[int]], count: int) -> None:
    assert count_sharing(np.array(texts)) == count
