"""The kinds and names of column types, and names in messages."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from feedline.expressions.types import (
    INTEGER_RANGES,
    column_type,
    has_strings,
    kind,
    language_type,
    type_name,
)


def test_ranges_of_integers_are_numpy_s():
    for dtype, limits in INTEGER_RANGES.items():
        info = np.iinfo(dtype.__name__.lower())
        assert limits == (info.min, info.max)


@pytest.mark.parametrize(
    ("arrow", "expected_kind", "description"),
    [
        (pa.int8(), "integer", "int8"),
        (pa.uint64(), "integer", "uint64"),
        (pa.float32(), "float", "float32"),
        (pa.decimal128(6, 2), "decimal", "decimal(6, 2)"),
        (pa.bool_(), "boolean", "bool"),
        (pa.large_string(), "string", "string"),
        (pa.binary(), "binary", "binary"),
        (pa.date32(), "date", "date"),
        (pa.timestamp("us"), "timestamp", "timestamp[us]"),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp", "timestamp[ms, Europe/Berlin]"),
        (pa.time64("us"), "time", "time"),
        (pa.duration("ns"), "duration", "duration[ns]"),
        (pa.list_(pa.list_(pa.int16())), "list", "list<list<int16>>"),
        (pa.map_(pa.string(), pa.float32()), "map", "map<string, float32>"),
        (pa.struct([("a", pa.int8()), ("b", pa.bool_())]), "struct", "struct<a: int8, b: bool>"),
        (pa.null(), "null", "null"),
    ],
    ids=str,
)
def test_kinds_and_descriptions(arrow: pa.DataType, expected_kind: str, description: str):
    dtype = column_type(pa.field("x", arrow))
    assert dtype is not None
    assert (kind(dtype), type_name(dtype)) == (expected_kind, description)


def test_types_that_polars_lacks_have_no_column_type():
    assert column_type(pa.field("x", pa.dense_union([pa.field("a", pa.int8())]))) is None
    assert column_type(pa.field("x", pa.list_(pa.timestamp("us", "Foo/Bar")))) is None
    assert column_type(pa.field("x", pa.list_(pa.decimal256(39, 2)))) is None
    assert column_type(pa.field("x", pa.decimal256(38, 2))) == pl.Decimal(38, 2)


def test_fixed_size_lists_are_described_with_their_size_and_become_lists():
    dtype = column_type(pa.field("x", pa.list_(pa.int8(), 3)))
    assert dtype is not None
    assert type_name(dtype) == "list<int8>[3]"
    assert language_type(dtype) == pl.List(pl.Int8)


def test_strings_and_bytes_alone_and_in_lists_are_found():
    for arrow in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        assert has_strings(arrow)
        assert has_strings(pa.list_(arrow))
        assert has_strings(pa.large_list(arrow))
    for arrow in (pa.int8(), pa.list_(pa.int8()), pa.bool_()):
        assert not has_strings(arrow)
