"""join_external gives what DuckDB's left join gives, for keys of every type and in lists, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.artifacts.external import read_external
from feedline.config.features import OpCall
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.ops import resolve
from feedline.transforms.registry.op import OpContext, OpError
from feedline.transforms.values.kinds import WEIGHTS, Value

INTEGERS = [pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64()]


def joined(table: pa.Table, arguments: dict[str, Any], *columns: pl.Series) -> pl.Series:
    """The op over some columns, with a table that is in memory."""
    call = OpCall(op="join_external", arguments=json.dumps({"table": "t.parquet", **arguments}))
    values = [Value(expr=pl.col(f"c{place}"), dtype=column.dtype) for place, column in enumerate(columns)]
    bound, context = resolve(call), OpContext(artifact=Artifact(facts={}, table=table))
    value = bound.apply(values[0], context) if len(values) == 1 else bound.combine(values, context)
    frame = pl.DataFrame({f"c{place}": column for place, column in enumerate(columns)})
    assert value.lookup is not None
    found = frame.lazy().with_columns(value.lookup.ids).select(value.expr).collect(engine="in-memory").to_series()
    assert found.dtype == value.dtype
    assert len(found) == frame.height
    return found


def keys_of(dtype: pl.DataType) -> st.SearchStrategy[Any]:
    if dtype == pl.String():
        return st.text("ab\0é", max_size=3)
    low, high = (int(bound) for bound in pl.select(dtype.min(), low=dtype.max()).row(0))
    return st.one_of(st.integers(max(low, -4), 4), st.sampled_from([low, high]))


@examples(30)
@given(st.data(), st.sampled_from([*INTEGERS, pl.String()]), st.sampled_from([*INTEGERS, pl.String()]))
def test_the_join_is_a_left_join(data: st.DataObject, here: pl.DataType, there: pl.DataType):
    if (here == pl.String()) != (there == pl.String()):
        there = here
    keys = data.draw(st.lists(st.one_of(st.none(), keys_of(there)), max_size=12))
    values = data.draw(st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=len(keys), max_size=len(keys)))
    rows = data.draw(st.lists(st.one_of(st.none(), keys_of(here)), max_size=20))
    table = pl.DataFrame(
        {"k": pl.Series(keys, dtype=there), "v": pl.Series(values, dtype=pl.Int32), "place": range(len(keys))}
    )
    asked = pl.DataFrame({"k": pl.Series(rows, dtype=here), "row": range(len(rows))})
    wide = "varchar" if here == pl.String() else "hugeint"
    with duckdb.connect() as connection:
        connection.register("asked", asked.to_arrow())
        connection.register("stored", table.to_arrow())
        expected = connection.sql(
            f"""
            with first as (select k::{wide} k, v from stored where k is not null
                           qualify row_number() over (partition by k order by place) = 1)
            select first.k is not null, v from asked left join first on asked.k::{wide} = first.k order by row
            """
        ).fetchall()
    arrow = table.to_arrow()
    ask = {"on": "k", "take": "v", "duplicates": "first"}
    assert joined(arrow, ask, asked["k"]).to_list() == [value for _, value in expected]
    filled = joined(arrow, {**ask, "missing": -77}, asked["k"])
    assert filled.to_list() == [value if hit else -77 for hit, value in expected]
    pieces = [rows[start : start + 3] for start in range(0, len(rows), 3)]
    lists = pl.Series([None, *pieces, [], None], dtype=pl.List(here))
    flat = filled.to_list()
    wanted = [None, *([flat[start : start + 3] for start in range(0, len(rows), 3)]), [], None]
    for part in (slice(None), slice(1, None), slice(2, -1)):
        assert joined(arrow, {**ask, "missing": -77}, lists[part]).to_list() == wanted[part]


@examples(60)
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(["a", "b", "c", None])), max_size=15),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(-1, 5)), st.sampled_from(["a", "b", "z", None])), max_size=25),
)
def test_keys_of_several_columns(stored: list[Any], asked: list[Any]):
    known: dict[Any, int] = {}
    for place, key in enumerate(stored):
        if None not in key:
            known.setdefault(key, place)
    table = pa.table(
        {
            "n": pa.array([key[0] for key in stored], pa.uint16()),
            "s": pa.array([key[1] for key in stored], pa.string()),
            "v": pa.array(range(len(stored)), pa.int64()),
        }
    )
    columns = (
        pl.Series([key[0] for key in asked], dtype=pl.Int64),
        pl.Series([key[1] for key in asked], dtype=pl.String),
    )
    found = joined(table, {"on": ["n", "s"], "take": "v", "duplicates": "first"}, *columns)
    assert found.to_list() == [known.get(key) for key in asked]


ITEMS = pa.table(
    {
        "id": pa.array([7, 8, None, 9], pa.int32()),
        "price": pa.array([0.5, None, 9.0, 2.0], pa.float32()),
        "age": pa.array([1, 2, 3, 4], pa.int16()),
        "word": pa.array(["a", "b", "c", None]).dictionary_encode(),
        "tags": [[1, 2], [], [3], None],
        "vector": pa.array([[0.5, 1.0], [1.5, 2.0], [0.0, 0.0], None], pa.list_(pa.float32(), 2)),
        "day": pa.array([1, 2, 3, None], pa.date32()),
    }
)
ASKED = pl.Series([9, 8, 7, 1, None], dtype=pl.Int64)
LISTS = pl.Series([[9], [8], [7], [1], [None]], dtype=pl.List(pl.Int64))


@pytest.mark.parametrize(
    ("arguments", "expected", "dtype"),
    [
        ({"take": "price"}, [2.0, None, 0.5, None, None], pl.Float32()),
        ({"take": "price", "missing": -1}, [2.0, None, 0.5, -1.0, -1.0], pl.Float32()),
        ({"take": "word"}, [None, "b", "a", None, None], pl.String()),
        ({"take": "word", "missing": "?"}, [None, "b", "a", "?", "?"], pl.String()),
        ({"take": "tags"}, [None, [], [1, 2], None, None], pl.List(pl.Int64())),
        ({"take": "vector"}, [None, [1.5, 2.0], [0.5, 1.0], None, None], pl.Array(pl.Float32(), 2)),
        (
            {"take": "vector", "missing": 0},
            [None, [1.5, 2.0], [0.5, 1.0], [0.0, 0.0], [0.0, 0.0]],
            pl.Array(pl.Float32(), 2),
        ),
        (
            {"take": ["price", "age"], "missing": 0},
            [[2.0, 4.0], [None, 2.0], [0.5, 1.0], [0.0, 0.0], [0.0, 0.0]],
            pl.Array(pl.Float32(), 2),
        ),
        ({"take": ["age", "id"]}, [[4, 9], [2, 8], [1, 7], None, None], pl.Array(pl.Int64(), 2)),
    ],
)
def test_types_of_taken_columns(arguments: dict[str, Any], expected: list[Any], dtype: pl.DataType):
    found = joined(ITEMS, {"on": "id", **arguments}, ASKED)
    assert found.dtype == dtype
    assert found.to_list() == expected


def test_weights_stay_beside_their_keys():
    pairs = pl.Series([[{"id": 7, "weight": 0.5}, {"id": 1, "weight": 1.5}], None])
    call = OpCall(op="join_external", arguments=json.dumps({"table": "t", "on": "id", "take": "age", "missing": 0}))
    value = resolve(call).apply(
        Value(expr=pl.col("c"), dtype=pairs.dtype), OpContext(artifact=Artifact(facts={}, table=ITEMS))
    )
    assert value.weights is not None
    assert value.lookup is not None
    frame = pl.DataFrame({"c": pairs}).with_columns(value.lookup.ids).select(ids=value.expr, weights=value.weights)
    assert frame.to_dict(as_series=False) == {"ids": [[1, 0], None], "weights": [[0.5, 1.5], None]}
    assert frame.schema["weights"] == WEIGHTS


@pytest.mark.parametrize(
    ("arguments", "columns", "message"),
    [
        ({"on": "id", "take": "age"}, [pl.Series(["7"])], r"got string \(String\) here and integer \(Int32\)"),
        ({"on": "word", "take": "age"}, [ASKED], r"got integer .* here and string .* in column 'word' of t.parquet"),
        ({"on": "price", "take": "age"}, [ASKED], "must be integers or strings on both sides: got integer .* float"),
        ({"on": ["id", "age"], "take": "price"}, [ASKED], "on must name a column for each input: got .* for 1 of them"),
        ({"on": ["id", "age"], "take": "price"}, [ASKED, LISTS], "one value of each: got a list"),
        ({"on": "id", "take": ["age", "word"]}, [ASKED], "a vector of numbers: got string in 'word' of t.parquet"),
        ({"on": "id", "take": "tags"}, [LISTS], "a list of keys needs one value per key"),
        ({"on": "id", "take": "age", "missing": "x"}, [ASKED], "of the column's type: got 'x', expected type integer"),
        ({"on": "id", "take": "age", "missing": 70000}, [ASKED], "does not fit .*: got 70000, expected type int16"),
        ({"on": "id", "take": "day", "missing": 0}, [ASKED], "replace numbers, booleans or strings: got 0 for date"),
        ({"on": "id", "take": "tags", "missing": 0}, [ASKED], "replace numbers, booleans or strings: got 0 for list"),
        ({"on": "id", "take": "age"}, [pl.Series([0.5])], "input 1 of join_external, key, must be integers or strings"),
        ({"on": "id"}, [ASKED], "join_external needs take"),
        ({"on": [], "take": "age"}, [ASKED], "join_external.on must"),
        ({"on": "id", "take": "age", "duplicates": "last"}, [ASKED], "duplicates must be 'error' or 'first'"),
        ({"on": "id", "take": "age", "max_memory": "1 G"}, [ASKED], "max_memory must be a size in bytes"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(arguments: dict[str, Any], columns: list[pl.Series], message: str):
    with pytest.raises(OpError, match=message):
        joined(ITEMS, arguments, *columns)


def test_a_key_in_two_rows_is_an_error_that_names_them():
    table = pa.table({"k": [1, 5, None, 5, 2, 1, None], "w": list("abcdefg"), "v": range(7)})
    with pytest.raises(
        OpError, match=r"t.parquet has 2 keys in several rows: got k 1 in rows 0 and 5, expected each .*first"
    ):
        joined(table, {"on": "k", "take": "v"}, ASKED)
    two = (ASKED, pl.Series(["a", "b", None, "a", "b"]))
    assert joined(table, {"on": ["k", "w"], "take": "v"}, *two).to_list() == [None, None, None, 0, None]
    twice = pa.concat_tables([table, table])
    with pytest.raises(OpError, match="5 keys in several rows: got k 1, w 'a' in rows 0 and 7"):
        joined(twice, {"on": ["k", "w"], "take": "v"}, *two)
    assert joined(twice, {"on": ["k", "w"], "take": "v", "duplicates": "first"}, *two).to_list()[3] == 0


def test_numbers_beyond_the_other_side_are_misses():
    table = pa.table({"k": pa.array([2**63 + 5, 3], pa.uint64()), "v": [1, 2]})
    asked = pl.Series([-(2**63) + 5, 3, -1], dtype=pl.Int64)
    assert joined(table, {"on": "k", "take": "v"}, asked).to_list() == [None, 2, None]
    table = pa.table({"k": pa.array([-1, 3], pa.int64()), "v": [1, 2]})
    asked = pl.Series([2**64 - 1, 3], dtype=pl.UInt64)
    assert joined(table, {"on": "k", "take": "v"}, asked).to_list() == [None, 2]


def test_an_empty_table_misses_everything():
    table = ITEMS.slice(0, 0)
    assert joined(table, {"on": "id", "take": "age", "missing": 3}, ASKED).to_list() == [3] * 5
    assert joined(ITEMS, {"on": "id", "take": "age"}, ASKED[:0]).to_list() == []


def test_the_memory_limit_does_not_change_the_fingerprint(tmp_path: Path):
    pq.write_table(ITEMS, tmp_path / "t.parquet")
    calls = [
        resolve(
            OpCall(op="join_external", arguments=json.dumps({"table": "t.parquet", "on": "id", "take": "age", **more}))
        )
        for more in ({}, {"max_memory": "1MiB"})
    ]
    assert calls[0].identity == calls[1].identity
    readings = [bound.op.reads(bound.parameters) for bound in calls if bound.op.reads is not None]
    assert [reading.max_memory for reading in readings] == [2**30, 2**20]
    assert len({read_external(reading, str(tmp_path)).digest for reading in readings}) == 1
