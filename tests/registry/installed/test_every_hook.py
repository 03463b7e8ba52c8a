"""A hook that is undocumented, or that no plugin of ours and no template implements, fails here."""

import ast
import inspect
from pathlib import Path

import pytest

import taskloom.plugins
from taskloom.core import hookspecs
from taskloom.registry.installed.entries import INTERFACES
from taskloom.runs.scaffold import package_files
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

HOOKS = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented(hook: str) -> None:
    doc = inspect.cleandoc(getattr(hookspecs, hook).__doc__)
    for part in ("Called: ", "Returns: "):
        assert f"\n\n{part}" in doc, f"the docstring of {hook} should have a part {part.strip()!r}"
    assert f"def {hook}(" in doc.partition("\n\nExample::")[2]


def hooks_in(code: str) -> set[str]:
    """The hooks that a module implements."""
    return {one.name for one in ast.parse(code).body if isinstance(one, ast.FunctionDef) and one.decorator_list}


def test_every_hook_is_implemented_by_a_new_plugin() -> None:
    """Which is installed, tested and run for real in ``test_new_plugin_installed``."""
    codes = {kind: package_files("new", kind)["taskloom_new/__init__.py"] for kind in PLUGIN_KINDS}
    found = {kind: hooks_in(code) for kind, code in codes.items()}
    expected = {kind: {"taskloom_components"} for kind in INTERFACES}
    assert found == {**expected, "grid": {"taskloom_grids"}}
    assert set.union(*found.values()) == set(HOOKS)


def test_built_ins_are_registered_as_anybodys_plugins_are() -> None:
    modules = sorted(Path(taskloom.plugins.__path__[0]).glob("*/__init__.py"))
    assert len(modules) == len(INTERFACES)
    assert all(hooks_in(module.read_text(encoding="utf-8")) == {"taskloom_components"} for module in modules)
