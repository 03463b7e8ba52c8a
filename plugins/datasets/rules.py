"""Rules of the generated corpus: which texts go together, and what their label is."""

from collections.abc import Sequence
from typing import Any

from taskloom.plugins.datasets import lexicon
from taskloom.plugins.datasets.grammar import NOBODY, SOMEONE, Draw, Frame, Wording, say, sentence, with_article

#: The weight of each slot in the similarity of two meanings.
WEIGHTS = {"agent": 1.0, "action": 1.25, "object": 1.25, "quality": 0.5, "number": 0.25, "place": 0.75}
SHORTEST, LONGEST = 5, 14  # words of a sentence with an opinion

# Two and three texts: paraphrase, similarity, entailment


def agreement(a: Frame, b: Frame) -> float:
    """The similarity of two meanings, from 0 to 5: five times the weight of the slots that agree over that of all.

    A slot that is empty in both does not count; deeds, objects and qualities of a person never equal a thing's.

    >>> a = Frame(False, 0, 2, 1, 0, 1, 0)
    >>> agreement(a, a), agreement(a, a._replace(agent=5)), agreement(a, a._replace(number=4, place=3))
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
    size, old = len(lexicon.FIELDS[frame.personal][slot]), getattr(frame, slot)
    while True:
        concept: dict[str, Any] = {slot: draw.other(size, old)}
        changed = frame._replace(**concept)
        if not (changed.personal and changed.agent == changed.object):
            return changed


def in_words(frames: Sequence[Frame], draw: Draw) -> tuple[str, ...]:
    """A sentence for each meaning; those after the first are reworded from it, and never equal to it."""
    wording = Wording(draw.chance(0.3), draw.chance(0.3), tuple(draw.below(2) for _ in WEIGHTS))
    texts = [say(frames[0], wording)]
    for frame in frames[1:]:
        text = texts[0]
        while text == texts[0]:
            # A word may be exchanged for its synonym, voice and order may change.
            synonyms = tuple(1 - form if draw.chance(0.4) else form for form in wording.synonyms)
            other = Wording(wording.passive ^ draw.chance(0.4), wording.fronted ^ draw.chance(0.4), synonyms)
            text = say(frame, other)
        texts.append(text)
    return tuple(texts)


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
    filled = [slot for slot in WEIGHTS if getattr(first, slot) is not None]
    for slot in draw.shuffled(filled)[:changes]:
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
    choices = [frame._replace(agent=NOBODY), change(frame, "place", draw)]
    for slot, pairs in lexicon.OPPOSITES[frame.personal].items():
        for pair in pairs:
            if (concept := getattr(frame, slot)) in pair:
                opposite: dict[str, Any] = {slot: sum(pair) - concept}
                choices.append(frame._replace(**opposite))
    if frame.number is not None:
        choices.append(change(frame, "number", draw))
    return draw.pick(choices)


# One text: what a sentence thinks of its subject


def sentiment(label: int, draw: Draw) -> str:
    """A sentence of class 0 (very bad) to 4 (very good).

    A grade runs from −2 to 2. It follows from the whole clause: a stronger or weaker adverb moves the adjective's
    grade, "not" turns it around, and after "but" the second clause decides.
    """
    while True:
        text = sentence(_content(label - 2, draw))
        if SHORTEST <= len(text.split()) <= LONGEST:
            return text


def _content(grade: int, draw: Draw) -> str:
    """One clause, two of the same grade, or two that are at odds."""
    lot = draw.below(10)
    if lot < 3 and abs(grade) == 1:  # the main clause decides, the other takes its edge off, so the grade is ±1
        concession = _clause(-grade * (1 + draw.below(2)), draw)
        main = _clause(grade * (1 + draw.below(2)), draw)
        return draw.pick([f"{concession}, but {main}", f"although {concession}, {main}"])
    if lot < 5:
        return f"{_clause(grade, draw)} and {_clause(grade, draw)}"
    return _clause(grade, draw)


def _clause(grade: int, draw: Draw) -> str:
    """One clause of a grade."""
    if draw.chance(0.2):
        return _feeling(grade, draw)
    if grade == 0 and draw.chance(0.3):
        good, bad = (draw.pick(lexicon.OPINIONS[sign]) for sign in draw.shuffled([1, -1]))
        return f"{_subject(draw)} was neither {good} nor {bad}"
    opinion = _opinion(grade, draw)
    lot = draw.below(10)
    if lot < 2 and not opinion.startswith("not "):
        noun = draw.pick(lexicon.SUBJECTS)
        return f"it was {with_article(f'{opinion} {noun}')}"
    if lot < 4 and not opinion.startswith("not "):
        return f"{_person(draw)} found {_subject(draw)} {opinion}"
    return f"{_subject(draw)} was {opinion}"


def _opinion(grade: int, draw: Draw) -> str:
    """An adjective with what changes its grade: strong = strong word or stronger weak one, and so on."""
    sign = (grade > 0) - (grade < 0)
    weak, strong = lexicon.OPINIONS[sign], lexicon.OPINIONS[2 * sign]
    if grade == 0:
        return draw.pick(weak) if draw.chance(0.7) else f"{draw.pick(lexicon.WEAKER)} {draw.pick(weak)}"
    if abs(grade) == 2:
        if draw.chance(0.4):
            return f"{draw.pick(lexicon.STRONGER)} {draw.pick(weak)}"
        return draw.pick(strong) if draw.chance(0.7) else f"{draw.pick(lexicon.STRONGER)} {draw.pick(strong)}"
    lot = draw.below(10)
    if lot < 4:
        return draw.pick(weak)
    if lot < 7:
        return f"{draw.pick(lexicon.WEAKER)} {draw.pick(weak if draw.chance(0.5) else strong)}"
    opposite = draw.pick(lexicon.OPINIONS[-sign] + lexicon.OPINIONS[-2 * sign])
    return f"not {opposite}" if draw.chance(0.6) else f"not {draw.pick(lexicon.STRONGER)} {opposite}"


def _feeling(grade: int, draw: Draw) -> str:
    """A verb of liking; "did not" turns it around and leaves ±1."""
    if abs(grade) == 1 and draw.chance(0.3):
        turned = draw.pick(lexicon.FEELINGS[-grade * (1 + draw.below(2))])[0][1]
        return f"{_person(draw)} did not {turned} {_subject(draw)}"
    return f"{_person(draw)} {draw.pick(lexicon.FEELINGS[grade])[0][0]} {_subject(draw)}"


def _subject(draw: Draw) -> str:
    noun = f"the {draw.pick(lexicon.SUBJECTS + lexicon.UNCOUNTED)}"
    if draw.chance(0.15):
        index = draw.below(len(lexicon.PLACES))
        noun += f" {lexicon.WHERE[index]} the {draw.pick(lexicon.PLACES[index])[0]}"
    return noun


def _person(draw: Draw) -> str:
    return f"the {draw.pick(draw.pick(lexicon.PEOPLE))[0]}"
