"""Ops over numbers against their documentation, by an oracle in plain Python, one value at a time."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import FLOATS, INTEGERS, check_elements, columns, rounded, run, same

# fill_null


@examples(30)
@given(columns(), st.integers(0, 100))
def test_fill_null(series: pl.Series, fill: int):
    expected = [(fill if series.dtype.is_integer() else float(fill)) if value is None else value for value in series]
    same(run("fill_null", fill, series).to_list(), expected)
    lists = pl.Series("a", [series.to_list(), None, []], dtype=pl.List(series.dtype))
    same(run("fill_null", fill, lists).to_list(), [expected, None, []])


def test_fill_null_of_other_types():
    same(run("fill_null", "", pl.Series(["a", None])).to_list(), ["a", ""])
    same(run("fill_null", True, pl.Series([False, None])).to_list(), [False, True])
    same(run("fill_null", 0.1, pl.Series([None], dtype=pl.Float32)).to_list(), [float(np.float32(0.1))])
    same(run("fill_null", 2, pl.Series([Decimal("1.5"), None])).to_list(), [1.5, 2.0])
    dictionary = pl.Series(["a", None, "a"], dtype=pl.Categorical)
    same(run("fill_null", "b", dictionary).to_list(), ["a", "b", "a"])
    same(run("fill_null", 2**64 - 1, pl.Series([None], dtype=pl.UInt64)).to_list(), [2**64 - 1])


# clip


@examples(30)
@given(columns(), st.integers(-50, 50), st.integers(0, 100))
def test_clip(series: pl.Series, low: int, width: int):
    def oracle(value: float) -> float:
        if value != value:
            return value
        number = int if series.dtype.is_integer() else float
        least = max(low, 0) if series.dtype == pl.UInt64() else low
        return number(least if value < least else high if value > high else value)

    high = low + width
    if series.dtype == pl.UInt64() and high < 0:
        high = 0
    check_elements("clip", {"min": low, "max": high}, series, oracle)


@examples(30)
@given(columns(FLOATS), st.floats(-10, 10))
def test_clip_at_one_side(series: pl.Series, border: float):
    at = rounded(border, series.dtype)
    check_elements("clip", {"min": border}, series, lambda value: at if value < at else value)
    check_elements("clip", {"max": border}, series, lambda value: at if value > at else value)


def test_clip_of_integers_at_a_fraction_gives_floats():
    same(run("clip", {"max": 2.5}, pl.Series([1, 7, None], dtype=pl.Int16)).to_list(), [1.0, 2.5, None])


def test_clip_beyond_the_range_of_a_type_widens_it():
    same(run("clip", {"min": 1000}, pl.Series([1, -7, None], dtype=pl.Int8)).to_list(), [1000, 1000, None])
    assert run("clip", {"max": 2**64}, pl.Series([2**64 - 1], dtype=pl.UInt64)).to_list() == [2**64 - 1]
    assert run("clip", {"min": -(2**70)}, pl.Series([-(2**63)], dtype=pl.Int64)).to_list() == [-(2**63)]


# log1p, standardize


@examples(30)
@given(columns())
def test_log1p(series: pl.Series):
    def oracle(value: float) -> float:
        if value > -1:
            return math.log1p(value) if math.isfinite(value) else value
        return -math.inf if value == -1 else math.nan

    with np.errstate(all="raise"):  # a value of -2 is no warning, it is NaN
        check_elements("log1p", None, series, oracle, close=5e-7 if series.dtype == pl.Float32() else 1e-15)


@examples(30)
@given(columns(INTEGERS))
def test_cast_to_a_float_and_to_a_string(series: pl.Series):
    check_elements("cast", "float64", series, float)
    check_elements("cast", "float32", series, lambda value: float(np.float32(value)))
    check_elements("cast", "string", series, str)
    check_elements("cast", "bool", series, bool)


@examples(30)
@given(columns(FLOATS), st.sampled_from(["int8", "uint16", "int64"]))
def test_cast_of_floats_drops_the_fraction(series: pl.Series, to: str):
    limits = np.iinfo(to)

    def oracle(value: float) -> int | None:
        whole = math.trunc(value) if math.isfinite(value) else None
        return whole if whole is not None and limits.min <= whole <= limits.max else None

    check_elements("cast", {"to": to, "strict": False}, series, oracle)


def test_cast_of_strings_and_booleans():
    assert run("cast", "float64", pl.Series(["1.5", "-2e3", None])).to_list() == [1.5, -2000.0, None]
    assert run("cast", "int64", pl.Series([True, False, None])).to_list() == [1, 0, None]
    assert run("cast", {"to": "int64", "strict": False}, pl.Series(["7", "7.5", "x", ""])).to_list() == [
        7,
        None,
        None,
        None,
    ]
    assert run("cast", "int32", pl.Series([["1"], [], None])).to_list() == [[1], [], None]


@pytest.mark.parametrize(
    ("to", "values", "dtype"),
    [
        ("int64", [1.0, math.nan], pl.Float64()),
        ("int64", [math.inf], pl.Float32()),
        ("int8", [1, 128], pl.Int64()),
        ("uint64", [-1], pl.Int64()),
        ("float32", ["one"], pl.String()),
        ("int64", [[1.0], [math.nan]], pl.List(pl.Float64())),
    ],
)
def test_strict_casts_refuse(to: str, values: list[Any], dtype: pl.DataType):
    with pytest.raises(pl.exceptions.InvalidOperationError, match="conversion from"):
        run("cast", to, pl.Series(values, dtype=dtype))


# numbers


@examples(30)
@given(columns())
def test_log(series: pl.Series):
    def oracle(value: float) -> float:
        if value > 0:
            return math.log(value) if math.isfinite(value) else value
        return -math.inf if value == 0 else math.nan

    check_elements("log", None, series, oracle, close=5e-7 if series.dtype == pl.Float32() else 1e-15)


@examples(30)
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


@examples(30)
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


@examples(30)
@given(columns(FLOATS))
def test_fill_nonfinite(series: pl.Series):
    check_elements("fill_nonfinite", -1, series, lambda value: value if math.isfinite(value) else -1.0)
