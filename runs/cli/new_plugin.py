"""``taskloom new-plugin``."""

from pathlib import Path

import click

from taskloom.runs.cli.common import say
from taskloom.runs.cli.options import path_option
from taskloom.runs.scaffold import next_steps, write_plugin
from taskloom.runs.scaffold.kinds import KINDS


@click.command("new-plugin", short_help="Write the package of a new plugin.")
@click.argument("name")
@click.option("--kind", type=click.Choice(list(KINDS)), required=True, help="What the plugin adds.")
@path_option("--into", "Where the package's folder goes; by default here.")
def new_plugin(name: str, kind: str, into: Path | None) -> None:
    """Write a complete package that adds a loss (or any other kind of component) called NAME.

    It holds a working component with one option, a test that runs the conformance kit over it, a grid that compares
    it with a built-in, a page for readers, and a pyproject.toml with the entry point by which taskloom finds it. The
    package installs and its tests pass as written; make it yours from there. The page "Write a plugin"
    (plugins/README.md) goes through all of it.

    \b
    Examples:
      taskloom new-plugin focal --kind loss
      taskloom new-plugin taskloom-reviews --kind data --into ~/plugins
    """
    plugin, folder = write_plugin(name, kind, into or Path())
    say(f"{folder} holds the {KINDS[kind].word} {plugin!r}, complete and tested. Next:\n")
    for step in next_steps(plugin, kind, folder):
        say(f"  {step}")
    say(f"\nThen make {folder / f'taskloom_{plugin}' / '__init__.py'} yours.")
