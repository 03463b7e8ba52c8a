"""What the documentation shows is what the program does."""

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import taskloom.core
import taskloom.plugins
import taskloom.registry
import taskloom.runs
from taskloom.core import Loss
from taskloom.core.testing import check
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.cli import cli
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
MODULES = [
    module.name
    for package in (taskloom.core, taskloom.plugins, taskloom.registry, taskloom.runs)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(".__main__")  # which runs the program
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples_to_test() -> None:
    for name in ("tokens", "data"):
        assert doctest.testmod(importlib.import_module(f"taskloom.core.{name}")).attempted


def test_the_grid_of_the_readme_is_valid_on_real_data(course_data: Path, tmp_path: Path) -> None:
    (text,) = blocks("json")
    grid = json.loads(text.replace('"dir": "data"', f'"dir": {json.dumps(str(course_data))}'))
    path = tmp_path / "surgery.json"
    path.write_text(json.dumps(grid))
    plan = make_plan(load_grid(str(path)), load_catalogue(), None)
    assert len(plan.cells) == 12
    assert grid["baseline"] in {cell.label for cell in plan.cells}


def test_the_plugin_of_the_readme_obeys_the_laws() -> None:
    (source,) = [block for block in blocks("python") if "class Focal" in block]
    space: dict[str, type[Loss]] = {}
    exec(source, space)  # noqa: S102 - our own page
    check(space["Focal"])


def test_every_command_is_in_the_readme() -> None:
    listed = re.search(r"`taskloom --help` lists the commands: `([^`]+)`", README)
    assert listed is not None
    assert listed[1].split() == list(cli.commands)
