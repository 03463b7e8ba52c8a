"""The committed results of the tiny runs: what differs from them, whether a revision explains it, and what to do."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gate_runs import Digest, Measured

PATH = Path(__file__).parents[1] / "runs" / "gate" / "results.json"
#: Another processor moves losses and weights by about 1e-5 of their value and a correlation by 3e-4.
RELATIVE = 2e-3
#: Scores and drifts may be near zero: a score moves by this much, a drift by this share of the change it belongs to.
ABSOLUTE = 2e-3
ANEW = "write the file anew with `TASKLOOM_GATE=write pytest -n 0 tests/runs/gate`"
Recorded = dict[str, dict[str, Any]]


def load() -> Recorded:
    """What is committed."""
    recorded: Recorded = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return recorded


def complaints(recorded: Recorded, measured: Mapping[str, Measured]) -> list[str]:
    """All that is wrong: results that changed without a revision, and what the file does not know yet."""
    return [*unexplained(recorded, measured), *outdated(recorded, measured)]


def written_anew(recorded: Recorded, measured: Mapping[str, Measured]) -> Recorded:
    """What the file should hold; ``ValueError`` if a result changed and no revision says so."""
    if refused := unexplained(recorded, measured):
        raise ValueError("; ".join(["nothing was written", *refused]))
    anew = {}
    for key, entry in sorted(measured.items()):
        digest = {
            name: value if isinstance(value, str) else float(f"{value:.5g}") for name, value in entry.digest.items()
        }
        known = recorded.get(key, {"digest": {}})["digest"]
        if not differences(known, entry.digest):
            digest = known  # another machine's last digits are no change
        anew[key] = {"revision": entry.revision, "defaults": entry.defaults, "digest": digest}
    return anew


def unexplained(recorded: Recorded, measured: Mapping[str, Measured]) -> list[str]:
    """A sentence for every component whose results or defaults changed while its revision did not."""
    known = {key: entry for key, entry in measured.items() if key in recorded}
    raised = {key for key, entry in known.items() if entry.revision > recorded[key]["revision"]}
    sentences = [
        f"the revision of {name_of(key)} is {entry.revision} and was {recorded[key]['revision']}: a revision only grows"
        for key, entry in known.items()
        if entry.revision < recorded[key]["revision"]
    ]
    for key in sorted(known.keys() - raised):
        for option, (old, new) in sorted(changed_defaults(recorded[key]["defaults"], known[key].defaults).items()):
            what = f"the default of option {option!r} of {name_of(key)} changed ({json.dumps(old)} → {json.dumps(new)})"
            sentences.append(advise(what, known[key]))
    judged = {key: entry for key, entry in known.items() if not raised & entry.uses}
    changes = {key: differences(recorded[key]["digest"], entry.digest) for key, entry in judged.items()}
    changed = {key for key, values in changes.items() if values}
    for culprit, runs in culprits(changed, judged).items():
        others = len(runs) - 1
        more = f", and {others} more {'runs' if others > 1 else 'run'} with it" if others else ""
        what = f"the results of {name_of(culprit)} changed ({changes[culprit][0]}{more})"
        sentences.append(advise(what, known[culprit]))
    return sentences


def outdated(recorded: Recorded, measured: Mapping[str, Measured]) -> list[str]:
    """A sentence for everything that the file should hold otherwise, and may."""
    sentences = [f"{name_of(key)} is not in {PATH.name}: {ANEW}" for key in sorted(measured.keys() - recorded.keys())]
    gone = sorted(recorded.keys() - measured.keys())
    sentences += [f"{PATH.name} has {name_of(key)}, which is not built in any more: {ANEW}" for key in gone]
    for key in sorted(measured.keys() & recorded.keys()):
        entry, known = measured[key], recorded[key]
        if entry.revision > known["revision"]:
            what = f"the revision of {name_of(key)} is {entry.revision}, and {PATH.name} has {known['revision']}"
            sentences.append(f"{what}: {ANEW}")
        for option in sorted(flat(entry.defaults).keys() ^ flat(known["defaults"]).keys()):
            news = "is new" if option in flat(entry.defaults) else "is gone"
            sentences.append(f"option {option!r} of {name_of(key)} {news}, and {PATH.name} does not say so: {ANEW}")
    return sentences


def culprits(changed: set[str], measured: Mapping[str, Measured]) -> dict[str, set[str]]:
    """The components that most likely changed, with the changed runs that each explains.

    A change of a component shows in its own run and in most of the runs that use it, so the one with the most changed
    runs, less its unchanged ones, comes first; every run uses the trainer. What is left is explained in the same way.
    """
    users = {part: {key for key, entry in measured.items() if part in entry.uses} for part in changed}
    left, blamed = set(changed), dict[str, set[str]]()
    while left:
        culprit = max(sorted(left), key=lambda part: len(users[part] & left) - len(users[part] - changed))
        blamed[culprit] = users[culprit] & left
        left -= blamed[culprit]
    return blamed


def differences(old: Digest, new: Digest) -> list[str]:
    """Every number that is not the same up to rounding, as ``what: old → new``; what is largest first."""
    changed = []
    for name in old.keys() | new.keys():
        before, after = old.get(name), new.get(name)
        if isinstance(before, str) or isinstance(after, str) or before is None or after is None:
            if before != after:
                changed.append((float("inf"), f"{name}: {before or 'nothing'} → {after or 'nothing'}"))
            continue
        allowed = RELATIVE * abs(before)
        if "score of" in name:
            allowed += ABSOLUTE
        if "drift of" in name:
            change = old[name.replace("drift of", "change of")]
            assert isinstance(change, float | int)
            allowed += ABSOLUTE * change
        if not abs(after - before) <= allowed:
            changed.append((abs(after - before) / max(allowed, 1e-12), f"{name}: {before:.4g} → {after:.4g}"))
    return [text for _, text in sorted(changed, key=lambda pair: (-pair[0], pair[1]))]


def changed_defaults(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Option → its old and new default, for options that both have."""
    before, after = flat(old), flat(new)
    return {key: (before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]}


def flat(options: Any, path: str = "") -> dict[str, Any]:
    """Options by dotted path."""
    items = enumerate(options) if isinstance(options, list) else options.items()
    values: dict[str, Any] = {}
    for key, value in items:
        where = f"{path}.{key}" if path else str(key)
        values |= flat(value, where) if isinstance(value, dict | list) and value else {where: value}
    return values


def name_of(key: str) -> str:
    """``"combiner pcgrad"`` as a message has it."""
    kind, _, name = key.partition(" ")
    words = {"data": "data set"}
    return f"{words.get(kind, kind)} {name!r}" if name else "the trainer"


def advise(what: str, entry: Measured) -> str:
    return (
        f"{what} and its revision is still {entry.revision}: if that is meant, raise {entry.source} and {ANEW}; "
        "if not, it is a defect"
    )


def write(recorded: Recorded) -> None:
    """Write the file, an entry's numbers one below the other, so that a change is easy to read."""
    PATH.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
