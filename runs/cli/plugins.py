"""``taskloom plugins`` and ``taskloom new-plugin``."""

from pathlib import Path

import click

from taskloom.runs.api import installed
from taskloom.runs.cli.common import checked_catalogue, is_strict, program, say, say_answer
from taskloom.runs.cli.completion import COMPONENT
from taskloom.runs.cli.options import json_option, path_option, strict_option
from taskloom.runs.scaffold import next_steps, write_plugin
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

COMPONENT_KINDS = ("encoder", "head", "loss", "sampler", "combiner", "data", "metric", "engine", "tracker")


@click.command(short_help="List components and their options.")
@click.argument("name", required=False, type=COMPONENT)
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
    checked_catalogue(quiet=True)
    say_answer(installed.plugins(name, kind), "json" if as_json else "plain")


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
