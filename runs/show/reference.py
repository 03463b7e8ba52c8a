"""The reference for authors of plugins: hooks, interfaces, the types they exchange, the conformance kit.

``taskloom plugins --reference`` prints it as Markdown: the source of each public name of ``taskloom.core``, with
signatures, docstrings and comments, but without function bodies.
"""

import ast
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from taskloom import core

CORE = Path(core.__file__).parent
#: The sections, and the modules of core whose public names they hold, the most used first.
SECTIONS = {
    "Hooks": ["hookspecs"],
    "The five interfaces": ["encoder", "head", "loss", "sampler", "combiner"],
    "More interfaces": ["component", "data", "engine", "tracker"],
    "What flows between them": ["tokens", "prediction", "work"],
    "Randomness": ["random"],
    "Gradients": ["gradients"],
    "Errors": ["errors"],
    "Specifications": ["specs"],
}


def reference() -> str:
    """Return the whole reference as Markdown."""
    placed = [home for homes in SECTIONS.values() for home in homes]
    others = [path.stem for path in sorted(CORE.glob("*.py")) if path.stem not in (*placed, "__init__")]
    texts = {title: _section(homes) for title, homes in {**SECTIONS, "More": others}.items()}
    sections = {title: text for title, text in (*texts.items(), ("The conformance kit", _kit())) if text}
    head = (
        f"# taskloom {version('taskloom')}: reference for plugins\n\n"
        "Everything below is imported from `taskloom.core`, the kit from `taskloom.core.testing`. A plugin is a module "
        "that implements hooks; begin one with `taskloom new-plugin`."
    )
    contents = "\n".join(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in sections)
    return "\n\n".join([head, contents, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"


def _section(homes: list[str]) -> str:
    public = {*core.__all__}
    parts = []
    for home in homes:
        about, definitions = outlines(CORE / f"{home}.py")
        entries = [
            _entry(name, text) for name, text in definitions.items() if name in public or name.startswith("taskloom_")
        ]
        parts += [about, *entries] if entries else []
    return "\n\n".join(parts)


def _kit() -> str:
    from taskloom.core import testing

    about, definitions = outlines(CORE / "testing" / "__init__.py")
    definitions |= outlines(CORE / "testing" / "law.py")[1]
    parts = [about, *(_entry(name, definitions[name]) for name in testing.__all__)]
    for kind in testing.KINDS_WITH_LAWS:
        laws = [f"**{law.name}**: {' '.join((law.holds.__doc__ or '').split())}" for law in testing.laws(kind)]
        parts.append("\n".join([f"### Laws: {kind}\n", *(f"- {law.removesuffix(': ')}" for law in laws)]))
    return "\n\n".join(parts)


def _entry(name: str, outline: str) -> str:
    return f"### {name}\n\n```python\n{outline.replace('  # type: ignore[empty-body]', '')}\n```"


def outlines(path: Path) -> tuple[str, dict[str, str]]:
    """Return a module's docstring, and its definitions: name → source without function bodies."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return ast.get_docstring(tree) or "", dict(_outlines(tree.body, text.splitlines()))


def _outlines(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(body):
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        while lines[first - 1].strip().startswith("#:"):
            first -= 1
        last = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            end = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
            inner = _outlines(node.body, lines) if isinstance(node, ast.ClassDef) else ()
            shown = [text for name, text in inner if name[0] != "_" or name in ("__init__", "__call__")]
            yield node.name, "\n\n".join(["\n".join(lines[first:end]), *shown])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            below = body[index + 1] if index + 1 < len(body) else None
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):  # a string that explains it
                last = below.end_lineno or last
            yield ast.unparse(target), "\n".join(lines[first:last])
