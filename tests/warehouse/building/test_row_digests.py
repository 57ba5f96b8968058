"""Digests of rows: equal where values are, whatever the arrays look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.building.row_digests import row_digests
from feedline.warehouse.building.rows import logical_bytes

ROW = st.fixed_dictionaries(
    {
        "number": st.one_of(st.none(), st.integers(-3, 3)),
        "word": st.one_of(st.none(), st.sampled_from(["", "a", "b", "a longer word than eight"])),
        "list": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=3)),
        "lists": st.lists(st.lists(st.sampled_from("ab"), max_size=2), max_size=2),
        "struct": st.one_of(st.none(), st.fixed_dictionaries({"x": st.integers(0, 1), "y": st.sampled_from("ab")})),
        "map": st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("kl"), st.integers(0, 1)), max_size=2)),
        "weights": st.one_of(
            st.none(), st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.5, 2.0])), max_size=2)
        ),
        "pair": st.one_of(st.none(), st.tuples(st.integers(0, 1), st.integers(0, 1)).map(list)),
        "float": st.sampled_from([None, 0.5, float("inf"), 2.0]),
    }
)
SCHEMA = pa.schema(
    {
        "number": pa.int32(),
        "word": pa.string(),
        "list": pa.list_(pa.int64()),
        "lists": pa.large_list(pa.list_(pa.string())),
        "struct": pa.struct({"x": pa.int8(), "y": pa.string()}),
        "map": pa.map_(pa.string(), pa.int64()),
        "weights": pa.map_(pa.int64(), pa.float32()),
        "pair": pa.list_(pa.int16(), 2),
        "float": pa.float32(),
    }
)


@given(rows=st.lists(ROW, max_size=12), start=st.integers(0, 4))
def test_rows_are_equal_where_their_digests_are(rows: list[dict[str, Any]], start: int) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    digests = row_digests(table).tolist()
    for one, digest in zip(rows, digests, strict=True):
        assert [digest == other for other in digests] == [repr(one) == repr(other) for other in rows]
    part = table.slice(start)  # arrays with an offset
    assert row_digests(part).tolist() == digests[start:]
    assert row_digests(pa.concat_tables([part, table.slice(0, start)])).tolist() == digests[start:] + digests[:start]


@given(rows=st.lists(ROW, max_size=12), start=st.integers(0, 12))
def test_bytes_of_the_parts_of_a_table_add_up(rows: list[dict[str, Any]], start: int) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    parts = table.slice(0, start), table.slice(start)
    assert sum(map(logical_bytes, parts)) == logical_bytes(table)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_the_way_of_storing_strings_makes_no_difference(kind: pa.DataType) -> None:
    words = pa.array(["a", None, "a longer word than eight"])
    assert np.array_equal(row_digests(pa.table({"w": words})), row_digests(pa.table({"w": words.cast(kind)})))
