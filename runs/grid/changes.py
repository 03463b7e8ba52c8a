"""Rows changed from the command line, shown beside the grid's own under labels that name the change."""

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

#: Characters of a setting that a label shows; longer ones are cut and get a digest, so that labels stay distinct.
LONG = 40


def with_changed(
    rows: Expansion, change: Change, known: Sequence[Change], only: tuple[str, ...], catalogue: "Catalogue"
) -> Expansion:
    """Add changed rows to the grid's rows: those of ``known`` changes, and those of this run's ``change``.

    A row that the change does not affect is run unchanged. A run without a change includes all rows.
    """
    valid = [row for row in rows.variants if complete(row.spec) is not None]
    picked: set[str] = set()
    if change:
        picked = {row.label for row in choose(rows.variants, only) if row.chosen}
        change = labelled(change, known, (catalogue.resolve_run(row.spec)[0] for row in valid))
    changes = [*known, *([change] if change and all(change is not other for other in known) else [])]

    def changed_by(applied: Change) -> dict[str, Variant]:
        labels = {*applied.rows, *(picked if applied is change else ())}
        specs = lay(applied, [row.spec for row in valid], strict=applied is change)
        return {
            row.label: replace(
                row,
                label=applied.called(row.label),
                spec=spec,
                chosen=not change or (applied is change and row.label in picked),
                beside=row.label,
            )
            for row, spec in zip(valid, specs, strict=True)
            if row.label in labels and spec != row.spec
        }

    variants_by_change = [changed_by(applied) for applied in changes]
    own = {row.label for row in rows.variants}
    if clashes := [row.label for changed in variants_by_change for row in changed.values() if row.label in own]:
        raise RequestError("--set", [Problem("", f"the grid has a row {clashes[0]!r} of its own; --only runs it")])
    variants: list[Variant] = []
    for row in rows.variants:
        others = [changed[row.label] for changed in variants_by_change if row.label in changed]
        as_it_is = row.label in picked and not any(other.chosen for other in others)
        variants += [replace(row, chosen=as_it_is if change else True), *others]
    changes = [
        replace(applied, rows=tuple(changed)) for applied, changed in zip(changes, variants_by_change, strict=True)
    ]
    rows = replace(rows, variants=variants if change or not only else choose(variants, only), changes=tuple(changes))
    if not change:
        return rows
    if is_changed := any(row.beside and row.chosen for row in variants):
        note = f"changed rows stand beside the grid's own as ROW [{change.label}]; --name makes a table of their own"
    else:
        note = f"nothing changes: every row has {change.in_words} already, or lacks the place"
    return replace(rows, notes=[*rows.notes, note], is_changed=is_changed)


def choose(variants: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    """Mark the rows that match any pattern as chosen; without patterns, all."""
    if not patterns:
        return variants
    labels = [variant.label for variant in variants]
    matching = {
        pattern: {label for label in labels if label == pattern or fnmatchcase(label, pattern)} for pattern in patterns
    }
    nothing = [
        Problem("", unknown("row", pattern, labels, where="rows")) for pattern in patterns if not matching[pattern]
    ]
    if nothing:
        raise RequestError("--only", nothing)
    chosen = set().union(*matching.values())
    return [replace(variant, chosen=variant.label in chosen) for variant in variants]


def complete(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The run with all defaults of the specs filled in, so that paths resolve; None if it is invalid."""
    try:
        return plain(RunSpec.model_validate(spec))
    except ValidationError:
        return None


def lay(change: Change, specs: Sequence[dict[str, Any]], *, strict: bool = True) -> list[dict[str, Any]]:
    """Apply a change to complete runs, where its paths exist; ``strict`` makes it an error if a path exists in none."""
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
    """The equal ``known`` change, or the change with a label of short paths, or of full ones if that is in use."""
    if same := next((other for other in known if other.lays_the_same(change)), None):
        return same
    paths = {path for spec in resolved for path in _paths(spec)}
    short = _label(change, {path: _short(path, paths) for path in change.settings})
    in_use = short in {other.label for other in known}
    return replace(change, label=_label(change, {path: path for path in change.settings}) if in_use else short)


def _label(change: Change, names: dict[str, str]) -> str:
    parts = [] if change.epochs is None else [f"epochs≤{change.epochs}"]
    for path, setting in change.settings.items():
        shown = in_words(setting)
        parts.append(f"{names[path]}={shown if len(shown) <= LONG else f'{shown[:LONG]}… {digest(setting)[:6]}'}")
    return ", ".join(parts)


def _short(path: str, paths: Iterable[str]) -> str:
    """The shortest end of a path that is unambiguous in the runs.

    >>> _short("stages.0.optimizer.lr", ["stages.0.optimizer.lr"])
    'lr'
    >>> _short("stages.0.optimizer.lr", ["stages.0.optimizer.lr", "stages.1.optimizer.lr"])
    'stages.0.optimizer.lr'
    """
    parts = path.split(".")
    others = [other for run_path in paths if not _fits(parts, other := run_path.split("."))]
    for size in range(1, len(parts)):
        end = parts[-size:]
        if end[0] != "*" and not end[0].isdigit() and not any(_fits(end, other[-size:]) for other in others):
            return ".".join(end)
    return path


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return len(pattern) == len(parts) and all(a in ("*", b) for a, b in zip(pattern, parts, strict=True))


def _paths(node: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of all entries of a run."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield f"{before}{key}"
            yield from _paths(child, f"{before}{key}.")
