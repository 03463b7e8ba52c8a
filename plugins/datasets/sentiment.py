"""Rules of the generated corpus for one text: what a sentence thinks of its subject.

A grade runs from −2 to 2. It follows from the whole clause: a stronger or weaker adverb moves the adjective's
grade, "not" turns it around, and after "but" the second clause decides.
"""

from taskloom.plugins.datasets import lexicon
from taskloom.plugins.datasets.grammar import Draw, sentence, with_article

SHORTEST, LONGEST = 5, 14  # words of a sentence


def sentiment(label: int, draw: Draw) -> str:
    """A sentence of class 0 (very bad) to 4 (very good)."""
    while True:
        text = sentence(_content(label - 2, draw))
        if SHORTEST <= len(text.split()) <= LONGEST:
            return text


def _content(grade: int, draw: Draw) -> str:
    """One clause, two of the same grade, or two that are at odds."""
    lot = draw.below(10)
    if lot < 3 and abs(grade) == 1:
        return _contrast(grade, draw)
    if lot < 5:
        return f"{_clause(grade, draw)} and {_clause(grade, draw)}"
    return _clause(grade, draw)


def _contrast(grade: int, draw: Draw) -> str:
    """Two clauses of opposite sign: the main one decides, the other takes its edge off, so the grade is ±1."""
    concession = _clause(-grade * (1 + draw.below(2)), draw)
    main = _clause(grade * (1 + draw.below(2)), draw)
    return draw.pick([f"{concession}, but {main}", f"although {concession}, {main}"])


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
        place = draw.below(len(lexicon.PLACES))
        noun += f" {lexicon.WHERE[place]} the {draw.pick(lexicon.PLACES[place])[0]}"
    return noun


def _person(draw: Draw) -> str:
    return f"the {draw.pick(draw.pick(lexicon.PEOPLE))[0]}"
