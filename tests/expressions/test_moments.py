"""Dates and times of any year as strings, compared with numpy's and Python's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions.moments import moment_text, python_values

UNITS = ("D", "s", "ms", "us", "ns")
ZONES = ("UTC", "Asia/Tokyo", "Asia/Kolkata", "US/Pacific", "Africa/Monrovia")


def by_numpy(count: int, unit: str) -> str:
    """numpy has years of any size, without a sign, and as many digits of a fraction as its unit has."""
    year, *rest = str(np.datetime64(count, unit)).split("-")[-3:]
    sign = "-" if str(np.datetime64(count, unit)).startswith("-") else "+" if len(year) > 4 else ""
    text = "-".join([sign + year, *rest])
    whole, _, fraction = text.partition(".")
    return whole if not fraction.strip("0") else f"{whole}.{fraction:0<6}"


@given(st.integers(-(2**62), 2**62), st.sampled_from(UNITS))
def test_all_years_are_those_of_numpy(count: int, unit: str):
    count >>= 32 if unit in ("D", "s", "ms") else 0
    assert moment_text(count, unit) == by_numpy(count, unit)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.sampled_from(ZONES))
def test_zones_are_those_of_python(moment: datetime, zone: str):
    instant = moment.replace(tzinfo=UTC)
    count = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert moment_text(count, "us", zone) == instant.astimezone(ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize(
    ("count", "zone", "text"),
    [
        (253_402_300_799, "Asia/Tokyo", "9999-12-31T23:59:59+00:00"),
        (253_402_300_799, "US/Pacific", "9999-12-31T15:59:59-08:00"),
        (-62_135_596_800, "US/Pacific", "0001-01-01T00:00:00+00:00"),
        (10**12, "Asia/Tokyo", "+33658-09-27T01:46:40+00:00"),
    ],
)
def test_times_that_a_zone_moves_beyond_python_s_calendar_are_in_utc(count: int, zone: str, text: str):
    assert moment_text(count, "s", zone) == text


def test_values_of_any_type_have_strings_for_times():
    counts = pl.Series([[{"at": 10**18, "day": 0}], None], dtype=pl.List(pl.Struct({"at": pl.Int64, "day": pl.Int32})))
    series = counts.cast(pl.List(pl.Struct({"at": pl.Datetime("us", "Asia/Tokyo"), "day": pl.Date})))
    assert python_values(series) == [[{"at": "+33658-09-27T01:46:40+00:00", "day": "1970-01-01"}], None]
    assert python_values(pl.Series([2**31 - 1, None]).cast(pl.Int32).cast(pl.Date)) == ["+5881580-07-11", None]
    assert python_values(pl.Series([10**18]).cast(pl.Duration("ms"))) == ["1000000000000000000 ms"]
    assert python_values(pl.Series([1]).cast(pl.Time)) == ["00:00:00.000000001"]
    assert python_values(pl.Series(["a", None])) == ["a", None]
