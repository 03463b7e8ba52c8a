"""The packaged grids against the papers' own words: settings, slips, claims, and what a claim's two rows differ in."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from taskloom.core import Pool, Sampler
from taskloom.core.specs import ClaimSpec, RunSpec, plain
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.grid.expansion import copied, expand
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.paths import PathError, assign, matches

MARGIN, COSINE, TUNING, LOSING, ROBUST = PAPERS = (
    "margin-for-error",
    "cosine-surgery",
    "finetuning-techniques",
    "losing-to-win",
    "robust-embeddings",
)
SEQUENTIAL = {"name": "sequential", "order": ["para", "sst", "sts"], "batch_size": 32}
SHUFFLED = {"name": "mixed", "weights": "proportional", "batch_size": 32}  # batches of one task each
#: Grid, rows, path, value, and what the paper says, in our words.
SETTINGS: list[tuple[str, str, str, Any, str]] = [
    (MARGIN, "3-margin: dynamic*", "tasks.para.loss.follows", "overall", "Algorithm 1: one metric of the dev set"),
    (MARGIN, "3-margin*reversed", "tasks.sts.loss.direction", "up", "5.3: less sensitive, or more, after a loss"),
    (MARGIN, "3-margin*reversed", "tasks.para.loss.direction", "up", "5.3: less sensitive, or more, after a loss"),
    (MARGIN, "4-test*", "tasks.sts.loss.follows", "overall", "Algorithm 1: one metric of the dev set"),
    (MARGIN, "*surgery", "stages.0.combiner.reduction", "sum", "4.3: the three projected gradients are added up"),
    (MARGIN, "1-minbert: frozen*", "stages.0.optimizer.lr", 1e-3, "5.3: rate of pretraining"),
    (MARGIN, "1-minbert: finetune*", "stages.0.optimizer.lr", 1e-5, "5.3: rate of finetuning"),
    (MARGIN, "[23]*", "stages.0.sampler.batch_size", 8, "5.3: batch 8"),
    (COSINE, "*", "tasks.para.head.layout", "concatenated", "4: input ids and masks of the two are concatenated"),
    (COSINE, "2-*", "tasks.sts.head.layout", "concatenated", "4: surgery keeps linear heads over one embedding"),
    (COSINE, "control*", "stages.0.combiner", "sum", "4: the three losses are added, then a step is taken"),
    (COSINE, "[13]-*", "tasks.sts.head.relu", True, "4: the cosine is clamped by ReLU"),
    (COSINE, "[13]-*", "tasks.sts.head.scale", 5.0, "4: and scaled by 5"),
    (TUNING, "Baseline", "stages.0.sampler.name", "alternating", "5.3.1: each task is trained individually"),
    (TUNING, "*SMART*", "stages.0.sampler.name", "round_robin", "4.4: updated losses are combined to a total"),
    (TUNING, "SMART Loss", "stages.0.combiner", "sum", "4.4: updated losses are combined to a total"),
    (TUNING, "SMART Loss w/ 3x*", "stages.0.combiner", "sum", "4.4: updated losses are combined to a total"),
    (TUNING, "*SMART*", "tasks.*.loss.ascent", "one_way", "4.4: the framework of a preexisting library"),
    (TUNING, "*SMART*", "tasks.*.loss.kl_target", "detached", "4.4: the framework of a preexisting library"),
    (TUNING, "*SMART*", "tasks.*.loss.weight", 5, "4.4: λ"),
    (TUNING, "*SMART*", "tasks.*.loss.step", 1e-3, "4.4: η"),
    (TUNING, "*SMART*", "tasks.*.loss.epsilon", 1e-5, "4.4: ε"),
    (TUNING, "*SMART*", "tasks.*.loss.noise", 1e-5, "4.4: σ"),
    (TUNING, "Multitask Learning*", "tasks.sts.head.dropout", 0.0, "2bii introduces dropout"),
    (TUNING, "*(2d+1 features)*", "tasks.sts.head.dropout", 0.3, "2bii introduces dropout"),
    (TUNING, "*Mean Pooling", "tasks.sts.head.pooling", "mean", "2c builds on the extension of STS"),
    (TUNING, "control*all tasks", "encoder.pooling", "mean", "2c, the other reading"),
    (TUNING, "*", "encoder.pooling", "cls", "2c: [CLS] is the default pooling"),
    (TUNING, "Cosine Embeddings Loss", "tasks.sts.loss.positive_from", 2.5, "4.3: threshold 2.5"),
    (TUNING, "*3x*", "stages.0.sampler.iterations", "3x", "4.5: three times the iterations"),
    (LOSING, "Multitask*MNR", "stages.0.sampler.run_out", "as_shuffled", "5.3: the same hyperparameters throughout"),
    (LOSING, "Multitask*MNR", "tasks.para.loss.negatives", "pairs", "4.4, formula: products of a_i and b_i"),
    (LOSING, "Multitask*MNR", "tasks.para.loss.name", "mnr_hinge", "4.4: the loss of the paraphrase task"),
    (LOSING, "Multitask + MSE*", "tasks.sts.head.scale", 1.0, "4.5: the cosine as it is against the label"),
    (LOSING, "Multitask + Cos", "tasks.sts.loss.positive_from", 3, "4.3: similar from 3 to 5"),
    (ROBUST, "[23] RR*", "tasks.sst.head.layers", 1, "Fig. 1: a dense layer before the prediction of SST"),
    (ROBUST, "[23] RR*", "tasks.sst.head.activation", "tanh", "Fig. 2: dense layers are followed by tanh"),
    (ROBUST, "[23] RR*", "tasks.para.head.layout", "concatenated", "4: input ids and masks are concatenated"),
    (ROBUST, "*+ CL*", "tasks.para.head.head.layout", "concatenated", "4: input ids and masks are concatenated"),
    (ROBUST, "*+ CL*", "tasks.sts.head.head.layout", "concatenated", "4: input ids and masks are concatenated"),
    (ROBUST, "1 VM", "tasks.*.head.last_activation", "tanh", "4: a linear layer followed by an activation"),
    (ROBUST, "[789] *", "stages.0.sampler.mix", "rows", "3.3: sentences are sampled to make a batch"),
    (ROBUST, "[789] *", "stages.0.combiner", "mean", "3.3: the average of individual task losses"),
    (ROBUST, "1[0134] *", "stages.0.sampler.mix", "rows", "3.3: sentences are sampled to make a batch"),
    (ROBUST, "1[0134] *", "stages.0.combiner", "mean", "3.3: the average of individual task losses"),
    (ROBUST, "*SimCSE*", "stages.1.sampler.mix", "rows", "3.3: sentences are sampled to make a batch"),
    (ROBUST, "*SimCSE*", "stages.1.combiner", "mean", "3.3: the average of individual task losses"),
    (ROBUST, "control: 7, prop*", "stages.0.sampler", SHUFFLED, "R4 asks about the order of the same batches"),
    (ROBUST, "control: 14*", "tasks.pairs.loss.name", "mnr", "3.2: multiple negatives ranking for paraphrases"),
    (ROBUST, "12*", "stages.0.sampler.batch_size", 8, "6.2: batches of 8 of each task"),
    (ROBUST, "5.1*", "stages.1.sampler.batch_size", 32, "5.1: batch 32"),
    (ROBUST, "5.1*", "stages.1.epochs", 5, "5.1: 5 epochs"),
    (ROBUST, "5.1*", "stages.0.tasks", ["nli"], "5.1: from the additionally pretrained model"),
    (ROBUST, "*SimCSE*", "stages.0.epochs", 100, "4: 100 epochs on SNLI"),
    (ROBUST, "12*", "stages.0.combiner.reduction", "mean", "4: the mean of the gradients"),
    (ROBUST, "control: 2, sequential", "stages.0.sampler", SEQUENTIAL, "6.2: experiment 2 is called sequential"),
]


def specs_of(name: str) -> dict[str, dict[str, Any]]:
    return {variant.label: variant.spec for variant in expand(load_grid(name)).variants}


@pytest.mark.parametrize(("name", "rows", "path", "value", "says"), SETTINGS)
def test_a_setting_is_what_the_paper_says(name: str, rows: str, path: str, value: Any, says: str) -> None:
    found = {label: spec for label, spec in specs_of(name).items() if fnmatchcase(label, rows)}
    if not rows.startswith("control"):
        found = {label: spec for label, spec in found.items() if not label.startswith("control:")}
    assert found
    for label, spec in found.items():
        assert matches(spec, path, value), f"{label}: {says}"


def test_rows_with_and_without_the_ranking_loss_take_the_same_steps() -> None:
    samplers = [spec["stages"][-1]["sampler"] for label, spec in specs_of(LOSING).items() if label != "Default"]
    assert {(each["batch_size"], each["iterations"]) for each in samplers} == {(8, "largest")}
    assert all("one_positive" not in str(each) or each["run_out"] == "as_shuffled" for each in samplers)


def test_all_margins_steps_and_directions_of_the_dynamic_margin_are_rows() -> None:
    losses = [
        spec["tasks"]["sts"]["loss"]
        for label, spec in specs_of(MARGIN).items()
        if label.startswith("3-margin: dynamic")
    ]
    tried = [(loss["margin"], loss["step"], loss.get("direction", "down")) for loss in losses]
    assert sorted(tried) == sorted(product([0, 0.25, 0.5], [0.05, 0.1, 0.2], ["down", "up"]))


@pytest.mark.parametrize(("larger", "smaller"), [("8 MT-DNN + PH + CL", "7 MT-DNN + PH + CL"), ("5 RR*", "4 RR*")])
def test_rows_of_different_batch_sizes_go_through_the_same_data(larger: str, smaller: str) -> None:
    sizes = {"sst": 854, "para": 14151, "sts": 604}  # a tenth of the paper's
    numbers = {task: np.arange(size) for task, size in sizes.items()}
    pools = {task: Pool(len(rows), None, rows, rows[:, None]) for task, rows in numbers.items()}
    rows, steps = {}, {}
    for pattern in (larger, smaller):
        (stages,) = [spec["stages"] for label, spec in specs_of(ROBUST).items() if fnmatchcase(label, pattern)]
        sampler = load_catalogue().make(Sampler, stages[0]["sampler"])
        sampler.prepare(pools, generator=torch.Generator())
        rows[pattern], steps[pattern] = Counter[str](), 0
        for group in sampler.epoch():
            rows[pattern].update({part.task: len(part.rows) for part in group})
            steps[pattern] += stages[0]["epochs"]
    for task in sizes:
        assert rows[larger][task] == pytest.approx(rows[smaller][task], abs=64), "up to a last batch"
    assert 2 * steps[larger] == pytest.approx(steps[smaller], rel=0.02)


SLIPS = {
    (COSINE, "2-surgery-layers: 2 LL in all heads"): "0.864",
    (COSINE, "2-surgery-epochs: 20 epochs"): "dropout 0.5",
    (COSINE, "1-cosine-holy-grail: 1 LL in STS head, dropout 0.5"): "the table 10",
    (ROBUST, "4 RR + PH + CL"): "0.483",
    (ROBUST, "2 RR + PH"): "sequential",
    (ROBUST, "3-test: MT-DNN + DPHA + CL (14)"): "0.537",
    (MARGIN, "4-test: dynamic 0 step 0.05 + surgery"): "slip",
    (MARGIN, "1-minbert: finetune / cfimdb"): "slip",
    (LOSING, "Multitask + MNR"): "never trained",
    (LOSING, "Multitask + MSE + MNR"): "never trained",
    (TUNING, "SMART Loss w/ GSE"): "out of memory",
}


def test_slips_are_recorded_beside_their_rows() -> None:
    for (name, label), words in SLIPS.items():
        assert words in {cell.label: cell.note for cell in load_grid(name).spec.cells}[label]


def test_only_controls_and_rows_without_figures_have_none() -> None:
    silent = [cell.label for name in PAPERS for cell in load_grid(name).spec.cells if not cell.reported]
    others = [label for label in silent if not label.startswith("control: ")]
    dynamic = [label for label in others if label.startswith("3-margin: dynamic ")]
    assert len(dynamic) == 15
    assert sorted(set(others) - set(dynamic)) == ["5.1: MT-DNN + DPHA + CL + SimCSE, batch 32", "SMART Loss w/ GSE"]
    for name in PAPERS:
        for cell in load_grid(name).spec.cells:
            assert not cell.label.startswith("control: ") or cell.note, "a control says what it is for"


# Alternatives


def alternatives(name: str) -> Iterator[tuple[list[str], dict[str, Any], str]]:
    """What notes say can be run instead: the patterns of rows, the settings, and the words themselves."""
    spec = load_grid(name).spec
    word = r"(?:'[^']*'|[^\s']+)"
    for label, note in [("*", note) for note in spec.notes] + [(cell.label, cell.note) for cell in spec.cells]:
        for found in re.finditer(rf"(?:--(?:only|set) {word}\s?)+", note):
            words = shlex.split(found[0].rstrip(" .,:;"))
            given = [(option, value.rstrip(",.:;")) for option, value in zip(words[::2], words[1::2], strict=True)]
            settings = dict(value.split("=", 1) for option, value in given if option == "--set")
            rows = [value for option, value in given if option == "--only"]
            yield rows or [label], {path: parsed(value) for path, value in settings.items()}, found[0]


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@pytest.mark.parametrize("name", PAPERS)
def test_every_alternative_that_a_note_names_is_valid_and_changes_the_rows_it_is_for(name: str) -> None:
    catalogue, specs = load_catalogue(), specs_of(name)
    found = list(alternatives(name))
    assert len(found) >= 5
    for patterns, settings, words in found:
        chosen = [label for label in specs if any(label == one or fnmatchcase(label, one) for one in patterns)]
        assert chosen, words
        for label in chosen:
            before = plain(RunSpec.model_validate(specs[label]))
            after = copied(before)
            try:
                for path, value in settings.items():
                    assign(after, path, value)
            except PathError:
                assert patterns == ["*"], f"{words}: {label} has no such place"
                continue
            resolved, problems = catalogue.resolve_run(after)
            assert not problems, f"{words}: {label}"
            assert patterns == ["*"] or resolved != catalogue.resolve_run(before)[0], f"{words}: nothing new in {label}"


# Claims

#: How many claims a paper has, by the letter of its claims.
CLAIMS = {MARGIN: ("M", 5), COSINE: ("C", 9), TUNING: ("T", 9), LOSING: ("L", 5), ROBUST: ("R", 12)}
EQUIVALENCES = {"C5", "C7", "C8", "C9", "R10", "R11"}


def claims_of(name: str) -> Iterator[tuple[str, bool, ClaimSpec]]:
    """The claims of a grid, each with its id and whether a control answers it."""
    for claim in load_grid(name).spec.claims:
        found = re.match(r"([A-Z]\d+)( \(control\))?: ", claim.says)
        assert found, claim.says
        yield found[1], bool(found[2]), claim


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_of_a_paper_is_in_its_grid(name: str) -> None:
    letter, count = CLAIMS[name]
    ids = list(dict.fromkeys(id for id, _, _ in claims_of(name)))
    assert ids == [f"{letter}{number}" for number in range(1, count + 1)], "all of them, in order"
    assert {id for id, _, claim in claims_of(name) if claim.equal} == {id for id in EQUIVALENCES if id[0] == letter}
    rows = [row for _, _, claim in claims_of(name) for row in (*claim.rows, *claim.than)]
    controls = [label for label in specs_of(name) if label.startswith("control: ")]
    assert set(controls) <= set(rows), "a control that answers nothing"


#: What the two rows of a clean claim may differ in. What the paper ran with more differences has a control.
CLEAN = {
    "M1": ["stages.0.combiner*"],
    "M2": ["tasks.para.loss.*", "tasks.sts.loss.*"],
    "M3": ["tasks.para.loss.margin", "tasks.sts.loss.margin", "tasks.para.loss.step", "tasks.sts.loss.step"],
    "M4": ["tasks.para.head.*", "tasks.sts.head.*", "tasks.para.loss*", "tasks.sts.loss*"],
    "M5 control": ["stages.0.frozen"],
    "C1": ["stages.0.combiner*"],
    "C2": ["tasks.sts.head.*"],
    "C3": ["tasks.sts.head.*", "stages.0.combiner*"],
    "C4": ["tasks.sts.head.*", "stages.0.combiner*"],
    "C5": ["tasks.*.head.dropout"],
    "C6": ["stages.0.epochs"],
    "C7": ["tasks.*.head.layers"],
    "C8": ["tasks.*.head.layers"],
    "C9": ["tasks.*.head.dropout", "tasks.*.head.layers", "stages.0.epochs"],
    "T1 control": ["stages.0.sampler.name", "stages.0.sampler.iterations"],
    "T2": ["stages.0.combiner*"],
    "T3 control": ["stages.0.combiner*", "stages.0.sampler.iterations"],
    "T4": ["tasks.sts.head.*", "tasks.sts.loss*"],
    "T5 control": ["tasks.sts.head.name", "tasks.sts.head.reads"],
    "T6": ["tasks.sts.head.pooling"],
    "T6 control": ["encoder.pooling"],
    "T7": ["tasks.*.loss*"],
    "T8": ["stages.0.sampler.iterations"],
    "T9": ["tasks.*.loss*"],
    "L1 control": ["stages.0.sampler.name"],
    "L2": ["tasks.sts.loss*"],
    "L3 control": ["tasks.sts.head.*", "tasks.sts.loss*"],
    "L4 control": ["tasks.para.loss*"],
    "L5 control": ["tasks.para.loss*"],
    "R1 control": ["stages.0.sampler.name"],
    "R2 control": ["tasks.*.head.*"],
    "R3 control": ["tasks.*.head.head.dropout"],
    "R4 control": ["stages.0.sampler.*"],
    "R5": ["stages.0.sampler.batch_size"],
    "R6": ["tasks.para.head.head.difference"],
    "R7 control": ["stages.0.sampler.weights*"],
    "R8": ["tasks.*.head.dropout"],
    "R9 control": ["stages.0.combiner*"],
    "R10 control": ["tasks.nli.*", "stages.*"],
    "R12 control": ["tasks.nli.*", "tasks.pairs.*", "stages.*"],
}
#: Confounded as the paper ran them, by design or because its controls are missing; R11 is about whole models.
CONFOUNDED = {"M5", "T1", "T3", "T5", "L1", "L3", "L4", "L5", "R1", "R3", "R4", "R7", "R10", "R11", "R12"}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}.{place}")
    else:
        yield path, value


@pytest.mark.parametrize("name", PAPERS)
def test_the_rows_of_a_clean_claim_differ_in_nothing_else(name: str) -> None:
    specs = {label: dict(leaves(spec)) for label, spec in specs_of(name).items()}
    seen = set()
    for id, control, claim in claims_of(name):
        key = f"{id} control" if control else id
        if key in CONFOUNDED:
            continue
        ((row,), (compared_with,)) = claim.rows, claim.than
        one, other = specs[row], specs[compared_with]
        differing = [path for path in one.keys() | other.keys() if one.get(path) != other.get(path)]
        assert differing, claim.says
        wrong = [path for path in differing if not any(fnmatchcase(path, allowed) for allowed in CLEAN[key])]
        assert not wrong, claim.says
        seen.add(key)
    letter, _ = CLAIMS[name]
    assert seen == {key for key in CLEAN if key[0] == letter}
