"""What the command line lays over a grid, and the smoke run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gate_runs import course_files, sick_file, snli_files

from taskloom.core import Event, RequestError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.expansion import Expansion, expand
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.naming import table_for
from taskloom.runs.grid.overrides import Overrides, override
from taskloom.runs.grid.plan import Plan, make_plan
from taskloom.runs.grid.run_files import FileLocator

Invoke = Callable[..., Result]

BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256, "pooling": "mean"},
    "tasks": {
        "sst": {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}},
        "sts": {
            "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
            "head": "cosine",
            "loss": "mse",
            "metric": "pearson",
        },
    },
    "stages": [{"epochs": 2, "optimizer": {"lr": 0.001}}],
}
CELLS: list[dict[str, Any]] = [
    {"label": "sum"},
    {"label": "surgery", "set": {"stages.0.combiner": "pcgrad"}},
    {"label": "untrained", "set": {"stages.0.epochs": 0}},
    {"label": "two stages", "set": {"stages": [{"epochs": 0}, {"tasks": ["sst"], "epochs": 5}]}},
]


@pytest.fixture
def taskloom(tmp_path: Path) -> Invoke:
    def invoke(*arguments: object) -> Result:
        environment = {"TASKLOOM_REGISTRY": str(tmp_path / "registry")}
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)

    return invoke


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_grid(**changes: Any) -> Path:
        path = tmp_path / "mine.json"
        path.write_text(json.dumps({"base": BASE, "cells": CELLS, "seeds": [3, 4], **changes}))
        return path

    return write_grid


@pytest.fixture
def lay(write: Callable[..., Path]) -> Callable[..., Expansion]:
    """The grid with overrides laid over it."""

    def overridden(grid: dict[str, Any] | None = None, **overrides: Any) -> Expansion:
        loaded = load_grid(str(write(**(grid or {}))))
        grid, laid, _ = table_for(loaded, Overrides(**overrides), None)
        return override(expand(grid), laid, FileLocator(load_catalogue(), loaded.folder))

    return overridden


def planned(path: Path, ledger: Ledger | None, **overrides: Any) -> Plan:
    return make_plan(load_grid(str(path)), load_catalogue(), ledger, overrides=Overrides(**overrides))


def seeds_of(plan: Plan) -> list[int]:
    return sorted({cell.seed for cell in plan.cells})


def test_added_seeds_stay_with_the_grid(write: Callable[..., Path], tmp_path: Path) -> None:
    def run(plan: Plan, *finished: int) -> Plan:
        ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
        for cell in plan.chosen:
            if cell.seed in finished:
                ledger.write(Event("finished", cell.id, {"scores": {}}))
        return plan

    path = write()
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        plain = run(planned(path, ledger), 3, 4)
        first = planned(path, ledger, seeds=(4, 7))
        assert seeds_of(first) == [3, 4, 7], "beside the grid's own, each once"
        assert {cell.id for cell in plain.cells} < {cell.id for cell in first.cells}
        run(first, 7)
        assert seeds_of(planned(path, ledger)) == [3, 4, 7], "also in later runs"
        assert seeds_of(planned(path, ledger, epochs=1)) == [3, 4], "that is another table"
        assert "seed 7" in ledger.grid("mine").spec["overrides"][0]
        assert ledger.grid("mine").written == json.loads(path.read_text())
        new = run(planned(path, ledger, seeds=2), 0)
        assert seeds_of(new) == [0, 1, 3, 4, 7], "the smallest that are new"
        again = planned(path, ledger, seeds=2)
        assert seeds_of(again) == [0, 1, 3, 4, 7], "the same command goes on with what it has added"
        assert any("(1)" in note for note in again.notes)
        assert seeds_of(run(planned(path, ledger, seeds=2, only=("surgery",)), 1)) == [0, 1, 3, 4, 7]
        assert seeds_of(planned(path, ledger, seeds=2, only=("surgery",))) == [0, 1, 2, 3, 4, 5, 7]
        assert planned(path, ledger).grid.raw["overrides"] == ["seeds 0, 1, 7 beside the grid's own"]
        ledger.queue_seeds("mine", 3)
        queued = run(planned(path, ledger))
        assert seeds_of(queued) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert seeds_of(run(planned(path, ledger))) == [0, 1, 2, 3, 4, 5, 6, 7], "once"
        assert seeds_of(planned(path, ledger, smoke=True)) == [3], "which is another grid"
        assert seeds_of(planned(write(seeds=[1, 9]), ledger)) == [0, 1, 2, 5, 6, 7, 9], "the file's own are the file's"


def test_seeds_are_added_to_a_packaged_grid_from_the_command_line(taskloom: Invoke) -> None:
    def seeds(*options: str) -> set[int]:
        done = taskloom("plan", "quickstart", "--json", *options)
        assert done.exit_code == 0, done.stderr
        return {cell["seed"] for cell in json.loads(done.stdout)["cells"]}

    own = seeds()
    assert seeds("--seeds", "0-4") == own | {0, 1, 2, 3, 4}
    assert seeds("--seeds", "0,2, 11") == own | {0, 2, 11}
    assert len(seeds("--seeds", "+3")) == len(own) + 3


NO_SEEDS = ["", "x", "4-0", "1-", "+0", "+", "+-1", "1,,2", "1.5", "4294967296", "0-99999", "٣"]
NO_SETTINGS = {"stages.0.epochs": "PATH=JSON", "=1": "PATH=JSON", "a={": "not a JSON", "a=": "not a JSON"}
UNREADABLE = [("--seeds", value, "0-4 or 0,2,5") for value in NO_SEEDS]
UNREADABLE += [("--set", value, words) for value, words in NO_SETTINGS.items()]


@pytest.mark.parametrize(("option", "value", "words"), UNREADABLE)
def test_an_option_that_cannot_be_read_is_refused_with_its_form(
    taskloom: Invoke, write: Callable[..., Path], option: str, value: str, words: str
) -> None:
    refused = taskloom("plan", write(), option, value)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert option == "--set" or repr(value) in refused.stderr
    assert isinstance(refused.exception, SystemExit)


def test_so_many_seeds_need_a_yes(taskloom: Invoke, write: Callable[..., Path]) -> None:
    done = taskloom("plan", write(), "--seeds", "0-5000")
    assert done.exit_code == 2
    assert "20,004 cells" in done.stderr
    assert "--yes" in done.stderr


def test_a_correlation_on_named_classes_is_refused(
    taskloom: Invoke, write: Callable[..., Path], tmp_path: Path
) -> None:
    names = ["entailment", "neutral", "contradiction"]
    lines = "".join(f"text {n},{names[n % 3]}\n" for n in range(30))
    (tmp_path / "nli.csv").write_text(f"text,y\n{lines}")
    data = {"name": "table", "train": str(tmp_path / "nli.csv"), "dev_share": 0.3, "text": "text", "label": "y"}
    task = {"data": {**data, "classes": names}, "metric": "pearson"}
    base = {**BASE, "tasks": {"nli": task}}
    for metric, wrong in (("pearson", True), ("spearman", True), ("macro_f1", False)):
        path = write(base={**base, "tasks": {"nli": {**task, "metric": metric}}}, cells=CELLS[:1])
        found = json.loads(taskloom("validate", path, "--json").stdout)["errors"]
        assert [error["path"] for error in found] == ["tasks.nli.metric"] * wrong
        assert all("entailment" in error["message"] and "macro_f1" in error["message"] for error in found)


def test_a_setting_reaches_every_row_that_has_the_place(lay: Callable[..., Expansion]) -> None:
    laid = lay(settings={"stages.*.optimizer": {"lr": 0.5}, "stages.1.epochs": 7, "tasks.sts.head.layers": 2})
    specs = [variant.spec for variant in laid.variants if variant.chosen]
    assert {stage["optimizer"]["lr"] for spec in specs for stage in spec["stages"]} == {0.5}
    assert [stage["epochs"] for stage in specs[3]["stages"]] == [0, 7]
    assert [spec["stages"][0]["epochs"] for spec in specs[:3]] == [2, 2, 0], "rows with one stage have no stage 1"
    assert [spec["tasks"]["sts"]["head"] for spec in specs] == [{"name": "cosine", "layers": 2}] * 4
    (line,) = laid.grid.raw["overrides"]
    assert line.startswith('stages.*.optimizer = {"lr": 0.5}, stages.1.epochs = 7, ')


def test_a_place_that_no_row_has_is_an_error(lay: Callable[..., Expansion]) -> None:
    for path, words in {"stagse.0.epochs": "did you mean 'stages'", "stages.9.epochs": "0", "seed": "seeds"}.items():
        with pytest.raises(RequestError, match=words):
            lay(settings={path: 1})


def test_at_most_so_many_epochs_leaves_the_untrained_untrained(lay: Callable[..., Expansion]) -> None:
    specs = [variant.spec for variant in lay(epochs=1).variants if variant.chosen]
    assert [[stage["epochs"] for stage in spec["stages"]] for spec in specs] == [[1], [1], [0], [0, 1]]
    cells = [{"label": "default", "set": {"stages": [{}]}}]
    assert lay({"cells": cells}, epochs=4).variants[0].spec["stages"][0]["epochs"] == 4, "ten where nothing is said"


def test_only_runs_the_rows_and_keeps_the_table(taskloom: Invoke, write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(seeds=[0])
    listed = json.loads(taskloom("plan", path, "--only", "s*", "--json").stdout)["cells"]
    assert [cell["label"] for cell in listed] == ["sum", "surgery"]
    done = taskloom("run", path, "--only", "un*", "--format", "json")
    assert done.exit_code == 0, done.stderr
    counts = {row["label"]: row["n"] for row in json.loads(done.stdout)["rows"]}
    assert counts == {cell["label"]: int(cell["label"] == "untrained") for cell in CELLS}
    assert "1 of 1 cells done" in done.stderr
    assert "has changed" not in taskloom("table", path).stderr, "options of a run are no change of its file"
    wrong = taskloom("run", path, "--only", "surgrey")
    assert wrong.exit_code == 2
    assert "did you mean 'surgery'" in wrong.stderr


ABSENT = {"label": "absent", "set": {"tasks.sst.data": {"name": "cs224n", "task": "sst", "dir": "absent-folder"}}}
CHOSEN = ("--only", "[st]*", "--only", "untrained")
BROKEN = {
    "did you mean 'pcgrad'": {"stages.0.combiner": "pcgard"},
    "did you mean 'reduction'": {"stages.0.combiner": {"name": "pcgrad", "redution": "sum"}},
    "did you mean 'stages'": {"stagse.0.combiner": "pcgrad"},
}


def test_data_that_are_not_here_block_only_the_rows_that_read_them(
    taskloom: Invoke, write: Callable[..., Path]
) -> None:
    path = write(cells=[*CELLS, ABSENT], seeds=[0])
    assert taskloom("validate", path).exit_code == taskloom("validate", path, "--only", "absent").exit_code == 2
    assert "4 cells in 4 rows" in taskloom("validate", path, *CHOSEN).stdout
    assert taskloom("run", path, "--only", "untrained").exit_code == 0


@pytest.mark.parametrize("words", BROKEN)
@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_errors_of_the_grid_are_reported_whichever_rows_are_chosen(
    taskloom: Invoke, write: Callable[..., Path], tmp_path: Path, command: str, words: str
) -> None:
    path = write(cells=[*CELLS, ABSENT, {"label": "broken", "set": BROKEN[words]}])
    refused = taskloom(command, path, *CHOSEN)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert "absent-folder" not in refused.stderr, "that row's data may be elsewhere"
    assert not (tmp_path / "registry").exists()


def test_what_options_of_the_command_bring_about_or_repair_is_no_error_of_the_grid(
    taskloom: Invoke, write: Callable[..., Path]
) -> None:
    path = write(seeds=[0])
    setting = ("--set", "stages.0.combiner.reduction=mean", "--only", "surgery")  # which sum does not take
    for options in (setting, (*setting, "--name", "other")):
        assert taskloom("plan", path, *options).exit_code == 0
    path = write(base={**BASE, "stages": [{"combiner": "pcgard", "epochs": 1}]}, cells=[{"label": "a"}, {"label": "b"}])
    assert taskloom("plan", path, "--only", "a").exit_code == 2
    assert taskloom("plan", path, "--only", "a", "--set", "stages.0.combiner=sum").exit_code == 0


def test_rows_of_a_plugin_that_is_no_longer_installed_stay_as_they_were_run(
    taskloom: Invoke, write: Callable[..., Path], install: Callable[..., None], tmp_path: Path
) -> None:
    code = "from taskloom.core import hookimpl\nfrom taskloom.plugins.combiners.mean import Mean\n"
    code += "class Other(Mean):\n    name = 'other'\n@hookimpl\ndef taskloom_components(): return [Other]\n"
    install("other", code)
    path = write(cells=[{"label": "sum"}, {"label": "theirs", "set": {"stages.0.combiner": "other"}}], seeds=[0])
    assert taskloom("run", path, "--smoke").exit_code == 0
    install("other", "")
    assert taskloom("run", path, "--smoke").exit_code == 2
    again = taskloom("run", path, "--smoke", "--only", "sum", "--format", "json")
    assert again.exit_code == 0, again.stderr
    assert {row["label"]: row["n"] for row in json.loads(again.stdout)["rows"]} == {"sum": 1, "theirs": 1}


def test_settings_are_json_or_bare_words(taskloom: Invoke, write: Callable[..., Path]) -> None:
    options = ("--set", "stages.*.combiner=mean", "--set", 'selection="last"', "--set", "stages.*.frozen=true")
    result = taskloom("plan", write(), *options, "--json")
    for cell in json.loads(result.stdout)["cells"]:
        stage = cell["spec"]["stages"][0]
        assert (stage["combiner"]["name"], stage["frozen"], cell["spec"]["selection"]) == ("mean", True, "last")


# Where data and weights are


def course_grid(*tasks: str) -> dict[str, Any]:
    data = {task: {"name": "cs224n", "task": task, "dir": "data/cs224n"} for task in tasks}
    return {"base": {**BASE, "tasks": {task: {"data": data[task]} for task in tasks}}, "cells": [{"label": "one"}]}


NLI = {
    "data": {"name": "snli", "task": "triples", "dir": "data/snli"},
    "head": {"name": "embedding", "reads": "triple"},
    "loss": "simcse",
}


def folders(laid: Expansion) -> dict[str, tuple[str, str]]:
    tasks = laid.variants[0].spec["tasks"]
    return {name: (task["data"]["name"], task["data"]["dir"]) for name, task in tasks.items()}


def with_files(write: Callable[[Path], object], folder: Path) -> None:
    folder.mkdir(parents=True)
    write(folder)


def test_data_lie_in_the_folder_or_in_one_of_their_name(lay: Callable[..., Expansion], tmp_path: Path) -> None:
    with_files(course_files, tmp_path / "all" / "cs224n")
    for data in (tmp_path / "all", tmp_path / "all" / "cs224n"):
        laid = lay(course_grid("sst"), data=data)
        assert folders(laid) == {"sst": ("cs224n", str(tmp_path / "all" / "cs224n"))}
        assert laid.notes == []
    with pytest.raises(RequestError, match="not a folder"):
        lay(course_grid("sst"), data=tmp_path / "nowhere")


def test_sick_stands_in_for_snli_only_where_snli_is_not(lay: Callable[..., Expansion], tmp_path: Path) -> None:
    grid = course_grid("sst")
    grid["base"]["tasks"]["nli"] = NLI
    with_files(course_files, tmp_path / "all" / "cs224n")
    assert folders(lay(grid, data=tmp_path / "all"))["nli"] == ("snli", str(tmp_path / "all"))
    with_files(sick_file, tmp_path / "all" / "sick")
    laid = lay(grid, data=tmp_path / "all")
    assert folders(laid)["nli"] == ("sick", str(tmp_path / "all" / "sick"))
    assert laid.notes == ["sick in place of snli, which is not in the data folder"]
    assert laid.grid.raw["overrides"] == laid.notes, "and the table says so"
    with_files(snli_files, tmp_path / "all" / "snli_1.0")
    laid = lay(grid, data=tmp_path / "all")
    assert folders(laid)["nli"] == ("snli", str(tmp_path / "all" / "snli_1.0"))
    assert laid.notes == []


def test_what_is_missing_says_which_option_helps(taskloom: Invoke, write: Callable[..., Path], tmp_path: Path) -> None:
    grid = course_grid("sst")
    grid["base"]["encoder"] = {"name": "minbert", "weights": "./no-such-folder"}
    path = write(**grid)
    both = taskloom("validate", path).stderr
    assert "--data FOLDER" in both
    assert "--weights NAME_OR_FOLDER" in both
    assert f"a folder is looked for in the grid's ({tmp_path}) and in the current one" in both
    (tmp_path / "empty").mkdir()
    given = taskloom("validate", path, "--data", tmp_path / "empty", "--weights", "./neither").stderr
    assert "no folder" in given
    assert "'./neither'" in given
    assert "ids-sst-train.csv" in given
    assert "FOLDER" not in given, "no advice that was followed already"


# Smoke


def test_smoke_keeps_everything_but_sizes(lay: Callable[..., Expansion], write: Callable[..., Path]) -> None:
    encoder = {"name": "minbert", "weights": "nobody/has-this", "pooling": "cls", "trainable": False}
    grid = {
        "base": {**BASE, "encoder": encoder, "stages": [{"epochs": 9, "sampler": {"name": "mixed", "iterations": 755}}]}
    }
    plain, small = lay(grid), lay(grid, smoke=True)
    assert small.grid.name == "mine-smoke"
    assert small.grid.spec.seeds == (3,)
    for before, after in zip(plain.variants, small.variants, strict=True):
        assert before.label == after.label
        assert "weights" not in after.spec["encoder"]
        assert (after.spec["encoder"]["pooling"], after.spec["encoder"]["trainable"]) == ("cls", False)
        for task, old in before.spec["tasks"].items():
            new = after.spec["tasks"][task]
            assert {**old, "data": 0} == {**new, "data": 0}
            assert new["data"]["size"] <= 64
        for old, new in zip(before.spec["stages"], after.spec["stages"], strict=True):
            assert new["epochs"] == min(1, old["epochs"])
            assert new["combiner"]["name"] in json.dumps(old.get("combiner", "sum"))
    assert small.variants[0].spec["stages"][0]["sampler"] == {"name": "mixed", "iterations": 4}
    assert load_grid(str(write(**grid))).spec.seeds == (3, 4), "the grid itself stays"


@pytest.mark.parametrize(
    ("data", "task"),
    [
        ({"name": "cs224n", "task": "sst", "dir": "x"}, "sentiment"),
        ({"name": "cs224n", "task": "cfimdb", "dir": "x"}, "paraphrase"),
        ({"name": "cs224n", "task": "para", "dir": "x"}, "paraphrase"),
        ({"name": "cs224n", "task": "sts", "dir": "x"}, "similarity"),
        ({"name": "snli", "task": "triples", "dir": "x"}, "entailment"),
        ({"name": "sick", "task": "entailment", "dir": "x"}, "paraphrase"),
        ({"name": "sick", "task": "relatedness", "dir": "x"}, "similarity"),
    ],
)
def test_smoke_text_has_labels_of_the_same_kind(lay: Callable[..., Expansion], data: dict[str, str], task: str) -> None:
    laid = lay({"base": {"tasks": {"only": {"data": data}}}, "cells": []}, smoke=True)
    assert laid.variants[0].spec["tasks"]["only"]["data"]["task"] == task


#: Components of somebody else's: data in two forms that stand in for one another, and an encoder that can be tiny.
FOREIGN = """
from taskloom.core import hookimpl
from taskloom.plugins.datasets.nli import SNLI
from taskloom.plugins.encoders.huggingface import HuggingFace
from taskloom.plugins.encoders.minbert import MinBert
class Mine(SNLI):
    '''Data that are their own smoke text.'''
    name = "mine"
    stand_ins = ("gone", "snli", "sick")
    @classmethod
    def smoke_options(cls, columns, labels): return {"task": "triples", "limit": columns} if columns == 3 else None
class Small(MinBert):
    '''An encoder that can be tiny.'''
    name = "small"
    @classmethod
    def smoke_options(cls): return {"layers": 1, "width": 4, "heads": 1}
class Large(HuggingFace):
    '''An encoder that cannot.'''
    name = "large"
@hookimpl
def taskloom_components(): return [Mine, Small, Large]
"""


def test_components_of_plugins_say_what_replaces_them(
    install: Callable[..., None], lay: Callable[..., Expansion], tmp_path: Path
) -> None:
    install("foreign", FOREIGN)

    def laid(encoder: str, task: str, **overrides: Any) -> tuple[Any, Any]:
        data, options = {"name": "mine", "task": task, "dir": "x"}, {"weights": "x", "pooling": "max"}
        base = {**BASE, "encoder": {"name": encoder, **options}, "tasks": {"nli": {**NLI, "data": data}}}
        (variant,) = lay({"base": base, "cells": []}, **overrides).variants
        return variant.spec["encoder"], variant.spec["tasks"]["nli"]["data"]

    encoder, data = laid("small", "triples", smoke=True)
    assert encoder == {"name": "small", "layers": 1, "width": 4, "heads": 1, "pooling": "max"}
    assert data == {"name": "mine", "task": "triples", "limit": 3}
    encoder, data = laid("large", "entailment", smoke=True)
    assert (encoder["name"], encoder["pooling"], data["name"]) == ("minbert", "max", "generated")
    with_files(sick_file, tmp_path / "all" / "sick")
    assert laid("small", "triples", data=tmp_path / "all")[1]["name"] == "sick"


def test_smoke_never_mixes_with_the_real_thing(taskloom: Invoke, write: Callable[..., Path]) -> None:
    path = write(seeds=[0], cells=CELLS[:1])
    done = taskloom("run", path, "--smoke")
    assert done.exit_code == 0, done.stderr
    assert "was not run" in taskloom("table", path).stderr
    assert "sum" in taskloom("table", "mine-smoke").stdout
    (cell,) = json.loads(taskloom("plan", path, "--json").stdout)["cells"]
    assert cell["status"] == "new"
    refused = taskloom("run", path, "--smoke", "--data", ".", "--weights", "minilm")
    assert refused.exit_code == 2
    assert "--smoke with --data and --weights" in refused.stderr


@pytest.mark.parametrize(
    "setting",
    [{"tasks": 3}, {"stages": [3]}, {"encoder": 3}, {"tasks.sst": {"data": 3}}, {"stages.0.sampler": 3}],
)
def test_what_is_not_valid_is_an_error_and_not_a_crash(
    taskloom: Invoke, write: Callable[..., Path], setting: dict[str, Any], tmp_path: Path
) -> None:
    path = write(cells=[{"label": "wrong", "set": setting}])
    for options in ((), ("--smoke",), ("--data", tmp_path), ("--epochs", 1), ("--set", "stages.*.clip=1")):
        result = taskloom("validate", path, *options)
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit), result.exception


def test_what_a_grid_excludes_is_a_matter_of_the_grid_alone(taskloom: Invoke, write: Callable[..., Path]) -> None:
    axes = {"stages.0.epochs": [1, 2], "encoder.width": [16, 32]}
    path = write(axes=axes, cells=[], exclude=[{"stages.0.epochs": 2, "encoder.width": 32}])
    for options in ((), ("--smoke",), ("--epochs", 0), ("--set", "encoder.width=8")):
        result = taskloom("plan", path, *options, "--json")
        assert result.exit_code == 0, result.stderr
        assert len({cell["label"] for cell in json.loads(result.stdout)["cells"]}) == 3
