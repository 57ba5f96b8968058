"""Are encoded rows the same after they were columns, and any part of them?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.cache.cached_features import (
    arrow_array,
    arrow_bytes,
    facts_of,
    part_of_column,
    rows_of_columns,
    split_columns,
)
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows, slice_rows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.quality import Observer, Quality
from feedline.loader.encoding.slot import write_rows

SCHEMA = BatchSchema(
    (
        SlotColumn(name="price", group="dense", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="clicked", group="label", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="item", group="categorical", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="history", group="sparse", dtype="int64", arrow="int64", offset=0),
        SlotColumn(name="times", group="sparse", dtype="float32", arrow="float", offset=1),
    )
)


def encoded_of(items: list[int], lists: list[list[int]]) -> tuple[EncodedRows, Quality]:
    frame = pl.DataFrame(
        {
            "price": pl.Series([float(item % 7) for item in items], dtype=pl.Float32),
            "clicked": pl.Series([float(item % 2) for item in items], dtype=pl.Float32),
            "item": pl.Series(items, dtype=pl.Int64),
            "history": pl.Series(lists, dtype=pl.List(pl.Int64)),
            "times": pl.Series([[each % 11 for each in ids] for ids in lists], dtype=pl.List(pl.Float32)),
        }
    )
    observer = Observer(SCHEMA, [()] * len(SCHEMA))
    observer.count_rows(frame)
    return encode(frame, SCHEMA, observer), observer.quality()


@given(st.data())
@examples(100)
def test_any_part_has_its_rows(data: st.DataObject) -> None:
    """Of integers of any width."""
    ids = st.integers(*data.draw(st.sampled_from([(0, 9), (-200, 200), (-(2**40), 2**40), (-(2**63), 2**63 - 1)])))
    rows = data.draw(st.lists(st.tuples(ids, st.lists(ids, max_size=3)), min_size=1, max_size=20))
    encoded, quality = encoded_of([item for item, _ in rows], [ids for _, ids in rows])
    columns = split_columns(encoded, SCHEMA, facts_of(quality, SCHEMA))
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    parts = {name: part_of_column(column, start, stop, column.facts) for name, column in columns.items()}
    layout = SlotLayout(SCHEMA)
    for chosen, first, last in ((columns, 0, len(rows)), (parts, start, stop)):
        found = rows_of_columns(chosen, SCHEMA, last - first)
        assert np.array_equal(write_rows(layout, [found]), write_rows(layout, [slice_rows(encoded, first, last)]))


@pytest.mark.parametrize("on_nonfinite", ["keep", "zero"])
def test_numbers_that_are_not_finite_are_kept_and_zero_where_they_are_to_be(on_nonfinite: str) -> None:
    encoded, quality = encoded_of([3, 5], [[1, 2], [4]])
    encoded.dense[1, 0] = np.nan
    values = np.array([1, np.inf, 4], np.float32)
    encoded = replace(encoded, values=(encoded.values[0], values))
    facts = facts_of(quality, SCHEMA)
    for name in ("price", "times"):
        facts[name]["nonfinite"] = 1
    schema = BatchSchema(tuple(replace(column, on_nonfinite=on_nonfinite) for column in SCHEMA))
    found = rows_of_columns(split_columns(encoded, SCHEMA, facts), schema, 2)
    expected = [np.array([[3], [np.nan]], np.float32), values]
    if on_nonfinite == "zero":
        expected = [np.nan_to_num(each, posinf=0) for each in expected]
    assert np.array_equal(found.dense, expected[0], equal_nan=True)
    assert np.array_equal(found.values[1], expected[1])


def test_integers_take_as_few_bytes_as_hold_them() -> None:
    for highest, size in ((100, 1), (1000, 2), (10**6, 4), (2**40, 8)):
        encoded, quality = encoded_of([0, highest], [[highest], []])
        columns = split_columns(encoded, SCHEMA, facts_of(quality, SCHEMA))
        assert columns["item"].arrays["values"].itemsize == size
        assert columns["history"].arrays["values"].itemsize == size


@pytest.mark.parametrize("array", [pa.array(["a", None, "bc"]), pa.array([1.5, 2.5]), pa.array([[1], None])])
def test_arrow_arrays_survive(array: pa.Array) -> None:
    assert arrow_array(arrow_bytes(array)).equals(array)
    assert arrow_array(np.frombuffer(arrow_bytes(array[1:]).tobytes(), np.uint8)).equals(array[1:])
