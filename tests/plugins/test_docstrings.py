"""Every built-in component says what it does, what it reads and what else there is, with an example that is right."""

from collections.abc import Iterator
from typing import Any

import pytest

from taskloom.registry.installed.catalogue import load_catalogue

#: Without engines and trackers, which are chosen on the command line.
BUILT_INS = [one for one in load_catalogue().entries if one.plugin.builtin and one.kind not in ("engine", "tracker")]


def mentions(value: Any, name: str) -> Iterator[Any]:
    """Every place in an example that names a component."""
    if value == name or (isinstance(value, dict) and value.get("name") == name):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from mentions(item, name)


@pytest.mark.parametrize("entry", BUILT_INS, ids=lambda entry: f"{entry.kind} {entry.name}")
def test_a_docstring_has_its_parts_and_an_example(entry: Any) -> None:
    assert entry.docstring.summary
    assert all(entry.docstring.parts.get(part) for part in ("Reads", "Siblings", "Example"))
    assert all(option.text for option in entry.options.values())
    found = list(mentions(entry.docstring.example, entry.name))
    assert found
    assert load_catalogue().resolve(entry.kind, found[0])[1] == []
