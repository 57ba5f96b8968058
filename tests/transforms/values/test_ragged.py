"""Lists as flat values and offsets: what lies under nulls is left out, and slices need no compiled kernel."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from feedline.transforms.values import ragged
from feedline.transforms.values.ragged import flatten_lists, lists_of_one


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


def test_slices_without_the_compiled_kernel_are_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ragged.rows, "COMPILED", False)
    lists = pl.Series([[1, 2, 3], None, [], [4]])
    for start, stop in ((0, 2), (1, None), (-2, None), (-3, -1), (0, 0)):
        expected = [None if row is None else row[start:stop] for row in lists.to_list()]
        assert ragged.slice_numbers(lists, start, stop).to_list() == expected
