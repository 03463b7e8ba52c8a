"""The reference holds everything that a plugin may use, and each entry says something."""

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

import taskloom.core
import taskloom.core.testing
from taskloom.core import hookspecs
from taskloom.core.testing import KINDS, laws
from taskloom.runs.cli import cli
from taskloom.runs.show.reference import CORE, hooks, reference
from taskloom.runs.show.sources import read_module

TEXT = reference()
ITEMS = {
    name: read_module(CORE / f"{module.rpartition('.')[2]}.py")[1][name]
    for name, module in taskloom.core._HOMES.items()
}
HOOKS = [name for name in vars(hookspecs) if name.startswith("taskloom_")]


def section(title: str) -> str:
    """What stands under a heading of the third rank."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^###? |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"the reference has no entry {title!r}"
    return found[1]


def words(markdown: str) -> str:
    """Text without fenced blocks."""
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL).strip()


@pytest.mark.parametrize("name", taskloom.core.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    text = section(name)
    assert f"{name}" in text.split("```")[1], "its signature"
    assert words(text), f"{name} should have a docstring, or a comment #: above it"


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.sort == "class"])
def test_every_public_method_is_explained(name: str) -> None:
    cls: Any = getattr(taskloom.core, name)
    own = {
        key
        for key, value in vars(cls).items()
        if not key.startswith("_")
        and (inspect.isroutine(value) or hasattr(value, "func") or isinstance(value, property))
    }
    item = ITEMS[name]
    shown = {member.name for member in item.members if member.sort != "value"} - {"__call__"}
    assert shown == {key for key in own if not key.startswith("model_")}
    for member in item.members:
        if member.sort != "value":
            assert member.doc, f"{name}.{member.name} should have a docstring"
            assert f"#### `{name}.{member.name}`" in TEXT


@pytest.mark.parametrize(
    "name", ["Encoder", "Head", "Loss", "Sampler", "GradientCombiner", "DataSet", "Metric", "Engine"]
)
def test_what_an_interface_leaves_open_is_marked(name: str) -> None:
    cls: Any = getattr(taskloom.core, name)
    marked = re.findall(rf"^#### `{name}\.(\w+)` – \*to be defined\*$", TEXT, re.MULTILINE)
    assert set(marked) == set(cls.__abstractmethods__)


@pytest.mark.parametrize("name", HOOKS)
def test_signatures_are_those_of_the_program(name: str) -> None:
    arguments = list(inspect.signature(getattr(hookspecs, name)).parameters)
    written = re.findall(r"(\w+):", section(name).split("```")[1].split("->")[0])
    assert written == arguments
    assert list(hooks()) == HOOKS


@pytest.mark.parametrize("kind", KINDS)
def test_every_law_of_the_kit_is_listed(kind: str) -> None:
    for law in laws(kind):
        assert f"- **{law.name}**" in TEXT


@pytest.mark.parametrize("name", taskloom.core.testing.__all__)
def test_every_name_of_the_kit_is_explained(name: str) -> None:
    assert words(section(name))


def test_it_is_clean_markdown() -> None:
    assert TEXT.count("```") % 2 == 0
    rest = words(TEXT)
    assert "``" not in rest
    assert not re.search(r":(meth|class|func|attr|mod):", rest)
    titles = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    links = re.findall(r"^- \[(.*)\]\(#(.*)\)$", TEXT, re.MULTILINE)
    assert [title for title, _ in links] == titles
    assert [link for _, link in links] == [title.lower().replace(" ", "-") for title in titles]


def test_the_command_prints_it_and_imports_no_torch() -> None:
    code = "import sys; from taskloom.runs.cli import cli\ntry: cli(['plugins', '--reference'])\n"
    code += "finally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == TEXT
    assert CliRunner().invoke(cli, ["plugins", "--reference", "--json"]).exit_code == 2
