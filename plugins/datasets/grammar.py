"""Meanings of the generated corpus and how they are put into words."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np

from taskloom.core import Split, derive_seed
from taskloom.plugins.datasets import lexicon

T = TypeVar("T")
SOMEONE, NOBODY = -1, -2  # instead of a concept for the agent


class Draw:
    """A stream of random choices, the same on every machine for the same names.

    It uses the raw numbers of PCG64, which numpy guarantees never to change; it does not for ``Generator``'s methods.
    """

    def __init__(self, seed: int, *names: str | int) -> None:
        self._bits = np.random.PCG64(derive_seed(seed, *names))
        self._numbers: list[int] = []

    def _number(self) -> int:
        if not self._numbers:
            self._numbers = self._bits.random_raw(1024).tolist()
        return self._numbers.pop()

    def below(self, bound: int) -> int:
        return self._number() * bound >> 64

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def other(self, bound: int, than: int) -> int:
        """A number below ``bound`` that is not ``than``."""
        return (than + 1 + self.below(bound - 1)) % bound

    def chance(self, probability: float) -> bool:
        return self._number() < probability * 2**64

    def shuffled(self, items: Sequence[T]) -> list[T]:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]


class Frame(NamedTuple):
    """A meaning: who did what to whom or what, where. Numbers are concepts; None is left unsaid."""

    personal: bool  # done to a person, not to a thing
    agent: int
    action: int
    object: int
    quality: int | None
    number: int | None  # how many things; None for a person
    place: int | None


SLOTS = Frame._fields[1:]


class Wording(NamedTuple):
    """How a meaning is worded: voice, position of the place, and the synonym in each slot."""

    passive: bool
    fronted: bool
    synonyms: tuple[int, ...]  # one per slot


_QUARTERS: tuple[Split, ...] = ("train", "train", "dev", "test")


def split_of(key: object) -> Split:
    """The only split in which a sentence or meaning may occur: half are for training, a quarter each for the rest.

    It depends on neither seed, size nor task, so no options can move a meaning to another split.
    """
    return _QUARTERS[crc32(repr(key).encode()) % 4]


def draw_frame(draw: Draw) -> Frame:
    """A meaning with every slot filled, whose agent and object differ."""
    personal = draw.chance(0.4)
    slots: dict[str, Any] = {slot: draw.below(len(field)) for slot, field in lexicon.FIELDS[personal].items()}
    if personal:
        slots["number"] = None
        if slots["agent"] == slots["object"]:
            slots["object"] = draw.other(len(lexicon.PEOPLE), slots["agent"])
    return Frame(personal, **slots)


def say(frame: Frame, wording: Wording) -> str:
    """The sentence of a meaning.

    >>> say(Frame(False, 0, 2, 1, 0, 1, 0), Wording(False, False, (0, 1, 0, 0, 0, 0)))
    'The doctor fixed two old sofas in the garden.'
    >>> say(Frame(False, 0, 2, 1, 0, 0, 0), Wording(True, True, (1, 1, 0, 0, 0, 1)))
    'In the yard, an old sofa was fixed by the physician.'
    """
    chosen = dict(zip(SLOTS, wording.synonyms, strict=True))
    fields = lexicon.FIELDS[frame.personal]
    past, participle = fields["action"][frame.action][chosen["action"]]
    agent = {SOMEONE: "someone", NOBODY: "nobody"}.get(frame.agent) or (
        f"the {lexicon.PEOPLE[frame.agent][chosen['agent']][0]}"
    )
    many = bool(frame.number)
    noun = fields["object"][frame.object][chosen["object"]][many]
    if frame.quality is not None:
        noun = f"{fields['quality'][frame.quality][chosen['quality']][0]} {noun}"
    if frame.number:
        theme = f"{lexicon.NUMBERS[frame.number]} {noun}"
    else:
        theme = f"the {noun}" if frame.personal else with_article(noun)
    if wording.passive and frame.agent != NOBODY:
        by = "" if frame.agent == SOMEONE else f" by {agent}"
        clause = f"{theme} {'were' if many else 'was'} {participle}{by}"
    else:
        clause = f"{agent} {past} {theme}"
    if frame.place is not None:
        adverbial = f"{lexicon.WHERE[frame.place]} the {lexicon.PLACES[frame.place][chosen['place']][0]}"
        clause = f"{adverbial}, {clause}" if wording.fronted else f"{clause} {adverbial}"
    return sentence(clause)


def with_article(phrase: str) -> str:
    """
    >>> with_article("old sofa"), with_article("new sofa")
    ('an old sofa', 'a new sofa')
    """
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."
