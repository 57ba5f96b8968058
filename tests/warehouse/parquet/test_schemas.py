"""Reconciling types: nothing is lost, order does not matter, contradictions are named."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import TableError
from feedline.warehouse.parquet.schemas import KindChangedError, conform, leaf_count, unify, union, without_dictionaries

MOMENT = datetime.datetime(2026, 1, 31, 12, 0, 0, 123_000)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.null(): [None],
    pa.bool_(): [True, None],
    pa.date32(): [datetime.date(2026, 1, 31)],
    pa.decimal128(5, 2): [Decimal("-123.45")],
    pa.decimal128(9, 4): [Decimal("12345.6789")],
    pa.decimal128(38, 0): [Decimal("9" * 38)],
    pa.string(): ["ä", None],
    pa.large_string(): ["b"],
    pa.dictionary(pa.int8(), pa.string()): ["c"],
    pa.dictionary(pa.int8(), pa.int16()): [3, 4],
    pa.binary(): [b"\xff"],
    pa.large_binary(): [b"x"],
    pa.binary(2): [b"ab"],
    pa.timestamp("ms"): [MOMENT],
    pa.timestamp("us"): [MOMENT],
    pa.timestamp("ns"): [MOMENT],
    pa.timestamp("ms", "UTC"): [MOMENT.replace(tzinfo=datetime.UTC)],
    pa.timestamp("us", "Europe/Berlin"): [MOMENT.replace(tzinfo=datetime.UTC)],
    pa.list_(pa.int32()): [[1, None], None, []],
    pa.large_list(pa.int64()): [[2**40]],
    pa.list_(pa.int16(), 2): [[1, 2]],
    pa.list_(pa.dictionary(pa.int32(), pa.string())): [["x"]],
    pa.list_(pa.string()): [["x", None]],
    pa.list_(pa.null()): [[None], []],
    pa.struct({"a": pa.int8(), "b": pa.string()}): [{"a": 1, "b": "x"}],
    pa.struct({"a": pa.int64(), "c": pa.float32()}): [{"a": 2**40, "c": 0.5}],
    pa.map_(pa.string(), pa.int32()): [[("k", 1)]],
    pa.map_(pa.string(), pa.int64()): [[("k", 2**40)]],
    **{kind: [1, 0] for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: [255] for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{kind: [0.5, None] for kind in (pa.float16(), pa.float32(), pa.float64())},
}
TYPES = st.sampled_from(list(VALUES))


def merge(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    try:
        return unify(without_dictionaries(a), without_dictionaries(b))
    except KindChangedError:
        return None


def same(value: Any, read: Any) -> bool:
    if isinstance(value, dict):
        return all(same(value.get(key), item) for key, item in read.items())
    return bool(value == read)


@given(TYPES, TYPES)
def test_both_sides_fit_the_unified_type_without_loss(a: pa.DataType, b: pa.DataType) -> None:
    kind = merge(a, b)
    if kind is None:
        return
    for side in (a, b):
        read = conform(pa.array(VALUES[side], side), kind)
        assert read.type == kind
        assert all(same(value, item) for value, item in zip(VALUES[side], read.to_pylist(), strict=True))


@given(TYPES, TYPES)
def test_order_of_the_two_does_not_matter(a: pa.DataType, b: pa.DataType) -> None:
    ours, theirs = merge(a, b), merge(b, a)
    if ours is not None and pa.types.is_struct(ours):
        assert {field.name: field.type for field in ours} == {field.name: field.type for field in theirs}
    else:
        assert ours == theirs


RULES = [
    (pa.null(), pa.string(), pa.string()),
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int64(), None),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float64(), None),
    (pa.int64(), pa.string(), None),
    (pa.bool_(), pa.int8(), None),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.int16()), pa.int64(), pa.int64()),
    (pa.string(), pa.binary(), None),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.binary(2), pa.binary(), pa.large_binary()),
    (pa.date32(), pa.timestamp("us"), None),
    (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
    (pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("ns")),
    (pa.timestamp("ms"), pa.timestamp("ms", "UTC"), None),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    (pa.decimal128(5, 2), pa.decimal128(9, 4), pa.decimal128(9, 4)),
    (pa.decimal128(38, 0), pa.decimal128(9, 4), pa.decimal256(42, 4)),
    (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.large_list(pa.int64())),
    (pa.list_(pa.int16(), 2), pa.list_(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.list_(pa.int32()), pa.int32(), None),
    (pa.list_(pa.int32()), pa.struct({"a": pa.int8(), "b": pa.string()}), None),
    (pa.list_(pa.field("e", pa.int8(), nullable=False)), pa.list_(pa.int8()), pa.list_(pa.int8())),
    (
        pa.struct({"a": pa.int8(), "b": pa.string()}),
        pa.struct({"a": pa.int64(), "c": pa.float32()}),
        pa.struct({"a": pa.int64(), "b": pa.string(), "c": pa.float32()}),
    ),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("a", "b", "expected"), RULES)
def test_rules(a: pa.DataType, b: pa.DataType, expected: pa.DataType | None) -> None:
    assert merge(a, b) == expected


def test_union_keeps_first_order_drops_dictionaries_and_widens_nullability() -> None:
    first = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.null())])
    second = pa.schema(
        [
            pa.field("c", pa.dictionary(pa.int8(), pa.string()), nullable=False),
            pa.field("b", pa.float32()),
            pa.field("a", pa.int8(), nullable=False, metadata={"PARQUET:field_id": "3"}),
        ]
    )
    expected = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.float32()), ("c", pa.string())])
    assert union([("x", first), ("y", second)]).equals(expected, check_metadata=True)


def test_a_changed_kind_names_column_and_both_files() -> None:
    schemas = [
        ("f1", pa.schema({"a": pa.int64()})),
        ("f2", pa.schema({"b": pa.int8()})),
        ("f3", pa.schema({"a": pa.string()})),
    ]
    with pytest.raises(
        TableError, match=r"column 'a' changed its kind between files: got int64 in f1 and string in f3"
    ):
        union(schemas)


def test_a_column_twice_in_a_file_is_refused() -> None:
    twice = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    with pytest.raises(TableError, match="f has column 'a' more than once"):
        union([("f", twice)])


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (pa.int64(), 1),
        (pa.dictionary(pa.int8(), pa.string()), 1),
        (pa.list_(pa.list_(pa.int8())), 1),
        (pa.map_(pa.string(), pa.struct({"a": pa.int8(), "b": pa.list_(pa.int8())})), 3),
    ],
)
def test_leaves(kind: pa.DataType, count: int) -> None:
    assert leaf_count(kind) == count
