"""``taskloom plugins``."""

from dataclasses import asdict

import click

from taskloom.runs.commands.common import json_option, listing, say, say_json


@click.command(short_help="List components and their options.")
@click.argument("name", required=False)
@json_option
def plugins(name: str | None, as_json: bool) -> None:
    """List every installed component, or describe those called NAME with all their options.

    Plugins that cannot be used stand at the end with the reason; the others work without them.

    \b
    Examples:
      taskloom plugins
      taskloom plugins pcgrad
      taskloom plugins --json | jq -r '.components[] | select(.kind == "loss") | .name'
    """
    from taskloom.core.errors import Problem, RequestError, unknown
    from taskloom.registry.catalogue import load_catalogue

    catalogue = load_catalogue()
    entries = [entry for entry in catalogue.entries if name in (None, entry.name)]
    if name is not None and not entries:
        message = unknown("component", name, {entry.name for entry in catalogue.entries}, where="installed")
        raise RequestError("taskloom plugins", [Problem("", message)])
    if as_json:
        components = [entry.as_dict() for entry in entries]
        say_json({"components": components, "failed": [asdict(failure) for failure in catalogue.failed]})
        return
    if name is not None:
        say("\n\n".join(_described(entry.as_dict(), entry.doc) for entry in entries))
        return
    rows = [(entry.kind, entry.name, f"{entry.distribution} {entry.version}", entry.summary) for entry in entries]
    say(listing(rows, ("kind", "name", "from", "summary")))
    if catalogue.failed:
        say("\nCannot be used:")
        for failure in catalogue.failed:
            say(f"  {failure}")


def _described(facts: dict[str, object], doc: str) -> str:
    head = f"{facts['kind']} {facts['name']} (plugin {facts['plugin']!r} of {facts['distribution']} {facts['version']})"
    return f"{head}\n\n{doc}"
