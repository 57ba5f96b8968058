"""Rows that repeat the row above them, against a comparison of Python values bit by bit."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.native import rows as native
from feedline.warehouse.parquet.dedup_columns import dedup_table
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table, run_starts_at

floats = st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf])
integers = st.sampled_from([0, 1, -(2**63), 2**63 - 1])
texts = st.sampled_from(["", "a", "ab", "b"])
TYPES = {
    "int": (pl.Int64(), integers),
    "float": (pl.Float64(), floats),
    "small": (pl.Float32(), floats),
    "text": (pl.String(), texts),
    "bool": (pl.Boolean(), st.booleans()),
    "binary": (pl.Binary(), texts.map(str.encode)),
    "date": (pl.Datetime("us"), st.sampled_from([0, 1])),
    "ids": (pl.List(pl.Int64()), st.lists(integers, max_size=2)),
    "holes": (pl.List(pl.Int64()), st.lists(st.none() | integers, max_size=2)),
    "scores": (pl.List(pl.Float32()), st.lists(floats, max_size=2)),
    "words": (pl.List(pl.String()), st.lists(st.none() | texts, max_size=2)),
    "long words": (pl.List(pl.String()), st.lists(st.none() | texts | texts.map("0123456789ab".__add__), max_size=2)),
    "bytes": (pl.List(pl.Binary()), st.lists(st.none() | texts.map(str.encode), max_size=2)),
    "nested": (pl.List(pl.List(pl.Int64())), st.lists(st.none() | st.lists(integers, max_size=1), max_size=2)),
    "vector": (pl.Array(pl.Float32(), 2), st.lists(floats, min_size=2, max_size=2)),
    "struct": (
        pl.Struct({"a": pl.Int64(), "b": pl.List(pl.Float64())}),
        st.fixed_dictionaries({"a": st.none() | integers, "b": st.none() | st.lists(floats, max_size=1)}),
    ),
}


def bits(value):
    """The value with its floats as bytes, which compare bit by bit."""
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, list):
        return [bits(each) for each in value]
    return {name: bits(each) for name, each in value.items()} if isinstance(value, dict) else value


@st.composite
def frames(draw):
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(0, 8))
    columns = {}
    for name in names:
        kind, values = TYPES[name]
        pool = draw(st.lists(st.none() | values, min_size=1, max_size=3))
        chosen = draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))
        columns[name] = pl.Series(chosen, dtype=pl.Int64 if name == "date" else kind).cast(kind)
    return pl.DataFrame(columns), draw(st.lists(st.integers(0, max(rows - 1, 0)), max_size=2 if rows else 0))


@pytest.mark.parametrize("compiled", [True, False])
@examples(120)
@given(case=frames(), cut=st.integers(0, 3))
def test_a_run_begins_where_a_value_differs_in_any_bit(compiled, case, cut):
    frame, borders = case
    borders = [border - cut for border in borders if border >= cut]
    frame = frame.slice(cut)  # whose arrays do not begin at their buffers' start
    rows = [bits(row) for row in frame.to_dicts()]
    expected = [index == 0 or index in borders or rows[index] != rows[index - 1] for index in range(len(rows))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILED", compiled and native.COMPILED)
        assert run_starts_at(frame, frame.columns, borders).tolist() == expected
        table = pa.concat_tables([frame[:2].to_arrow(), frame[2:].to_arrow()])
        starts = first_rows_of_table(table, table.column_names)
        starts[borders] = True
        assert starts.tolist() == expected


HOUR = datetime.time(1)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", None)], [], [("a", 1), ("b", 1)], [("b", 1)]]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", ""]),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"], ["b"], ["a", None], []]),
        (pa.list_(pa.string()), [["a"], ["b", ""], ["", "b"], ["", None], []]),
        (pa.large_list(pa.large_binary()), [[b"a"], [b"b", b""], [b"", b"b"], [b"", None], []]),
        (pa.list_(pa.string_view()), [["a"], ["b" * 13], ["b" * 12, "b"], ["b", "b" * 12], []]),
        (pa.decimal128(38, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(10) ** 35]),
        (pa.decimal256(76, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(10) ** 70]),
        (pa.list_(pa.decimal128(5, 1)), [[Decimal("1.5")], [None], [Decimal("2.5"), Decimal("1.5")]]),
        (pa.binary(3), [b"abc", b"abd", b"\0\0\0"]),
        (pa.float16(), [0.0, -0.0, 1.5]),
        (pa.uint64(), [0, 1, 2**64 - 1]),
        (pa.time64("ns"), [HOUR, HOUR.replace(microsecond=1)]),
        (pa.duration("us"), [datetime.timedelta(1), datetime.timedelta(2)]),
        (pa.list_(pa.float32(), 2), [[0.0, 1.0], [-0.0, 1.0], [0.0, None]]),
        (pa.uuid(), [b"0" * 16, b"1" * 16]),
        (pa.null(), [None]),
    ],
)
def test_arrow_columns_of_any_type_are_compared(kind: pa.DataType, values: list[Any]):
    rows = [row for row in [None, *values, values[0], None] for _ in range(2)]
    column = pa.chunked_array([pa.array(rows[:3], kind), pa.array([None, *rows[3:]], kind)[1:]])
    expected = [True] + [bits(a) != bits(b) for a, b in zip(rows[1:], rows[:-1], strict=True)]
    assert first_rows_of_table(pa.table({"x": column}), ["x"]).tolist() == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_lists_over_a_part_of_their_values(compiled: bool, monkeypatch: pytest.MonkeyPatch):
    """Arrays whose values begin within a buffer, and null lists that have values."""
    monkeypatch.setattr(native, "COMPILED", compiled and native.COMPILED)
    values = pa.array([9, 9, 9, 1, 2, 1, 2, 7, 8], pa.int64()).slice(3)
    lists = pa.LargeListArray.from_arrays(pa.array([0, 2, 4, 5, 6], pa.int64()), values)
    buffers = [pa.array([True, True, False, False]).buffers()[1], lists.buffers()[1]]
    lists = pa.Array.from_buffers(lists.type, 4, buffers, children=[values])
    column = pl.from_arrow(pa.table({"ids": lists})).get_column("ids")
    assert column.to_list() == [[1, 2], [1, 2], None, None]
    assert run_starts_at(pl.DataFrame({"ids": column}), ["ids"], []).tolist() == [True, False, True, False]


def test_chunks_that_hold_more_values_than_one_array_can():
    """1.2 billion nulls in each of two lists, which take no memory; as one array they would have 64-bit offsets."""
    large = pa.ListArray.from_arrays(pa.array([0, 1_200_000_000], pa.int32()), pa.nulls(1_200_000_000))
    small = pa.array([[None]], large.type)
    column = pa.chunked_array([large, large, small, small[:0], small])
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        pa.concat_arrays(column.chunks)
    assert first_rows_of_table(pa.table({"x": column}), ["x"]).tolist() == [True, False, True, False]
    table, runs = dedup_table(pa.table({"x": pa.chunked_array([small, small[:0], small, small])}), {"g": ["x"]})
    assert table["__run_g"].to_pylist() == [True, False, False]
    assert (runs["g"].rows, runs["g"].runs) == (3, 1)
    assert table["x"].is_valid().to_pylist() == [True, False, False]
