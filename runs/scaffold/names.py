"""What a new plugin is called, and whether the name is free."""

import keyword
import re
from dataclasses import dataclass

from taskloom.core.errors import TaskloomError
from taskloom.registry.installed.manager import COMPONENTS, GRIDS, installed, normalized, packaged_grids
from taskloom.runs.scaffold.kinds import KINDS

PREFIX = "taskloom-"
_FORM = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_MAX_LENGTH = 50


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
    if not _FORM.fullmatch(plain) or len(plain) > _MAX_LENGTH:
        near = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_0123456789")[:_MAX_LENGTH]
        hint = f" Did you mean {near!r}?" if _FORM.fullmatch(near) else ""
        raise TaskloomError(
            f"a plugin's name should be at most {_MAX_LENGTH} lower-case letters, digits and hyphens or underscores, "
            f"a letter first, such as 'focal'. Found {given!r}.{hint}"
        )
    if keyword.iskeyword(names.cls) or keyword.iskeyword(names.name):
        raise TaskloomError(f"{given!r} is a keyword of Python; choose another name")
    return names


def refuse_taken(kind: str, names: Names) -> None:
    """``TaskloomError`` if something installed already has the name."""
    for plugin, _ in installed([COMPONENTS, GRIDS])[0]:
        if normalized(plugin.distribution) == names.distribution:
            raise TaskloomError(
                f"{names.distribution} {plugin.version} is installed already; edit that, or choose another name"
            )
    owner = _owners(kind).get(names.name)
    if owner:
        word = KINDS[kind].word
        raise TaskloomError(f"there is a {word} {names.name!r} already, of {owner}; choose another name")


def _owners(kind: str) -> dict[str, str]:
    """The names of a kind that are in use → the distribution that brings each; trackers have no names."""
    if kind == "grid":
        return {grid.name: grid.plugin.distribution for grid in packaged_grids().values()}
    from taskloom.registry.installed.catalogue import load_catalogue  # imports torch

    return {entry.name: entry.plugin.distribution for entry in load_catalogue().entries if entry.kind == kind}
