"""The axes of figures: an interval is inside or visibly cut, and a tick is the number that it stands at."""

import re
from pathlib import Path

import pytest
from contrasted import contrast_of
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from recorded import Row, overview_in, record

from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.show import plots
from taskloom.runs.show.report.page import render_report
from taskloom.runs.show.report.svg import Scale, span_of, strip, ticks

Interval = tuple[float, float, float]
ENDS = st.floats(0.001, 0.01)


@given(st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=9))
def test_intervals_of_one_order_of_magnitude_are_inside_the_axis(ends: list[tuple[float, float]]) -> None:
    intervals = [(-left, (right - left) / 2, right) for left, right in ends]
    low, high = span_of(intervals)
    assert low <= min(left for left, _, _ in intervals)
    assert high >= max(right for _, _, right in intervals)


def judged(interval: Interval) -> Judged:
    low, middle, high = interval
    return Judged(contrast_of(middle, 3, 1e-4, freedom=9.0), 0.5, (low, high), "open", 0.05)


@pytest.mark.parametrize("small", [0.004, 0.0015])
def test_a_plot_shows_the_whole_interval_of_an_effect(small: float) -> None:
    intervals = [(-small, 0.0, small), (-0.009, 0.0005, 0.010)]
    axes = plots._intervals(Figure(), [plots._line("row", judged(interval)) for interval in intervals], None)
    left, right = axes.get_xlim()
    assert left < -0.009
    assert right > 0.010


def test_an_interval_that_dwarfs_the_others_ends_in_arrows() -> None:
    intervals = [*[(-0.01, 0.0, 0.01)] * 4, (-0.9, 0.01, 1.1)]
    axes = plots._intervals(Figure(), [plots._line("row", judged(interval)) for interval in intervals], None)
    left, right = axes.get_xlim()
    arrows = {
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])  # type: ignore[index]
        for line in axes.lines
        if line.get_marker() in ("<", ">")
    }
    assert arrows == {("<", left, 4), (">", right, 4)}
    scale = Scale(*span_of(intervals), 2.0, 98.0)
    drawn = [str(strip(interval, scale, "open")) for interval in intervals]
    assert [re.findall("[‹›]", text) for text in drawn] == [[]] * 4 + [["‹", "›"]]


@given(st.floats(-9, 9), st.floats(-9, 9), st.integers(-9, 9))
def test_a_tick_is_the_number_that_it_stands_at(low: float, high: float, power: int) -> None:
    low, high = sorted((low * 10.0**power, high * 10.0**power))
    assume(high - low > 1e-3 * 10.0**power)
    shown = ticks(low, high)
    for tick, text in shown:
        assert low - 1e-6 * (high - low) <= tick <= high + 1e-6 * (high - low)
        assert float(text.replace("−", "-")) == tick
    assert 1 <= len({text for _, text in shown}) == len(shown) <= 6


@pytest.mark.parametrize("rate", [5e-5, 2e-7, 0.0, 0.1])
def test_the_chart_of_a_learning_rate_shows_it(tmp_path: Path, rate: float) -> None:
    rows = [Row("sum"), Row("other")]
    registry = record(tmp_path / "r", rows, baseline="sum", epochs={"diagnostics": {"learning_rate": rate}})
    page = render_report(overview_in(registry))
    chart = re.search(r"learning rate</figcaption>(.*?)</figure>", page, re.DOTALL)
    assert chart is not None
    marks = re.findall(r'<text class="t e"[^>]*y="([\d.]+)"[^>]*>([^<]*)</text>', chart[1])
    values = [float(text.replace("−", "-")) for _, text in marks]
    assert len(set(values)) == len(values) > 1
    assert min(values) <= rate <= max(values)
    assert max(values) - min(values) <= (rate or 2.0), "the axis is about the rate"
