"""What a new plugin is called, and whether the name is free."""

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
    if not _FORM.fullmatch(plain) or len(plain) > _MAX_LENGTH:
        near = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_0123456789")[:_MAX_LENGTH]
        hint = f" Did you mean {near!r}?" if _FORM.fullmatch(near) else ""
        raise TaskloomError(
            f"a plugin's name should be at most {_MAX_LENGTH} lower-case letters, digits and hyphens or underscores, "
            f"a letter first, such as 'focal'. Found {given!r}.{hint}"
        )
    return Names(plain.replace("-", "_"))


def refuse_taken(kind: str, names: Names) -> None:
    """``TaskloomError`` if something installed already has the name; trackers have none."""
    for plugin, _ in installed([COMPONENTS, GRIDS]):
        if normalized(plugin.distribution) == names.distribution:
            raise TaskloomError(
                f"{names.distribution} {plugin.version} is installed already; edit that, or choose another name"
            )
    if kind == "grid":
        owners = {grid.name: grid.plugin.distribution for grid in packaged_grids().values()}
    else:
        from taskloom.registry.installed.catalogue import load_catalogue  # imports torch

        owners = {entry.name: entry.plugin.distribution for entry in load_catalogue().entries if entry.kind == kind}
    if names.name in owners:
        subject = f"a {KINDS[kind].word} {names.name!r}"
        raise TaskloomError(f"there is {subject} already, of {owners[names.name]}; choose another name")
