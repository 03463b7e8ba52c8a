"""What is installed: components, plugins, packaged grids, and the schema of grids."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import Problem, RequestError, TaskloomError, unknown
from taskloom.registry.results.outputs import output
from taskloom.runs.api.answer import Answer
from taskloom.runs.show.parts import Aligned

if TYPE_CHECKING:  # which import pydantic
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.installed.entries import Entry
    from taskloom.registry.installed.manager import Failure, Plugin


def plugins(name: str | None = None, kind: str | None = None) -> "Answer[list[Entry]]":
    """Every installed component and plugin, or those called ``name``, with those that cannot be used."""
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.show import describe

    catalogue = load_catalogue()
    entries, loaded, failed = _matching(catalogue, name, kind)
    as_json: dict[str, Any] = {
        "components": [describe.component_facts(entry, full=name is not None) for entry in entries],
        "plugins": [describe.plugin_facts(catalogue, plugin) for plugin in loaded],
        "failed": [
            {**describe.origin(failure.plugin), "reason": failure.reason, "removal": failure.removal}
            for failure in failed
        ],
    }
    if name is None:
        as_json["left_out"] = [asdict(plugin) for plugin in catalogue.plugins.hidden]
        parts = describe.list_components(catalogue, kind)
    else:
        texts = [describe.describe_component(entry) for entry in entries]
        parts = [Aligned("\n\n\n".join([*texts, *(describe.describe_plugin(catalogue, plugin) for plugin in loaded)]))]
    failures = f"Cannot be used:\n{describe.list_failures(catalogue, failed)}" if failed else ""
    return Answer(entries, [*parts, Aligned(failures)], as_json, as_json["components"])


def _matching(
    catalogue: "Catalogue", name: str | None, kind: str | None
) -> "tuple[list[Entry], list[Plugin], list[Failure]]":
    """Return the components called ``name``, the plugins of that name or distribution, and failures that concern it.

    Without a name, everything; ``RequestError`` if nothing has the name.
    """
    from taskloom.registry.installed.manager import normalized

    entries = [entry for entry in catalogue.entries if name in (None, entry.name) and kind in (None, entry.kind)]
    if name is None:
        return entries, catalogue.plugins.loaded, catalogue.failed
    if kind is not None:
        return [catalogue.get(kind, name)], [], []

    def is_meant(plugin: "Plugin") -> bool:
        return normalized(name) in (normalized(plugin.name), normalized(plugin.distribution))

    loaded = [plugin for plugin in catalogue.plugins.loaded if is_meant(plugin)]
    if entries:  # a built-in plugin is named like a kind, and rarely meant
        loaded = [plugin for plugin in loaded if not plugin.builtin]
    failed = [
        failure
        for failure in catalogue.failed
        if is_meant(failure.plugin) or f" {name!r}" in failure.reason.partition(";")[0]
    ]
    if not (entries or loaded or failed):
        others = [plugin for plugin in catalogue.plugins.loaded if not plugin.builtin]
        names = {entry.name for entry in catalogue.entries}
        names |= {word for plugin in others for word in (plugin.name, plugin.distribution)}
        message = unknown("component or plugin", name, names, where="installed")
        shown = "; ".join(filter(None, [message, catalogue.plugins.hidden_note]))
        raise RequestError("taskloom plugins", [Problem("", shown)])
    return entries, loaded, failed


def packaged_grid(name: str) -> Answer[str]:
    """The text of a packaged grid, as it is written."""
    from taskloom.registry.installed.manager import packaged_grids

    packaged = packaged_grids()
    if name not in packaged:
        raise TaskloomError(unknown("packaged grid", name, packaged, where="packaged"))
    try:
        text = packaged[name].path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TaskloomError(f"packaged grid {name!r} cannot be read: {error}") from None
    return Answer(text, [Aligned(text.rstrip("\n"))], notes=broken_grids())


def broken_grids() -> tuple[str, ...]:
    """Notes about plugins whose grids are left out."""
    from taskloom.registry.installed.manager import grid_plugins

    return tuple(f"left out: {failure}" for failure in grid_plugins().failed)


def packaged_grids_json() -> list[dict[str, str]]:
    """The packaged grids as JSON objects."""
    from taskloom.registry.installed.manager import packaged_grids

    return [
        {
            "name": grid.name,
            "description": _description(grid.path),
            "plugin": grid.plugin.name,
            "distribution": grid.plugin.distribution,
            "version": grid.plugin.version,
            "path": str(grid.path),
        }
        for grid in packaged_grids().values()
    ]


def _description(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8-sig")).get("description", ""))
    except (OSError, ValueError, AttributeError) as error:
        return f"cannot be read: {error}"


def schema(out: Path | None = None, *, force: bool = False) -> Answer[dict[str, Any]]:
    """The JSON schema of grids, with every installed component and its options; written to ``out`` if that is given."""
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.registry.installed.schema import grid_schema

    content = grid_schema(load_catalogue())
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if out is None:
        return Answer(content, [Aligned(text)], content)
    try:
        with output(out, force=force) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise TaskloomError(f"the schema cannot be written to {out}: {error.strerror}") from None
    return Answer(content, json=content, notes=(f"wrote {out}",))
