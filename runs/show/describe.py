"""Plugins and components in words: listings, a component with all its options, and a snippet of a grid that uses it."""

import json
from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from taskloom.registry.installed.manager import BUILTIN, LIMIT
from taskloom.registry.installed.words import describe, kind_word
from taskloom.runs.show.parts import Listing, Part

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.installed.entries import Entry
    from taskloom.registry.installed.manager import Failure, Plugin

#: The text parts of a docstring that stand before and after the table of options.
_BEFORE, _AFTER = ("Reads", "Decides"), ("Siblings", "Reference")


def snippet(entry: "Entry") -> dict[str, Any] | None:
    """Return a piece of a grid that uses a component: its docstring's example, or its name with its required options.

    None for an engine or a tracker, which no grid names.
    """
    if entry.kind in ("engine", "tracker"):
        return None
    example = entry.docstring.example
    if isinstance(example, dict) and example.get("name") != entry.name:
        return {"base": example}
    required = {option.name: f"<{describe(option.annotation)}>" for option in entry.options.values() if option.required}
    component = example or ({"name": entry.name, **required} if required else entry.name)
    piece = {entry.kind: component}
    homes: dict[str, Any] = {"encoder": piece, "sampler": {"stages": [piece]}, "combiner": {"stages": [piece]}}
    return {"base": homes.get(entry.kind, {"tasks": {"mine": piece}})}


def component_facts(entry: "Entry", *, full: bool = False) -> dict[str, Any]:
    """Return a component as JSON values; ``full`` adds the parts of its docstring and the snippet."""
    facts: dict[str, Any] = {
        "kind": entry.kind,
        "name": entry.name,
        **origin(entry.plugin),
        "summary": entry.summary,
        "options": [
            {key: getattr(option, key) for key in ("name", "required", "default", "text")}
            | {"takes": describe(option.annotation)}
            for option in entry.options.values()
        ],
        "builtin": entry.plugin.builtin,
        "import_seconds": entry.plugin.seconds,
    }
    if full:
        doc = entry.docstring
        parts = {name.lower(): doc.parts.get(name) for name in (*_BEFORE, *_AFTER)}
        facts |= {"text": doc.text, **parts, "snippet": snippet(entry)}
    return facts


def describe_component(entry: "Entry") -> str:
    """Describe a component: what it does, its options, related components, the paper, and a snippet of a grid."""
    doc = entry.docstring
    head = f"{kind_word(entry.kind)} {entry.name} – {entry.plugin}, imported in {_milliseconds(entry.plugin)} ms"
    blocks = [head, doc.summary, doc.text]
    blocks += [f"{name}: {doc.parts[name]}" for name in _BEFORE if name in doc.parts]
    options = [
        (
            option.name,
            describe(option.annotation),
            "(required)" if option.required else json.dumps(option.default, ensure_ascii=False),
            option.text,
        )
        for option in entry.options.values()
    ]
    headers, widths = ("option", "takes", "default", "meaning"), [None, 40, 24, 60]
    table = tabulate(options, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
    blocks.append(f"Options:\n{indent(table, '  ')}" if options else "Options: none")
    blocks += [f"{name}: {doc.parts[name]}" for name in _AFTER if name in doc.parts]
    piece = snippet(entry)
    if piece is not None:
        blocks.append(f"In a grid:\n{indent(json.dumps(piece, indent=2, ensure_ascii=False), '  ')}")
    elif "Example" in doc.parts:
        blocks.append(f"Example: {doc.parts['Example'].strip('`')}")
    return "\n\n".join(block for block in blocks if block)


def list_components(catalogue: "Catalogue", kind: str | None = None) -> list[Part]:
    """List all components, or those of one kind: built-in, then other packages', then what TASKLOOM_PLUGINS leaves out.

    A plugin that brings packaged grids instead of components has a line of its own.
    """
    entries = [
        (entry.kind, entry.name, entry.plugin, entry.summary)
        for entry in catalogue.entries
        if kind in (None, entry.kind)
    ]
    for plugin in catalogue.plugins.loaded if kind is None else ():
        if not _components(catalogue, plugin):
            role = "grids" if "taskloom_grids" in catalogue.plugins.hooks_of(plugin) else "(none)"
            entries.append((role, plugin.name, plugin, catalogue.plugins.summary_of(plugin)))
    headers = ("kind", "name", "version", "distribution", "import ms", "summary")
    rows: dict[bool, list[tuple[object, ...]]] = {True: [], False: []}  # whether it is built in
    for role, name, plugin, summary in entries:
        row = (role, name, plugin.version, plugin.distribution, _milliseconds(plugin), summary)
        rows[plugin.builtin].append(row)
    parts: list[Part] = [Listing(rows[True], headers, (0, 1))]
    parts += ["From other packages:", Listing(rows[False], headers, (0, 1))] if rows[False] else []
    hidden = sorted({f"{plugin.distribution} {plugin.version}" for plugin in catalogue.plugins.hidden})
    return [*parts, *([f"Left out by TASKLOOM_PLUGINS: {', '.join(hidden)}"] if hidden else [])]


def plugin_facts(catalogue: "Catalogue", plugin: "Plugin") -> dict[str, Any]:
    """Return a loaded plugin as JSON values."""
    return {
        **{key: getattr(plugin, key) for key in ("name", "group", "distribution", "version", "builtin")},
        "import_seconds": plugin.seconds,
        "hooks": catalogue.plugins.hooks_of(plugin),
        "components": _components(catalogue, plugin),
    }


def describe_plugin(catalogue: "Catalogue", plugin: "Plugin") -> str:
    """Describe a plugin: its import time, summary, hooks and components."""
    lines = [
        f"{plugin}, imported in {_milliseconds(plugin)} ms",
        catalogue.plugins.summary_of(plugin),
        f"Hooks: {', '.join(catalogue.plugins.hooks_of(plugin)) or 'none'}",
        f"Components: {', '.join(_components(catalogue, plugin)) or 'none'}",
    ]
    return "\n".join(line for line in lines if line)


def list_failures(catalogue: "Catalogue", failures: Sequence["Failure"]) -> str:
    """List what cannot be used, by distribution, with reasons and the commands that remove it or leave it out."""
    broken = {failure.plugin.distribution for failure in catalogue.failed}
    intact = {plugin.distribution for plugin in catalogue.plugins.loaded} - broken
    lines = []
    for name in dict.fromkeys(failure.plugin.distribution for failure in failures):
        mine = [failure for failure in failures if failure.plugin.distribution == name]
        lines += [f"  {failure}" for failure in mine]
        lines.append(f"    to remove it: {mine[0].removal}")
        if name and not mine[0].plugin.builtin:
            # Plugins that collide with this one over a name fail for the same reason, and work without it.
            reasons = {failure.reason for failure in mine}
            rivals = {failure.plugin.distribution for failure in catalogue.failed if failure.reason in reasons}
            kept = sorted((intact | rivals) - {name, BUILTIN})
            lines.append(f"    to leave it out: {LIMIT}={','.join(kept)}")
    return "\n".join(lines)


def origin(plugin: "Plugin") -> dict[str, str]:
    """Return the origin of a component or a failure as JSON values."""
    return {"plugin": plugin.name, "distribution": plugin.distribution, "version": plugin.version}


def _components(catalogue: "Catalogue", plugin: "Plugin") -> list[str]:
    return [f"{entry.kind} {entry.name}" for entry in catalogue.entries if entry.plugin == plugin]


def _milliseconds(plugin: "Plugin") -> str:
    return f"{plugin.seconds * 1000:.0f}"
