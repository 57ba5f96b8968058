"""Lists as flat values and offsets, and back, are those of Python, whatever lies under nulls and before slices."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.transforms.values import ragged
from feedline.transforms.values.kinds import WEIGHTS, TailSlice, Value
from feedline.transforms.values.ragged import (
    Ragged,
    align_weights,
    either,
    filter_elements,
    flatten_lists,
    lists_of,
    lists_of_one,
    map_flat,
    slice_bounds,
    slice_elements,
    vectors_of,
    widen_list,
)

LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=5), max_size=10)
INTEGERS = pl.List(pl.Int64())


def series_of(lists: list[list[int | None] | None], start: int = 0) -> pl.Series:
    return pl.Series("x", lists, dtype=INTEGERS)[start:]


def evaluated(expr: pl.Expr, **columns: pl.Series) -> list[object]:
    return pl.DataFrame(columns).lazy().select(expr).collect(engine="in-memory").to_series().to_list()


@examples(40)
@given(LISTS, st.integers(0, 3))
def test_lists_survive_the_way_to_numpy_and_back(lists: list[list[int | None] | None], start: int):
    rows = Ragged.of(series_of(lists, start))
    expected = lists[start:]
    assert rows.lengths.tolist() == [len(row or []) for row in expected]
    back = lists_of(rows.values, rows.offsets, holes=rows.holes, absent=rows.absent)
    assert back.to_list() == expected


@examples(40)
@given(LISTS, st.integers(0, 5), st.integers(0, 5))
def test_parts_and_selections_are_those_of_python(lists: list[list[int | None] | None], start: int, rows: int):
    start = min(start, len(lists))
    part = Ragged.of(series_of(lists)).part(start, min(start + rows, len(lists)))
    expected = lists[start : start + rows]
    assert part.offsets[0] == 0
    assert lists_of(part.values, part.offsets, holes=part.holes, absent=part.absent).to_list() == expected
    without = part.drop_holes()
    assert without.holes is None or not without.holes.any()
    found = lists_of(without.values, without.offsets, absent=without.absent).to_list()
    assert found == [None if row is None else [value for value in row if value is not None] for row in expected]


def test_what_lies_under_a_null_list_is_left_out():
    array = pa.LargeListArray.from_arrays([0, 2, 4, 5], [1, 2, 3, 4, 5], mask=pa.array([False, True, False]))
    values, offsets, absent = flatten_lists(pl.Series(array))
    assert values.to_pylist() == [1, 2, 5]
    assert offsets.tolist() == [0, 2, 2, 3]
    assert absent is not None
    assert absent.tolist() == [False, True, False]


def test_numbers_become_lists_of_one_and_nulls_of_none():
    assert lists_of_one(pl.Series([1, None, 3])).to_list() == [[1], [], [3]]
    assert lists_of_one(pl.Series([1.5])).to_list() == [[1.5]]
    assert lists_of_one(pl.Series([], dtype=pl.Int64)).to_list() == []


def test_rows_of_a_matrix_become_vectors():
    matrix = np.array([[1, 2], [3, 4]])
    assert vectors_of(matrix).dtype == pl.Array(pl.Int64, 2)
    assert vectors_of(matrix).to_list() == [[1, 2], [3, 4]]
    assert vectors_of(matrix, np.array([False, True])).to_list() == [[1, 2], None]
    holes = np.array([[True, False], [False, False]])
    assert vectors_of(matrix, holes=holes).to_list() == [[None, 2], [3, 4]]


def test_a_function_of_all_elements_keeps_the_lists():
    found = map_flat(series_of([[1, None], None, [], [3]], 0), lambda flat: flat + 1, pl.Int64())
    assert found.to_list() == [[2, None], None, [], [4]]
    sliced = map_flat(series_of([[9, 9], [1, 2], [3]], 1), lambda flat: flat.to_numpy() * 2, pl.Int64())
    assert sliced.to_list() == [[2, 4], [6]]


@examples(40)
@given(LISTS, st.integers(-6, 6), st.none() | st.integers(-6, 6), st.booleans())
def test_slices_of_lists_and_weights(lists: list[list[int | None] | None], start: int, stop: int | None, strings: bool):
    series = series_of(lists)
    weights = series.cast(WEIGHTS)
    dtype = pl.List(pl.String()) if strings else INTEGERS
    column = series.cast(dtype)
    found = slice_elements(Value(expr=pl.col("x"), dtype=dtype, weights=pl.col("w")), start, stop)
    expected = [None if row is None else row[start:stop] for row in column.to_list()]
    assert evaluated(found.expr, x=column, w=weights) == expected
    assert found.weights is not None
    assert evaluated(found.weights, x=column, w=weights) == [
        None if row is None else row[start:stop] for row in weights.to_list()
    ]


def test_a_slice_of_numbers_is_known_as_one():
    numbers = slice_elements(Value(expr=pl.col("x"), dtype=INTEGERS), 1, None)
    assert isinstance(numbers.ending, TailSlice)
    assert (numbers.ending.start, numbers.ending.stop) == (1, None)
    assert slice_elements(Value(expr=pl.col("x"), dtype=pl.List(pl.String())), 1, None).ending is None


def test_bounds_beyond_32_bits_are_cut():
    assert slice_bounds(-(2**40), 2**40) == (-(2**31) + 1, 2**31 - 1)
    assert slice_bounds(3, None) == (3, 2**31 - 1)


def test_weights_of_one_length_are_aligned_and_null_where_the_ids_are():
    ids, weights = series_of([[1, 2], None, [3]]), pl.Series([[0.5, None], None, [2.0]])
    value = align_weights(
        Value(expr=pl.col("x"), dtype=INTEGERS), Value(expr=pl.col("w"), dtype=pl.List(pl.Float64())), None
    )
    assert evaluated(value.expr, x=ids, w=weights) == [[1, 2], None, [3]]
    assert value.weights is not None
    assert evaluated(value.weights, x=ids, w=weights) == [[0.5, None], None, [2.0]]
    filled = align_weights(Value(expr=pl.col("x"), dtype=INTEGERS), Value(expr=pl.col("w"), dtype=WEIGHTS), 1.0)
    assert filled.weights is not None
    assert evaluated(filled.weights, x=ids, w=weights.cast(WEIGHTS)) == [[0.5, 1.0], None, [2.0]]
    empty = pl.Series([[0.5, None], [], [2.0]])
    assert evaluated(value.weights, x=ids, w=empty) == [[0.5, None], None, [2.0]]


@pytest.mark.parametrize("part", ["expr", "weights"])
def test_weights_of_another_length_are_refused_with_both_lengths(part: str):
    value = align_weights(Value(expr=pl.col("x"), dtype=INTEGERS), Value(expr=pl.col("w"), dtype=WEIGHTS), None)
    with pytest.raises(DataError, match="each id must have one weight: got 1 weights for 2 ids, expected 2"):
        evaluated(getattr(value, part), x=series_of([[3], [1, 2]]), w=pl.Series([[1.0], [0.5]], dtype=WEIGHTS))


def test_filtered_lists_keep_the_weights_of_their_elements():
    value = Value(expr=pl.col("x"), dtype=INTEGERS, weights=pl.col("w"))
    columns = {"x": series_of([[1, 2, 3], None, [4]]), "w": pl.Series([[0.1, 0.2, 0.3], None, [0.4]]).cast(WEIGHTS)}
    odd = filter_elements(value, lambda lists: lists.values % 2 == 1)
    assert evaluated(odd.expr, **columns) == [[1, 3], None, []]
    assert odd.weights is not None
    weights = evaluated(odd.weights, **columns)
    assert weights == [pytest.approx([0.1, 0.3]), None, []]
    other = series_of([[1], [2], None])
    both = filter_elements(value, lambda lists, _: np.ones(len(lists.values), np.bool_), pl.col("o"))
    assert evaluated(both.expr, **columns, o=other) == [[1, 2, 3], None, None]


def test_masks_are_joined():
    one, two = np.array([True, False, False]), np.array([False, False, True])
    joined = either([one, None, two])
    assert joined is not None
    assert joined.tolist() == [True, False, True]
    assert either([None]) is None


@pytest.mark.parametrize(
    ("element", "wide"),
    [
        (pl.Int8(), pl.Int64()),
        (pl.UInt32(), pl.Int64()),
        (pl.UInt64(), pl.UInt64()),
        (pl.Float32(), pl.Float32()),
        (pl.Decimal(5, 2), pl.Float64()),
    ],
)
def test_lists_of_numbers_are_widened_to_what_numpy_computes(element: pl.DataType, wide: pl.DataType):
    lists = Value(expr=pl.col("x"), dtype=pl.List(element))
    widened = widen_list(lists)
    assert widened.dtype == pl.List(wide)
    assert (widened is lists) is (element == wide)


def test_slices_without_the_compiled_kernel_are_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ragged.rows, "COMPILED", False)
    lists = series_of([[1, 2, 3], None, [], [4]])
    for start, stop in ((0, 2), (1, None), (-2, None), (-3, -1), (0, 0)):
        expected = [None if row is None else row[start:stop] for row in lists.to_list()]
        assert ragged.slice_numbers(lists, start, stop).to_list() == expected
