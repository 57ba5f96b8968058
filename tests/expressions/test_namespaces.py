"""Methods of `dt`, `str` and `list` give what their line in docs/expressions.md says, in edge cases, too."""

from __future__ import annotations

import re
from datetime import date, datetime

import polars as pl
import pytest
from typed_columns import NAN, assert_evaluates, assert_refused

from feedline.expressions.namespaces import METHODS

EXPECTED: dict[str, tuple[pl.DataType, list[object]]] = {
    "d.dt.year()": (pl.Int64(), [2024, 1969, None]),
    "d.dt.iso_year()": (pl.Int64(), [2025, 1970, None]),
    "t.dt.quarter()": (pl.Int64(), [1, 4, None]),
    "t.dt.month()": (pl.Int64(), [2, 12, None]),
    "d.dt.week()": (pl.Int64(), [1, 1, None]),
    "d.dt.day()": (pl.Int64(), [30, 31, None]),
    "z.dt.day()": (pl.Int64(), [2, 1, None]),
    "d.dt.weekday()": (pl.Int64(), [1, 3, None]),
    "t.dt.ordinal_day()": (pl.Int64(), [60, 365, None]),
    "t.dt.days_in_month()": (pl.Int64(), [29, 31, None]),
    "t.dt.is_leap_year()": (pl.Boolean(), [True, False, None]),
    "z.dt.hour()": (pl.Int64(), [0, 1, None]),
    "t.dt.hour() * 100": (pl.Int64(), [2300, 2300, None]),
    "t.dt.minute()": (pl.Int64(), [4, 59, None]),
    "t.dt.second()": (pl.Int64(), [5, 59, None]),
    "t.dt.millisecond()": (pl.Int64(), [678, 500, None]),
    "t.dt.microsecond()": (pl.Int64(), [678_901, 500_000, None]),
    "z.dt.date()": (pl.Date(), [date(2026, 7, 2), date(2026, 1, 1), None]),
    "t.dt.epoch('s')": (pl.Int64(), [1_709_247_845, -1, None]),
    "d.dt.epoch('d')": (pl.Int64(), [20_087, -1, None]),
    "z.dt.epoch()": (pl.Int64(), [1_782_943_200_000_000, 1_767_225_600_000_000, None]),
    "t.dt.truncate('1h')": (pl.Datetime("us"), [datetime(2024, 2, 29, 23), datetime(1969, 12, 31, 23), None]),
    "d.dt.truncate('1mo')": (pl.Date(), [date(2024, 12, 1), date(1969, 12, 1), None]),
    "z.dt.convert_time_zone('America/New_York').dt.hour()": (pl.Int64(), [18, 19, None]),
    "t.dt.replace_time_zone('Asia/Tokyo').dt.epoch('s')": (pl.Int64(), [1_709_215_445, -32401, None]),
    "(t - t.dt.truncate('1d')).dt.total_days()": (pl.Int64(), [0, 0, None]),
    "(t - t.dt.truncate('1d')).dt.total_hours()": (pl.Int64(), [23, 23, None]),
    "(t - t.dt.truncate('1d')).dt.total_minutes()": (pl.Int64(), [23 * 60 + 4, 24 * 60 - 1, None]),
    "(t.dt.truncate('1d') - t).dt.total_seconds()": (pl.Int64(), [-83045, -86399, None]),
    "(t - t.dt.truncate('1m')).dt.total_milliseconds()": (pl.Int64(), [5678, 59500, None]),
    "(t - t.dt.truncate('1m')).dt.total_microseconds()": (pl.Int64(), [5_678_901, 59_500_000, None]),
    "s.str.len_chars()": (pl.Int64(), [5, 3, None]),
    "s.str.len_bytes()": (pl.Int64(), [6, 3, None]),
    "s.str.to_lowercase()": (pl.String(), [" éa-a", "b12", None]),
    "s.str.to_uppercase()": (pl.String(), [" ÉA-A", "B12", None]),
    "s.str.starts_with('b')": (pl.Boolean(), [False, True, None]),
    "s.str.ends_with('-a')": (pl.Boolean(), [True, False, None]),
    "s.str.contains('.')": (pl.Boolean(), [False, False, None]),
    "s.str.slice(1, 2)": (pl.String(), ["Éa", "12", None]),
    "s.str.slice(-2)": (pl.String(), ["-a", "12", None]),
    "s.str.head(2)": (pl.String(), [" É", "b1", None]),
    "s.str.tail(2)": (pl.String(), ["-a", "12", None]),
    "s.str.strip_chars()": (pl.String(), ["Éa-a", "b12", None]),
    "s.str.strip_chars('b 2')": (pl.String(), ["Éa-a", "1", None]),
    "s.str.strip_prefix('b')": (pl.String(), [" Éa-a", "12", None]),
    "s.str.strip_suffix('a')": (pl.String(), [" Éa-", "b12", None]),
    "s.str.replace('a', '$1')": (pl.String(), [" É$1-a", "b12", None]),
    "s.str.replace_all('a', '')": (pl.String(), [" É-", "b12", None]),
    "n.str.zfill(4)": (pl.String(), ["0012", "01.5", None]),
    "s.str.split('-')": (pl.List(pl.String()), [[" Éa", "a"], ["b12"], None]),
    "w.str.to_date('%Y-%m-%d')": (pl.Date(), [None, date(2026, 1, 2), None]),
    "w.str.to_datetime('%Y%m%d %H%M%S')": (pl.Datetime("us"), [datetime(2026, 1, 2, 3, 4, 5), None, None]),
    "l.list.len()": (pl.Int64(), [4, 0, None]),
    "x.list.len()": (pl.Int64(), [2, 2, None]),
    "l.list.n_unique()": (pl.Int64(), [3, 0, None]),
    "l.list.sum()": (pl.Int64(), [197, 0, None]),
    "x.list.sum()": (pl.Int64(), [3, 3, None]),
    "k.list.sum()": (pl.Float64(), [NAN, NAN, None]),
    "l.list.mean()": (pl.Float64(), [197 / 3, None, None]),
    "l.list.min()": (pl.Int64(), [-3, None, None]),
    "l.list.max()": (pl.Int64(), [100, None, None]),
    "k.list.min()": (pl.Float32(), [1.5, NAN, None]),
    "k.list.max()": (pl.Float32(), [1.5, NAN, None]),
    "l.list.first()": (pl.Int64(), [100, None, None]),
    "l.list.last()": (pl.Int64(), [-3, None, None]),
    "l.list.get(-2)": (pl.Int64(), [None, None, None]),
    "l.list.get(1)": (pl.Int64(), [100, None, None]),
    "l.list.contains(100)": (pl.Boolean(), [True, False, None]),
    "l.list.contains(1000)": (pl.Boolean(), [False, False, None]),
    "k.list.contains(1.5)": (pl.Boolean(), [True, False, None]),
    "l.list.head(2)": (pl.List(pl.Int8()), [[100, 100], [], None]),
    "l.list.tail(1)": (pl.List(pl.Int8()), [[-3], [], None]),
    "l.list.slice(1, 2)": (pl.List(pl.Int8()), [[100, None], [], None]),
    "l.list.slice(-1)": (pl.List(pl.Int8()), [[-3], [], None]),
    "l.list.reverse()": (pl.List(pl.Int8()), [[-3, None, 100, 100], [], None]),
    "l.list.sort()": (pl.List(pl.Int8()), [[None, -3, 100, 100], [], None]),
    "k.list.sort(descending=True)": (pl.List(pl.Float32()), [[None, NAN, 1.5], [NAN], None]),
    "l.list.unique()": (pl.List(pl.Int8()), [[100, None, -3], [], None]),
    "l.list.drop_nulls()": (pl.List(pl.Int8()), [[100, 100, -3], [], None]),
}


def test_values_and_types():
    for text, expected in EXPECTED.items():
        assert_evaluates(text, *expected)


WRONG = {
    "s.str.zfill(1000)": "the length must be at most 256",
    "s.str.replace('', 'x')": "the pattern to replace must not be empty",
    "s.str.split('')": "the separator must not be empty",
    "s.str.to_date('%Q')": "the format is unknown",
    "s.str.to_datetime('%H')": "the format does not make a full timestamp",
    "t.dt.truncate('1 hour')": "not a duration: got '1 hour', expected one like \"15m\"",
    "t.dt.convert_time_zone('Berlin')": "unknown time zone: got 'Berlin'",
    "z.dt.replace_time_zone('UTC')": "has a time zone: write `.dt.convert_time_zone(...)`",
    "l.list.contains('x')": "the literal does not fit int8",
    "l.list.contains(None)": "`list.contains` needs a value: got None",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_are_refused_with_a_reason(text: str):
    assert_refused(text, WRONG[text])


def test_every_function_has_an_expected_value():
    written = " ".join(EXPECTED)
    names = [function.name for function in METHODS]
    assert names
    assert not [name for name in names if not re.search(rf"\b{name}\(", written)]
