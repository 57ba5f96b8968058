"""Charts of the live page: what is unknown is a gap, and axes show all that is drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.service.page.charts import CHARTS, Charts, axis_end, point_columns
from feedline.service.page.status_history import POINTS, JobPoint

POINT = JobPoint(
    at_s=1000, rows_per_s=4e5, trainer=0.25, slots=0.5, blocks=3, window=4, ring=0.75, workers=2, threads=8
)


def points(count: int, *, first_s: float = 1000) -> list[JobPoint]:
    return [replace(POINT, at_s=first_s + each) for each in range(count)]


@given(values=st.lists(st.floats(0, 1e12) | st.just(math.nan)))
def test_an_axis_shows_all_values_and_is_not_much_longer(values: list[float]):
    most = max((value for value in values if not math.isnan(value)), default=0)
    assert most <= axis_end(values) <= max(1.2, 2.5 * most)


def test_shares_are_percentages_and_the_unknown_is_a_gap():
    columns = point_columns([POINT, replace(POINT, rows_per_s=None, trainer=None, window=0, ring=None)])
    assert [columns[name][0] for name in ("trainer", "slots", "ring", "window")] == [25, 50, 75, 75]
    assert all(math.isnan(columns[name][1]) for name in ("rows", "trainer", "ring", "window"))
    assert set(columns) == {"at", *(line.column for chart in CHARTS for line in chart.lines)}


def test_points_are_drawn_once():
    charts = Charts()
    charts.show(points(3))
    charts.add(points(5))
    charts.add(points(5))
    source = charts.figures[0].renderers[0].data_source
    assert list(source.data["at"]) == [1000, 1001, 1002, 1003, 1004]


def test_no_more_is_kept_than_the_series_has():
    charts = Charts()
    charts.show(points(POINTS))
    charts.add(points(POINTS, first_s=1010))
    source = charts.figures[0].renderers[0].data_source
    assert len(source.data["at"]) == POINTS
    assert source.data["at"][-1] == 1009 + POINTS


@pytest.mark.parametrize(("count", "start"), [(2, 1001 - 60), (100, 1000), (500, 1499 - 300)])
def test_the_time_axis_grows_to_five_minutes(count: int, start: float):
    charts = Charts()
    charts.show(points(count))
    times = charts.figures[0].x_range
    assert (times.start, times.end) == (start, 999 + count)
    assert charts.figures[0].y_range.end == 6e5
