"""Facts of columns are fetched on demand, once, and cast to the types of the table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from feedline.warehouse.snapshot import column_facts
from feedline.warehouse.snapshot.column_facts import Facts, Part, arrange_facts, join_facts

ROWS = pa.array([10, 20, 30])
INTEGERS = {
    "bytes": pa.array([1, 2, 3]),
    "nulls": pa.array([0, -1, 5]),
    "min": pa.array([1, None, 300], pa.int32()),
    "max": pa.array([4, 5, 400], pa.int32()),
}


def facts_of(kind: pa.DataType, arrays: dict[str, pa.Array] | None = None) -> pa.StructArray:
    return arrange_facts(INTEGERS if arrays is None else arrays, ROWS, pa.field("x", kind))


def counted(log: list[str]) -> Facts:
    def fetch(field: pa.Field) -> pa.StructArray:
        log.append(field.name)
        return facts_of(field.type)

    def fetch_part(field: pa.Field, part: Part) -> pa.Array:
        log.append(f"{field.name}.{part}")
        return INTEGERS[part]

    return Facts(fetch, fetch_part)


def test_a_bound_without_its_pair_is_unknown():
    facts = facts_of(pa.int64())
    assert facts.type.field("min").type == pa.int64()
    assert facts.field("min").to_pylist() == [1, None, 300]
    assert facts.field("max").to_pylist() == [4, None, 400]
    assert "exact" not in [part.name for part in facts.type]


def test_bounds_that_do_not_fit_the_type_of_the_table_are_unknown_one_by_one():
    facts = facts_of(pa.int8())
    assert facts.field("min").to_pylist() == [1, None, None]
    assert facts.field("max").to_pylist() == [4, None, None]


def test_strings_say_whether_their_bounds_are_values():
    words = {
        "bytes": INTEGERS["bytes"],
        "nulls": INTEGERS["nulls"],
        "min": pa.array(["a"] * 3),
        "max": pa.array(["b"] * 3),
    }
    assert facts_of(pa.string(), words).field("exact").to_pylist() == [False] * 3
    exact = facts_of(pa.string(), {**words, "exact": pa.array([True, False, True])})
    assert exact.field("exact").to_pylist() == [True, False, True]


def test_a_column_that_no_file_has_is_null_in_every_row():
    missing = arrange_facts(None, ROWS, pa.field("x", pa.int64()))
    assert missing.field("bytes").to_pylist() == [0, 0, 0]
    assert missing.field("nulls").to_pylist() == [10, 20, 30]
    assert missing.field("min").to_pylist() == [None] * 3
    lists = arrange_facts(None, ROWS, pa.field("x", pa.list_(pa.int8())))
    assert lists.field("nulls").to_pylist() == [-1, -1, -1]  # elements: unknown


def test_a_column_is_fetched_once_per_type_and_a_part_alone():
    log: list[str] = []
    facts = counted(log)
    field = pa.field("x", pa.int64())
    assert facts.part(field, "bytes").tolist() == [1, 2, 3]
    assert facts.part(field, "bytes").tolist() == [1, 2, 3]
    assert log == ["x.bytes"]
    assert facts.column(field) is facts.column(field)
    assert facts.part(field, "nulls").tolist() == [0, -1, 5]  # of the column in memory
    facts.column(field.with_type(pa.int32()))
    assert log == ["x.bytes", "x", "x"]


def test_the_columns_used_last_stay_in_memory(monkeypatch: pytest.MonkeyPatch):
    log: list[str] = []
    facts = counted(log)
    size = facts_of(pa.int64()).nbytes
    monkeypatch.setattr(column_facts, "_CACHE_BYTES", 2 * size)
    a, b, c = (pa.field(name, pa.int64()) for name in "abc")
    for field in (a, b, a, c, a, b):
        facts.column(field)
    assert log == ["a", "b", "c", "b"]


def test_row_groups_are_taken_and_parts_joined_in_an_order():
    facts = Facts(lambda field: facts_of(field.type))
    field = pa.field("x", pa.int64())
    taken = facts.take(np.array([2, 0]))
    assert taken.part(field, "bytes").tolist() == [3, 1]
    joined = join_facts([facts, taken], np.array([4, 0, 1, 2, 3]))
    assert joined.part(field, "bytes").tolist() == [1, 1, 2, 3, 3]
    assert join_facts([facts, taken], np.arange(5)).part(field, "bytes").tolist() == [1, 2, 3, 3, 1]
