"""What is known of a plugin, and what is said of one that cannot be used."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: The variable that limits third-party plugins: names separated by commas, or empty to leave out all of them.
LIMIT = "TASKLOOM_PLUGINS"
BUILTIN = "taskloom"


@dataclass(frozen=True)
class Plugin:
    """One entry point: its name and group, the distribution that brings it, and how long its import took."""

    name: str
    group: str
    distribution: str
    version: str
    seconds: float = 0.0

    @property
    def builtin(self) -> bool:
        """Whether it came with taskloom itself."""
        return self.distribution == BUILTIN

    @property
    def key(self) -> str:
        """The name under which pluggy knows it; no other plugin has it."""
        return f"{self.distribution}:{self.group}:{self.name}"

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}"


@dataclass(frozen=True)
class Failure:
    """A plugin, or a part of one, that cannot be used, and why; ``rivals`` are distributions that claim its name."""

    plugin: str
    distribution: str
    version: str
    reason: str
    rivals: tuple[str, ...] = ()

    @classmethod
    def of(cls, plugin: Plugin, reason: str) -> "Failure":
        return cls(plugin.name, plugin.distribution, plugin.version, reason)

    def __str__(self) -> str:
        origin = f" of {self.distribution} {self.version}" if self.distribution else ""
        return f"plugin {self.plugin!r}{origin}: {self.reason}"

    @property
    def removal(self) -> str:
        """The command that ends the failure: removes the distribution, or repairs ours."""
        if not self.distribution:
            return f"unset {LIMIT}"
        if self.distribution == BUILTIN:
            return f"pip install --force-reinstall {BUILTIN}"
        return f"pip uninstall {self.distribution}"

    def without(self, others: Iterable[str]) -> str:
        """The setting that leaves it out and keeps the ``others``, which are distributions; empty where none helps."""
        if self.distribution in ("", BUILTIN):
            return ""
        kept = sorted(set(others) - {self.distribution, BUILTIN})
        return f"{LIMIT}={','.join(kept)}"


@dataclass(frozen=True)
class PackagedGrid:
    """A grid that a plugin brings. ``conflict`` is the message to give if several plugins claim its name."""

    name: str
    path: Path
    plugin: str
    distribution: str
    version: str
    conflict: str = ""


def conflict(subject: str, claimants: Iterable[str]) -> str:
    """The message for a name that several plugins claim."""
    return f"{subject} is claimed by {' and by '.join(claimants)}; uninstall one, or leave it out of {LIMIT}"


def taken(subject: str) -> str:
    """The message for a third party's component or grid that has the name of one of ours."""
    return f"{subject} is taskloom's own, which keeps the name; the plugin should choose another"


def hidden_note(hidden: Iterable[Plugin]) -> str:
    """What to add to "no such component" while TASKLOOM_PLUGINS leaves plugins out; empty if it does not."""
    names = sorted({plugin.distribution for plugin in hidden})
    limit = os.environ.get(LIMIT, "")
    return f"{LIMIT}={limit!r} leaves out {', '.join(names)}, which may have it" if names else ""
