"""A component's docstring taken apart: what it does, formula, what it reads, siblings, reference, example."""

import inspect
import json
import re
from dataclasses import dataclass, field
from typing import Any

#: Parts that begin a line, in the order in which a docstring has them.
PARTS = ("Reads", "Decides", "Options", "Siblings", "Reference", "Example")
_HEAD = re.compile(rf"({'|'.join(PARTS)}):(?: +(.*))?")


@dataclass(frozen=True)
class Docstring:
    """``summary`` is the first line, ``text`` what follows it (formula and reasons), ``parts`` the named parts.

    >>> doc = parse("Focal.\\n\\nL = 1/B Σ l\\n\\nReference: Lin et al.,\\nICCV 2017.\\n\\nExample:\\n    {\\"a\\": 1}")
    >>> doc.summary, doc.text, doc.reference, doc.example
    ('Focal.', 'L = 1/B Σ l', 'Lin et al., ICCV 2017.', {'a': 1})
    """

    summary: str = ""
    text: str = ""
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """The paper, on one line; empty where none is named."""
        return " ".join(self.parts.get("Reference", "").split())

    @property
    def example(self) -> Any:
        """The example as a JSON value; None where there is none, or one that is no JSON."""
        try:
            return json.loads(self.parts.get("Example", "").strip("` \n"))
        except ValueError:
            return None


def parse(doc: str) -> Docstring:
    """Take a docstring apart; one that keeps to no convention is all summary and text."""
    summary, _, rest = inspect.cleandoc(doc).partition("\n")
    text: list[str] = []
    parts: dict[str, list[str]] = {}
    lines = text
    for line in rest.splitlines():
        head = _HEAD.fullmatch(line)
        if head:
            lines = parts.setdefault(head[1], [])
            line = head[2] or ""
        lines.append(line)
    return Docstring(summary, _block(text), {name: _block(found) for name, found in parts.items()})


def _block(lines: list[str]) -> str:
    """Lines without what they are indented by together, and without empty ones around them."""
    return inspect.cleandoc("\n".join(["", *lines])).strip()
