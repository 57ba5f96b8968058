"""Ops over elements against their documentation, by an oracle in plain Python, one value at a time.

Every op over elements runs over a column, the same column cut into slices and chunks, and lists of the same values.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_oracles import FLOATS, INTEGERS, bound, check_elements, columns, run, same
from reference_hash import hash_of

from feedline.transforms.registry.op import OpError
from feedline.transforms.values import arrays
from feedline.transforms.values.kinds import element_type


def rounded(value: float, dtype: pl.DataType) -> float:
    """A float as a column of the type holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) if dtype == pl.Float32() else float(value)


# fill_null


@settings(max_examples=30)
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


@settings(max_examples=30)
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


@settings(max_examples=30)
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


@settings(max_examples=30)
@given(columns())
def test_log1p(series: pl.Series):
    def oracle(value: float) -> float:
        if value > -1:
            return math.log1p(value) if math.isfinite(value) else value
        return -math.inf if value == -1 else math.nan

    with np.errstate(all="raise"):  # a value of -2 is no warning, it is NaN
        check_elements("log1p", None, series, oracle, close=5e-7 if series.dtype == pl.Float32() else 1e-15)


@settings(max_examples=30)
@given(columns(), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_standardize(series: pl.Series, mean: float, std: float):
    def oracle(value: float) -> float:
        return rounded(float((np.float64(value) - mean) / std), series.dtype)

    with np.errstate(all="ignore"):
        close = 1.5e-7 if series.dtype == pl.Float32() else 5e-16
        check_elements("standardize", {"mean": mean, "std": std}, series, oracle, close)


def test_standardize_keeps_precision_far_from_zero():
    """In float32 the difference would be off by 8: seconds since 1970 lie 128 apart."""
    series = pl.Series([1.7e9, 1.7e9 + 128], dtype=pl.Float32)
    expected = [float(np.float32((float(value) - 1_700_000_003) / 10)) for value in series]
    assert run("standardize", {"mean": 1_700_000_003, "std": 10}, series).to_list() == expected


def test_standardize_agrees_with_pandas():
    series = pd.Series(np.random.default_rng(0).normal(5, 3, 1000))
    expected = (series - series.mean()) / series.std()
    found = run("standardize", {"mean": series.mean(), "std": series.std()}, pl.Series(series.to_numpy()))
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-12, atol=1e-15)


def test_decimals_are_numbers():
    prices = pl.Series([Decimal("0.50"), None, Decimal("3.25")])
    assert run("clip", {"min": 1, "max": 2}, prices).to_list() == [1.0, None, 2.0]
    assert run("bucketize", [0.5, 3], prices).to_list() == [0, None, 2]
    assert run("cast", "int64", prices).to_list() == [0, None, 3]


def test_half_floats_are_numbers():
    halves = pl.Series([0.5, None, -2.0], dtype=pl.Float16)
    assert run("clip", {"min": 0, "max": 1}, halves).to_list() == [0.5, None, 0.0]


# bucketize


def bucket_of(value: float, borders: list[Any]) -> int | None:
    """TorchArrow's definition: the first border that is not below the value; one more where the next equals it too."""
    if value != value:
        return None
    index = next((index for index, border in enumerate(borders) if not border < value), len(borders))
    return index + 1 if index + 1 < len(borders) and not value < borders[index + 1] else index


@settings(max_examples=30)
@given(
    columns(),
    st.lists(st.one_of(st.integers(-20, 20), st.integers(-(2**70), 2**70)), min_size=1, max_size=8),
    st.data(),
)
def test_bucketize(series: pl.Series, borders: list[int], data: st.DataObject):
    if series.dtype.is_float():  # far away from each other, also as float32
        borders = [border for border in borders if abs(border) <= 20] or [0]
    repeated = data.draw(st.lists(st.sampled_from(borders), max_size=2, unique=True))
    whole = sorted(set(borders) | set()) + repeated
    check_elements("bucketize", sorted(whole), series, lambda value: bucket_of(value, sorted(whole)))


@settings(max_examples=30)
@given(columns(INTEGERS), st.lists(st.fractions(-30, 30, max_denominator=8), min_size=1, max_size=8))
def test_bucketize_of_integers_at_fractions(series: pl.Series, borders: list[Fraction]):
    exact = sorted(Fraction(float(border)) for border in set(borders))
    check_elements(
        "bucketize", [float(border) for border in exact], series, lambda value: bucket_of(Fraction(value), exact)
    )


@settings(max_examples=30)
@given(columns(FLOATS), st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True))
def test_bucketize_of_floats_binds_borders_to_the_column(series: pl.Series, tenths: list[int]):
    borders = [tenth / 10 for tenth in sorted(tenths)]
    meant = [rounded(border, series.dtype) for border in borders]
    on_borders = pl.Series("a", [*series, *meant], dtype=series.dtype)
    check_elements("bucketize", borders, on_borders, lambda value: bucket_of(value, meant))


def test_bucketize_vectors_of_torcharrow():
    assert run("bucketize", [2, 5, 10], pl.Series([1, 2, 3, 5, 8, 10, 11])).to_list() == [0, 0, 1, 1, 2, 2, 3]
    assert run("bucketize", [2.0, 5.0, 5.0, 10.0], pl.Series([5.0, 5.5, 4.0])).to_list() == [2, 3, 1]
    assert run("bucketize", [5, 5, 5], pl.Series([4, 5, 6])).to_list() == [0, 1, 3]


def test_bucketize_of_large_integers_is_exact():
    near = 2**53
    assert run("bucketize", [near], pl.Series([near, near + 1])).to_list() == [0, 1]
    assert run("bucketize", [-5, 2**63], pl.Series([0, 2**63, 2**63 + 1], dtype=pl.UInt64)).to_list() == [1, 1, 2]


def test_bucketize_agrees_with_numpy_on_many_values():
    values, borders = np.random.default_rng(0).normal(size=100_000), np.linspace(-3, 3, 101)
    found = run("bucketize", borders.tolist(), pl.Series(values)).to_numpy()
    assert (found == np.searchsorted(borders, values)).all()


# hash_bucket, modulo


@settings(max_examples=30)
@given(columns(INTEGERS), st.integers(1, 2**63 - 1), st.integers(0, 3))
def test_hash_bucket_of_integers(series: pl.Series, buckets: int, seed: int):
    arguments = {"buckets": buckets, "seed": seed}
    check_elements("hash_bucket", arguments, series, lambda value: hash_of(value, seed) % buckets)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=20), st.integers(1, 10**6))
def test_hash_bucket_of_strings(values: list[str | None], buckets: int):
    series = pl.Series("a", values, dtype=pl.String)
    check_elements("hash_bucket", buckets, series, lambda value: hash_of(value) % buckets)
    check_elements("hash_bucket", buckets, series.cast(pl.Binary), lambda value: hash_of(value) % buckets)


@settings(max_examples=30)
@given(columns(INTEGERS), st.integers(1, 2**63 - 1))
def test_hash_bucket_with_a_bucket_for_nulls(series: pl.Series, buckets: int):
    wanted = [buckets if value is None else hash_of(value) % buckets for value in series.to_list()]
    arguments = {"buckets": buckets, "null_bucket": True}
    assert run("hash_bucket", arguments, series).to_list() == wanted
    lists = pl.Series([series.to_list(), None, []], dtype=pl.List(series.dtype))
    assert run("hash_bucket", arguments, lists).to_list() == [wanted, None, []]
    strings = series.cast(pl.String)
    wanted = [buckets if value is None else hash_of(value) % buckets for value in strings.to_list()]
    assert run("hash_bucket", arguments, strings).to_list() == wanted


def test_hash_bucket_does_not_depend_on_the_layout():
    strings = ["Paris", None, "a name of more than twelve bytes", "Paris", ""]
    wanted = [None if value is None else hash_of(value) % 1000 for value in strings]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        series = pl.Series(pa.array(strings, type=pa.string()).cast(kind))
        assert run("hash_bucket", 1000, series).to_list() == wanted
    ids = [-1, 0, 127, None]
    wanted = [None if value is None else hash_of(value) % 1000 for value in ids]
    for dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64):
        assert run("hash_bucket", 1000, pl.Series(ids, dtype=dtype)).to_list() == wanted
        array = pl.Series([ids], dtype=pl.Array(dtype, 4))
        assert run("hash_bucket", 1000, array).to_list() == [wanted]
    lists = pl.Series([["Paris", None], None, []], dtype=pl.List(pl.Categorical))
    assert run("hash_bucket", 1000, lists).to_list() == [[hash_of("Paris") % 1000, None], None, []]


@settings(max_examples=30)
@given(columns(INTEGERS), st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_modulo(series: pl.Series, divisor: int):
    check_elements("modulo", divisor, series, lambda value: value % divisor)


def test_modulo_of_more_values_than_a_block():
    values = np.random.default_rng(0).integers(-(2**62), 2**62, 2 * arrays.BLOCK_VALUES + 5)
    assert (run("modulo", 1_000_003, pl.Series(values)).to_numpy() == values % 1_000_003).all()
    series = pl.Series([None, *values.tolist()])[1:]  # nulls in front of a slice: the mask starts inside a byte
    assert (run("modulo", 1_000_003, series).to_numpy() == values % 1_000_003).all()


# first_x, cast, expr


@settings(max_examples=30)
@given(st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=6))), st.integers(1, 7))
def test_first_x(rows: list[list[int | None] | None], count: int):
    for dtype, as_value in ((pl.Int64(), int), (pl.String(), str), (pl.Float32(), float)):
        typed = [None if row is None else [None if item is None else as_value(item) for item in row] for row in rows]
        expected = [None if row is None else row[:count] for row in typed]
        same(run("first_x", count, pl.Series(typed, dtype=pl.List(dtype))).to_list(), expected)


def test_first_x_of_fixed_size_lists():
    assert run("first_x", 2, pl.Series([[1, 2, 3], None], dtype=pl.Array(pl.Int32, 3))).to_list() == [[1, 2], None]


@settings(max_examples=30)
@given(columns(INTEGERS))
def test_cast_to_a_float_and_to_a_string(series: pl.Series):
    check_elements("cast", "float64", series, float)
    check_elements("cast", "float32", series, lambda value: float(np.float32(value)))
    check_elements("cast", "string", series, str)
    check_elements("cast", "bool", series, bool)


@settings(max_examples=30)
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


def test_values_under_a_null_list_do_not_count():
    """Arrow allows elements under a null; a strict cast must not look at them, and no op may bring them back."""
    hidden = pa.LargeListArray.from_buffers(
        pa.large_list(pa.float64()),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 2, 3], dtype=np.int64))],
        children=[pa.array([1.0, math.nan, 2.0])],
    )
    series = pl.Series(hidden)
    assert run("cast", "int64", series).to_list() == [[1], None, [2]]
    assert run("bucketize", [1.5], series).to_list() == [[0], None, [1]]
    assert run("clip", {"max": 1}, series).to_list() == [[1.0], None, [1.0]]
    assert run("first_x", 1, series).to_list() == [[1.0], None, [2.0]]


def test_expr():
    assert run("expr", "x * x - 1", pl.Series([3, None, -2])).to_list() == [8, None, 3]
    assert run("expr", "x.list.len()", pl.Series([[1, 2], [], None])).to_list() == [2, 0, None]
    assert run("expr", "x > 1", pl.Series([], dtype=pl.Int64)).to_list() == []


@pytest.mark.parametrize("text", ["y + 1", "1 + 1", "", "x.mean()", "x +"])
def test_expr_refuses_other_columns_and_several_rows(text: str):
    with pytest.raises(OpError, match="expr: "):
        bound("expr", text, pl.Int64())


# what holds for every op

CALLS = [
    ("fill_null", 3),
    ("clip", {"min": 2, "max": 50}),
    ("log1p", None),
    ("log", None),
    ("logit", 0.01),
    ("box_cox", {"power": 0.3, "shift": 1}),
    ("standardize", {"mean": 3, "std": 2}),
    ("cast", "float32"),
    ("bucketize", [2, 5, 5, 70]),
    ("hash_bucket", 1000),
    ("modulo", 17),
    ("sigrid_hash", {"salt": 1, "max_value": 1000}),
    ("map_id", {"keys": [0, 37, 74], "values": [1, 2, 3], "default": 0}),
    ("expr", "x"),
]


@pytest.mark.parametrize(("op", "arguments"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("listed", [False, True], ids=["scalars", "lists"])
def test_parts_match_the_whole(op: str, arguments: object, listed: bool):
    values = [None if index % 7 == 3 else index * 37 % 101 for index in range(500)]
    series = pl.Series("a", values)
    if listed:
        rows = [None if start % 11 == 5 else values[start : start + start % 6] for start in range(300)]
        series = pl.Series("a", rows, dtype=pl.List(pl.Int64))
    whole = run(op, arguments, series)
    cuts = [0, 1, 8, 9, 9, 64, 100, 293, len(series)]
    parts = [run(op, arguments, series[start:stop]) for start, stop in pairwise(cuts)]
    assert pl.concat(parts).equals(whole, null_equal=True)
    assert element_type(whole.dtype) == bound(op, arguments, pl.Int64()).dtype or op == "expr"
    assert series[:3].to_list() == ([None, *values][1:4] if not listed else rows[:3]), "the input is untouched"


OF_IDS = ("hash_bucket", "modulo", "sigrid_hash", "map_id")


@pytest.mark.parametrize(("op", "arguments"), [call for call in CALLS if call[0] not in OF_IDS])
def test_float32_does_not_depend_on_where_a_part_begins(op: str, arguments: object):
    """Vectorised loops end in other instructions than they begin with; the bits must be the same."""
    series = pl.Series("a", np.random.default_rng(0).gamma(2.0, 20.0, 1000).astype(np.float32))
    whole = run(op, arguments, series)
    for start in (1, 2, 3, 5, 17):
        for stop in (start + 1, start + 7, 998, 1000):
            assert run(op, arguments, series[start:stop]).equals(whole[start:stop])


@pytest.mark.parametrize(("op", "arguments"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_columns_without_rows_and_of_nulls_only(op: str, arguments: object):
    for dtype in (pl.Int64(), pl.List(pl.Int64())):
        assert len(run(op, arguments, pl.Series("a", [], dtype=dtype))) == 0
        filled = 3 if op == "fill_null" and dtype == pl.Int64() else None
        assert run(op, arguments, pl.Series("a", [None] * 10, dtype=dtype)).to_list() == [filled] * 10
