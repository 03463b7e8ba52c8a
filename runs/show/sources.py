"""Python source read without importing it: names, signatures, docstrings and the comments that explain a value."""

import ast
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Item:
    """One name of a module or class: a class, a function, a property or a value.

    ``signature`` is how it is written: ``(x: Tensor) -> Tensor``, ``: int = 1``, ``(nn.Module, Component)``.
    """

    name: str
    sort: str  # "class", "function", "property", "value"
    signature: str
    doc: str
    abstract: bool = False
    members: tuple["Item", ...] = field(default=())


def read_module(path: Path) -> tuple[str, dict[str, Item]]:
    """The docstring of a module, and its items by name in the order of the file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return ast.get_docstring(tree) or "", {item.name: item for item in _items(tree.body, text.splitlines())}


def tuple_of(path: Path, name: str) -> list[str]:
    """The names in a tuple that a module assigns: ``LAWS = (first, second)``; empty if it does not."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == [name]:
            return [one.id for one in getattr(node.value, "elts", []) if isinstance(one, ast.Name)]
    return []


def _items(body: list[ast.stmt], lines: list[str]) -> list[Item]:
    found: list[Item] = []
    for place, node in enumerate(body):
        after = body[place + 1] if place + 1 < len(body) else None
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            members = tuple(
                one for one in _items(node.body, lines) if not one.name.startswith("_") or one.name == "__call__"
            )
            signature = _constructor(node) or (f"({bases})" if bases else "")
            found.append(Item(node.name, "class", signature, ast.get_docstring(node) or "", members=members))
        elif isinstance(node, Function):
            found.append(_function(node))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            signature = f" = {_text(node.value)}"
            found.append(Item(node.targets[0].id, "value", signature, _said(node, after, lines)))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {_text(node.value)}" if node.value else ""
            signature = f": {_type(node.annotation)}{default}"
            found.append(Item(node.target.id, "value", signature, _said(node, after, lines)))
    return found


def _function(node: Function) -> Item:
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    returns = f" -> {_type(node.returns)}" if node.returns else ""
    sort = "property" if marks & {"property", "cached_property"} else "function"
    signature = returns.replace(" ->", ":") if sort == "property" else f"({_arguments(node)}){returns}"
    return Item(node.name, sort, signature, ast.get_docstring(node) or "", abstract="abstractmethod" in marks)


def _constructor(node: ast.ClassDef) -> str:
    """The arguments of a class's own ``__init__``, as a call."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return f"({_arguments(one)})"
    return ""


def _arguments(node: Function) -> str:
    """The arguments as they are written, without ``self``."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    parts = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg:
        parts.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_argument(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        parts.append(f"**{_argument(given.kwarg, None)}")
    return ", ".join(part for part in parts if part not in ("self", "cls"))


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {_type(node.annotation)}" if node.annotation else ""
    return f"{node.arg}{annotation}" + (f" = {_text(default)}" if default else "")


def _type(node: ast.expr) -> str:
    """An annotation; one in quotes, which keep it from being evaluated, without them."""
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else _text(node)


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _said(node: ast.stmt, after: ast.stmt | None, lines: list[str]) -> str:
    """What explains a value: a string below it, ``#:`` lines above it, or a comment behind it."""
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return after.value.value
    above: list[str] = []
    row = node.lineno - 2
    while row >= 0 and lines[row].strip().startswith("#:"):
        above.insert(0, lines[row].strip()[2:].strip())
        row -= 1
    _, mark, behind = lines[node.end_lineno - 1 if node.end_lineno else 0][node.end_col_offset or 0 :].partition("#")
    return " ".join(above) or (behind.strip() if mark else "")
