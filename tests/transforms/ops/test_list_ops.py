"""Ops over numbers, whole lists and vectors against their documentation.

The oracle is plain Python, one row at a time. Every op runs over columns, over their slices and chunks, and over lists
with something standing under a null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_oracles import (
    FLOAT_LISTS,
    FLOATS,
    INT_LISTS,
    INTEGERS,
    PAIRS,
    check_elements,
    check_rows,
    columns,
    combined,
    id_lists,
    int_lists,
    parts_of,
    run,
    same,
    without_nulls,
)
from reference_hash import cross_of, sigrid_of

from feedline.errors import DataError
from feedline.transforms.registry.op import OpError

# numbers


@settings(max_examples=30)
@given(columns())
def test_log(series: pl.Series):
    def oracle(value: float) -> float:
        if value > 0:
            return math.log(value) if math.isfinite(value) else value
        return -math.inf if value == 0 else math.nan

    check_elements("log", None, series, oracle, close=5e-7 if series.dtype == pl.Float32() else 1e-15)


@settings(max_examples=30)
@given(columns(FLOATS), st.sampled_from([0.0, 1e-3, 0.25]))
def test_logit(series: pl.Series, eps: float):
    single = series.dtype == pl.Float32()
    number = np.float32 if single else np.float64
    least, most = float(number(eps)), float(number(1) - number(eps))

    def oracle(value: float) -> float:
        if value != value:
            return value
        p = min(max(value, least), most) if eps else value
        if not 0 <= p <= 1:
            return math.nan
        if p in (0, 1):
            return -math.inf if p == 0 else math.inf
        return math.log(p) - math.log1p(-p)

    found = run("logit", {"eps": eps}, series).to_list()
    for one, value in zip(found, series.to_list(), strict=True):
        assert (one is None) == (value is None)
        if value is not None:
            assert one == pytest.approx(
                oracle(value), rel=1e-5 if single else 1e-13, abs=2e-7 if single else 3e-16, nan_ok=True
            )


@settings(max_examples=30)
@given(columns(), st.sampled_from([-2.0, -0.5, 0.0, 1e-6, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 1.0]))
def test_box_cox(series: pl.Series, power: float, shift: float):
    single = series.dtype == pl.Float32()
    number = np.float32 if single else np.float64

    def oracle(value: float) -> float:
        y = float(number(number(value) + number(shift)))
        if not y >= 0:
            return math.nan
        if y in (0, math.inf):
            low = -math.inf if power <= 0 else -1 / power
            high = math.inf if power >= 0 else -1 / power
            return low if y == 0 else high
        try:
            made = math.log(y) if power == 0 else math.expm1(float(number(power)) * math.log(y)) / float(number(power))
        except OverflowError:
            return math.inf
        with np.errstate(over="ignore"):
            return float(number(made))

    with np.errstate(over="ignore"):
        found = run("box_cox", {"power": power, "shift": shift}, series).to_list()
        expected = [None if value is None else oracle(value) for value in series.to_list()]
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None or not math.isfinite(other):
            same(one, other)
        elif math.isfinite(one):
            assert one == pytest.approx(other, rel=1e-4 if single else 1e-12, abs=1e-6 if single else 1e-15)
        else:  # the last step before the largest number
            assert single
            assert abs(other) > 1e38


def test_box_cox_of_a_small_power_is_exact():
    [found] = run("box_cox", 1e-12, pl.Series([2.0])).to_list()
    assert found == pytest.approx(math.log(2) * (1 + 1e-12 * math.log(2) / 2), rel=1e-15)


@settings(max_examples=30)
@given(columns(FLOATS))
def test_fill_nonfinite(series: pl.Series):
    check_elements("fill_nonfinite", -1, series, lambda value: value if math.isfinite(value) else -1.0)


def test_parameters_that_do_not_fit():
    for op, arguments, dtype, message in (
        ("logit", 1e-9, pl.Float32(), "eps must change 1 in the column's type"),
        ("logit", 0.5, pl.Float32(), "logit.eps must be less than 0.5"),
        ("box_cox", {"power": 1e300}, pl.Float32(), "power does not fit the column"),
        ("map_id", {"keys": [1], "values": []}, pl.Int64(), "there must be a value for each key: got 1 keys, 0 values"),
        ("map_id", {"keys": [1, 1], "values": [2, 3]}, pl.Int64(), "keys must differ: got 1 twice"),
        ("map_id", {"keys": ["a"], "values": [2]}, pl.Int64(), "keys must be of the column's type: got 'a'"),
        ("map_id", {"keys": [1], "values": [2**63]}, pl.Int64(), "values must fit int64"),
        ("pad", {"length": 2, "value": 0.5}, INT_LISTS, "the value does not fit the column: got 0.5"),
        ("pad", {"length": 2, "value": -1}, pl.List(pl.UInt64()), "the value does not fit the column: got -1"),
        ("pad", 0, INT_LISTS, "pad.length must be greater than or equal to 1"),
        ("onehot", 3, INT_LISTS, "onehot takes integers or booleans: got integer list"),
        ("vector", 3, pl.Float32(), "vector takes lists of numbers or booleans: got float"),
        ("get_local_hour", "Mars/Base", pl.Datetime("us"), "the tz database, such as Europe/Zurich: got 'Mars"),
        ("ids", None, INT_LISTS, "ids: the input must be a weighted list: got integer list"),
        ("ngram", {"n": 2, "buckets": 5}, PAIRS, "ngram takes no weights: got weighted integer list. Put `ids` before"),
        ("log", None, pl.List(pl.String()), "log takes numbers, or lists of them: got string list"),
    ):  # fmt: skip
        with pytest.raises(OpError, match=message):
            combined(op, arguments, pl.Series("a", [], dtype=dtype))


# ids


def test_sigrid_hash_vectors_of_torcharrow():
    expected = [6, 60, 54, 54, 9, 4, 91, 11, 67, 79, 2, 25, 92, 98, 83, 66, 2]
    assert run("sigrid_hash", {"salt": 0, "max_value": 100}, pl.Series(range(17))).to_list() == expected
    assert run("sigrid_hash", {"salt": 3, "max_value": 1}, pl.Series([5, -5])).to_list() == [0, 0]


@settings(max_examples=30)
@given(columns(INTEGERS), st.integers(-(2**63) + 1, 2**63 - 1), st.one_of(st.integers(1, 9), st.integers(1, 2**63 - 1)))
def test_sigrid_hash(series: pl.Series, salt: int, limit: int):
    arguments = {"salt": salt, "max_value": limit}
    check_elements("sigrid_hash", arguments, series, lambda value: sigrid_of(value, salt, limit))


@settings(max_examples=30)
@given(columns(INTEGERS), st.one_of(st.none(), st.integers(-5, 5)))
def test_map_id(series: pl.Series, default: int | None):
    table = {3: 1, -2: 0, 2**64 - 1: 7, 127: -4}
    arguments = {"keys": list(table), "values": list(table.values()), "default": default}
    check_elements("map_id", arguments, series, lambda value: table.get(value, default))


def test_map_id_of_strings():
    arguments = {"keys": ["a", ""], "values": [1, 2], "default": 9}
    assert run("map_id", arguments, pl.Series(["a", "", "b", None])).to_list() == [1, 2, 9, None]
    assert run("map_id", arguments, pl.Series(["a", None, "a"], dtype=pl.Categorical)).to_list() == [1, None, 1]


# lists


@settings(max_examples=30)
@given(id_lists, st.integers(-7, 7), st.one_of(st.none(), st.integers(-7, 7)))
def test_list_slice(rows: list[Any], start: int, stop: int | None):
    arguments = {"start": start} if stop is None else {"start": start, "stop": stop}
    oracle: Callable[[Any], Any] = lambda row: None if row is None else row[start:stop]  # noqa: E731
    check_rows("list_slice", arguments, [int_lists(rows)], oracle)
    words = [None if row is None else [None if item is None else str(item) for item in row] for row in rows]
    expected = [oracle(row) for row in words]
    assert combined("list_slice", arguments, parts_of(words, pl.List(pl.String())))[0] == expected


def test_slices_far_outside():
    far = 2**63 - 1
    assert combined("list_slice", {"start": -far, "stop": far}, int_lists([[1, 2], []]))[0] == [[1, 2], []]
    assert combined("list_slice", {"start": far}, int_lists([[1, 2], [None]]))[0] == [[], []]
    assert combined("first_x", far, int_lists([[1, 2], None]))[0] == [[1, 2], None]


@settings(max_examples=30)
@given(id_lists, st.integers(-3, 3))
def test_enumerate(rows: list[Any], start: int):
    check_rows(
        "enumerate", start, [int_lists(rows)], lambda row: None if row is None else list(range(start, start + len(row)))
    )


@settings(max_examples=30)
@given(id_lists, st.one_of(st.none(), st.integers(-1, 4)), st.one_of(st.none(), st.integers(2, 6)), st.booleans())
def test_id_list_transform(rows: list[Any], low: int | None, high: int | None, unique: bool):
    def oracle(row: list[int]) -> list[int]:
        kept = [item for item in row if (low is None or item >= low) and (high is None or item <= high)]
        return list(dict.fromkeys(kept)) if unique else kept

    arguments = {"min": low, "max": high, "unique": unique}
    check_rows(
        "id_list_transform",
        {key: value for key, value in arguments.items() if value is not None},
        [int_lists(rows)],
        without_nulls(oracle),
    )


@settings(max_examples=30)
@given(id_lists, st.integers(1, 4), st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_ngram(rows: list[Any], n: int, buckets: int):
    def oracle(row: list[int | None] | None) -> Any:
        if row is None:
            return None
        runs = [row[place : place + n] for place in range(len(row) - n + 1)]
        return [None if None in run else cross_of(*run) % buckets for run in runs]

    check_rows("ngram", {"n": n, "buckets": buckets}, [int_lists(rows)], oracle)


def test_ngram_of_more_values_than_a_block():
    values = np.random.default_rng(0).integers(0, 100, 70_000)
    lists = pl.Series(pa.LargeListArray.from_arrays(pa.array([0, 40_000, 40_001, 70_000]), pa.array(values)))
    found = combined("ngram", {"n": 3, "buckets": 2**40}, lists)[0]
    assert [len(row) for row in found] == [39_998, 0, 29_997]
    for row, start in ((0, 0), (0, 32_766), (0, 39_997), (2, 29_996)):
        begin = [0, 0, 40_001][row] + start
        assert found[row][start] == cross_of(*values[begin : begin + 3].tolist()) % 2**40


def test_lists_of_other_integers():
    for dtype in (pl.Int8(), pl.UInt16(), pl.UInt64()):
        lists = pl.Series([[1, 2, 1], None, []], dtype=pl.List(dtype))
        assert combined("id_list_transform", {"unique": True}, lists)[0] == [[1, 2], None, []]
        one, two = cross_of(1) % 99, cross_of(2) % 99
        assert combined("ngram", {"n": 1, "buckets": 99}, lists)[0] == [[one, two, one], None, []]
        assert combined("pad", 2, lists)[0] == [[1, 2], [0, 0], [0, 0]]
    huge = pl.Series([[2**64 - 1, 0]], dtype=pl.List(pl.UInt64))
    assert combined("id_list_transform", {"min": 1}, huge)[0] == [[2**64 - 1]]


# vectors


@settings(max_examples=30)
@given(st.lists(st.one_of(st.none(), st.integers(-2, 5)), max_size=9), st.integers(1, 4))
def test_onehot(values: list[int | None], size: int):
    series = pl.Series("a", values, dtype=pl.Int32)
    check_rows(
        "onehot", size, [series], lambda value: None if value is None else [float(value == i) for i in range(size)]
    )


def test_onehot_of_numbers_beyond_int64():
    assert combined("onehot", 2, pl.Series([2**64 - 1, 1, None], dtype=pl.UInt64))[0] == [[0.0, 0.0], [0.0, 1.0], None]


@settings(max_examples=30)
@given(id_lists, st.integers(1, 5), st.integers(-1, 1))
def test_pad(rows: list[Any], length: int, value: int):
    def oracle(row: list[Any] | None) -> list[Any]:
        kept = (row or [])[:length]
        return kept + [value] * (length - len(kept))

    check_rows("pad", {"length": length, "value": value}, [int_lists(rows)], oracle)


def test_vectors():
    lists = pl.Series([[1.0, 2.0], None, [3.0, None]], dtype=FLOAT_LISTS)
    for part in (lists, lists[1:], lists[:0], pl.concat([lists, lists], rechunk=False)):
        assert combined("vector", 2, part)[0] == part.to_list()
    whole = pl.Series([[0.0], [1.0, 2.0], [3.0, 4.0]], dtype=FLOAT_LISTS)[1:]
    assert combined("vector", 2, whole)[0] == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(DataError, match="got 1, expected 2"):
        combined("vector", 2, pl.Series([[1.0, 2.0], None, [3.0]], dtype=FLOAT_LISTS))


def test_elements_of_vectors_stay_vectors():
    vectors = pl.Series([[0.0, 1.0], None, [math.nan, 3.0]], dtype=pl.Array(pl.Float32, 2))
    assert run("clip", {"max": 0.5}, vectors).dtype == pl.Array(pl.Float32, 2)
    same(run("clip", {"max": 0.5}, vectors).to_list(), [[0.0, 0.5], None, [math.nan, 0.5]])


# times


@settings(max_examples=30)
@given(
    st.lists(st.one_of(st.none(), st.datetimes(datetime(1990, 1, 1), datetime(2035, 1, 1))), max_size=9),
    st.sampled_from(["Europe/Zurich", "America/St_Johns", "Asia/Kathmandu", "UTC", "Australia/Lord_Howe"]),
)
def test_get_local_hour(times: list[datetime | None], name: str):
    def oracle(time: datetime | None) -> int | None:
        return None if time is None else time.replace(tzinfo=UTC).astimezone(ZoneInfo(name)).hour

    expected = [oracle(time) for time in times]
    for unit in ("ms", "us", "ns"):
        series = pl.Series("t", times, dtype=pl.Datetime("us")).cast(pl.Datetime(unit))
        assert run("get_local_hour", name, series).to_list() == expected
        elsewhere = series.dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
        assert run("get_local_hour", name, elsewhere).to_list() == expected


def test_get_local_hour_of_lists():
    moments = pl.Series([[datetime(2026, 1, 1, 23), None], [], None], dtype=pl.List(pl.Datetime("us")))
    assert run("get_local_hour", "Europe/Zurich", moments).to_list() == [[0, None], [], None]


def test_get_local_hour_through_the_change_of_clocks():
    start = datetime(2026, 3, 29, 0, 30)
    hours = pl.Series([start + timedelta(hours=hour) for hour in range(3)])
    assert run("get_local_hour", "Europe/Zurich", hours).to_list() == [1, 3, 4]
