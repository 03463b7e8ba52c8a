"""The reference of everything that a plugin may use, made from the source of ``taskloom.core``: hooks, interfaces,
what flows between them, specifications, errors and the conformance kit.

``taskloom plugins --reference`` prints it as Markdown. Nothing is imported, so it takes no time.
"""

import re
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent

from taskloom import core
from taskloom.runs.show.sources import Item, read_module, tuple_of

CORE = Path(core.__file__).parent
#: Sections after the hooks, and the files of core whose public names they hold, first the most used.
SECTIONS = {
    "The five interfaces": ["encoder", "head", "loss", "sampler", "combiner"],
    "More interfaces": ["component", "data", "metric", "engine"],
    "What flows between them": ["tokens", "prediction", "task", "events", "work"],
    "Randomness": ["random"],
    "Gradients": ["gradients"],
    "Errors": ["errors"],
    "Specifications": ["specs"],
}
#: The kinds that have laws of their own → the file of the kit.
LAWS = {
    "every component": "general",
    "encoders": "encoders",
    "heads": "heads",
    "losses": "losses",
    "samplers": "samplers",
    "combiners": "combiners",
    "data sets": "data",
    "metrics": "metrics",
    "engines": "engines",
    "trackers": "trackers",
    "grids": "grids",
    "plugins": "plugins",
}
#: The words that stand before a colon where a part of a docstring begins.
_LABEL = re.compile(
    r"^(Arguments|Called|Decides|Example|In a grid|On the command line|Options|Reads|Reference|Returns|Siblings)"
    r":(?= |$)"
)
_FENCE = "```"


def reference() -> str:
    """The whole reference, as Markdown."""
    sections = {"Hooks": _hooks(), **{title: _section(homes) for title, homes in _sections().items()}}
    sections["The conformance kit"] = _kit()
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title in sections)
    head = (
        f"# taskloom {version('taskloom')}: reference for plugins\n\n"
        "Everything below is imported from `taskloom.core`, the kit from `taskloom.core.testing`. A plugin is a module "
        "that implements hooks; begin one with `taskloom new-plugin`.\n\n" + contents
    )
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"


def hooks() -> dict[str, Item]:
    """Every hook."""
    items = read_module(CORE / "hookspecs.py")[1]
    return {name: item for name, item in items.items() if name.startswith("taskloom_")}


def _sections() -> dict[str, list[str]]:
    """The sections with every file that has public names; what nobody has placed comes last."""
    placed = {home for homes in SECTIONS.values() for home in homes} | {"hookspecs"}
    rest = [home for home in dict.fromkeys(_homes().values()) if home not in placed]
    return {**SECTIONS, **({"More": rest} if rest else {})}


def _homes() -> dict[str, str]:
    """Public name of core → the file that defines it."""
    return {name: module.rpartition(".")[2] for name, module in core._HOMES.items()}


def _hooks() -> str:
    about, items = read_module(CORE / "hookspecs.py")
    marks = [items[name] for name in ("hookimpl", "hookspec")]
    parts = [prose(about), *(_described(item) for item in hooks().values()), *(_described(item) for item in marks)]
    return "\n\n".join(parts)


def _section(homes: list[str]) -> str:
    parts = []
    for home in homes:
        about, items = read_module(CORE / f"{home}.py")
        wanted = [items[name] for name, owner in _homes().items() if owner == home]
        order = list(items)
        # Interfaces before what they use; the rest as in the file.
        wanted.sort(key=lambda item: (not _interface(item), order.index(item.name)))
        parts += [f"*{one}*" for one in [prose(about).partition("\n")[0]] if one]
        parts += [_described(item) for item in wanted]
    return "\n\n".join(parts)


def _interface(item: Item) -> bool:
    return item.sort == "class" and any(member.abstract for member in item.members)


def _described(item: Item) -> str:
    """One name: how it is written, what it does, and its members."""
    title = f"class {item.name}" if item.sort == "class" else item.name
    lines = [f"### {item.name}", f"{_FENCE}python\n{title}{item.signature}\n{_FENCE}", prose(item.doc)]
    values = [
        member for member in item.members if member.sort == "value" and member.name not in ("kind", "model_config")
    ]
    if values:
        rows = [f"| `{one.name}{_cell(one.signature)}` | {_cell(prose(one.doc))} |" for one in values]
        lines.append("\n".join(["| attribute | is |", "|---|---|", *rows]))
    lines += [_member(item, one) for one in item.members if one.sort != "value"]
    return "\n\n".join(line for line in lines if line)


def _member(owner: Item, item: Item) -> str:
    mark = " – *to be defined*" if item.abstract else ""
    name = f"{item.name}{item.signature}"
    return f"#### `{owner.name}.{item.name}`{mark}\n\n{_FENCE}python\n{name}\n{_FENCE}\n\n{prose(item.doc)}"


def _kit() -> str:
    folder = CORE / "testing"
    about, items = read_module(folder / "__init__.py")
    parts = [prose(about)]
    items |= read_module(folder / "law.py")[1]
    parts += [_described(items[name]) for name in kit_names()]
    for kind, home in LAWS.items():
        if not (folder / f"{home}.py").is_file():
            continue
        known = read_module(folder / f"{home}.py")[1]
        laws = [_law(known.get(name), name) for name in tuple_of(folder / f"{home}.py", "LAWS")]
        parts.append("\n".join([f"### Laws of {kind}", "", *laws]))
    return "\n\n".join(parts)


def kit_names() -> list[str]:
    """The public names of the kit."""
    from ast import literal_eval

    signature = read_module(CORE / "testing" / "__init__.py")[1]["__all__"].signature
    return list(literal_eval(signature.removeprefix(" = ")))


def _law(item: Item | None, name: str) -> str:
    words = name.replace("_", " ")
    more = " ".join(prose(item.doc).split()) if item else ""
    return f"- **{words}**" + (f": {more}" if more else "")


def prose(doc: str) -> str:
    r"""A docstring as Markdown: names in code type, examples fenced, the words before a colon in bold.

    >>> print(prose("Gives ``x``, see :meth:`pad`.\n\nReads: one text.\n\nExample::\n\n    f(1)"))
    Gives `x`, see `pad`.
    <BLANKLINE>
    **Reads:** one text.
    <BLANKLINE>
    **Example:**
    <BLANKLINE>
    ```python
    f(1)
    ```
    """
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc).replace("``", "`")
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", doc.strip("\n")):
        if block.startswith(" "):
            code = dedent(block)
            joined = parts and parts[-1].endswith(f"\n{_FENCE}") and not parts[-1].startswith(">>>")
            if joined:  # a blank line within the code
                parts[-1] = parts[-1].removesuffix(f"\n{_FENCE}") + f"\n\n{code}\n{_FENCE}"
            else:
                parts.append(_fenced(code))
        elif block.startswith(">>>"):
            parts.append(_fenced(block))
        else:
            parts.append(_paragraph(block))
    return "\n\n".join(parts)


def _fenced(code: str) -> str:
    first = code.lstrip()[:1]
    language = "json" if first == "{" else "toml" if first == "[" and "]\n" in code else "python"
    return f"{_FENCE}{language}\n{code}\n{_FENCE}"


def _paragraph(block: str) -> str:
    """Text; lines indented under a first line become a list (options, arguments) or an example."""
    head, _, rest = block.partition("\n")
    head = re.sub(r"::$", ":", head)
    bold = _LABEL.sub(r"**\1:**", head)
    if rest.startswith("    ") and bold != head:
        if head.startswith("Example"):
            return f"{bold}\n\n{_fenced(dedent(rest))}"
        entries = re.split(r"\n(?! )", dedent(rest))
        items = [re.sub(r"^(\w+):", r"- `\1`:", " ".join(entry.split())) for entry in entries]
        return "\n".join([f"{bold}\n", *items])
    return re.sub(r"::$", ":", f"{bold}\n{rest}" if rest else bold)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
