"""The generated corpus: laws of its grammar."""

import hashlib
import re
from collections import Counter
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskloom.core import Labels, Split
from taskloom.plugins.datasets import lexicon
from taskloom.plugins.datasets.generated import Generated, GeneratedTask
from taskloom.plugins.datasets.grammar import SLOTS, Draw, Frame, Wording, draw_frame, say
from taskloom.plugins.datasets.rules import entailment, in_words, sentiment

SPLITS = get_args(Split)
each_task = pytest.mark.parametrize("task", get_args(GeneratedTask))
draws = st.integers(0, 2**32).map(lambda seed: Draw(seed, "test"))
frames = draws.map(draw_frame)
NAMES = ("PEOPLE", "THINGS", "DEEDS", "DEALINGS", "QUALITIES", "TRAITS", "PLACES")
FIELDS = [getattr(lexicon, name) for name in NAMES]


def rows(examples):
    return list(zip(*examples.columns, strict=True))


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def test_the_corpus_is_the_same_on_every_machine():
    """A change of the grammar changes this, and then everybody's results; a change of platform must not."""
    found = {}
    for task in get_args(GeneratedTask):
        digest, data = hashlib.sha256(), Generated(task=task, size=50, dev_size=5, test_size=5)
        for split in ("train", "dev", "test"):
            examples = data.load(split)
            digest.update(repr((split, examples.columns)).encode())
            digest.update(b"" if examples.labels is None else examples.labels.tobytes())
        found[task] = digest.hexdigest()[:12]
    assert found == {
        "sentiment": "f744266265c0",
        "paraphrase": "8c5d7938e5ad",
        "similarity": "64552076c871",
        "entailment": "57bfbc66a95a",
    }


@each_task
def test_a_larger_corpus_begins_with_the_smaller(task):
    small, large = Generated(task=task, size=33).load("train"), Generated(task=task, size=150).load("train")
    assert len(small) == 33
    assert rows(small) == rows(large)[:33]
    assert small.ids == large.ids[:33]
    if small.labels is not None:
        assert small.labels.tolist() == large.labels[:33].tolist()


@each_task
def test_splits_share_no_sentence_whatever_the_seed(task):
    texts = {split: set[str]() for split in SPLITS}
    for seed in (0, 1):
        data = Generated(task=task, size=600, dev_size=200, test_size=200, seed=seed)
        for split in SPLITS:
            texts[split].update(text for column in data.load(split).columns for text in column)
    for a, b in combinations(SPLITS, 2):
        assert not texts[a] & texts[b]


@each_task
def test_examples_do_not_repeat_and_are_well_formed(task):
    data = Generated(task=task)
    examples = data.load("train")
    assert len(set(rows(examples))) == len(examples) == len(set(examples.ids)) == 1200
    assert len(examples.columns) == data.columns
    for row in rows(examples):
        assert len(set(row)) == len(row)
        for text in row:
            assert 5 <= len(words(text)) <= 14
            assert re.fullmatch(r"[A-Z][a-z]*(,? [a-z]+)*\.", text)
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text)


@pytest.mark.parametrize(("task", "classes"), [("sentiment", 5), ("paraphrase", 2)])
@pytest.mark.parametrize("size", [7, 300])
def test_classes_are_balanced_at_any_size(task, classes, size):
    data = Generated(task=task, size=size)
    assert data.labels == Labels.of_classes(classes)
    counts = Counter(data.load("train").labels.tolist())
    assert set(counts) == {float(c) for c in range(classes)}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_similarities_fill_their_range():
    data = Generated(task="similarity")
    labels = data.load("train").labels
    assert data.labels == Labels.of_range(0, 5)
    assert labels.min() == 0.0
    assert labels.max() == 5.0
    assert (np.histogram(labels, bins=5, range=(0, 5))[0] > 100).all()


def test_noise_moves_training_labels_and_nothing_else():
    clean, noisy = (Generated(task="sentiment", size=1000, noise=noise) for noise in (0.0, 0.5))
    assert rows(clean.load("train")) == rows(noisy.load("train"))
    moved = (clean.load("train").labels != noisy.load("train").labels).mean()
    assert moved == pytest.approx(0.5 * 4 / 5, abs=0.06)
    assert clean.load("dev").labels.tolist() == noisy.load("dev").labels.tolist()


def test_no_word_has_two_meanings_and_there_are_hundreds():
    concepts = [{form for word in concept for form in word} for field in FIELDS for concept in field]
    assert all(not a & b for a, b in combinations(concepts, 2))
    assert all(len(concept) >= 2 for field in FIELDS for concept in field)
    assert len(lexicon.WHERE) == len(lexicon.PLACES)
    corpus = [Generated(task=task).load("train") for task in get_args(GeneratedTask)]
    assert len({word for e in corpus for column in e.columns for text in column for word in words(text)}) > 400


@given(frames, draws)
def test_other_words_for_the_same_meaning_are_of_the_same_concepts(frame: Frame, draw: Draw):
    home = {
        form: (field, at)
        for field, concepts in enumerate(FIELDS)
        for at, concept in enumerate(concepts)
        for word in concept
        for form in word
    }
    first, second = in_words([frame, frame], draw)
    assert first != second
    meanings = [sorted(str(home[word]) for word in words(text) if word in home) for text in (first, second)]
    assert meanings[0] == meanings[1]
    assert len(meanings[0]) == 5


def test_sentences_worked_by_hand():
    plain = Wording(False, False, (0,) * len(SLOTS))
    knife = Frame(False, agent=0, action=6, object=16, quality=0, number=2, place=2)
    assert say(knife, plain) == "The doctor hid three old knives near the river."
    assert say(knife, plain._replace(passive=True)) == "Three old knives were hidden by the doctor near the river."
    assert say(knife._replace(agent=-1, place=None), plain._replace(passive=True)) == "Three old knives were hidden."
    assert say(knife._replace(agent=-2, number=0), plain) == "Nobody hid an old knife near the river."
    helped = Frame(True, agent=1, action=0, object=2, quality=None, number=None, place=14)
    assert say(helped, plain._replace(fronted=True)) == "Behind the house, the teacher helped the child."


@given(frames, draws)
def test_what_follows_says_less_and_what_contradicts_differs_in_one_thing(frame: Frame, draw: Draw):
    premise, follows, contradicts = entailment(frame, draw)
    assert premise == frame
    unsaid = [slot for slot in SLOTS if getattr(follows, slot) != getattr(frame, slot)]
    assert 1 <= len(unsaid) <= 2
    assert all(getattr(follows, slot) in (None, -1) for slot in unsaid)
    assert sum(getattr(contradicts, slot) != getattr(frame, slot) for slot in SLOTS) == 1


GRADES = {word: grade for grade, opinions in lexicon.OPINIONS.items() for word in opinions}
GRADES |= {form: grade for grade, verbs in lexicon.FEELINGS.items() for verb in verbs for form in verb[0]}


def grade_of(clause: str) -> int:
    """The rule of the class, written once more, from the words alone."""
    if {"although", "but"} & set(words(clause)):
        one, two = map(grade_of, re.sub(r"although |but ", "", clause.lower()).split(", "))
        assert one * two < 0
        return 1 if two > 0 else -1
    if " and " in clause:
        one, two = (grade_of(part) for part in clause.split(" and "))
        assert one == two
        return one
    if "neither" in words(clause):
        return 0
    (grade,) = (GRADES[word] for word in words(clause) if word in GRADES)
    sign = (grade > 0) - (grade < 0)
    if "not" in words(clause):
        return -sign
    if set(words(clause)) & set(lexicon.STRONGER):
        return 2 * sign
    if set(words(clause)) & set(lexicon.WEAKER):
        return sign
    return grade


@settings(max_examples=500)
@given(st.integers(0, 4), draws)
def test_the_class_of_a_sentence_follows_from_its_words(label: int, draw: Draw):
    assert grade_of(sentiment(label, draw)) == label - 2


def overlap(examples) -> np.ndarray:
    pairs = [[set(words(text)) for text in row] for row in rows(examples)]
    return np.array([len(a & b) / len(a | b) for a, b in pairs])


def test_word_overlap_helps_and_does_not_suffice():
    """What a model without any knowledge of words gets: above chance, and well below what there is to learn."""
    similar = Generated(task="similarity").load("train")
    assert 0.4 < np.corrcoef(overlap(similar), similar.labels)[0, 1] < 0.85
    pairs = Generated(task="paraphrase").load("train")
    shares = overlap(pairs)
    best = max(((shares >= cut) == pairs.labels).mean() for cut in np.unique(shares))
    assert 0.65 < best < 0.85
