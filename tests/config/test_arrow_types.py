"""Names of types: Arrow's own round-trip, aliases are accepted, anything else is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.source_section import parse_type

PLAIN = [
    *(getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
    *(getattr(pa, name)() for name in ("float16", "float32", "float64", "string", "large_string", "binary")),
    *(pa.bool_(), pa.large_binary(), pa.date32()),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    *(pa.decimal128(9, 2), pa.decimal128(38, 38), pa.decimal256(70, 3)),
]
TYPES = st.recursive(st.sampled_from(PLAIN), lambda inner: inner.map(pa.list_) | inner.map(pa.large_list), max_leaves=3)


@given(TYPES)
def test_arrows_own_names_round_trip(kind: pa.DataType) -> None:
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", pa.int64()),
        ("Float", pa.float32()),
        ("double", pa.float64()),
        (" str ", pa.string()),
        ("bool", pa.bool_()),
        ("boolean", pa.bool_()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us")),
        ("timestamp[us, UTC]", pa.timestamp("us", "UTC")),
        ("timestamp[ns,tz=+02:00]", pa.timestamp("ns", "+02:00")),
        ("decimal(12,4)", pa.decimal128(12, 4)),
        ("list<int64>", pa.list_(pa.int64())),
        ("list<element: list<float>>", pa.list_(pa.list_(pa.float32()))),
        ("int32[]", pa.list_(pa.int32())),
        ("large_list<string>", pa.large_list(pa.string())),
    ],
)
def test_aliases(text: str, kind: pa.DataType) -> None:
    assert parse_type(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        *("", "int128", "list", "list<>", "list<x>", "list<int64", "timestamp[min]", "timestamp[us, Mars]", "[]"),
        *("decimal128(39, 2)", "decimal(2, 5)", "decimal(0, 0)", "struct<a: int8>", "int8" + "[]" * 50),
        *("list<" * 50 + "int8" + ">" * 50, "dictionary<int8>", "null"),
    ],
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a type: expected int8 to int64"):
        parse_type(text)
