"""Natural language inference: SNLI and SICK, as pairs or as triples for contrastive learning."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from taskloom.core import DataError, Examples, Labels, Split, unknown
from taskloom.core.rows import UnreadableError
from taskloom.plugins.datasets.folder import FolderDataSet
from taskloom.plugins.datasets.labels import spellings_of
from taskloom.plugins.datasets.reading import FileLayout, read_examples

#: The classes of natural language inference, in the order of their numbers.
RELATIONS = ("entailment", "neutral", "contradiction")
CLASSES = Labels.of_classes(len(RELATIONS), RELATIONS)
#: The gold label of an SNLI pair on which the annotators did not agree.
UNDECIDED = "-"
#: The names of the splits in SICK.
PARTS: dict[Split, str] = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}
#: Both directions of a pair in SICK: its texts, the column that relates them, and the names of the relations there.
DIRECTIONS = (
    (("sentence_A", "sentence_B"), "entailment_AB", ("A_entails_B", "A_neutral_B", "A_contradicts_B")),
    (("sentence_B", "sentence_A"), "entailment_BA", ("B_entails_A", "B_neutral_A", "B_contradicts_A")),
)


class SNLI(FolderDataSet):
    """SNLI as it is distributed (JSON lines): pairs in three classes, or triples for contrastive learning.

    ``task: "entailment"`` gives premise and hypothesis with the classes entailment (0), neutral (1) and
    contradiction (2); ``task: "triples"`` gives premise, entailment and contradiction without labels, for premises
    that have both: the k-th entailment with the k-th contradiction. Pairs without a gold label ("-") are left out,
    as the corpus recommends. A row that cannot be read is skipped and named; more than 1 % of a file is an error.

    Reads: ``snli_1.0_train.jsonl``, ``snli_1.0_dev.jsonl``, ``snli_1.0_test.jsonl``; of each line ``gold_label``,
    ``sentence1``, ``sentence2`` and ``pairID``.

    Options:
        task: entailment (pairs, 3 classes) or triples (no labels).

    Siblings: ``sick`` has the same tasks, ``generated`` with ``task: "entailment"`` makes triples without files.

    Reference: Bowman et al., "A large annotated corpus for learning natural language inference", EMNLP 2015.

    Example: ``{"tasks": {"nli": {"data": {"name": "snli", "task": "triples", "dir": "$DATA/snli_1.0"}}}}``
    """

    name = "snli"
    stand_ins = ("sick",)

    def __init__(self, *, task: Literal["entailment", "triples"], **options: Any) -> None:
        super().__init__(**options)
        self.task = task
        self.reading = {"task": task}
        self.files = {split: f"snli_1.0_{split}.jsonl" for split in PARTS}
        self.columns = 2 if task == "entailment" else 3
        self.labels = CLASSES if task == "entailment" else None
        self.layout = FileLayout(
            texts=("sentence1", "sentence2"),
            label="gold_label",
            id="pairID",
            labels=CLASSES,
            spellings=spellings_of(list(RELATIONS)),
            format="jsonl",
            strict=self.strict,
            keep=lambda values: values.get("gold_label") != UNDECIDED,
        )

    def read(self, split: Split) -> Examples:
        if self.task == "entailment":
            return super().read(split)
        pairs = read_examples(self.path(split), self.layout, needs_labels=True)
        return triples_of([pairs], str(self.path(split)))


class SICK(FolderDataSet):
    """SICK as it is distributed (one tab-separated file): inference, relatedness, or triples.

    ``task: "entailment"`` gives pairs with the classes entailment (0), neutral (1) and contradiction (2);
    ``task: "relatedness"`` the same pairs with a value from 1 to 5; ``task: "triples"`` premise, entailment and
    contradiction without labels. For triples every pair is read in both directions (``entailment_AB`` and
    ``entailment_BA``), and the k-th entailment of a premise goes with its k-th contradiction. The column
    ``SemEval_set`` says which split a row is in: TRAIN, TRIAL (dev) or TEST. A row that cannot be read is skipped and
    named; more than 1 % of a split is an error.

    Reads: ``SICK.txt``.

    Options:
        task: entailment (pairs, 3 classes), relatedness (pairs, 1 to 5) or triples (no labels).

    Siblings: ``snli`` has the same tasks and fifty times the pairs.

    Reference: Marelli et al., "A SICK cure for the evaluation of compositional distributional semantic models",
    LREC 2014.

    Example: ``{"tasks": {"nli": {"data": {"name": "sick", "task": "triples", "dir": "$DATA/sick"}}}}``
    """

    name = "sick"

    def __init__(self, *, task: Literal["entailment", "relatedness", "triples"], **options: Any) -> None:
        super().__init__(**options)
        self.task = task
        self.reading = {"task": task}
        self.files = dict.fromkeys(PARTS, "SICK.txt")
        self.columns = 3 if task == "triples" else 2
        self.labels = {"entailment": CLASSES, "relatedness": Labels.of_range(1, 5), "triples": None}[task]
        self.layout = FileLayout(
            texts=DIRECTIONS[0][0],
            label="relatedness_score" if task == "relatedness" else "entailment_label",
            id="pair_ID",
            labels=self.labels,
            spellings={} if task == "relatedness" else spellings_of([name.upper() for name in RELATIONS]),
            format="tsv",
            quotes=False,
            strict=self.strict,
        )

    def read(self, split: Split) -> Examples:
        def belongs(values: Mapping[str, object]) -> bool:
            part = str(values.get("SemEval_set", "")).strip()
            if part not in PARTS.values():
                raise UnreadableError(f"SemEval_set: {unknown('split', part[:40], PARTS.values())}")
            return part == PARTS[split]

        layout, path = replace(self.layout, keep=belongs), self.path(split)
        if self.task != "triples":
            return read_examples(path, layout, needs_labels=split != "test")
        directions = [
            replace(layout, texts=texts, label=column, spellings=spellings_of(list(names)), labels=CLASSES)
            for texts, column, names in DIRECTIONS
        ]
        pairs = [read_examples(path, direction, needs_labels=True) for direction in directions]
        return triples_of(pairs, f"{path}, {PARTS[split]}")


def triples_of(pairs: Sequence[Examples], where: str) -> Examples:
    """Triples without labels, for every premise that has both, in the order in which premises first appear.

    The k-th entailment of a premise goes with its k-th contradiction, as long as it has both; a sentence that occurs
    twice counts once, and one that is labelled both ways counts for neither. ``where`` is for errors.
    """
    hypotheses: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # premise → hypothesis → id, for both relations
    for part in pairs:
        assert part.labels is not None
        for premise, hypothesis, label, pair_id in zip(*part.columns, part.labels, part.ids, strict=True):
            entailments, contradictions = hypotheses.setdefault(premise, ({}, {}))
            if RELATIONS[int(label)] != "neutral":
                relation = entailments if RELATIONS[int(label)] == "entailment" else contradictions
                relation.setdefault(hypothesis, pair_id)
    rows, ids = [], []
    for premise, (entailments, contradictions) in hypotheses.items():
        consistent = entailments.keys() ^ contradictions.keys()
        usable = [
            [(text, pair_id) for text, pair_id in relation.items() if text in consistent]
            for relation in (entailments, contradictions)
        ]
        for (entailment, entailment_id), (contradiction, contradiction_id) in zip(*usable, strict=False):
            rows.append((premise, entailment, contradiction))
            ids.append(f"{entailment_id}+{contradiction_id}")
    if not rows:
        raise DataError(f"{where}: no premise has both an entailment and a contradiction, so there are no triples")
    skipped = dict.fromkeys(line for part in pairs for line in part.skipped)
    return Examples(tuple(zip(*rows, strict=True)), None, tuple(ids), tuple(skipped))
