"""A complete plugin package from templates: what ``taskloom new-plugin`` writes.

The templates are files of ``templates/<kind>/`` and ``templates/common/`` in which ``$name`` and its like stand for
what differs (:class:`string.Template`).
"""

import ast
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from string import Template

from taskloom.core.errors import TaskloomError, unknown
from taskloom.runs.scaffold.kinds import KINDS, Kind
from taskloom.runs.scaffold.names import Names, read_name, refuse_taken

_TEMPLATES = Path(__file__).parent / "templates"


def write_plugin(given: str, kind: str, into: Path) -> tuple[Names, Path]:
    """Write the package of a new plugin into a folder; the names that it got, and where it is.

    ``TaskloomError`` if the name or the place will not do; then nothing has been written.
    """
    if kind not in KINDS:
        raise TaskloomError(unknown("kind", kind, KINDS, where="kinds"))
    names = read_name(given)
    target = into / names.distribution
    _refuse_place(into, target)
    refuse_taken(kind, names)
    files = package_files(names, kind)
    try:
        with tempfile.TemporaryDirectory(dir=into, prefix=".taskloom-") as folder:
            whole = Path(folder) / target.name
            for path, text in files.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            # In one move, so that nobody ever meets half a package; an empty folder gives way.
            if target.is_dir():
                target.rmdir()
            shutil.move(whole, target)
    except OSError as error:
        raise TaskloomError(f"{target} cannot be written: {error.strerror or error}") from None
    return names, target


def package_files(names: Names, kind: str) -> dict[str, str]:
    """The files of a plugin's package: path in its folder → text."""
    facts = KINDS[kind]
    grid = f"{names.module}/{names.name}.json" if facts.packaged else f"{names.name}.json"
    found = {
        "pyproject.toml": _template("common", "pyproject.toml"),
        "README.md": _template("common", "README.md"),
        ".gitignore": _template("common", "gitignore"),
        f"{names.module}/__init__.py": _template(kind, "plugin.py"),
        f"{names.module}/py.typed": "",
        f"tests/test_{names.name}.py": _template(kind, "test.py"),
        grid: _template(kind, "grid.json"),
    }
    for path in sorted((_TEMPLATES / kind).glob("*.jsonl.tmpl")):
        found[f"{names.module}/examples/{path.stem}"] = path.read_text(encoding="utf-8")
    code = _template(kind, "plugin.py") + _template(kind, "test.py")
    words = _words(names, kind, facts, grid, code)
    return {path: Template(text).substitute(words) for path, text in found.items()}


def next_steps(names: Names, kind: str, folder: Path) -> list[str]:
    """The three commands that install a new plugin, test it and run its grid."""
    run = KINDS[kind].command.replace("$name.json", "$file")
    if kind == "engine":
        run += " --engine $name"
    place, file = quote(str(folder)), quote(str(folder / f"{names.name}.json"))
    run = Template(run).substitute(name=names.name, file=file)
    return [f"pip install -e {place}", f"python -m pytest {place}", run]


def _words(names: Names, kind: str, facts: Kind, grid: str, code: str) -> dict[str, str]:
    """What stands for each ``$word`` of the templates."""
    cls = names.cls
    if cls in _identifiers(code):  # the template's own word for something else, such as Tensor
        cls += kind.capitalize()
    words = {
        "name": names.name,
        "cls": cls,
        "module": names.module,
        "distribution": names.distribution,
        "variable": names.variable,
        "taskloom": _compatible(version("taskloom")),
        "group": facts.group,
        "summary": facts.summary,
        "word": facts.word,
        "files": ", ".join(f'"{one}"' for one in ("py.typed", *facts.data)),
        "grid": grid,
        "what": "names the grids of this folder" if facts.packaged else f"the {facts.word}",
        "why": "the grid" if facts.packaged else f"a small grid that puts the {facts.word} to use",
        "outcome": "runs the grid and prints its table",
    }
    words["use"] = Template(facts.use).substitute(words)
    words["run"] = Template(facts.command + (" --engine $name" if kind == "engine" else "")).substitute(words)
    return words


def _compatible(taskloom: str) -> str:
    """The versions of taskloom that a plugin written for this one works with.

    >>> _compatible("0.1.3")
    '>=0.1,<0.2'
    """
    major, minor = map(int, taskloom.split(".")[:2])
    return f">={major}.{minor},<{major}.{minor + 1}"


def _identifiers(code: str) -> set[str]:
    """The names that a template uses, those that differ from plugin to plugin left out."""
    nodes = list(ast.walk(ast.parse(code.replace("$", "_"))))
    imported = {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return imported | {node.id for node in nodes if isinstance(node, ast.Name)}


def _template(folder: str, name: str) -> str:
    return (_TEMPLATES / folder / f"{name}.tmpl").read_text(encoding="utf-8")


def _refuse_place(into: Path, target: Path) -> None:
    """``TaskloomError`` unless a new folder can come to be at ``target``."""
    try:
        if not into.is_dir():
            raise TaskloomError(f"there is no folder {into}; make it first, or name another with --into")
        if target.is_symlink() or target.exists():
            if not target.is_dir():
                raise TaskloomError(f"{target} is there already and is no folder; choose another name or --into")
            if any(target.iterdir()):
                raise TaskloomError(f"{target} is there already and not empty; choose another name or --into")
    except OSError as error:
        raise TaskloomError(f"{target} cannot be looked at: {error.strerror or error}") from None
