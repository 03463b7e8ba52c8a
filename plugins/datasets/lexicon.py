"""The words of the generated corpus.

One line is one word field; ``;`` parts its concepts, a space parts the synonyms of a concept, ``/`` parts the
inflected forms of a word (past/participle, singular/plural) where they are not regular. No word stands for two
concepts, so that a sentence has one meaning.
"""

from collections.abc import Callable, Sequence
from typing import Any

Word = tuple[str, str]  # past and participle of a verb, singular and plural of a noun, else the same twice
Concept = tuple[Word, ...]  # synonyms
Field = tuple[Concept, ...]


def _field(text: str, second: Callable[[str], str] = str) -> Field:
    """A word field; ``second`` derives the second form of a regular word."""
    words = [[word.partition("/") for word in concept.split()] for concept in text.split(";")]
    return tuple(tuple((base, inflected or second(base)) for base, _, inflected in concept) for concept in words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


PEOPLE = _field(
    "doctor physician; teacher instructor; child kid; lawyer attorney; writer author; manager boss; sailor seaman;"
    "singer vocalist; thief burglar; artist painter; tourist traveller; reporter journalist; soldier trooper;"
    "student pupil; scientist researcher; driver chauffeur; merchant shopkeeper; cook chef; guard watchman;"
    "priest clergyman; actor performer; boy lad; farmer grower; judge magistrate"
)
THINGS = _field(
    "car automobile; sofa couch; bicycle bike; stone rock; rug carpet; coat jacket; parcel package; cup mug; bag sack;"
    "drawing sketch; boat vessel; lamp lantern; box crate; rope cord; bottle flask; present gift;"
    "knife/knives dagger; phone telephone; blanket quilt; hat cap; book volume; statue sculpture; clock timepiece;"
    "ticket pass",
    _plural,
)
#: What one does to a thing.
DEEDS = _field(
    "bought purchased; sold auctioned; repaired fixed; wrecked destroyed; found discovered; lost misplaced;"
    "hid/hidden concealed; displayed exhibited; examined inspected; moved shifted; stole/stolen swiped;"
    "chose/chosen selected; threw/thrown tossed; grabbed seized; ordered requested; cleaned washed;"
    "photographed filmed; wrapped covered"
)
#: What one does to a person.
DEALINGS = _field(
    "helped assisted; met encountered; phoned called; praised applauded; scolded rebuked; warned cautioned;"
    "followed pursued; hired employed; fired dismissed; rescued saved; greeted welcomed; annoyed irritated;"
    "calmed soothed; blamed accused; watched observed; mocked teased; scared frightened; paid rewarded"
)
#: What a thing is like.
QUALITIES = _field(
    "old ancient; new modern; small little; large big; red scarlet; blue azure; heavy weighty; cheap inexpensive;"
    "expensive costly; dirty filthy; spotless immaculate; wet soaked; pretty beautiful; ugly unsightly;"
    "worn shabby; shiny gleaming"
)
#: What a person is like.
TRAITS = _field(
    "young youthful; elderly aged; tired weary; angry furious; happy cheerful; sad gloomy; clever smart; shy timid;"
    "brave courageous; rich wealthy; rude impolite; polite courteous; lazy idle; strong powerful; famous renowned;"
    "tall lanky"
)
PLACES = _field(
    "garden yard; shop store; river stream; street road; forest woods; hotel inn; hill slope; harbour port;"
    "cellar basement; beach shore; attic loft; church chapel; village hamlet; city town; house cottage;"
    "hall lobby; market bazaar; meadow pasture; station depot; prison jail"
)
#: The preposition of each place, in the same order.
WHERE = _words("in in near in in at on in in on in near in in behind in at in at near")
NUMBERS = ("one", "two", "three", "four", "five")

#: The word field of each slot of a meaning: of what is done to a thing, and (True) to a person.
FIELDS: dict[bool, dict[str, Sequence[Any]]] = {
    personal: {
        "agent": PEOPLE,
        "action": DEALINGS if personal else DEEDS,
        "object": PEOPLE if personal else THINGS,
        "quality": TRAITS if personal else QUALITIES,
        "number": NUMBERS,
        "place": PLACES,
    }
    for personal in (False, True)
}
#: Pairs of concepts that exclude each other, by index in their field.
OPPOSITES: dict[bool, dict[str, tuple[tuple[int, int], ...]]] = {
    False: {"action": ((0, 1), (2, 3), (4, 5), (6, 7)), "quality": ((0, 1), (2, 3), (7, 8), (9, 10), (12, 13))},
    True: {"action": ((3, 4), (7, 8), (11, 12)), "quality": ((0, 1), (4, 5), (10, 11))},
}

#: Adjectives by what they say of a thing, from −2 (very bad) to 2 (very good).
OPINIONS = {
    2: _words("brilliant superb wonderful excellent fantastic terrific marvellous magnificent outstanding splendid"),
    1: _words("good nice pleasant decent solid enjoyable likeable charming appealing satisfying"),
    0: _words("ordinary average standard typical usual plain conventional unremarkable"),
    -1: _words("bad poor weak dull bland disappointing tedious unpleasant mediocre boring"),
    -2: _words("awful terrible horrible dreadful atrocious appalling disastrous abysmal disgusting unbearable"),
}
#: Verbs by what they say of their object: past and base form.
FEELINGS = {
    2: _field("loved/love; adored/adore"),
    1: _field("liked/like; enjoyed/enjoy"),
    0: _field("noticed/notice; mentioned/mention"),
    -1: _field("disliked/dislike; resented/resent"),
    -2: _field("hated/hate; loathed/loathe"),
}
STRONGER = _words("very really truly extremely incredibly remarkably")
WEAKER = _words("fairly rather somewhat mostly partly moderately")
SUBJECTS = _words(
    "film story song meal soup concert play novel speech lecture trip party game room view ending hotel shop market "
    "village car sofa coat drawing boat lamp gift phone hat book statue clock"
)
#: Subjects that take no "a".
UNCOUNTED = _words("music acting dialogue service food weather")
