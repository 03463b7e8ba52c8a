"""One judgement: whatever is asked, and however it is shown, every output says the same of the same two rows."""

import base64
import json
import math
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import METRICS, Row, record

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.overview import Overview, overview_of
from taskloom.runs.api.find import finished_results
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli import cli
from taskloom.runs.show.differences import format_difference, format_p, format_verdict
from taskloom.runs.show.report.view import ShownDifference

COLUMNS = (*METRICS, "overall")
FACTS = ("delta", "interval", "p", "verdict", "margin", "p_equal", "variance", "seeds")


@st.composite
def grids(draw: st.DrawFn) -> dict[str, Any]:
    """Rows that differ in skill and noise, some under two labels; seeds, a margin, hidden columns, claims, splits."""
    rows = draw(st.integers(2, 5))
    skills = draw(st.lists(st.sampled_from([0.0, 0.9, 1.0, 1.1, 1.6]), min_size=rows, max_size=rows))
    noise = draw(st.sampled_from([0.0, 0.02, 0.2]))
    labels = [f"row {number}" for number in range(rows)]
    claimed = draw(st.lists(st.tuples(st.sampled_from(labels[1:]), st.sampled_from(COLUMNS)), max_size=4))
    hidden = draw(st.lists(st.sampled_from([*METRICS]), max_size=2, unique=True))
    return {
        "rows": [Row(label, skill, noise) for label, skill in zip(labels, skills, strict=True)],
        "seeds": range(draw(st.integers(1, 4))),
        "examples": draw(st.sampled_from([20, 80])),
        "baseline": labels[0],
        "margin": draw(st.sampled_from([None, 0.02, 0.2])),
        "table": {"columns": [column for column in COLUMNS if column not in hidden]},
        "claims": [
            {"better": row, "than": labels[0], "on": column}
            if number % 2
            else {"better": labels[0], "than": row, "on": column}
            for number, (row, column) in enumerate(dict.fromkeys(claimed))
        ],
        "failed": {(labels[-1], 0): "it broke"} if draw(st.booleans()) else {},
        "test": draw(st.booleans()),
    }


def run(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(cli, [*arguments, "--registry", str(folder)])
    assert done.exit_code == 0, done.stderr
    return str(done.stdout)


def look(folder: Path, split: str) -> Overview:
    with Ledger.open(folder, create=False) as ledger:
        return overview_of(finished_results(ledger, ledger.grid("made"), split=split), ledger)


def facts_of(row: dict[str, Any], column: str) -> tuple[Any, ...]:
    return tuple(row["metrics"][column][fact] for fact in FACTS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(grids(), st.data())
def test_every_output_agrees_on_every_difference(grid: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "r"
        rows, margin = grid.pop("rows"), grid.pop("margin")
        record(folder, rows, **grid, **({} if margin is None else {"margin": margin}))
        split = data.draw(st.sampled_from(["", "dev", *(["test"] if grid["test"] else [])]))
        chosen = ("--split", split) if split else ()
        whole = Grid("made", registry=folder).table(split=split, columns=COLUMNS)
        judged = whole.found.differences
        expected = {row["label"]: row for row in whole.as_json()["rows"]}

        # JSON and data frame, with whatever columns are shown
        for answer in (json.loads(run(folder, "table", "made", "--format", "json", *chosen)),):
            for row in answer["rows"]:
                for column in grid["table"]["columns"]:
                    assert facts_of(row, column) == facts_of(expected[row["label"]], column)
        frame = whole.to_pandas().set_index("label")
        assert list(frame.columns[frame.columns.str.endswith(" verdict")]) == [f"{name} verdict" for name in COLUMNS]
        for (label, column), difference in judged.items():
            assert frame.loc[label, f"{column} verdict"] == difference.verdict

        # text
        text = run(folder, "table", "made", *chosen)
        for line in text.split("\n\n")[0].splitlines()[2:]:
            label = next((row.label for row in rows if line.startswith(f"{row.label} ")), None)
            if label and (label, "overall") in judged:
                difference = judged[label, "overall"]
                assert format_difference(difference) in line
                assert re.search(rf" {re.escape(format_verdict(difference))}( |$)", line)
                assert difference.p is None or f" {format_p(difference.p)} " in line

        # the page: what stands in it, and what its script puts there
        overview = look(folder, split)
        page = folder.with_name("page.html")
        run(folder, "report", "made", "-o", str(page), *chosen)
        html = page.read_text()
        packed = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
        _, contents = packed["baselines"][str(overview.results.row_index[overview.baseline])]
        *_, in_forest, in_table = json.loads(zlib.decompress(base64.b64decode(contents)))
        for (label, column), difference in judged.items():
            if column in overview.columns and overview.baseline == whole.found.baseline:
                assert overview.differences[column][label] == difference
                numbers = ShownDifference.of(difference, 3).numbers
                assert numbers.replace("−", "-").replace("\u00a0", " ") in ("", format_difference(difference))
                assert numbers in html
                if numbers:
                    assert any(difference.verdict in text and numbers in text for text in in_table)
                if column == "overall":
                    assert numbers in in_forest[2 * overview.results.row_index[label] + 1]

        # claims about the same rows: one difference, and where another family changes the verdict, it is said
        claims = [] if not grid["claims"] else Grid("made", registry=folder).claims(split=split).as_json()["claims"]
        for claim in claims:
            turned = claim["row"] == grid["baseline"]
            row = expected[claim["other" if turned else "row"]]["metrics"][claim["on"]]
            assert claim["delta"] == (row["delta"] and -row["delta"] if turned else row["delta"])
            words = {"better": "worse", "worse": "better"} if turned else {}
            assert claim["in_table"] == words.get(row["verdict"], row["verdict"])
            if row["interval"]:
                assert claim["interval"] is not None
        shown_claims = run(folder, "claims", "made", *chosen) if grid["claims"] else ""
        for claim in claims:
            if claim["verdict"] != claim["in_table"]:
                assert f"{claim['says']}: {claim['in_table']} in the table" in shown_claims

        # seeds plans with the table's verdicts
        if split in ("", "dev"):
            comparisons = json.loads(run(folder, "seeds", "made", "--json"))["comparisons"]
            for comparison in comparisons[: len(rows) - 1]:
                label = comparison["comparison"].partition(" − ")[0]
                assert tuple(comparison[fact] for fact in FACTS) == facts_of(expected[label], "overall")

        # a score anew by the metric that it already has changes nothing
        if not math.isnan(sum(whole.found.rows[0].figures["sts"].values)):
            anew = Grid("made", registry=folder).table(split=split, metric="pearson", columns=["sts"]).found
            for row in rows[1:]:
                key = row.label, "sts"
                one, other = (differences[key].contrast for differences in (judged, anew.differences))
                assert (one.delta, one.seeds) == pytest.approx((other.delta, other.seeds), nan_ok=True)
                assert one.p == pytest.approx(other.p, nan_ok=True)


def test_which_columns_a_grid_shows_changes_no_verdict(tmp_path: Path) -> None:
    """A row that is open among nine comparisons was better on a page that showed three of them."""
    rows = [Row("a"), Row("b", 1.12), Row("c", 0.97), Row("d", 1.06)]
    verdicts = []
    for name, columns in (("all", COLUMNS), ("few", ("sst", "overall"))):
        record(tmp_path / name, rows, baseline="a", examples=400, table={"columns": list(columns)})
        overview = look(tmp_path / name, "")
        assert {key: each for key, each in overview.table.differences.items() if key[1] in columns} == {
            (row, column): each for column, found in overview.differences.items() for row, each in found.items()
        }
        verdicts.append([overview.differences["sst"][row.label] for row in rows[1:]])
        assert {each.family for each in verdicts[-1]} == {9}
    assert verdicts[0] == verdicts[1]
