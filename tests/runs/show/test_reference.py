"""The reference holds everything that a plugin may use, and each entry says something."""

import inspect
import re
from typing import Any

import pytest
from click.testing import CliRunner

import taskloom.core
import taskloom.core.testing
from taskloom.core import hookspecs
from taskloom.core.testing import KINDS_WITH_LAWS, laws
from taskloom.runs.cli import cli
from taskloom.runs.show.reference import reference

TEXT = reference()
HOOKS = [name for name in vars(hookspecs) if name.startswith("taskloom_")]
CLASSES = [name for name in taskloom.core.__all__ if inspect.isclass(getattr(taskloom.core, name))]


def code_of(name: str) -> str:
    """The code under a heading of the third rank."""
    entry = re.search(rf"^### {re.escape(name)}\n\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert entry, f"the reference has no entry {name!r}"
    return entry[1]


@pytest.mark.parametrize("name", [*taskloom.core.__all__, *taskloom.core.testing.__all__, *HOOKS])
def test_every_public_name_is_explained(name: str) -> None:
    assert re.search(r'"""|#', code_of(name)), f"{name} should have a docstring, or a comment #: above it"


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_explained(name: str) -> None:
    cls: Any = getattr(taskloom.core, name)
    if not cls.__module__.startswith("taskloom."):
        return  # a name for somebody else's type
    own = [
        key
        for key, value in vars(cls).items()
        if not key.startswith(("_", "model_"))
        and (inspect.isroutine(value) or hasattr(value, "func") or isinstance(value, property))
    ]
    code = code_of(name)
    for key in own:
        documented = re.search(rf'^    def {key}\((?:[^"]|"(?!""))*?:\n        """', code, re.MULTILINE)
        assert documented, f"{name}.{key} should have a docstring"


@pytest.mark.parametrize("name", [name for name in CLASSES if inspect.isabstract(getattr(taskloom.core, name))])
def test_what_an_interface_leaves_open_is_marked(name: str) -> None:
    marked = re.findall(r"@abstractmethod\n(?:    @\w+\n)*    def (\w+)", code_of(name))
    assert set(marked) <= getattr(taskloom.core, name).__abstractmethods__
    assert marked


@pytest.mark.parametrize("kind", KINDS_WITH_LAWS)
def test_every_law_of_the_kit_is_listed(kind: str) -> None:
    for law in laws(kind):
        assert f"- **{law.name}**" in TEXT


def test_its_contents_lead_to_its_sections_and_the_command_prints_it() -> None:
    titles = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    links = re.findall(r"^- \[(.*)\]\(#(.*)\)$", TEXT, re.MULTILINE)
    assert links == [(title, title.lower().replace(" ", "-")) for title in titles]
    assert CliRunner().invoke(cli, ["plugins", "--reference"]).stdout == TEXT
    assert CliRunner().invoke(cli, ["plugins", "--reference", "--json"]).exit_code == 2
