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
from taskloom.runs.scaffold import package_files, read_name
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

ROOT = Path(__file__).parents[3]


def new_plugin(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["new-plugin", *map(str, arguments)])


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one package of each kind, called first_<kind>; a shell would split its name."""
    folder = tmp_path_factory.mktemp("all") / "a $name"
    folder.mkdir()
    for kind in PLUGIN_KINDS:
        done = new_plugin(f"first-{kind}", "--kind", kind, "--into", folder)
        assert done.exit_code == 0, done.output
        (folder / f"{kind}.out").write_text(done.output, encoding="utf-8")
    return folder


def test_every_kind_of_component_can_be_begun() -> None:
    assert set(PLUGIN_KINDS) == {*INTERFACES, "grid"}


@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_a_package_is_complete(packages: Path, kind: str) -> None:
    folder, name = packages / f"taskloom-first-{kind}", f"first_{kind}"
    module = f"taskloom_{name}"
    facts = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (facts["name"], facts["version"]) == (folder.name, "0.1.0")
    assert facts["dependencies"] == ["taskloom>=0.2,<0.3"]
    assert facts["entry-points"] == {PLUGIN_KINDS[kind].group: {name: module}}
    grid = folder / (f"{module}/{name}.json" if kind == "grid" else f"{name}.json")
    spec = GridSpec.model_validate(json.loads(grid.read_text(encoding="utf-8")))
    assert len(spec.seeds) == 2
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"`{grid.relative_to(folder)}`" in page
    assert f"check({module})" in (folder / "tests" / f"test_{name}.py").read_text(encoding="utf-8")
    assert {".gitignore", f"{module}/__init__.py", f"{module}/py.typed"} <= contents(folder)

    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    install, test, run = block.splitlines()
    assert (install, test) == ("pip install -e '.[test]'", "python -m pytest")
    output = (packages / f"{kind}.out").read_text(encoding="utf-8")
    steps = [shlex.split(line) for line in output.splitlines() if line.startswith("  ")]
    assert steps[:2] == [["pip", "install", "-e", f"{folder}[test]"], ["python", "-m", "pytest", str(folder)]]
    assert steps[2] == [str(folder / word) if word == f"{name}.json" else word for word in run.split()]


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


def test_code_is_formatted_and_clean(packages: Path) -> None:
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I,B,UP,SIM,N"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
        done = subprocess.run(ruff, cwd=packages, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr


REFUSED = {
    "1st": "Did you mean 'st'?",
    "Focal": "Did you mean 'focal'?",
    "focal loss": "Did you mean 'focal_loss'?",
    "../focal": "Did you mean 'focal'?",
    "": "Found ''.",
    "fo\ncal": "Found 'fo\\ncal'.",
    "mse": "there is a loss 'mse' already, of taskloom",
    "installed": "taskloom-installed 3.1 is installed already",
    "hinge": "there is a loss 'hinge' already, of taskloom-installed",
    "hard-focal": "taskloom-hard-focal 1.2 is installed already",
    "full": "exists already",
}


def test_what_cannot_be_used_is_refused_and_nothing_is_written(install: Any, tmp_path: Path) -> None:
    hinge = package_files("hinge", "loss")["taskloom_hinge/__init__.py"]
    install("installed", hinge, version="3.1")
    install("hard_focal", "")
    (metadata,) = (tmp_path / "site").glob("taskloom_hard*/METADATA")
    metadata.write_text(metadata.read_text().replace("taskloom-hard_focal", "Taskloom_Hard.Focal"))
    install("broken", "def taskloom_components(:")
    (tmp_path / "taskloom-full").mkdir()
    before = contents(tmp_path)
    load_catalogue.cache_clear()
    for name, message in REFUSED.items():
        done = new_plugin(name, "--kind", "loss", "--into", tmp_path)
        assert (done.exit_code, message in done.output) == (2, True), done.output
    for place, message in ((tmp_path / "gone", "is not a folder"), ("/proc", "cannot be written: ")):
        done = new_plugin("third", "--into", place, "--kind", "head")
        assert (done.exit_code, message in done.output) == (2, True), done.output
    assert contents(tmp_path) == before
    assert new_plugin("hinge", "--kind", "head", "--into", tmp_path).exit_code == 0  # a loss has the name, no head


@given(given_name=st.text(st.sampled_from("abtx19-_ Aé/."), max_size=12) | st.sampled_from(["loss", "tensor", "emit"]))
def test_any_name_is_refused_or_gives_files_that_can_be_read(given_name: str) -> None:
    try:
        name = read_name(given_name)
    except TaskloomError:
        return
    for kind in PLUGIN_KINDS:
        for path, text in package_files(name, kind).items():
            assert "$" not in text, path
            if path.endswith(".py"):
                tree = ast.parse(text)
                bound = [one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
                bound += [a.asname or a.name for one in tree.body if isinstance(one, ast.ImportFrom) for a in one.names]
                assert len(set(bound)) == len(bound), f"{path} uses a name for two things: {bound}"
            elif path.endswith(".json"):
                GridSpec.model_validate(json.loads(text))
            elif path.endswith(".toml"):
                assert tomllib.loads(text)["project"]["name"] == f"taskloom-{name}".replace("_", "-")


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
