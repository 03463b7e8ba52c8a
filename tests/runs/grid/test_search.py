"""The search of a grid: one design for all rows, planned from the grid and the ledger, errors found at planning."""

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskloom.core import RequestError
from taskloom.core.data import Examples
from taskloom.core.specs import RangeSpec
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.records import CellRecord, EpochRecord
from taskloom.runs.analysis.tuning import at_edges
from taskloom.runs.grid.expansion import Trial
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.hold_out import split_off
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.plan import Plan, make_plan
from taskloom.runs.grid.samplers import ask_optuna, design
from taskloom.runs.grid.search import RowSearch, edges, result_of
from taskloom.runs.show.plan import plan_parts

BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
    "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 8}}},
    "stages": [{"epochs": 6, "optimizer": {"lr": 0.001}}],
}
LR = {"stages.0.optimizer.lr": {"log": [1e-4, 1e-2]}}
NO_CHANGES: Mapping[str, Any] = {}
CELLS: list[dict[str, Any]] = [{"label": "sum"}, {"label": "surgery", "set": {"stages.0.combiner": "pcgrad"}}]
RANGES = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    st.tuples(st.floats(1e-6, 1.0), st.floats(1.5, 1e4)).map(lambda ends: RangeSpec(log=(ends[0], ends[0] * ends[1]))),
    st.tuples(st.floats(-5, 5), st.floats(0.1, 10)).map(lambda ends: RangeSpec(uniform=(ends[0], ends[0] + ends[1]))),
)
OVER = st.lists(RANGES, min_size=1, max_size=3).map(
    lambda ranges: {f"p{index}": each for index, each in enumerate(ranges)}
)


def write(folder: Path, search: Mapping[str, Any] | None, **keys: Any) -> Path:
    path = folder / "grid.json"
    grid: dict[str, Any] = {"base": BASE, "cells": CELLS, "seeds": [0, 1]}
    grid["search"] = None if search is None else {"over": LR, "trials": 4, **search}
    path.write_text(json.dumps({**grid, **keys}))
    return path


def planned(
    folder: Path, search: Mapping[str, Any] | None = NO_CHANGES, *, over: Overrides | None = None, **keys: Any
) -> Plan:
    return make_plan(load_grid(str(write(folder, search, **keys))), load_catalogue(), None, overrides=over)


def trials_of(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Row → the settings of its trials, in order."""
    assert plan.trials is not None
    settings: dict[str, list[dict[str, Any]]] = {}
    for cell in plan.trials.cells:
        assert cell.trial is not None
        settings.setdefault(f"{cell.trial.row} {cell.trial.seed}", []).append(cell.trial.settings)
    return settings


def test_a_learning_rate_far_above_the_usual_ones_is_named_where_trials_have_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"over": {"stages.0.optimizer.lr": [0.001, 30.0]}, "trials": 2})
    assert [remark for remark in plan.remarks if "more than 100 times" in remark] == [
        "stages.0.optimizer.lr: 30 is more than 100 times the learning rates in common use (up to 0.01 here); "
        "training will probably diverge"
    ]


# The design


@given(OVER, st.integers(0, 2**62), st.integers(1, 12), st.integers(0, 12))
def test_more_trials_begin_with_those_of_fewer(over: Any, seed: int, trials: int, further: int) -> None:
    fewer, more = design(over, trials, seed), design(over, trials + further, seed)
    assert more[: len(fewer)] == fewer


@given(OVER, st.integers(0, 2**62), st.integers(1, 12))
def test_every_value_lies_in_its_range_and_no_listed_combination_is_drawn_twice(
    over: Any, seed: int, trials: int
) -> None:
    drawn = design(over, trials, seed)
    for point, (path, values) in product(drawn, over.items()):
        low, high = (min(values), max(values)) if isinstance(values, list) else values.bounds
        assert low <= point[path] <= high
    if all(isinstance(values, list) for values in over.values()):
        everything = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
        assert len(drawn) == min(trials, len(everything))
        assert len({json.dumps(point) for point in drawn}) == len(drawn)
    else:
        assert len(drawn) == trials


@given(OVER, RANGES, st.integers(0, 2**62), st.integers(1, 9))
def test_rows_have_the_same_values_on_the_paths_that_they_share(over: Any, own: Any, seed: int, trials: int) -> None:
    """A row that searches further paths has the settings of the others first; lists alone may be used up before."""
    shared, further = design(over, trials, seed), design({**over, "own": own}, trials, seed)
    assert [{path: point[path] for path in over} for point in further[: len(shared)]] == shared
    assert len(further) >= len(shared)


def test_a_logarithmic_range_is_covered_evenly() -> None:
    drawn = sorted(point["lr"] for point in design({"lr": RangeSpec(log=(1e-4, 1.0))}, 16, 3))
    assert all(1e-4 * 10 ** (index / 4) <= value <= 1e-4 * 10 ** ((index + 1) / 4) for index, value in enumerate(drawn))


# The plan


def test_all_rows_have_the_same_trials_and_none_of_the_grids_seeds(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.trials is not None
    assert trials_of(plan)["sum None"] == trials_of(plan)["surgery None"]
    specs = [cell.spec for cell in plan.trials.cells]
    assert len({json.dumps(spec["hold_out"]) for spec in specs}) == 1
    assert len({spec["seed"] for spec in specs}) == 1
    assert specs[0]["seed"] not in (0, 1)
    assert (plan.cells, len(plan.waiting)) == ((), 4)


def test_a_row_may_search_options_of_its_own_with_the_same_number_of_trials(tmp_path: Path) -> None:
    own = {"over": {"tasks.sst.head.dropout": {"uniform": [0.0, 0.5]}}}
    drawn = trials_of(planned(tmp_path, cells=[CELLS[0], {**CELLS[1], "search": own}]))
    path = "stages.0.optimizer.lr"
    assert [point[path] for point in drawn["sum None"]] == [point[path] for point in drawn["surgery None"]]
    assert all(0 < point["tasks.sst.head.dropout"] < 0.5 for point in drawn["surgery None"])
    assert len(drawn["surgery None"]) == 4


def test_each_seed_has_a_search_of_its_own_if_the_grid_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"per": "seed"})
    drawn = trials_of(plan)
    assert drawn["sum 0"] == drawn["surgery 0"] != drawn["sum 1"] == drawn["surgery 1"]
    assert plan.trials is not None
    assert len(plan.trials.cells) == 16
    for key in ("seed", "hold_out"):
        assert len({json.dumps(cell.spec[key]) for cell in plan.trials.cells}) == 2


def test_more_trials_keep_the_cells_of_fewer(tmp_path: Path) -> None:
    fewer, more = planned(tmp_path).trials, planned(tmp_path, {"trials": 7}).trials
    assert fewer is not None
    assert more is not None
    assert {(cell.label, cell.id) for cell in fewer.cells} < {(cell.label, cell.id) for cell in more.cells}


def test_a_run_without_a_search_has_the_identity_that_it_always_had(tmp_path: Path) -> None:
    untuned = planned(tmp_path, over=Overrides(tuned=False))
    assert untuned.grid.name == "grid+untuned"
    assert untuned.trials is None
    plain = planned(tmp_path, None)
    assert [cell.id for cell in untuned.cells] == [cell.id for cell in plain.cells]
    assert not any(key in json.dumps(cell.facts) for cell in plain.cells for key in ("hold_out", "patience"))


# What is held out


@settings(max_examples=50)
@given(st.lists(st.text("abc", max_size=2), min_size=2), st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_each_row_is_held_out_or_trained_on_and_equal_texts_stay_together(
    texts: list[str], share: float, seed: int
) -> None:
    if len(set(texts)) < 2:
        return
    ids = tuple(map(str, range(len(texts))))
    examples = Examples((tuple(texts), tuple(reversed(texts))), None, ids)
    if len({frozenset(pair) for pair in zip(*examples.columns, strict=True)}) < 2:
        return
    train, held = split_off(examples, {"share": share, "seed": seed})
    assert sorted((*train.ids, *held.ids)) == sorted(ids)
    assert len(train) > 0
    assert len(held) > 0
    sides = [{frozenset(pair) for pair in zip(*part.columns, strict=True)} for part in (train, held)]
    assert not sides[0] & sides[1]


def test_about_the_stated_share_is_held_out() -> None:
    examples = Examples((tuple(map(str, range(5000))),), None, tuple(map(str, range(5000))))
    held = [split_off(examples, {"share": 0.2, "seed": seed})[1] for seed in (0, 1)]
    assert all(abs(len(part) - 1000) < 120 for part in held)
    assert held[0].ids != held[1].ids


# What is chosen


def searched(scores: Mapping[str, Any], *, halving: bool = False, epochs: int = 6) -> RowSearch:
    """A search whose trials have these states: a score, the scores after each epoch, a failure, or None yet."""
    trials = []
    for number, (name, state) in enumerate(scores.items(), start=1):
        spec = {"stages": [{"epochs": epochs}], "selection": "overall"}
        record, told = None, []
        if isinstance(state, str):
            record = CellRecord(name, {}, state, "why")
        elif isinstance(state, list):
            record = CellRecord(name, {}, "finished" if len(state) == epochs else "interrupted")
            record.scores.update({"overall": max(state)} if len(state) == epochs else {})
            told = [EpochRecord(0, at, 1, 0.0, {}, {"overall": score}, {}) for at, score in enumerate(state, start=1)]
        elif state is not None:
            record = CellRecord(name, {}, "finished", scores={"overall": state})
        trials.append((Trial("row", None, number, {"lr": float(number)}), name, spec, record, told))
    return RowSearch("row", None, tuple(result_of(*trial, halving=halving) for trial in trials))


def test_the_best_trial_is_chosen_the_first_of_equals_and_failures_count_as_tried() -> None:
    best = searched({"a": 0.5, "b": 0.7, "c": "failed", "d": 0.7, "e": "oom"}).best
    assert best is not None
    assert best.cell == "b"
    assert searched({"a": 0.5, "b": None}).best is None
    assert searched({"a": 0.5, "b": None}).pending == {"b": None}
    hopeless = searched({"a": "failed", "b": "oom"})
    assert (hopeless.best, hopeless.pending, len(hopeless.failed)) == (None, {}, 2)


def test_halving_lets_the_better_third_go_on_by_what_they_had_after_a_third() -> None:
    new = searched(dict.fromkeys("abcd"), halving=True)
    assert new.pending == dict.fromkeys("abcd", 2)
    paused = {"a": [0.1, 0.2], "b": [0.3, 0.1], "c": "failed", "d": [0.2, 0.3], "e": [0.1, 0.1]}
    assert searched(paused, halving=True).pending == {"b": None, "d": None}  # two of five, of equals the first
    assert searched({**paused, "b": None}, halving=True).pending == {"b": 2}
    done = searched({**paused, "b": [0.3, 0.1, 0.1, 0.1, 0.1, 0.1], "d": [0.2, 0.3, 0.3, 0.3, 0.4, 0.4]}, halving=True)
    assert done.pending == {}
    assert done.best is not None
    assert (done.best.cell, done.best.score) == ("d", 0.4)
    assert [result.state for result in done.results] == ["paused", "finished", "failed", "finished", "paused"]
    assert searched(dict.fromkeys("ab"), halving=True, epochs=1).pending == {"a": None, "b": None}


def test_what_an_earlier_search_ran_beyond_a_third_does_not_count_under_halving() -> None:
    """So a search that has grown, or halves its trials since, chooses what a new one of the same size chooses."""
    late, better = [0.1, 0.2, 0.9, 0.9, 0.9, 0.9], [0.2, 0.3, 0.4, 0.4, 0.4, 0.4]
    new = searched({"a": late[:2], "b": "failed", "c": better}, halving=True).settled()
    for known in ({"a": late}, {"a": late[:4]}):
        grown = searched({**known, "b": "failed", "c": better}, halving=True).settled()
        assert grown == new
        assert grown.best is not None
        assert grown.best.cell == "c"
    whole = searched({"a": late, "b": "failed", "c": better}).settled()
    assert whole.best is not None
    assert whole.best.cell == "a"


def test_a_setting_at_the_edge_is_named_with_a_wider_range_that_the_row_can_run() -> None:
    search = searched({"a": 0.9, "b": 0.5, "c": 0.4})
    assert search.best is not None
    over = {"lr": [1.0, 2.0, 3.0]}
    assert list(edges(search, search.best.trial, over, lambda path, value: value > 0)) == []  # there is nothing below
    best = searched({"a": 0.4, "b": 0.5, "c": 0.9})
    assert best.best is not None
    named = list(edges(best, best.best.trial, over, lambda path, value: True))
    assert named == [{"path": "lr", "value": 3.0, "try": [1.0, 2.0, 3.0, 4.0]}]


def test_all_rows_at_one_edge_are_named_together() -> None:
    edge = {"path": "lr", "value": 3.0, "try": [1.0, 2.0, 3.0, 4.0]}
    rows = [{"row": row, "edges": [edge]} for row in ("sum", "surgery")] + [{"row": "mean", "edges": []}]
    edge_words = "best at the edge of what was tried, lr = 3.0; try [1.0, 2.0, 3.0, 4.0]."
    assert list(at_edges(rows)) == [f"'sum' and 'surgery' are {edge_words}"]
    seeds = [{"row": "sum", "edges": [edge]}, {"row": "sum", "edges": []}]
    assert list(at_edges(seeds)) == [f"'sum' (1 of 2 searches) is {edge_words}"]


# Errors


@pytest.mark.parametrize(
    ("keys", "search", "path", "words"),
    [
        (
            {},
            {"over": {"stages.0.optimizer.lr": {"log": [0.01, 0.001]}}},
            "search.over.stages.0.optimizer.lr",
            "low end",
        ),
        ({}, {"over": {"stages.0.optimizer.lr": {"log": [0, 0.001]}}}, "search.over.stages.0.optimizer.lr", "above 0"),
        ({}, {"over": {"stages.0.optimizer.lr": {}}}, "search.over.stages.0.optimizer.lr", '{"log": [low, high]}'),
        (
            {},
            {"over": {"stages.0.optimizer.lr": {"log": [1e-4, 1e-3, 1e-2]}}},
            "search.over.stages.0.optimizer.lr",
            'such as {"log": [1e-05, 0.0003]}',
        ),
        ({}, {"over": {"stages.0.optimizer.lr": []}}, "search.over.stages.0.optimizer.lr", "Found []"),
        ({}, {"over": {}}, "search.over", 'such as {"stages.0.optimizer.lr": {"log": [1e-05, 0.0003]}}. Found {}'),
        ({}, {"hold_out": 1.0}, "search.hold_out", "Found 1.0"),
        ({}, {"hold_out": 0}, "search.hold_out", "Found 0"),
        ({}, {"trials": 0}, "search.trials", "Found 0"),
        ({}, {"per": "cell"}, "search.per", "'row' or 'seed'"),
        ({}, {"halving": 1}, "search.halving", "Found 1"),
        ({}, {"sampler": "tpe"}, "search.sampler", "design"),
        ({}, {"triels": 3}, "search.triels", "did you mean 'trials'"),
        (
            {"axes": {"stages.0.optimizer.lr": [0.1]}},
            {},
            "search.over.stages.0.optimizer.lr",
            "axes.stages.0.optimizer.lr",
        ),
        ({"zip": [{"stages.*.optimizer.lr": [0.1]}]}, {}, "search.over.stages.0.optimizer.lr", "zip.0"),
        (
            {"cells": [{"label": "a", "set": {"stages.0.optimizer.lr": 0.1}}]},
            {},
            "search.over.stages.0.optimizer.lr",
            "cells.0.set",
        ),
        ({}, {"over": {"stages.1.optimizer.lr": [0.1]}}, "search.over.stages.1.optimizer.lr", "has only stages.0"),
        (
            {},
            {"over": {"stages.0.combiner.reduction": ["mean"]}},
            "search.over.stages.0.combiner.reduction",
            "[in 'sum'; other rows take it, and a cell may have a search of its own]",
        ),
        ({}, {"over": {"tasks.*.head.dropout": [0.1, 1.5]}}, "search.over.tasks.*.head.dropout", "Found 1.5"),
        ({}, {"over": {"stages.0.epochs": {"uniform": [1, 5]}}}, "search.over.stages.0.epochs", "list the values"),
        ({}, {"over": {"seed": [1]}}, "search.over.seed", "sets for its trials"),
        ({}, {"over": {"tasks.*.data.size": [50, 60]}}, "search.over.tasks.*.data.size", "is part of the data"),
        ({}, {"over": {"tasks.sst": [BASE["tasks"]["sst"]]}}, "search.over.tasks.sst", "with its data"),
        ({}, {"over": {"selection": ["overall", "sst"]}}, "search.over.selection", "what trials are scored by"),
        ({}, {"over": {"tasks.*.metric": ["accuracy"]}}, "search.over.tasks.*.metric", "what trials are scored by"),
        (
            {},
            {"over": {"stages.0.clip": [1.0], "stages.*.clip": [2.0]}},
            "search.over.stages.*.clip",
            "sets the same place as search.over.stages.0.clip",
        ),
        (
            {},
            {"over": {"stages.0.optimizer.lr": {"normal": [0, 1]}}},
            "search.over.stages.0.optimizer.lr.normal",
            "no key 'normal'",
        ),
        (
            {"cells": [{"label": "a", "search": {"over": LR}}]},
            {},
            "cells.0.search.over.stages.0.optimizer.lr",
            "is searched already",
        ),
        ({"cells": [{"label": "a", "search": {"over": LR}}]}, None, "cells.0.search", "missing"),
        (
            {"cells": [{"label": "a"}, {"label": "b", "search": {"over": {"stages.0.clip": [-1]}}}]},
            {},
            "cells.1.search.over.stages.0.clip",
            "Found -1",
        ),
        ({"base": {**BASE, "hold_out": {"share": 0.2}}}, {}, "search", "leave out the hold_out"),
        ({"base": {**BASE, "hold_out": {"share": 2}}}, None, "base.hold_out.share", "Found 2"),
    ],
)
def test_every_error_is_found_at_planning_with_its_path(
    tmp_path: Path, keys: dict[str, Any], search: dict[str, Any] | None, path: str, words: str
) -> None:
    with pytest.raises(RequestError) as raised:
        planned(tmp_path, search, **keys)
    problems = {problem.path: problem.message for problem in raised.value.problems}
    assert path in problems, problems
    assert words in problems[path]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selection": "last"}, 'selection is "last"'),
        ({"selection": "sts", "tasks": {**BASE["tasks"], "sts": BASE["tasks"]["sst"]}}, "before a later stage"),
        ({"stages": [{"patience": 0}]}, "Found 0"),
    ],
)
def test_patience_needs_a_score_to_watch(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    stages = [{"tasks": ["sst"], "patience": 2, "epochs": 3}, {"epochs": 1}]
    with pytest.raises(RequestError, match="patience") as raised:
        planned(tmp_path, None, base={**BASE, "stages": stages, **changes})
    assert words in str(raised.value)


def test_settings_of_the_command_line_and_the_search_do_not_mix(tmp_path: Path) -> None:
    setting = Overrides(settings={"stages.*.optimizer.lr": 0.1})
    with pytest.raises(RequestError, match="--untuned runs it without the search"):
        planned(tmp_path, over=setting)
    with pytest.raises(RequestError, match="has no search"):
        planned(tmp_path, None, over=Overrides(tuned=False))


# Optuna


@given(OVER, st.integers(0, 2**62), st.lists(st.floats(0, 1) | st.none(), max_size=6))
@settings(max_examples=15, deadline=None)
def test_optuna_asks_for_the_same_settings_when_it_is_told_the_same(over: Any, seed: int, scores: list[Any]) -> None:
    pytest.importorskip("optuna")
    asked = ask_optuna(over, 9, seed, scores)
    assert len(asked) == len(scores) + 1
    assert ask_optuna(over, len(scores), seed, scores) == asked[:-1]
    for known in range(len(scores)):
        assert ask_optuna(over, 9, seed, scores[:known]) == asked[: known + 1]
    for point, (path, values) in product(asked, over.items()):
        low, high = (min(values), max(values)) if isinstance(values, list) else values.bounds
        assert low <= point[path] <= high


def test_optuna_comes_closer_to_the_best_than_the_design() -> None:
    pytest.importorskip("optuna")
    over, scores = {"x": RangeSpec(uniform=(0.0, 1.0))}, []
    for _ in range(24):
        scores.append(-abs(ask_optuna(over, 24, 0, scores)[-1]["x"] - 0.3))
    assert max(scores) > max(-abs(point["x"] - 0.3) for point in design(over, 24, 0))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("random", "no sampler 'random'"),
        ({"name": "design", "seed": 1}, "'design' has no option 'seed' (options: none)"),
        ({"name": "optuna", "n_startup": 1}, "no option 'n_startup'; did you mean 'n_startup_trials'?"),
        ({"name": "optuna", "seed": 1}, "'optuna' has no option 'seed'"),
        ({"name": "optuna", "n_startup_trials": "x"}, 'cannot draw settings with {"n_startup_trials": "x"}'),
        ({"name": "optuna", "n_ei_candidates": 0}, 'cannot draw settings with {"n_ei_candidates": 0}'),
    ],
)
def test_a_sampler_that_cannot_be_used_is_named(tmp_path: Path, sampler: Any, message: str) -> None:
    with pytest.raises(RequestError, match=r"search\.sampler") as error:
        planned(tmp_path, {"sampler": sampler})
    assert message in str(error.value)


def test_the_extra_of_a_missing_sampler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RequestError, match=r"pip install 'taskloom\[optuna\]'"):
        planned(tmp_path, {"sampler": "optuna"})


def test_the_plan_says_that_further_trials_follow(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"sampler": "optuna"})
    assert {row: len(trials) for row, trials in trials_of(plan).items()} == {"sum None": 1, "surgery None": 1}
    assert plan.trial_count == 8
    lines = [str(part) for part in plan_parts(plan, {})]
    assert "A search per row has 8 trials, one per seed 16 trials; this is one per row." in lines
    assert "The next trial of a row is known once optuna has the score of the one before." in lines
