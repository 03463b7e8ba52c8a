"""Rows that the command line changes: each stands beside the grid's own, under a label that says what is changed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from taskloom.core import Problem, RequestError, unknown
from taskloom.core.specs import RunSpec, plain
from taskloom.registry.results.records import Change
from taskloom.runs.grid.expansion import Expansion, Variant, copied, in_words
from taskloom.runs.grid.identity import digest
from taskloom.runs.grid.paths import PathError, assign

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

#: Characters of a value that a label shows; a longer one is cut and gets a digest, so that labels stay distinct.
LONG = 40


def with_changed(
    rows: Expansion, change: Change, known: Sequence[Change], only: tuple[str, ...], catalogue: "Catalogue"
) -> Expansion:
    """The rows with the changed ones beside them: the ``known``, and those that this run makes and chooses.

    What a change leaves as it is is run as it is. A run without a change of its own is about all of them.
    """
    valid = [row for row in rows.variants if complete(row.spec) is not None]
    picked: set[str] = set()
    if change:
        picked = {row.label for row in choose(rows.variants, only) if row.chosen}
        change = labelled(change, known, (catalogue.resolve_run(row.spec)[0] for row in valid))
    changes = [*known, *([change] if change and all(change is not other for other in known) else [])]

    def changed_by(each: Change) -> dict[str, Variant]:
        wanted = {*each.rows, *(picked if each is change else ())}
        specs = lay(each, [row.spec for row in valid], strict=each is change)
        return {
            row.label: replace(
                row,
                label=each.called(row.label),
                spec=spec,
                chosen=not change or (each is change and row.label in picked),
                beside=row.label,
            )
            for row, spec in zip(valid, specs, strict=True)
            if row.label in wanted and spec != row.spec
        }

    found = [changed_by(each) for each in changes]
    own = {row.label for row in rows.variants}
    if taken := [row.label for made in found for row in made.values() if row.label in own]:
        raise RequestError("--set", [Problem("", f"the grid has a row {taken[0]!r} of its own; --only runs it")])
    variants: list[Variant] = []
    for row in rows.variants:
        others = [made[row.label] for made in found if row.label in made]
        as_it_is = row.label in picked and not any(other.chosen for other in others)
        variants += [replace(row, chosen=as_it_is if change else True), *others]
    changes = [replace(each, rows=tuple(made)) for each, made in zip(changes, found, strict=True)]
    rows = replace(rows, variants=variants if change or not only else choose(variants, only), changes=tuple(changes))
    if not change:
        return rows
    if is_changed := any(row.beside and row.chosen for row in variants):
        said = f"changed rows stand beside the grid's own as ROW [{change.label}]; --name makes a table of their own"
    else:
        said = f"nothing changes: every row has {change.in_words} already, or lacks the place"
    return replace(rows, notes=[*rows.notes, said], is_changed=is_changed)


def choose(variants: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    """Mark the rows that any pattern fits; without patterns all."""
    if not patterns:
        return variants
    labels = [variant.label for variant in variants]
    found = {pattern: {one for one in labels if one == pattern or fnmatchcase(one, pattern)} for pattern in patterns}
    nothing = [Problem("", unknown("row", pattern, labels, where="rows")) for pattern in patterns if not found[pattern]]
    if nothing:
        raise RequestError("--only", nothing)
    chosen = set().union(*found.values())
    return [replace(one, chosen=one.label in chosen) for one in variants]


def complete(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The run with the specs' defaults written out, so that paths lead somewhere; None if it is not valid."""
    try:
        return plain(RunSpec.model_validate(spec))
    except ValidationError:
        return None


def lay(change: Change, specs: Sequence[dict[str, Any]], *, strict: bool = True) -> list[dict[str, Any]]:
    """Complete runs with a change laid over each that has the place; ``strict``: it is an error if none has."""
    changed = [copied(spec) for spec in specs]
    if change.epochs is not None:
        for stage in (stage for spec in changed for stage in spec["stages"]):
            stage["epochs"] = min(stage["epochs"], change.epochs)
    for path, value in change.settings.items():
        failed: list[str] = []
        for spec in changed:
            try:
                assign(spec, path, copied(value))
            except PathError as error:
                failed.append(str(error))
        if strict and specs and len(failed) == len(specs):
            raise RequestError("--set", [Problem(path, failed[0])])
    return changed


def labelled(change: Change, known: Sequence[Change], resolved: Iterable[dict[str, Any]]) -> Change:
    """The change as it is known, or with a label: short paths, unless another change is called so already."""
    if same := next((other for other in known if other.lays_the_same(change)), None):
        return same
    places = {place for spec in resolved for place in _places(spec)}
    short = _label(change, {path: _short(path, places) for path in change.settings})
    taken = short in {other.label for other in known}
    return replace(change, label=_label(change, {path: path for path in change.settings}) if taken else short)


def _label(change: Change, names: dict[str, str]) -> str:
    parts = [] if change.epochs is None else [f"epochs≤{change.epochs}"]
    for path, value in change.settings.items():
        shown = in_words(value)
        parts.append(f"{names[path]}={shown if len(shown) <= LONG else f'{shown[:LONG]}… {digest(value)[:6]}'}")
    return ", ".join(parts)


def _short(path: str, places: Iterable[str]) -> str:
    """The shortest end of a path that stands for nothing else in the runs.

    >>> _short("stages.0.optimizer.lr", ["stages.0.optimizer.lr"])
    'lr'
    >>> _short("stages.0.optimizer.lr", ["stages.0.optimizer.lr", "stages.1.optimizer.lr"])
    'stages.0.optimizer.lr'
    """
    parts = path.split(".")
    others = [other for place in places if not _fits(parts, other := place.split("."))]
    for size in range(1, len(parts)):
        end = parts[-size:]
        if end[0] != "*" and not end[0].isdigit() and not any(_fits(end, other[-size:]) for other in others):
            return ".".join(end)
    return path


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return len(pattern) == len(parts) and all(a in ("*", b) for a, b in zip(pattern, parts, strict=True))


def _places(value: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of everything in a run."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield f"{before}{key}"
            yield from _places(item, f"{before}{key}.")
