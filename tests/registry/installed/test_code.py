"""What a component is known by: its revision, or a fingerprint of the code of its distribution."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from taskloom.core import Component, Loss
from taskloom.plugins.combiners import PCGrad
from taskloom.registry.installed.catalogue import Catalogue, load_catalogue
from taskloom.registry.installed.code import code_fingerprint
from taskloom.registry.installed.entries import Entry

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "taskloom-{name}"
version = "1.0"
[project.entry-points.taskloom]
{name} = "{entry}"
[tool.setuptools]
packages = {packages}
py-modules = {modules}
[tool.setuptools.package-data]
"*" = ["*.json", "*.txt"]
"""
MODULE = '''
"""A loss."""
from taskloom.core.component import Component
from taskloom_focal.helper import power

class Focal(Component):
    """Focal loss."""
    #: A comment.
    def missed(self, p: float) -> float:
        """What is missed."""
        return power(1 - p, 2.0)
'''
#: A plugin with a package, a subpackage, data, tests of its own and a module beside the package.
SOURCES = {
    "pyproject.toml": PYPROJECT.format(
        name="focal", entry="taskloom_focal", packages=["taskloom_focal", "taskloom_focal.sub"], modules=["focal_table"]
    ),
    "taskloom_focal/__init__.py": MODULE,
    "taskloom_focal/helper.py": "def power(base, exponent):\n    return base**exponent\n",
    "taskloom_focal/sub/__init__.py": "",
    "taskloom_focal/sub/words.txt": "a b\n",
    "taskloom_focal/table.json": '{"gamma": 2.0}',
    "taskloom_focal/tests/test_focal.py": "def test_it(): pass\n",
    "focal_table.py": "GAMMAS = [1.0, 2.0]\n",
    "README.md": "Focal loss.\n",
}
COUNTED = {
    "taskloom_focal/__init__.py",
    "taskloom_focal/helper.py",
    "taskloom_focal/sub/__init__.py",
    "taskloom_focal/sub/words.txt",
    "taskloom_focal/table.json",
    "focal_table.py",
}
SHOW = """
import json, sys
from taskloom.registry.installed.code import code_fingerprint
codes = map(code_fingerprint, sys.argv[1:])
print(json.dumps([[code.fingerprint, code.files] for code in codes]))
"""
Shown = tuple[str, dict[str, str]]


def write(folder: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def shown(environment: Any, folder: Path, *names: str) -> list[Shown]:
    """Fingerprint and files of these distributions, in a process of that environment."""
    done = environment.run(["python", "-c", SHOW, *names], cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(fingerprint, files) for fingerprint, files in json.loads(done.stdout)]


def pip_install(environment: Any, folder: Path, *arguments: str) -> None:
    done = environment.run(["pip", "install", "-q", "--no-deps", "--force-reinstall", *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr


def install_wheel(environment: Any, sources: Path, folder: Path) -> None:
    copy, wheels = folder / "copy", folder / "wheels"  # of the sources, since building leaves files beside them
    shutil.copytree(sources, copy)
    done = environment.run(["pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(copy)], cwd=folder)
    assert done.returncode == 0, done.stderr
    pip_install(environment, folder, *map(str, wheels.glob("*.whl")))


@pytest.fixture(scope="module")
def project(new_environment: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plugin, installed from a wheel first and then editable; both have the same fingerprint."""
    folder = write(tmp_path_factory.mktemp("focal") / "project", SOURCES)
    install_wheel(new_environment, folder, folder.parent)
    [wheel] = shown(new_environment, folder.parent, "taskloom-focal")
    pip_install(new_environment, folder.parent, "-e", str(folder))
    [editable] = shown(new_environment, folder.parent, "taskloom-focal")
    assert editable == wheel
    assert set(wheel[1]) == COUNTED
    assert len(wheel[0]) == 20
    return folder


@pytest.fixture
def after(new_environment: Any, project: Path, tmp_path: Path) -> Callable[[dict[str, str]], tuple[Shown, Shown]]:
    """The plugin's code as it was and after some files were written; they are put back."""

    def edit(changes: dict[str, str]) -> tuple[Shown, Shown]:
        [old] = shown(new_environment, tmp_path, "taskloom-focal")
        write(project, changes)
        [new] = shown(new_environment, tmp_path, "taskloom-focal")
        for name in changes:
            (project / name).unlink()
        write(project, SOURCES)
        return old, new

    return edit


def test_comments_docstrings_formatting_and_tests_change_nothing(
    after: Callable[..., tuple[Shown, Shown]],
) -> None:
    reworded = MODULE.replace('"""A loss."""', "# About losses").replace('"""Focal loss."""', '"""Other words."""')
    reworded = reworded.replace('"""What is missed."""', "").replace("#: A comment.", "# Another one, ä.")
    formatted = "def power( base,\n          exponent, ) :\n\n    '''In words.'''\n    return (base ** exponent)  # x\n"
    old, new = after(
        {
            "taskloom_focal/__init__.py": reworded,
            "taskloom_focal/helper.py": formatted,
            "taskloom_focal/sub/__init__.py": '"""A package."""\n',
            "taskloom_focal/tests/test_focal.py": "def test_it(): assert True\n",
            "taskloom_focal/tests/conftest.py": "x = 1\n",
            "taskloom_focal/.hidden": "x",
            "taskloom_focal/py.typed": "",
            "taskloom_focal/helper.pyi": "def power(base: float, exponent: float) -> float: ...\n",
            "README.md": "Other words.\n",
        }
    )
    assert new == old


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("taskloom_focal/__init__.py", MODULE.replace("1 - p", "1.0 - p")),
        ("taskloom_focal/__init__.py", MODULE.replace("2.0", "True")),
        ("taskloom_focal/helper.py", "def power(base, exponent):\n    return exponent**base\n"),
        ("taskloom_focal/helper.py", "def power(base, exponent):\n    return base**\n"),  # not Python
        ("taskloom_focal/sub/words.txt", "a b c\n"),
        ("taskloom_focal/weights.pth", "weights of a model, and no hook of Python"),
        ("taskloom_focal/sub/added.py", "x = 1\n"),
        ("focal_table.py", "GAMMAS = [1.0, 2.5]\n"),
    ],
)
def test_any_change_of_code_or_data_changes_it(after: Callable[..., tuple[Shown, Shown]], name: str, text: str) -> None:
    (old, old_files), (new, new_files) = after({name: text})
    assert new != old
    assert {file for file in old_files.keys() | new_files if old_files.get(file) != new_files.get(file)} == {name}


def test_a_function_that_moves_to_another_module_changes_it(after: Callable[..., tuple[Shown, Shown]]) -> None:
    helper = SOURCES["taskloom_focal/helper.py"]
    imported = "from taskloom_focal.moved import power\n"
    (old, _), (new, files) = after({"taskloom_focal/moved.py": helper, "taskloom_focal/helper.py": imported})
    assert new != old
    assert "taskloom_focal/moved.py" in files


def test_of_a_namespace_package_only_the_files_of_the_distribution_count(new_environment: Any, tmp_path: Path) -> None:
    folders = {}
    for name in ("left", "right"):
        packages = [f"laboratory.{name}", f"laboratory.{name}_helper"]
        sources = {
            "pyproject.toml": PYPROJECT.format(name=name, entry=f"laboratory.{name}", packages=packages, modules=[]),
            f"laboratory/{name}/__init__.py": "x = 1\n",
            f"laboratory/{name}_helper/__init__.py": "x = 2\n",
        }
        folders[name] = write(tmp_path / name, sources)
        install_wheel(new_environment, folders[name], tmp_path / f"wheel-{name}")
    wheels = shown(new_environment, tmp_path, "taskloom-left", "taskloom-right")
    pip_install(new_environment, tmp_path, "-e", str(folders["left"]), "-e", str(folders["right"]))
    assert shown(new_environment, tmp_path, "taskloom-left", "taskloom-right") == wheels
    assert [set(files) for _, files in wheels] == [
        {"laboratory/left/__init__.py", "laboratory/left_helper/__init__.py"},
        {"laboratory/right/__init__.py", "laboratory/right_helper/__init__.py"},
    ]


def test_the_distribution_that_defines_the_class_counts_beside_the_one_that_lists_it(
    new_environment: Any, project: Path, tmp_path: Path
) -> None:
    sources = {
        "pyproject.toml": PYPROJECT.format(name="lister", entry="lister", packages=[], modules=["lister"]),
        "lister.py": "from taskloom_focal import Focal\nclass Mine(Focal): ...\n",
    }
    pip_install(new_environment, tmp_path, str(write(tmp_path / "lister", sources)))
    code = """
        import json, lister
        from taskloom.registry.installed.code import component_code
        print(json.dumps([sorted(component_code(c, "taskloom-lister").files) for c in (lister.Focal, lister.Mine)]))
    """
    done = new_environment.run(["python", "-c", dedent(code)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [sorted({*COUNTED, "lister.py"})] * 2


def test_a_distribution_that_is_not_installed_has_no_files() -> None:
    assert code_fingerprint("taskloom-not-there").files == {}
    assert code_fingerprint("").files == {}


LOSS = """
    from pathlib import Path
    from taskloom.core import Loss, hookimpl
    class Focal(Loss):
        name = "focal"
        expects = "classes"
        {line}
        def forward(self, prediction, target):
            return prediction.score.sum() * 0
    @hookimpl
    def taskloom_components():
        return [Focal]
"""


def entry_after(install: Callable[..., None], line: str = "", **options: str) -> Entry:
    install("focal", LOSS.format(line=line), **options)
    return load_catalogue().get("loss", "focal")


def test_a_third_party_is_known_by_its_code_and_not_by_its_version(install: Callable[..., None]) -> None:
    entry = entry_after(install)
    assert entry.code == code_fingerprint("taskloom-focal").fingerprint
    assert list(entry.code_files) == ["taskloom_focal.py"]
    assert entry_after(install, version="7.0").code == entry.code
    assert entry_after(install, "# a comment").code == entry.code
    assert entry_after(install, "separable = True").code != entry.code


def test_who_states_a_revision_answers_for_it(install: Callable[..., None]) -> None:
    entry = entry_after(install, "revision = 3")
    assert (entry.code, entry.code_files) == (3, {})
    assert entry_after(install, "revision = 3; separable = True").code == 3
    assert entry_after(install, "revision = 4").code == 4


@pytest.mark.parametrize("revision", ["0", "-1", "True", "1.5", "'2'"])
def test_a_revision_is_an_integer_from_1_on(install: Callable[..., None], revision: str) -> None:
    install("focal", LOSS.format(line=f"revision = {revision}"))
    (failure,) = load_catalogue().failed
    assert failure.reason.startswith("Focal.revision should be None or an integer from 1 on. Found ")


def test_every_built_in_has_a_revision_from_1_on() -> None:
    for entry in load_catalogue().entries:
        if entry.plugin.builtin:
            assert isinstance(entry.code, int)
            assert (entry.code >= 1, entry.code_files) == (True, {})
            assert entry.code == (entry.cls.revision or 1)


def test_the_revision_of_a_built_in_base_class_is_a_part_of_the_code_and_not_its_own(
    catalogue_of: Callable[..., Catalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(PCGrad):
        name = "mine"

    old = catalogue_of(Mine).get("combiner", "mine").code
    monkeypatch.setattr(PCGrad, "revision", 2)
    entry = catalogue_of(Mine).get("combiner", "mine")
    assert isinstance(entry.code, str)
    assert entry.code != old
    assert entry.code_files["taskloom.plugins.combiners.pcgrad.PCGrad"] == "revision 2"


def test_a_package_may_state_one_revision_for_all_and_a_class_may_take_it_back(
    catalogue_of: Callable[..., Catalogue],
) -> None:
    class Base(Loss):
        revision = 5
        expects = "classes"

        def forward(self, prediction: Any, target: Any) -> Any:
            return prediction.score.sum() * 0

    class First(Base):
        name = "first"

    class Second(Base):
        name = "second"
        revision = None

    classes: list[type[Component]] = [First, Second]
    catalogue = catalogue_of(*classes)
    assert catalogue.get("loss", "first").code == 5
    assert catalogue.get("loss", "second").code != 5


def test_packaged_grids_do_not_count(install: Callable[..., None], tmp_path: Path) -> None:
    """Growing a grid trains only what is new, also if the plugin that brings the grid brings a loss."""
    package = write(tmp_path / "site" / "taskloom_focal", {"grid.json": "{}", "data.json": "{}"})
    (package / "__init__.py").write_text(dedent(LOSS.format(line="")))
    grids = """
        from pathlib import Path
        from taskloom.core.hookspecs import hookimpl
        import taskloom_focal
        @hookimpl
        def taskloom_grids():
            return [Path(taskloom_focal.__file__).parent / "grid.json"]
    """
    install("grids", grids, group="taskloom.grids")
    entry = entry_after(install)
    assert set(entry.code_files) == {"taskloom_focal/__init__.py", "taskloom_focal/data.json"}


#: What Python versions write differently: new fields, quotes and empty parts of f-strings, characters of newer Unicode.
SAMPLE = r"""
class Table: ...

def shown(rows: list[float], width: int = 8, *, sign: str = u"±", **rest: object) -> str:
    lines = [f"{abs(row)!r:>{width}}" f"{row=:.3f} {'a' + sign}" for row in rows if row > -1e-6]
    lines += ["\d 🫩", b"\x00", 1_000j, True]
    match rows:
        case [first, *others] if first is not None:
            return "".join(map(str, lines))
        case _:
            pass
"""


def test_the_fingerprint_is_the_same_in_all_versions_of_python(install: Callable[..., None]) -> None:
    install("sample", SAMPLE)
    assert code_fingerprint("taskloom-sample").files == {"taskloom_sample.py": "8685b469fbc266aae30b"}
