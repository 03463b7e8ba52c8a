"""Write a complete plugin package from templates, for ``taskloom new-plugin``.

The templates are the files in ``templates/<kind>/`` and ``templates/common/``; ``$name`` and the like are placeholders
(:class:`string.Template`).
"""

import re
import tempfile
from pathlib import Path
from shlex import quote
from string import Template

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.outputs import check_location
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

PREFIX = "taskloom-"
_FORM = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TEMPLATES = Path(__file__).parent / "templates"


def read_name(plugin_name: str) -> str:
    """Return the name of a plugin's component from the plugin's name, with or without the prefix.

    >>> read_name("taskloom-hard-focal")
    'hard_focal'
    """
    plain = plugin_name.removeprefix(PREFIX).removeprefix("taskloom_")
    if not _FORM.fullmatch(plain):
        near = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_0123456789")
        hint = f" Did you mean {near!r}?" if _FORM.fullmatch(near) else ""
        raise TaskloomError(
            "a plugin's name should be lower-case letters, digits and hyphens or underscores, a letter first, such as "
            f"'focal'. Found {plugin_name!r}.{hint}"
        )
    return plain.replace("-", "_")


def _distribution(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def refuse_used_name(kind: str, name: str) -> None:
    """Raise a ``TaskloomError`` if an installed plugin or component already has the name."""
    from taskloom.registry.installed.manager import COMPONENTS, GRIDS, installed, normalized, packaged_grids

    for plugin, _ in installed([COMPONENTS, GRIDS]):
        if normalized(plugin.distribution) == _distribution(name):
            distribution = f"{_distribution(name)} {plugin.version}"
            raise TaskloomError(f"{distribution} is installed already; edit that, or choose another name")
    if kind == "grid":
        owners = {grid.name: grid.plugin.distribution for grid in packaged_grids().values()}
    else:
        from taskloom.registry.installed.catalogue import load_catalogue  # imports torch

        owners = {entry.name: entry.plugin.distribution for entry in load_catalogue().entries if entry.kind == kind}
    if name in owners:
        raise TaskloomError(
            f"there is a {PLUGIN_KINDS[kind].word} {name!r} already, of {owners[name]}; choose another name"
        )


def write_plugin(plugin_name: str, kind: str, into: Path) -> tuple[str, Path]:
    """Write the package of a new plugin into a folder; returns the name of its component, and the package's folder.

    ``TaskloomError`` if the name or the folder cannot be used; then nothing has been written.
    """
    name = read_name(plugin_name)
    target = into / _distribution(name)
    refuse_used_name(kind, name)
    files = package_files(name, kind)
    try:
        check_location(target)
        if not into.is_dir():
            raise TaskloomError(f"{into} is not a folder; create it first, or choose another with --into")
        if target.exists():
            raise TaskloomError(f"{target} exists already; choose another name or --into")
        with tempfile.TemporaryDirectory(dir=into, prefix=".taskloom-") as folder:
            whole = Path(folder) / target.name
            for path, text in files.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            whole.rename(target)  # atomically, so that a package is never half written
    except OSError as error:
        raise TaskloomError(f"{target} cannot be written: {error.strerror or error}") from None
    return name, target


def package_files(name: str, kind: str) -> dict[str, str]:
    """Return the files of a plugin's package: path in its folder → text."""
    module = f"taskloom_{name}"
    grid = f"{module}/{name}.json" if kind == "grid" else f"{name}.json"
    templates = {
        "pyproject.toml": _template("common", "pyproject.toml"),
        "README.md": _template("common", "README.md"),
        ".gitignore": _template("common", "gitignore"),
        f"{module}/__init__.py": _template(kind, "plugin.py"),
        f"{module}/py.typed": "",
        f"tests/test_{name}.py": _template(kind, "test.py"),
        grid: _template(kind, "grid.json"),
    }
    for path in sorted((_TEMPLATES / kind).glob("*.jsonl.tmpl")):
        templates[f"{module}/examples/{path.stem}"] = path.read_text(encoding="utf-8")
    words = _words(name, kind, grid)
    return {path: Template(text).substitute(words) for path, text in templates.items()}


def next_steps(name: str, kind: str, folder: Path) -> list[str]:
    """Return the commands that install a new plugin with its test dependencies, test it, and run its grid."""
    package_folder, grid = quote(str(folder)), quote(str(folder / f"{name}.json"))
    return [f"pip install -e {quote(f'{folder}[test]')}", f"python -m pytest {package_folder}", _run(name, kind, grid)]


def _run(name: str, kind: str, grid: str) -> str:
    option = f" --{kind} {name}" if kind in ("engine", "tracker") else ""
    return f"taskloom run {name if kind == 'grid' else grid}{option}"


def _words(name: str, kind: str, grid: str) -> dict[str, str]:
    """Return the substitutions for the templates: placeholder → text."""
    from importlib.metadata import version

    facts = PLUGIN_KINDS[kind]
    major, minor = map(int, version("taskloom").split(".")[:2])
    cls = "".join(part.capitalize() for part in name.split("_"))
    if re.search(rf"^from .*\b{cls}\b", _template(kind, "plugin.py") + _template(kind, "test.py"), re.MULTILINE):
        cls += kind.capitalize()  # the template imports something of that name, such as Tensor
    words = {
        "name": name,
        "cls": cls,
        "module": f"taskloom_{name}",
        "distribution": _distribution(name),
        "taskloom": f">={major}.{minor},<{major}.{minor + 1}",  # the versions that it works with
        "group": facts.group,
        "summary": facts.summary,
        "word": facts.word,
        "files": ", ".join(f'"{pattern}"' for pattern in ("py.typed", *facts.data)),
        "grid": grid,
        "run": _run(name, kind, grid),
    }
    return {**words, "use": Template(facts.use).substitute(words)}


def _template(folder: str, name: str) -> str:
    return (_TEMPLATES / folder / f"{name}.tmpl").read_text(encoding="utf-8")
