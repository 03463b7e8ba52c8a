"""From labelled pairs to triples: a premise, what follows from it, what contradicts it."""

from taskloom.core import DataError, Examples

#: The classes of natural language inference, in the order of their numbers.
RELATIONS = ("entailment", "neutral", "contradiction")


def triples_of(pairs: Examples, where: str) -> Examples:
    """Triples without labels, for every premise that has both, in the order in which premises first appear.

    The k-th entailment of a premise stands with its k-th contradiction, as long as it has both; a sentence given
    twice counts once, and one that is said to follow and to contradict counts for neither. ``where`` is for errors.
    """
    assert pairs.labels is not None
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # premise → hypothesis → id, for both relations
    for premise, hypothesis, label, name in zip(*pairs.columns, pairs.labels, pairs.ids, strict=True):
        follows, contradicts = found.setdefault(premise, ({}, {}))
        if RELATIONS[int(label)] != "neutral":
            (follows if RELATIONS[int(label)] == "entailment" else contradicts).setdefault(hypothesis, name)
    rows, ids = [], []
    for premise, (follows, contradicts) in found.items():
        sure = follows.keys() ^ contradicts.keys()
        ends = [[one for one in relation.items() if one[0] in sure] for relation in (follows, contradicts)]
        for (entailment, first), (contradiction, second) in zip(*ends, strict=False):
            rows.append((premise, entailment, contradiction))
            ids.append(f"{first}+{second}")
    if not rows:
        raise DataError(f"{where}: no premise has both an entailment and a contradiction, so there are no triples")
    return Examples(tuple(zip(*rows, strict=True)), None, tuple(ids), pairs.skipped)
