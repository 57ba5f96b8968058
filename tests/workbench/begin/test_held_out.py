"""The rows that are held out are later than the others, and about a tenth of the rows, or a share by a hash."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import column, distinct, key, table

from feedline.workbench.begin.trial import (
    MOST,
    KeyRows,
    by_hash,
    by_keys,
    by_time,
    calendar_keys,
    fewest_held_out,
    held_out_share,
    late_border,
)


@pytest.mark.parametrize(
    ("rows", "share", "fewest"),
    [(1_000, 0.2, 100), (5_000, 0.2, 500), (8_000, 0.125, 800), (50_000, 0.1, 1_000), (3_000_000, 0.1, 30_000)],
)
def test_a_tenth_is_held_out_and_a_fifth_of_few(rows: int, share: float, fewest: int):
    assert (held_out_share(rows), fewest_held_out(rows)) == (share, fewest)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=40), st.floats(0.05, 0.3))
def test_the_border_is_the_one_nearest_to_the_share(rows: list[int], share: float):
    total = sum(rows)
    tails = {index: sum(rows[index:]) for index in range(1, len(rows))}
    fitting = {index: tail for index, tail in tails.items() if 0.05 * total <= tail <= MOST * total}
    found = late_border(rows, share, 0.05 * total)
    assert (found is None) == (not fitting)
    if found is not None:
        assert abs(tails[found] - share * total) == min(abs(tail - share * total) for tail in fitting.values())


def test_a_thin_tail_of_days_is_not_all_that_is_held_out():
    days = [(date(2024, 1, 1) + timedelta(days=day),) for day in range(36)]
    found = by_keys(KeyRows(keys=("ds",), values=days, rows=[2_000] * 16 + [2] * 20), 0.1)
    assert found is not None
    assert (found.train, found.held_out) == ('ds < "2024-01-15"', 'ds >= "2024-01-15"')


def test_two_keys_are_one_time():
    months = [(year, month) for year in (2024, 2025) for month in range(1, 13)]
    found = by_keys(KeyRows(keys=("year", "month"), values=months, rows=[1_000] * 24), 0.1)
    assert found is not None
    assert found.train == "(year < 2025 or year == 2025 and month < 11)"
    assert found.held_out == "(year > 2025 or year == 2025 and month >= 11)"
    assert by_keys(KeyRows(keys=("year",), values=[(2024,)], rows=[100]), 0.1) is None


def test_keys_are_joined_from_years_to_hours_and_the_chosen_one_comes_first():
    keys = (
        key("country", "string", 4, "DE", "US"),
        key("month", "int64", 12, "1", "12"),
        key("year", "int64", 5, "2020", "2024"),
        key("ds", "date32[day]", 9, "2026-01-01", "2026-01-09"),
    )
    assert calendar_keys(keys, None) == [("ds",), ("year", "month")]
    assert calendar_keys(keys, "month") == [("month",), ("ds",), ("year",)]
    assert calendar_keys((key("month", "string", 12, "1", "12"),), None) == []  # "10" comes before "9"


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.lists(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=900)), min_size=20, max_size=60),
    st.booleans(),
)
def test_a_border_of_times_leaves_enough_on_both_sides(first: datetime, offsets: list[timedelta], zoned: bool):
    times = pl.Series("t", [first + each for each in offsets])
    found = by_time("t", times.dt.replace_time_zone("UTC") if zoned else times, 0.2, len(times))
    if found is None:
        assert len(set(offsets)) < 20
        return
    assert found.held_out is not None
    border = datetime.fromisoformat(found.held_out.split('"')[1])
    assert (border.tzinfo is not None) == zoned
    late = int((times >= border.replace(tzinfo=None)).sum())
    assert fewest_held_out(len(times)) <= late <= MOST * len(times)


def test_borders_are_comparable_as_the_column_is_stored():
    days = [f"2024-01-{day:02}" for day in range(1, 21)]
    for values, border in (
        (days, '"2024-01-19"'),
        ([date.fromisoformat(day) for day in days], '"2024-01-19"'),
        ([int(day[-2:]) * 1_000 for day in days], "19000"),
        ([datetime.fromisoformat(day).replace(tzinfo=UTC) for day in days], '"2024-01-19T00:00:00+00:00"'),
    ):
        found = by_time("t", pl.Series("t", values), 0.1, 20)
        assert found is not None
        assert (found.train, found.held_out) == (f"t < {border}", f"t >= {border}")


def test_one_moment_is_no_time():
    assert by_time("t", pl.Series("t", [datetime(2026, 1, 1)] * 9), 0.1, 9) is None
    assert by_time("t", pl.Series("t", [None], dtype=pl.Date), 0.1, 9) is None
    far = pl.Series("t", np.linspace(2**61, 2**62, 50).astype(np.int64)).cast(pl.Datetime("us"))
    assert by_time("t", far, 0.1, 50) is None  # beyond Python's years


def test_a_hash_of_an_id_or_of_a_session_of_many_values_or_of_the_place():
    few = column("kind", "string", "string", vocabulary=distinct(24))
    many = column("visit", "string", "string", vocabulary=distinct(20_000))
    name = column("id", "category", "int64", id_like=True)
    assert by_hash(table(few, many), None).sample == {"fraction": 0.9}
    assert by_hash(table(few, many), "kind").sample == {"fraction": 0.9}
    assert by_hash(table(few, many, name), "visit").sample == {"fraction": 0.9, "key": ["visit"]}
    assert by_hash(table(few, many, name, rows=2_000), None).sample == {"fraction": 0.8, "key": ["id"]}


@pytest.mark.parametrize("kind", [pl.Date, pl.Datetime("ms"), pl.Datetime("us", "Asia/Tokyo")])
def test_times_beyond_python_s_calendar_hold_nothing_out(kind: pl.DataType):
    per_day = {pl.Date: 1, pl.Datetime("ms"): 86_400_000}.get(kind, 86_400_000_000)
    days = pl.Series("t", [0, 0, 0, 5_000_000] * 500) * per_day
    times = (days.cast(pl.Int32) if kind == pl.Date else days).cast(kind)
    assert by_time("t", times, 0.25, 2_000) is None
    near = (days // per_day).clip(0, 1) * per_day
    assert by_time("t", (near.cast(pl.Int32) if kind == pl.Date else near).cast(kind), 0.25, 2_000) is not None
