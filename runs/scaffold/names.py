"""What a new plugin is called, and whether the name is free. Imports no torch unless other plugins are installed."""

import ast
import keyword
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from taskloom.core.errors import TaskloomError
from taskloom.registry.manager import packaged_grids
from taskloom.runs.scaffold.kinds import COMPONENTS, KINDS

PREFIX = "taskloom-"
_FORM = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST = 50


@dataclass(frozen=True)
class Names:
    """The forms of a plugin's name: what users type, the class, the module, the distribution, a variable."""

    name: str

    @property
    def cls(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def module(self) -> str:
        return f"taskloom_{self.name}"

    @property
    def distribution(self) -> str:
        return PREFIX + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"TASKLOOM_{self.name.upper()}_FILE"


def read_name(given: str) -> Names:
    """The names of a plugin from what a user calls it, with or without the prefix.

    >>> names = read_name("taskloom-hard-focal")
    >>> names.name, names.cls, names.module, names.distribution
    ('hard_focal', 'HardFocal', 'taskloom_hard_focal', 'taskloom-hard-focal')
    """
    plain = given.removeprefix(PREFIX).removeprefix("taskloom_")
    names = Names(plain.replace("-", "_"))
    if not _FORM.fullmatch(plain) or len(plain) > _LONGEST:
        near = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_0123456789")[:_LONGEST]
        hint = f" Did you mean {near!r}?" if _FORM.fullmatch(near) else ""
        raise TaskloomError(
            f"a plugin's name should be at most {_LONGEST} lower-case letters, digits and hyphens or underscores, "
            f"a letter first, such as 'focal'. Found {given!r}.{hint}"
        )
    if keyword.iskeyword(names.cls) or keyword.iskeyword(names.name):
        raise TaskloomError(f"{given!r} is a word of Python's; choose another name")
    return names


def refuse_taken(kind: str, names: Names) -> None:
    """``TaskloomError`` if something installed already has the name."""
    for group in {one.group for one in KINDS.values()}:
        for entry in entry_points(group=group):
            if entry.dist is not None and _plain(entry.dist.name) == names.distribution:
                raise TaskloomError(
                    f"{names.distribution} {entry.dist.version} is installed already; edit that, or choose another name"
                )
    owner = taken(kind).get(names.name)
    if owner:
        word = KINDS[kind].word
        raise TaskloomError(f"there is a {word} {names.name!r} already, of {owner}; choose another name")


def taken(kind: str) -> dict[str, str]:
    """The names of a kind that are in use → the distribution that brings each."""
    if kind == "tracker":  # trackers have no names that users type
        return {}
    if kind == "grid":
        return {grid.name: grid.distribution for grid in packaged_grids().values()}
    entries = entry_points(group=COMPONENTS)
    if all(_builtin(entry) for entry in entries):
        return dict.fromkeys(builtin_names(kind), "taskloom")

    from taskloom.registry.catalogue import load_catalogue

    return {entry.name: entry.distribution for entry in load_catalogue().entries if entry.kind == kind}


def builtin_names(kind: str) -> set[str]:
    """The names of our own components of a kind, read from their source: torch takes seconds to import."""
    hook = f"def taskloom_{ {'data': 'datasets', 'loss': 'losses'}.get(kind, kind + 's') }("
    found: set[str] = set()
    for entry in filter(_builtin, entry_points(group=COMPONENTS)):
        spec = find_spec(entry.module)
        home = Path(spec.origin) if spec and spec.origin else None
        if home is None or hook not in home.read_text(encoding="utf-8"):
            continue
        for path in home.parent.rglob("*.py") if home.name == "__init__.py" else [home]:
            found |= _names_in(ast.parse(path.read_text(encoding="utf-8")))
    return found


def _names_in(module: ast.Module) -> set[str]:
    """``name = "…"`` in the classes of a module."""
    return {
        line.value.value
        for cls in module.body
        if isinstance(cls, ast.ClassDef)
        for line in cls.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
        if [getattr(target, "id", "") for target in line.targets] == ["name"]
    }


def _builtin(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "taskloom"


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
