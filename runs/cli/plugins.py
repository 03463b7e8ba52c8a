"""``taskloom plugins`` and ``taskloom new-plugin``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.runs.cli.common import checked_catalogue, program, say, say_json
from taskloom.runs.cli.options import is_strict, json_option, path_option, strict_option
from taskloom.runs.scaffold import next_steps, write_plugin
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.installed.entries import Entry
    from taskloom.registry.installed.manager import Failure, Plugin

COMPONENT_KINDS = ("encoder", "head", "loss", "sampler", "combiner", "data", "metric", "engine", "tracker")


@click.command(short_help="List components and their options.")
@click.argument("name", required=False)
@click.option("--kind", type=click.Choice(COMPONENT_KINDS), help="Only components of this kind.")
@click.option("--reference", is_flag=True, help="Print the reference of hooks and interfaces, as Markdown.")
@strict_option
@json_option
def plugins(name: str | None, kind: str | None, reference: bool, as_json: bool) -> None:
    """List every installed component and plugin, or describe those called NAME.

    NAME is a component, a plugin or a distribution. A component is shown with all its options and their defaults,
    the paper it comes from, and a snippet for a grid.

    Plugins that cannot be used are listed at the end with the reason and the command that removes them; the others work
    without them. TASKLOOM_PLUGINS limits third-party plugins to those that it names, separated by commas; empty, it
    leaves out all of them.

    \b
    Examples:
      taskloom plugins
      taskloom plugins pcgrad
      taskloom plugins --kind loss
      TASKLOOM_PLUGINS= taskloom plugins
      taskloom plugins --reference > reference.md
      taskloom plugins --json | jq -r '.components[] | select(.kind == "loss") | .name'
    """
    if reference:
        if name is not None or kind is not None or as_json:
            raise click.UsageError("--reference takes no NAME, --kind or --json")
        from taskloom.runs.show.reference import reference as reference_text

        if is_strict():
            checked_catalogue()
        say(reference_text().rstrip("\n"))
        return
    from taskloom.runs.show import describe

    catalogue = checked_catalogue(quiet=True)
    entries, loaded, failed = _find(catalogue, name, kind)
    if as_json:
        answer: dict[str, Any] = {
            "components": [describe.component_facts(entry, full=name is not None) for entry in entries],
            "plugins": [describe.plugin_facts(catalogue, plugin) for plugin in loaded],
            "failed": [
                {**describe.origin(failure.plugin), "reason": failure.reason, "removal": failure.removal}
                for failure in failed
            ],
        }
        if name is None:
            answer["left_out"] = [asdict(plugin) for plugin in catalogue.plugins.hidden]
        say_json(answer)
        return
    if name is None:
        say(describe.list_components(catalogue, kind))
    elif entries or loaded:
        texts = [describe.describe_component(entry) for entry in entries]
        say("\n\n\n".join([*texts, *(describe.describe_plugin(catalogue, plugin) for plugin in loaded)]))
    if failed:
        say(f"\nCannot be used:\n{describe.list_failures(catalogue, failed)}")


def _find(
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


@click.command("new-plugin", short_help="Write the package of a new plugin.")
@click.argument("name")
@click.option("--kind", type=click.Choice(list(PLUGIN_KINDS)), required=True, help="What the plugin adds.")
@path_option("--into", help="Where the package's folder goes; by default here.")
def new_plugin(name: str, kind: str, into: Path | None) -> None:
    """Write a complete package that adds a loss (or any other kind of component) called NAME.

    It holds a working component with one option, a test that runs the conformance kit over it, a grid that compares
    it with a built-in, a page for readers, and a pyproject.toml with the entry point by which taskloom finds it. The
    package installs and its tests pass as written; make it yours from there. The page "Write a plugin"
    of the documentation goes through all of it.

    \b
    Examples:
      taskloom new-plugin focal --kind loss
      taskloom new-plugin taskloom-reviews --kind data --into ~/plugins
    """
    plugin, folder = write_plugin(name, kind, into or Path())
    say(f"{folder} holds the {PLUGIN_KINDS[kind].word} {plugin!r}, complete and tested. Next:\n")
    for step in next_steps(plugin, kind, folder):
        first, _, rest = step.partition(" ")
        say(f"  {program(first)} {rest}")
    say(f"\nThen make {folder / f'taskloom_{plugin}' / '__init__.py'} yours.")
