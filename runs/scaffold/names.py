"""What a new plugin is called, and whether the name is free. Imports no plugin, and so no torch."""

import ast
import keyword
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

from taskloom.core.errors import TaskloomError
from taskloom.registry.installed.manager import packaged_grids
from taskloom.registry.installed.packages import installed, plain
from taskloom.runs.scaffold.kinds import COMPONENTS, GRIDS, KINDS

PREFIX = "taskloom-"
_FORM = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST = 50
#: Hooks that are not called taskloom_<kind>s.
HOOK = {"data": "taskloom_datasets", "loss": "taskloom_losses"}


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
    for entry, _ in installed([COMPONENTS, GRIDS])[0]:
        if entry.dist is not None and plain(entry.dist.name) == names.distribution:
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
    return {
        name: entry.dist.name
        for entry, _ in installed([COMPONENTS])[0]
        if entry.dist is not None
        for name in _names_of(entry, HOOK.get(kind, f"taskloom_{kind}s"))
    }


def _names_of(entry: EntryPoint, hook: str) -> set[str]:
    """The names of the components of a plugin that implements a hook, read from its source."""
    try:
        spec = find_spec(entry.module)
        home = Path(spec.origin) if spec and spec.origin else None
        if home is None or f"def {hook}(" not in home.read_text(encoding="utf-8"):
            return set()
        paths = home.parent.rglob("*.py") if home.name == "__init__.py" else [home]
        return {name for path in paths for name in _names_in(ast.parse(path.read_text(encoding="utf-8")))}
    except Exception:  # a plugin that cannot even be read has no names; `taskloom plugins` tells of it
        return set()


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
