"""Who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import taskloom.core

ROOT = Path(__file__).resolve().parent.parent
#: The design's table: package → which of our packages it may import beside itself.
MAY_IMPORT = {
    "core": set(),
    "plugins": {"core"},
    "registry": {"core"},
    "runs": {"core", "registry"},
}
#: The rooms of ``runs`` in the order in which a run walks through them: each may import those to its left.
ROOMS = ("grids", "scaffold", "grid", "training", "predict", "driver", "analysis", "export", "show", "api", "cli")
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Every name that a file imports, wherever in the file, with its line."""
    imports = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}:{node.lineno}: relative import"
            imports += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return imports


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_the_design_allows(package: str) -> None:
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == package]
    assert files
    allowed = {package, *MAY_IMPORT[package]}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        for line, name in imports_of(path)
        if name.partition(".")[0] == "taskloom" and name.split(".")[1] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_runs_imports_only_rooms_to_its_left(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "runs" / room).rglob("*.py"))
        for line, name in imports_of(path)
        if name.startswith("taskloom.runs.") and name.split(".")[2] not in allowed
    ]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {".".join(("taskloom", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}
    graph = {
        module: {other for _, name in imports_of(path) for other in (name, name.rpartition(".")[0]) if other in names}
        for module, path in names.items()
    }
    TopologicalSorter(graph).prepare()  # an error that names them if there are any


def test_our_own_code_is_always_imported_as_taskloom() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in [*FILES, *TESTS]
        for line, name in imports_of(path)
        if name.partition(".")[0] in MAY_IMPORT
    ]
    assert wrong == []


def test_the_lazy_names_of_core_are_those_a_type_checker_sees() -> None:
    tree = ast.parse((ROOT / "core" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # `import X as X` is what marks a name as public
            seen[alias.name] = node.module
    assert sorted(seen) == sorted(taskloom.core.__all__) == sorted(dir(taskloom.core))
    for name, home in seen.items():
        assert home is not None
        assert getattr(taskloom.core, name) is getattr(import_module(home), name)


def test_a_name_that_core_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'taskloom\.core' has no attribute 'Lost'"):
        _ = taskloom.core.Lost


LIGHT = {
    "core": "import taskloom.core",
    "specs": "from taskloom.core import GridSpec, RunSpec, Problem, RequestError, unknown",
    "grids": "from taskloom.registry.installed.manager import packaged_grids; assert packaged_grids()",
    "problems": "from taskloom.registry.installed.problems import problems_of",
}


@pytest.mark.parametrize("what", LIGHT)
def test_what_must_be_quick_imports_no_torch(what: str) -> None:
    code = f"import sys\n{LIGHT[what]}\nprint(*sorted({{'torch', 'numpy', 'scipy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
