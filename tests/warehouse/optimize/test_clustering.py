"""The documented row order, against Python's own sorting, and hashes computed one key at a time."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optimized import key_hash

from feedline.errors import TableError
from feedline.warehouse.optimize.clustering import Gatherer, buckets_of, refuse_keys, row_order
from feedline.warehouse.parquet.key_hashes import key_hashes

KEYS = {
    "int64": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "uint64": (st.integers(0, 2**64 - 1), pa.uint64()),
    "int8": (st.integers(-3, 3), pa.int8()),
    "bool": (st.booleans(), pa.bool_()),
    "string": (st.text(max_size=20), pa.string()),
    "binary": (st.binary(max_size=20), pa.binary()),
    "float": (st.floats(), pa.float64()),
    "date": (st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)), pa.date32()),
    "decimal": (st.decimals(-1000, 1000, places=2), pa.decimal128(9, 2)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_hashes_are_the_documented_ones(kind: str) -> None:
    values, type_ = KEYS[kind]

    @examples(12)
    @given(st.lists(st.tuples(st.none() | values, st.none() | st.integers(0, 9)), min_size=1, max_size=20))
    def check(rows: list[tuple[Any, int | None]]) -> None:
        table = pa.table({"a": pa.array([a for a, _ in rows], type_), "b": pa.array([b for _, b in rows], pa.int32())})
        assert key_hashes(table, ["a"]).tolist() == [key_hash([a]) for a, _ in rows]
        assert key_hashes(table, ["a", "b"]).tolist() == [key_hash(list(row)) for row in rows]

    check()


@examples(60)
@given(st.lists(st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(0, 3)), max_size=60))
def test_order_is_by_hash_key_and_sort_column_and_stable(rows: list[tuple[int | None, int | None]]) -> None:
    table = pa.table(
        {"key": pa.array([k for k, _ in rows], pa.int64()), "ts": pa.array([t for _, t in rows], pa.int8())}
    )

    def place(index: int) -> tuple[Any, ...]:
        key, ts = rows[index]
        return key_hash([key]), (key is not None, key or 0), (ts is not None, ts or 0), index

    assert row_order(table, ["key"], ["ts"]).tolist() == sorted(range(len(rows)), key=place)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 5000))
def test_buckets_are_equal_ranges_of_hashes(hashes: list[int], buckets: int) -> None:
    found = buckets_of(np.array(hashes, np.uint64), buckets).tolist()
    assert found == [(word >> 32) * buckets >> 32 for word in hashes]
    assert [found[i] for i in np.argsort(np.array(hashes, np.uint64))] == sorted(found)


@examples(30)
@given(st.data())
def test_gathering_is_taking(data: st.DataObject) -> None:
    lists = st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=4), min_size=1, max_size=30)
    values = data.draw(lists)
    places = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=40)), np.int64)
    required = pa.list_(pa.field("element", pa.int64(), nullable=False))
    table = pa.table(
        {
            "list": pa.array(values, pa.list_(pa.int32())),
            "large": pa.array(values, pa.large_list(pa.float32())),
            "required": pa.array([[x or 0 for x in value or ()] for value in values], required),
            "text": pa.array([None if value is None else [str(x) for x in value] for value in values]),
            "map": pa.array([[("a", len(value or ()))] for value in values], pa.map_(pa.string(), pa.int64())),
            "number": pa.array([None if value is None else len(value) for value in values], pa.uint8()),
        }
    )
    cut = data.draw(st.integers(0, len(values)))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    found = Gatherer([chunked]).take(places)
    found.validate(full=True)
    assert found.schema == table.schema
    assert found.to_pylist() == table.take(pa.array(places)).to_pylist()


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.null(), pa.struct({"a": pa.int8()}), pa.decimal256(50, 2)])
def test_keys_that_cannot_be_ordered_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(TableError, match=r"--cluster-by names column 'x' of type .*: expected numbers, strings"):
        refuse_keys(pa.schema([("x", kind)]), ["x"], "--cluster-by")
