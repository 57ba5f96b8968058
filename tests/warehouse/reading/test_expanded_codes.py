"""Codes are expanded to the values that they stand for, alone and in lists."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from feedline.warehouse.reading.columns import expand_codes, expand_series, expanded_frame

WORDS = pl.Series("values", ["a", "bb", "Zürich " * 9, None])


@pytest.mark.parametrize("dtype", [pl.UInt16, pl.Int32])
def test_codes_are_positions_in_the_values(dtype: type[pl.DataType]):
    codes = pl.Series("x", [2, 0, None, 3, 0], dtype=dtype)
    expected = [None if code is None else WORDS[code] for code in codes.to_list()]
    found = expand_series(codes, WORDS)
    assert found.name == "x"
    assert found.dtype == pl.String
    assert found.to_list() == expected


@pytest.mark.parametrize("start", [0, 1, 3])
def test_lists_of_codes_are_lists_of_values(start: int):
    lists = pl.Series("x", [[9, 9], [2, 0], None, [], [1, None]], dtype=pl.List(pl.UInt16))
    values = pl.concat([WORDS, pl.Series(["p"] * 6)])
    expected = [
        None if row is None else [None if code is None else values[code] for code in row] for row in lists.to_list()
    ]
    assert expand_series(lists[start:], values).to_list() == expected[start:]


def test_numbers_are_expanded_too():
    found = expand_series(pl.Series("x", [1, 0, 1], dtype=pl.UInt16), pl.Series([0.5, 2.5]))
    assert found.to_list() == [2.5, 0.5, 2.5]


def test_only_columns_with_values_are_replaced():
    frame = pl.DataFrame({"x": pl.Series([1, 0], dtype=pl.UInt16), "n": [7, 8]})
    found = expand_codes(frame, {"x": WORDS})
    assert found.to_dict(as_series=False) == {"x": ["bb", "a"], "n": [7, 8]}
    assert expand_codes(frame, {}) is frame


def test_dictionary_arrays_are_columns_of_codes():
    words = pa.array(["a", None, "b", "a"])
    lists = pa.array([["a"], [], None, ["b", "b"]])
    entries = pa.array(["a", "b"])
    codes = pa.ListArray.from_arrays(
        lists.offsets, pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), entries), mask=lists.is_null()
    )
    batch = pa.record_batch({"n": [1, 2, 3, 4], "w": words.dictionary_encode(), "l": codes})
    assert expanded_frame(batch, ["w", "n"]).to_dict(as_series=False) == {"w": words.to_pylist(), "n": [1, 2, 3, 4]}
    assert expanded_frame(batch, ["n"]).columns == ["n"]
