"""Grids: what a JSON file stands for, and every way in which it can be wrong."""

import itertools
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import RequestError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.grid.expansion import Variant, expand
from taskloom.runs.grid.grid import GridFile, load_grid
from taskloom.runs.grid.paths import PathError, assign, matches, values_at
from taskloom.runs.grid.plan import make_plan

BASE: dict[str, Any] = {
    "tasks": {
        "sst": {"data": {"name": "generated", "task": "sentiment"}},
        "sts": {
            "data": {"name": "generated", "task": "similarity"},
            "head": "cosine",
            "loss": {"name": "cosine_embedding", "margin": 0.5},
            "metric": "pearson",
        },
    }
}


def write(folder: Path, **grid: Any) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps({"base": BASE, **grid}))
    return str(path)


def load(folder: Path, **grid: Any) -> GridFile:
    return load_grid(write(folder, **grid))


def rows(grid: GridFile, *, allow_large: bool = False) -> list[Variant]:
    expansion = expand(grid, allow_large=allow_large)
    assert expansion.problems == []
    return expansion.variants


def problems(folder: Path, **grid: Any) -> list[str]:
    with pytest.raises(RequestError) as caught:
        make_plan(load(folder, **grid), load_catalogue(), None)
    return [str(problem) for problem in caught.value.problems]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), zipped=st.integers(0, 3))
def test_a_grid_is_the_product_of_its_axes_and_zips(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], zipped: int
) -> None:
    paths = ["stages.0.epochs", "stages.0.clip", "stages.0.optimizer.lr"]
    axes = {path: [i + 1 for i in range(size)] for path, size in zip(paths, sizes, strict=False)}
    pair = {"tasks.sts.loss.margin": [0.1 * i for i in range(zipped)], "overall": ["mean"] * zipped}
    grid = load(tmp_path_factory.mktemp("grid"), axes=axes, zip=[pair] if zipped else [])
    variants = rows(grid)
    assert len(variants) == math.prod(sizes) * max(1, zipped)
    assert len({variant.label for variant in variants}) == len(variants)
    seen = [tuple(v.spec["stages"][0][path.split(".")[-1]] for path in paths[:2] if path in axes) for v in variants]
    assert set(seen) == set(itertools.product(*(axes[path] for path in paths[:2] if path in axes)))


def test_labels_name_what_differs(tmp_path: Path) -> None:
    grid = load(
        tmp_path,
        axes={
            "stages.0.combiner": ["sum", {"name": "pcgrad", "reduction": "mean"}],
            "tasks.*.head.dropout": [0.5],
            "stages.0.clip": {"clipped": 1.0, "free": None},
        },
    )
    assert [variant.label for variant in rows(grid)] == [
        "sum, dropout=0.5, clipped",
        "sum, dropout=0.5, free",
        "pcgrad(reduction=mean), dropout=0.5, clipped",
        "pcgrad(reduction=mean), dropout=0.5, free",
    ]


def test_settings_reach_their_place_and_nothing_else(tmp_path: Path) -> None:
    cells = [
        {"label": "base"},
        {"label": "wide", "set": {"tasks.*.head.dropout": 0.1, "stages.0.combiner": "mean"}},
    ]
    base, wide = rows(load(tmp_path, cells=cells))
    assert wide.spec["tasks"]["sst"]["head"] == {"name": "linear", "dropout": 0.1}
    assert wide.spec["tasks"]["sts"]["head"] == {"name": "cosine", "dropout": 0.1}
    assert wide.spec["stages"][0]["combiner"] == "mean"
    for task in wide.spec["tasks"].values():
        del task["head"]["dropout"]
    wide.spec["stages"][0]["combiner"] = {"name": "sum"}
    assert wide.spec == base.spec


PARAPHRASE = {"data": {"name": "generated", "task": "paraphrase"}, "head": "linear"}
#: What a cell sets → a component that it has then.
SET: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    # an inner path goes into what an outer one sets, in whichever order they are written
    (
        {"tasks.sts.loss.margin": 0.25, "tasks.sts.loss": "cosine_embedding"},
        "tasks.sts.loss",
        {"name": "cosine_embedding", "margin": 0.25},
    ),
    # a cell may bring a task, and set its options
    (
        {"tasks.para": PARAPHRASE, "tasks.para.head.reads": "pair"},
        "tasks.para.head",
        {"name": "linear", "reads": "pair"},
    ),
]


@pytest.mark.parametrize(("settings", "path", "component"), SET)
def test_settings_of_a_cell_combine(
    tmp_path: Path, settings: dict[str, Any], path: str, component: dict[str, Any]
) -> None:
    cells = [{"label": "bare", "set": {"stages": []}}, {"label": "x", "set": settings}]
    _, variant = rows(load(tmp_path, cells=cells))
    assert values_at(variant.spec, path) == [component]
    assert variant.spec["stages"], "settings of another cell are no part of it"


def labels(folder: Path, **grid: Any) -> list[str]:
    cells = make_plan(load(folder, **grid), load_catalogue(), None).cells
    return list(dict.fromkeys(cell.label for cell in cells))


def test_exclude_drops_what_matches_all_its_paths(tmp_path: Path) -> None:
    axes = {"stages.0.combiner": ["sum", {"name": "pcgrad", "reduction": "sum"}], "stages.0.epochs": [1, 2]}
    found = labels(tmp_path, axes=axes, exclude=[{"stages.0.combiner": "pcgrad", "stages.0.epochs": 2}])
    assert found == ["sum, epochs=1", "sum, epochs=2", "pcgrad(reduction=sum), epochs=1"]


def test_exclude_knows_defaults_and_what_cannot_be_run(tmp_path: Path) -> None:
    axes = {"stages.0.combiner": ["sum", "pcgrad"]}
    assert labels(tmp_path, axes=axes, exclude=[{"stages.0.combiner.reduction": "sum"}]) == ["sum"]
    pairs = {"tasks.sts.head": ["cosine", "linear"], "tasks.sts.loss": ["mse", "cosine_embedding"]}
    with pytest.raises(RequestError, match=r"needs 2 vectors per example.*\[in 'linear, cosine_embedding'\]"):
        labels(tmp_path, axes=pairs)
    entry = {"tasks.sts.head": "linear", "tasks.sts.loss": "cosine_embedding"}
    assert len(labels(tmp_path, axes=pairs, exclude=[entry])) == 3


def test_a_path_may_lead_into_what_only_some_rows_have(tmp_path: Path) -> None:
    stages = {"one": [{"epochs": 1}], "two": [{"epochs": 1}, {"epochs": 1}]}
    axes = {"stages": stages, "stages.1.epochs": [3, 4]}
    (found,) = {problem.split(" [in ")[1] for problem in problems(tmp_path, axes=axes)}
    assert found == "'one, epochs=3', 'one, epochs=4']"


def test_a_base_may_be_a_packaged_grid(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base": "quickstart", "cells": [{"label": "sum"}]}))
    (mine,) = rows(load_grid(str(path)))
    quick = rows(load_grid("quickstart"))
    assert mine.spec == next(variant.spec for variant in quick if variant.label == "sum")


def claim(**says: Any) -> dict[str, Any]:
    """A grid of two rows with a claim about them."""
    return {"cells": [{"label": "base"}, {"label": "other"}], "claims": [says]}


@pytest.mark.parametrize(
    ("grid", "path", "words"),
    [
        ({"axes": {"stages.0.combinr": ["sum"]}}, "axes.stages.0.combinr", "did you mean 'combiner'"),
        ({"axes": {"stages.1.epochs": [1]}}, "axes.stages.1.epochs", "stages has only stages.0. Found 'stages.1'"),
        ({"axes": {"tasks.stss.loss": ["mse"]}}, "axes.tasks.stss.loss", "did you mean 'sts'"),
        ({"axes": {"tasks.sts.loss.margin.deep": [1]}}, "axes.tasks.sts.loss.margin.deep", "is 0.5 and has no 'deep'"),
        ({"axes": {"seed": [1]}}, "axes.seed", 'listed under "seeds"'),
        ({"zip": [{"stages.0.epochs": [1, 2], "stages.0.clip": [1]}]}, "zip.0", "equally long"),
        ({"axes": {"stages.0.epochs": [1]}, "exclude": [{"stages.0.epochs": 1}]}, "exclude", "every cell is excluded"),
        ({"axes": {"stages.0.epochs": [1, 1]}}, "axes", "two rows would be called 'epochs=1'"),
        ({"axes": {"stages.0.epochs": []}}, "axes.stages.0.epochs", "of length 1 or more"),
        ({"baseline": "sum"}, "baseline", "no row 'sum'"),
        ({"seeds": [1, 1]}, "seeds", "each should appear once"),
        ({"seeds": []}, "seeds", "of length 1 or more"),
        ({"axes": {"stages.0.clip": [1], "stages.*.clip": [2]}}, "axes.stages.*.clip", "same place"),
        ({"exclude": [{"stages.0.combiner": "pcgard"}]}, "exclude.0", "leaves nothing out"),
        ({"exclude": [{"stages.0.epochs.*": 1}]}, "exclude.0", "leaves nothing out"),
        ({"table": {"columns": ["stss"]}}, "table.columns", "did you mean 'sts'"),
        ({"cells": [{"label": "a"}, {"label": "a"}]}, "cells", "give a cell another label"),
        ({"axis": {}}, "axis", "did you mean 'axes'"),
        ({"base": "quickstrat"}, "base", "did you mean 'quickstart'"),
        ({"base": {"tasks": {}}}, "base.tasks", "of length 1 or more"),
        ({"name": "../escape"}, "name", "../escape"),
        (claim(better="bsae", than="other"), "claims.0.better", "did you mean 'base'"),
        (claim(better="base", than="nobody"), "claims.0.than", "no row 'nobody'"),
        (claim(better="base", than="base"), "claims.0.than", "two rows"),
        (claim(better=["base", "other"], than=["other", "bsae"]), "claims.0.than", "did you mean 'base'"),
        (claim(better=["base", "other"], than=["other"]), "claims.0", "Found 2 and 1"),
        (claim(better=["base", "other"], than=["other", "other"]), "claims.0.than", "two rows"),
        (claim(better=[], than="other"), "claims.0.better", "Found []"),
        (claim(better="base", than="other", on="stss"), "claims.0.on", "did you mean 'sts'"),
        (claim(equal="base", than="other"), "claims.0", '"within"'),
        (claim(better="base", equal="base", than="other"), "claims.0", '"better"'),
        (claim(than="other"), "claims.0", '"better"'),
        (claim(better="base"), "claims.0.than", "is missing"),
        (claim(equal="base", than="other", within=0), "claims.0.within", "0"),
        ({"margin": -1}, "margin", "-1"),
        ({"base": {**BASE, "score": {"train": -1}}}, "base.score.train", "-1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, grid: dict[str, Any], path: str, words: str) -> None:
    (found,) = problems(tmp_path, **grid)
    assert found.startswith(f"{path}: ")
    assert words in found


def test_all_problems_are_said_together(tmp_path: Path) -> None:
    base = json.loads(json.dumps(BASE))
    base["tasks"]["sst"]["head"] = "linaer"
    base["stages"] = [{"epochs": -1, "combiner": "pcgard"}]
    grid = {
        "bogus": 1,
        "axes": {"stages.0.combinr": ["sum"], "tasks.x.loss": ["mse"]},
        "zip": [{}],
        "baseline": "nobody",
        "seeds": [-3],
        "table": {"columns": ["stss"]},
    }
    found = problems(tmp_path, **{**grid, "base": base})
    wanted = ["bogus", "axes.stages.0.combinr", "axes.tasks.x.loss", "zip.0", "baseline", "seeds.0", "table.columns"]
    wanted += ["base.stages.0.epochs", "stages.0.combiner", "tasks.sst.head"]
    assert sorted(problem.split(": ")[0] for problem in found) == sorted(wanted)


def test_more_than_ten_thousand_cells_need_a_yes(tmp_path: Path) -> None:
    axes = {"stages.0.epochs": list(range(101)), "stages.0.clip": list(range(1, 101))}
    grid = load(tmp_path, axes=axes)
    (problem,) = expand(grid).problems
    assert "10,100 cells" in problem.message
    assert "--yes" in problem.message
    assert len(rows(grid, allow_large=True)) == 10_100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"base": {}', "is not JSON: .* at line 1 column 11"),
        ('{"base": {}, "base": {}}', "'base' appears twice"),
        ('{"base": -Infinity}', "is not JSON: .* at line 1 column 11"),
        ('{"base": 1e999}', "base: should be"),
        ('{"base": %s}' % ("9" * 5000), "is not JSON: number out of range"),
        ('{"base": "\\ud800"}', "is not JSON: .* hex escape"),
        ("[]", "should be a JSON object"),
        ("[" * 100_000, "is not JSON: recursion limit"),
        ("\ud800", "is not JSON: 'utf-8' codec"),
        ('{"$schema": 3, "base": "quickstart"}', r"\$schema: should be a string or null"),
        ('\ufeff{"base": "\\u0000"}', "base: no packaged grid"),
    ],
)
def test_a_file_that_is_not_a_grid(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RequestError, match=words):
        make_plan(load_grid(str(path)), load_catalogue(), None)


def test_a_missing_file_comes_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean 'quickstart'"):
        load_grid("quickstat")
    with pytest.raises(RequestError, match="is a folder"):
        load_grid(str(tmp_path))
    (tmp_path / "good.json").touch()
    with pytest.raises(RequestError, match=r"'.*god.json' is not a file; did you mean '.*good.json'\?"):
        load_grid(str(tmp_path / "god.json"))


def test_a_typo_that_every_row_replaces_does_no_harm(tmp_path: Path) -> None:
    base = {"tasks": {"sst": {**BASE["tasks"]["sst"], "loss": "msee"}}}
    assert labels(tmp_path, base=base, axes={"tasks.sst.loss": ["cross_entropy"]}) == ["cross_entropy"]


@given(st.text("ab.*0", min_size=1, max_size=8))
def test_any_path_either_sets_a_value_or_is_refused(path: str) -> None:
    run: dict[str, Any] = {"a": {"name": "x", "b": 1}, "b": [{"a": 1}], "tasks": {}}
    with suppress(PathError):
        assign(run, path, 7)
        assert "*" in path or matches(run, path, 7)
