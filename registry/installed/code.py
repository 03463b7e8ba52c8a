"""Fingerprints of third-party code, which do not change with comments, docstrings and formatting."""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from taskloom.core.component import Component
from taskloom.registry.installed.manager import COMPONENTS, GRIDS, packaged_grids

#: Names of files and folders that change no result, or that only one kind of installation has.
_IGNORED = re.compile(r"\..*|.*~|tests|__pycache__|py\.typed|__editable__.*|.*\.(dist-info|egg-info|py[cio])")
_distributions = cache(metadata.packages_distributions)
_SHARED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Code:
    """Files and their own hashes: ``{"taskloom_focal/__init__.py": "9f…"}``."""

    files: dict[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """20 hex digits that change with any of the files."""
        return _hash(json.dumps(sorted(self.files.items())).encode())


@cache
def code_fingerprint(distribution: str) -> Code:
    """The code of an installed distribution, read once per process; no files if there is no such distribution.

    A Python file counts by its syntax tree, any other file of its packages (data, compiled modules) by its bytes.
    Folders called ``tests``, type stubs, hidden files, byte code and packaged grids do not count.

    A wheel's record lists its files. Those of an editable installation are in the folders of the packages that
    ``top_level.txt`` or an entry point of taskloom names; the fingerprint is that of a wheel with the same files.
    """
    try:
        installed = metadata.distribution(distribution)
    except (metadata.PackageNotFoundError, ValueError):  # ValueError: an entry point without a distribution
        return Code({})
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if installed.read_text("RECORD") and not origin.get("dir_info", {}).get("editable"):
        return _read((str(file), Path(str(file.locate()))) for file in installed.files or ())
    entries = [entry.module for entry in installed.entry_points if entry.group in (COMPONENTS, GRIDS)]
    modules = [*(installed.read_text("top_level.txt") or "").split(), *entries]
    return _read(source for module in dict.fromkeys(modules) for source in _sources(module))


def component_code(cls: type[Component], distribution: str) -> Code:
    """The code of the distribution that brings a component, and of others that define its class or a base class.

    A base class of another distribution that states a revision, such as a built-in, counts by it.
    """
    files = dict(code_fingerprint(distribution).files)
    for parent in cls.__mro__:
        module = parent.__module__
        if not issubclass(parent, Component) or _has(files, module):
            continue
        builtin = module.startswith("taskloom.")
        revision = vars(parent).get("revision") or (1 if builtin else None)
        if revision is None:
            owners = map(code_fingerprint, _distributions().get(module.partition(".")[0], ()))
            owner = next((code for code in owners if _has(code.files, module)), None)
            files |= (owner or _read(_sources(module))).files  # what was not installed counts with its package
        elif not builtin or revision > 1:
            files[f"{module}.{parent.__qualname__}"] = f"revision {revision}"
    return Code(files)


def _has(files: Iterable[str], module: str) -> bool:
    stem = module.replace(".", "/")
    return any(file.partition(".")[0] in (stem, f"{stem}/__init__") for file in files)


def _sources(module: str) -> Iterator[tuple[str, Path]]:
    """Name and path of every file of a module's outermost package, or of the module if it is in no package."""
    names, spec = list[str](), None
    for name in module.split("."):
        names.append(name)
        try:
            spec = find_spec(".".join(names))
        except (ImportError, ValueError):  # a module without a spec, such as __main__
            return
        if spec is None or spec.has_location:  # else a namespace package
            break
    if spec is None or spec.origin is None:
        return
    home = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    # In a project, the folder of a namespace package is its own; in site-packages other distributions share it.
    while len(names) > 1 and home.parent.name == names[-2] and _SHARED.isdisjoint(home.parts):
        names.pop()
        home = home.parent
    if not home.is_dir():
        yield "/".join([*names[:-1], home.name]), home
        return
    for path in home.rglob("*"):
        yield "/".join([*names, *path.relative_to(home).parts]), path


def _read(sources: Iterator[tuple[str, Path]]) -> Code:
    """Hash the files that are part of the fingerprint."""
    grids = {grid.path.resolve() for grid in packaged_grids().values()}
    files = {}
    for name, path in sources:
        is_hook = name.endswith(".pth") and "/" not in name  # of the installation; in a package they are weights
        ignored = is_hook or name in files or any(map(_IGNORED.fullmatch, name.split("/")))
        if not ignored and path.is_file() and path.resolve() not in grids:
            content = path.read_bytes()
            if path.suffix == ".py":
                with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # it cannot be parsed
                    content = _syntax(content)
            files[name] = _hash(content)
    return Code(files)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _syntax(source: bytes) -> bytes:
    """The syntax tree of a module without what has no effect, written in the same way from Python 3.11 on.

    Of 2,199 files of well-known packages, ``ast.dump`` wrote all differently in 3.13 than in 3.11, since it leaves out
    empty fields since then, and ``ast.unparse`` 247, since it chooses other quotes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the parser, about the author's code
        stack: list[ast.AST | str | None] = [ast.parse(source)]
    words: list[str] = []
    while stack:  # not recursive: a long sum is a deep tree
        node = stack.pop()
        if not isinstance(node, ast.AST):
            words.append(str(node))
            continue
        words.append(f"({type(node).__name__}")
        stack.append(")")
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                stack += [value, name]
            elif isinstance(value, list):
                nodes = [child for child in reversed(value) if not _idle(child, node)]
                stack += ["]", *nodes, f"{name}["] if nodes else []
            elif value is not None and name != "kind":  # kind: whether a string was written as u""
                words.append(f"{name}={value!a}")  # not repr, which escapes other characters in later versions
    return " ".join(words).encode()


def _idle(node: object, parent: ast.AST) -> bool:
    """Whether a node has no effect: a docstring or another lone constant, ``pass``, an empty part of an f-string."""
    if isinstance(node, ast.Constant):  # Python 3.12.1 adds such parts
        return isinstance(parent, ast.JoinedStr) and node.value == ""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
