"""``taskloom new-plugin``: what it writes, and what it refuses without writing anything."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import GridSpec, TaskloomError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.entries import INTERFACES
from taskloom.runs.cli import cli
from taskloom.runs.scaffold import package_files
from taskloom.runs.scaffold.kinds import KINDS
from taskloom.runs.scaffold.names import Names, read_name, taken

ROOT = Path(__file__).parents[2]


def new_plugin(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["new-plugin", *map(str, arguments)])


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one package of each kind, called first_<kind>."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        done = new_plugin(f"first-{kind}", "--kind", kind, "--into", folder)
        assert done.exit_code == 0, done.output
    return folder


def test_every_kind_of_component_can_be_begun() -> None:
    assert set(KINDS) == {*INTERFACES, "tracker", "grid"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_complete(packages: Path, kind: str) -> None:
    folder, name = packages / f"taskloom-first-{kind}", f"first_{kind}"
    module = f"taskloom_{name}"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    facts = project["project"]
    assert (facts["name"], facts["version"]) == (folder.name, "0.1.0")
    assert facts["requires-python"] == ">=3.11"
    assert [one.partition(">")[0] for one in facts["dependencies"]] == ["taskloom"]
    assert facts["optional-dependencies"]["test"] == ["pytest>=8"]
    assert facts["entry-points"] == {KINDS[kind].group: {name: module}}
    grid = folder / (f"{module}/{name}.json" if kind == "grid" else f"{name}.json")
    spec = GridSpec.model_validate(json.loads(grid.read_text(encoding="utf-8")))
    assert len(spec.seeds) == 2
    assert f"`{grid.relative_to(folder)}`" in (folder / "README.md").read_text(encoding="utf-8")
    assert f"check({module})" in (folder / "tests" / f"test_{name}.py").read_text(encoding="utf-8")
    assert {".gitignore", f"{module}/__init__.py", f"{module}/py.typed"} <= contents(folder)


@pytest.mark.parametrize("kind", INTERFACES)
def test_a_component_is_documented_and_has_one_option(packages: Path, kind: str) -> None:
    code = (packages / f"taskloom-first-{kind}" / f"taskloom_first_{kind}" / "__init__.py").read_text(encoding="utf-8")
    cls = next(one for one in ast.parse(code).body if isinstance(one, ast.ClassDef))
    assert cls.name == f"First{kind.capitalize()}"
    constructor = next(one for one in cls.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    (option,) = constructor.args.kwonlyargs
    text = ast.get_docstring(cls) or ""
    assert f"Options:\n    {option.arg}: " in text
    assert re.search(r"^Siblings: ", text, re.MULTILINE)
    assert "Example:" in text


@pytest.mark.parametrize("kind", KINDS)
def test_its_page_tells_the_three_commands(packages: Path, kind: str, tmp_path: Path) -> None:
    page = (packages / f"taskloom-first-{kind}" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    install, test, run = block.splitlines()
    assert (install, test) == ("pip install -e '.[test]'", "python -m pytest")
    place = tmp_path / "a $name"  # which a shell would read as two words and a variable
    place.mkdir()
    done = new_plugin("other", "--kind", kind, "--into", place)
    steps = [shlex.split(line) for line in done.output.splitlines() if line.startswith("  ")]
    folder = str(place / "taskloom-other")
    assert steps[:2] == [["pip", "install", "-e", folder], ["python", "-m", "pytest", folder]]
    words = run.replace(f"first_{kind}", "other").split()
    assert steps[2] == [f"{folder}/other.json" if word == "other.json" else word for word in words]


def test_code_is_formatted_and_clean(packages: Path) -> None:
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I,B,UP,SIM,N"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=packages,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout + done.stderr


REFUSED = {
    "1st": "Found '1st'. Did you mean 'st'?",
    "Focal": "Found 'Focal'. Did you mean 'focal'?",
    "focal loss": "Did you mean 'focal_loss'?",
    "../focal": "Did you mean 'focal'?",
    "": "Found ''.",
    "taskloom-": "Found 'taskloom-'.",
    "fo\ncal": "Found 'fo\\ncal'.",
    "x" * 51: "at most 50",
    "class": "is a word of Python's",
    "none": "is a word of Python's",
    "mse": "there is a loss 'mse' already, of taskloom; choose another name",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_will_not_do_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    done = new_plugin(name, "--kind", "loss", "--into", tmp_path)
    assert done.exit_code == 2
    assert REFUSED[name] in done.output
    assert "Traceback" not in done.output
    assert not contents(tmp_path)


def test_a_place_that_will_not_do_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    full, file = tmp_path / "taskloom-focal", tmp_path / "taskloom-other"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    file.write_text("mine, too")
    before = contents(tmp_path)
    for arguments, message in (
        (("focal", "--into", tmp_path), f"{full} is there already and not empty"),
        (("other", "--into", tmp_path), f"{file} is there already and is no folder"),
        (("third", "--into", tmp_path / "gone"), f"there is no folder {tmp_path / 'gone'}"),
        (("third", "--into", file), f"there is no folder {file}"),
        (("third", "--into", "/proc"), "/proc/taskloom-third cannot be written: "),
    ):
        done = new_plugin(*arguments, "--kind", "head")
        assert (done.exit_code, message in done.output) == (2, True), done.output
        assert contents(tmp_path) == before
    assert new_plugin("focal", "--kind", "loose").exit_code == 2


def test_an_empty_folder_is_filled_and_a_second_time_refused(tmp_path: Path) -> None:
    (tmp_path / "taskloom-focal").mkdir()
    assert new_plugin("taskloom-focal", "--kind", "loss", "--into", tmp_path).exit_code == 0
    before = contents(tmp_path)
    assert new_plugin("focal", "--kind", "loss", "--into", tmp_path).exit_code == 2
    assert contents(tmp_path) == before
    assert all(path.split("/")[0] == "taskloom-focal" for path in before)


@pytest.mark.parametrize("kind", INTERFACES)
def test_names_read_from_the_source_are_those_of_the_catalogue(kind: str) -> None:
    ours = {entry.name: "taskloom" for entry in load_catalogue().entries if entry.kind == kind}
    assert taken(kind) == ours


def test_names_of_installed_plugins_are_taken_and_broken_ones_stop_nobody(install: Any, tmp_path: Path) -> None:
    install("focal", package_files(Names("focal"), "loss")["taskloom_focal/__init__.py"], version="3.1")
    install("several", package_files(Names("hinge"), "loss")["taskloom_hinge/__init__.py"])
    install("broken", "def taskloom_components(:")
    for name, message in (
        ("focal", "taskloom-focal 3.1 is installed already; edit that, or choose another name"),
        ("hinge", "there is a loss 'hinge' already, of taskloom-several; choose another name"),
    ):
        done = new_plugin(name, "--kind", "loss", "--into", tmp_path)
        assert (done.exit_code, message in done.output) == (2, True), done.output
    assert new_plugin("hinge", "--kind", "head", "--into", tmp_path).exit_code == 0


def test_a_distribution_is_the_same_however_its_name_is_written(install: Any, tmp_path: Path) -> None:
    install("hard_focal", package_files(Names("hinge"), "loss")["taskloom_hinge/__init__.py"])
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("taskloom-hard_focal", "Taskloom_Hard.Focal"))
    load_catalogue.cache_clear()
    done = new_plugin("hard-focal", "--kind", "head", "--into", tmp_path)
    assert (done.exit_code, "taskloom-hard-focal 1.2 is installed already" in done.output) == (2, True), done.output


@given(given_name=st.text(st.sampled_from("abtx19-_ Aé/."), max_size=12) | st.sampled_from(["loss", "tensor", "emit"]))
def test_any_name_is_refused_or_gives_files_that_can_be_read(given_name: str) -> None:
    try:
        names = read_name(given_name)
    except TaskloomError:
        return
    for kind in KINDS:
        for path, text in package_files(names, kind).items():
            assert "$" not in text, path
            if path.endswith(".py"):
                tree = ast.parse(text)
                bound = [one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
                bound += [a.asname or a.name for one in tree.body if isinstance(one, ast.ImportFrom) for a in one.names]
                assert len(set(bound)) == len(bound), f"{path} uses a name for two things: {bound}"
            elif path.endswith(".json"):
                GridSpec.model_validate(json.loads(text))
            elif path.endswith(".toml"):
                assert tomllib.loads(text)["project"]["name"] == names.distribution


def test_a_class_is_called_as_the_plugin_unless_the_word_is_in_use() -> None:
    for name, cls in (("focal", "Focal"), ("tensor", "TensorLoss"), ("loss", "LossLoss"), ("pytest", "Pytest")):
        assert f"class {cls}(Loss):" in package_files(Names(name), "loss")[f"taskloom_{name}/__init__.py"]
    assert "class EmitEngine(Engine):" in package_files(Names("emit"), "engine")["taskloom_emit/__init__.py"]


def test_the_command_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from taskloom.runs.cli import cli\n"
        "try: cli(['new-plugin', 'focal', '--kind', 'loss'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "taskloom-focal" / "focal.json").is_file()


def test_every_package_of_ours_is_installed_with_its_files() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {
        path.parent.relative_to(ROOT)
        for name in ("core", "plugins", "registry", "runs")
        for path in (ROOT / name).rglob("__init__.py")
    }
    assert {f"taskloom.{'.'.join(folder.parts)}" for folder in folders} == set(tools["packages"])
    (pattern,) = tools["package-data"]["taskloom.runs.scaffold"]
    home = ROOT / "runs" / "scaffold"
    assert {*home.glob(pattern)} == {path for path in home.rglob("*") if path.is_file() and path.suffix == ".tmpl"}
