"""Rules of the generated corpus for two and three texts: paraphrase, similarity, entailment."""

from collections.abc import Sequence
from typing import Any

from taskloom.plugins.datasets import lexicon
from taskloom.plugins.datasets.grammar import (
    NOBODY,
    SIZES,
    SLOTS,
    SOMEONE,
    Draw,
    Frame,
    Wording,
    draw_wording,
    say,
)

#: How much of a meaning each slot carries.
WEIGHTS = {"agent": 1.0, "action": 1.25, "object": 1.25, "quality": 0.5, "number": 0.25, "place": 0.75}


def agreement(a: Frame, b: Frame) -> float:
    """How alike two meanings are, from 0 to 5: five times the weight of the slots that agree over that of all.

    A slot that is empty in both does not count; deeds, objects and qualities of a person never equal a thing's.

    >>> one = Frame(False, 0, 2, 1, 0, 1, 0)
    >>> agreement(one, one), agreement(one, one._replace(agent=5)), agreement(one, one._replace(number=4, place=3))
    (5.0, 4.0, 4.0)
    """
    alike = total = 0.0
    for slot, weight in WEIGHTS.items():
        x, y = getattr(a, slot), getattr(b, slot)
        if x is None and y is None:
            continue
        total += weight
        shared = slot in ("agent", "place") or a.personal == b.personal
        alike += weight * (x == y and shared)
    return round(5 * alike / total, 2)


def change(frame: Frame, slot: str, draw: Draw) -> Frame:
    """The meaning with another concept in one slot."""
    size, old = SIZES[frame.personal][slot], getattr(frame, slot)
    while True:
        concept: dict[str, Any] = {slot: draw.other(size, old)}
        changed = frame._replace(**concept)
        if not (changed.personal and changed.agent == changed.object):
            return changed


def filled(frame: Frame) -> list[str]:
    """The slots that a meaning fills."""
    return [slot for slot in SLOTS if getattr(frame, slot) is not None]


def in_words(frames: Sequence[Frame], draw: Draw) -> tuple[str, ...]:
    """A sentence for each meaning; those after the first are reworded from it, and never equal to it."""
    wording = draw_wording(draw)
    texts = [say(frames[0], wording)]
    for frame in frames[1:]:
        text = texts[0]
        while text == texts[0]:
            text = say(frame, _reworded(wording, draw))
        texts.append(text)
    return tuple(texts)


def _reworded(wording: Wording, draw: Draw) -> Wording:
    """Another wording: a word may be exchanged for its synonym, voice and order may change."""
    synonyms = tuple(1 - form if draw.chance(0.4) else form for form in wording.synonyms)
    return Wording(wording.passive ^ draw.chance(0.4), wording.fronted ^ draw.chance(0.4), synonyms)


def paraphrase(first: Frame, label: int, draw: Draw) -> list[Frame]:
    """The same meaning twice (1), or another one beside it (0).

    Of the others, some exchange who did it and to whom, more than half differ in one or two slots, and the rest
    tell another story.
    """
    if label:
        return [first, first]
    lot = draw.below(10)
    if lot < 2 and first.personal:
        return [first, first._replace(agent=first.object, object=first.agent)]
    return similarity(first, 1 + draw.below(2) if lot < 6 else 4, draw)


def similarity(first: Frame, changes: int, draw: Draw) -> list[Frame]:
    """Two meanings that differ in that many slots."""
    second = first
    for slot in draw.shuffled(filled(first))[:changes]:
        second = change(second, slot, draw)
    return [first, second]


def entailment(premise: Frame, draw: Draw) -> list[Frame]:
    """A premise, a meaning that follows from it, and one that cannot be true with it."""
    follows = premise
    for slot in draw.shuffled(["quality", "place", "agent"])[: 1 + draw.below(2)]:
        unsaid: dict[str, Any] = {slot: SOMEONE if slot == "agent" else None}
        follows = follows._replace(**unsaid)
    return [premise, follows, _contradiction(premise, draw)]


def _contradiction(frame: Frame, draw: Draw) -> Frame:
    """The opposite deed or quality, another number or place at the same time, or nobody did it."""
    deeds = lexicon.OPPOSITE_DEALINGS if frame.personal else lexicon.OPPOSITE_DEEDS
    qualities = lexicon.OPPOSITE_TRAITS if frame.personal else lexicon.OPPOSITE_QUALITIES
    choices = [frame._replace(agent=NOBODY), change(frame, "place", draw)]
    if frame.action in deeds:
        choices.append(frame._replace(action=deeds[frame.action]))
    if frame.quality in qualities:
        choices.append(frame._replace(quality=qualities[frame.quality]))
    if frame.number is not None:
        choices.append(change(frame, "number", draw))
    return draw.pick(choices)
