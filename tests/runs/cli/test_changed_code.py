"""Changed code is noticed: a plugin in development, installed as its author has it, in a real environment."""

import json
from pathlib import Path
from typing import Any

import pytest

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "taskloom-sharp"
version = "{version}"
[project.entry-points.taskloom]
sharp = "taskloom_sharp"
[tool.setuptools]
packages = ["taskloom_sharp"]
"""
MODULE = '''
"""A loss of a third party."""
from torch import Tensor
from torch.nn.functional import cross_entropy
from taskloom.core import Component, Loss, Prediction, hookimpl
from taskloom_sharp.power import POWER

class Sharp(Loss):
    """Cross-entropy of sharpened scores."""
    name = "sharp"
    expects = "classes"
    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return cross_entropy(prediction.score * POWER, target)

@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Sharp]
'''
GRID = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}, "loss": "sharp"}
        },
        "stages": [{"epochs": 1, "optimizer": {"lr": 0.01}}],
    },
    "cells": [{"label": "sharp", "set": {}}, {"label": "plain", "set": {"tasks.sst.loss": "cross_entropy"}}],
}


class Author:
    """The author of the plugin, who edits and runs."""

    def __init__(self, environment: Any, folder: Path) -> None:
        self.environment, self.folder, self.package = environment, folder, folder / "taskloom_sharp"
        self.package.mkdir(parents=True)
        self.write("__init__.py", MODULE)
        self.write("power.py", "POWER = 2.0\n")
        (folder / "grid.json").write_text(json.dumps(GRID))
        self.install("1.0")

    def write(self, file: str, text: str) -> None:
        (self.package / file).write_text(text)

    def install(self, version: str) -> None:
        (self.folder / "pyproject.toml").write_text(PYPROJECT.format(version=version))
        done = self.environment.run(["pip", "install", "-q", "--no-deps", "-e", "."], cwd=self.folder)
        assert done.returncode == 0, done.stderr

    def taskloom(self, *arguments: str) -> Any:
        done = self.environment.run(["taskloom", *arguments], cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done

    def states(self) -> dict[str, str]:
        cells = json.loads(self.taskloom("plan", "grid.json", "--json").stdout)["cells"]
        return {cell["label"]: cell["status"] for cell in cells}


@pytest.fixture(scope="module")
def author(new_environment: Any, tmp_path_factory: pytest.TempPathFactory) -> Author:
    return Author(new_environment, tmp_path_factory.mktemp("sharp"))


def test_an_edit_trains_again_and_says_why_and_a_comment_or_a_release_does_not(author: Author) -> None:
    run = ("run", "grid.json", "--engine", "inline", "--format", "json")
    first = json.loads(author.taskloom(*run).stdout)["rows"]
    assert author.states() == {"sharp": "finished", "plain": "finished"}

    author.write("__init__.py", MODULE.replace('"""Cross-entropy', '# Try 3.\n    """Sharp cross-entropy'))
    author.install("1.1")
    assert author.states() == {"sharp": "finished", "plain": "finished"}, "a comment and a release train nothing"

    author.write("power.py", "POWER = 3.0\n")  # a module that the component's own imports
    assert author.states() == {"sharp": "new", "plain": "finished"}
    explained = author.taskloom("explain", "grid.json").stdout
    assert "it is run again: the code of taskloom-sharp changed (power.py)" in explained
    second = author.taskloom(*run)
    lost = "no longer shows 1 result of its last run, of 'sharp': the code of taskloom-sharp changed (power.py)"
    assert lost in second.stderr
    assert "They are kept" in second.stderr
    rows = json.loads(second.stdout)["rows"]
    assert rows[0]["metrics"]["seconds"] != first[0]["metrics"]["seconds"], "it was trained again"
    assert rows[1]["metrics"] == first[1]["metrics"]

    author.write("power.py", "POWER = 2.0\n")
    assert author.states() == {"sharp": "finished", "plain": "finished"}, "the former result was kept"


def test_who_states_a_revision_answers_for_it(author: Author) -> None:
    stated = MODULE.replace('    expects = "classes"\n', '    expects = "classes"\n    revision = 1\n')
    author.write("__init__.py", stated)
    author.taskloom("run", "grid.json", "--engine", "inline")
    author.write("power.py", "POWER = 4.0\n")
    assert author.states()["sharp"] == "finished", "it is the author who knows"
    author.write("__init__.py", stated.replace("revision = 1", "revision = 2"))
    assert author.states()["sharp"] == "new"
    explained = author.taskloom("explain", "grid.json").stdout
    assert "loss 'sharp' has another revision (1 → 2)" in explained
