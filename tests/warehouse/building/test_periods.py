"""Partitions of time, and which of them are closed."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.building.periods import (
    Timeline,
    Window,
    features_window,
    impressions_window,
    outcomes_window,
    watermark,
)

DAYS = Timeline(unit="us", hourly=False)
HOURS = Timeline(unit="ns", hourly=True)


@given(moment=st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)))
def test_a_time_lies_in_the_folder_of_its_day_or_hour(moment: datetime.datetime) -> None:
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    for timeline, factor, text in (
        (DAYS, 1, f"ds={moment:%Y-%m-%d}"),
        (HOURS, 1000, f"ds={moment:%Y-%m-%d}/hour={moment:%H}"),
    ):
        [period] = timeline.periods(np.array([micros * factor])).tolist()
        start, stop = timeline.bounds(period)
        assert start <= micros * factor < stop
        assert timeline.folder(period) == text


def test_lengths_are_rounded_up() -> None:
    assert (DAYS.of_ns(1), DAYS.of_ns(1000), DAYS.of_ns(1001), HOURS.of_ns(1001)) == (1, 1, 2, 1001)


@pytest.mark.parametrize(
    ("newest", "now", "time", "ahead"),
    [([], 100, None, False), ([40, 50], 100, 45, False), ([50, 500], 100, 95, True), ([100], 100, 95, False)],
)
def test_the_watermark_is_the_newest_event_less_the_lateness(
    newest: list[int], now: int, time: int | None, ahead: bool
) -> None:
    mark = watermark(newest, lateness=5, now=now)
    assert (mark.time, mark.ahead) == (time, ahead)


def test_a_partition_is_closed_when_the_longest_time_has_passed() -> None:
    mark = watermark([100], lateness=0, now=100)
    assert mark.closes(90, 10)
    assert not mark.closes(90, 11)
    assert not watermark([], lateness=0, now=100).closes(0, 0)


def test_windows_cover_what_a_partition_reads() -> None:
    bounds = (100, 200)
    assert impressions_window(bounds, 30) == Window(start=70, stop=230)
    assert outcomes_window(bounds, 30) == Window(start=100, stop=230)
    assert features_window(bounds, None) == Window(start=None, stop=200)
    assert features_window(bounds, 50) == Window(start=50, stop=200)
    low, high = np.array([0, 10, 230, 1]), np.array([69, 70, 240, 0])
    assert impressions_window(bounds, 30).overlaps(low, high).tolist() == [False, True, False, False]
    assert features_window(bounds, None).overlaps(low, high).tolist() == [True, True, False, True]
