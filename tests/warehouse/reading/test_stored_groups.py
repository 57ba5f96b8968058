"""Columns stored once per run of equal rows read as the plain table's, whatever is asked; a file that another tool
rewrote is refused by name."""

from __future__ import annotations

import shutil
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from repeated_runs import CELLS, GROUPS, KINDS, runs, write_both
from stored_runs import write_in_place

from feedline import Table
from feedline.errors import DataError, TableError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED, Chunk, Fragment, fragment_at, pack_mask
from feedline.warehouse.reading.read import ReadRequest, read_arrow, read_fragment
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.reading.stored_groups import _overflows, expand_group, repeat_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def expanded(chunk: Chunk) -> pl.DataFrame:
    """All rows of a chunk with all their columns."""
    return chunk.frame.hstack([series for group in chunk.groups for series in expand_group(group)])


def whole(snapshot: Snapshot) -> Fragment:
    groups = np.arange(len(snapshot.row_groups))
    return fragment_at(snapshot, 0, groups, np.full(len(groups), UNCOUNTED))


def bits(frame: pl.DataFrame) -> list[Any]:
    """The rows, with floats as their bytes: NaN is itself, and -0.0 is not 0.0."""
    return [tuple(struct.pack("d", cell) if isinstance(cell, float) else cell for cell in row) for row in frame.rows()]


WHERES = [
    None,
    "price > 0",
    "age == 1.5",
    "site is None and row % 2 == 0",
    'who["size"] > 4',
    "ids is not None",
    "age is not None",
    "row < 0",
]
COLUMNS = [
    list(KINDS),
    ["ids"],
    ["row", "age"],
    ['who["name"]', "row", "site"],
    ["price", 'who["size"]', "ids"],
    ["site"],
]


@examples(60, by_day=8)
@given(
    made=runs(),
    size=st.integers(1, 17),
    chunk_rows=st.integers(1, 9),
    where=st.sampled_from(WHERES),
    columns=st.sampled_from(COLUMNS),
    fraction=st.sampled_from([None, 0.5]),
    data=st.data(),
)
def test_any_projection_filter_sample_and_chunk_reads_as_the_plain_table(
    made: tuple[pa.Table, dict[str, list[bool]]],
    size: int,
    chunk_rows: int,
    where: str | None,
    columns: list[str],
    fraction: float | None,
    data: st.DataObject,
) -> None:
    folder = Path(tempfile.mkdtemp())
    write_both(folder, *made, size)
    compact = data.draw(st.sets(st.sampled_from([*columns, "ids"])))
    compact -= {columns[0]}
    results = []
    for name in ("plain", "stored"):
        snapshot = take_snapshot(str(folder / name))
        assert snapshot.schema.names == list(KINDS)
        bound = None if where is None else bind_where(where, snapshot.schema)
        sample = None if fraction is None else bind_sample(Sample(fraction=fraction, key=("row",)), snapshot.schema)
        fragment = whole(snapshot)
        frames = []
        request = ReadRequest(columns, snapshot.schema, bound, sample=sample, chunk_rows=chunk_rows, compact=compact)
        for chunk in read_fragment(fragment, request):
            for group in chunk.groups:
                assert len(group.inverse) == chunk.frame.height
                assert group.inverse[0] == 0
                assert set(np.diff(group.inverse)) <= {0, 1}
                assert group.inverse[-1] == group.rows.height - 1
            frames.append(expanded(chunk).select(columns))
        results.append(bits(pl.concat(frames)) if frames else [])
        table = read_arrow(fragment, replace(request, compact=()))
        assert bits(pl.DataFrame(table)) == results[-1]
    assert results[0] == results[1]
    shutil.rmtree(folder)


TABLE = pa.table(
    {
        "ids": pa.array([[1], [1], [2], [2], [2], [3]], KINDS["ids"]),
        "age": pa.array([1.0, 1, 2, 2, 2, 3]),
        "who": pa.array([{"name": "a", "size": 1}] * 6, KINDS["who"]),
        "site": pa.array(list("xxxyyy")),
        "price": pa.array([1, 2, 3, 4, 5, 6], pa.float32()),
        "row": pa.array(range(6)),
    }
)
STARTS = {"user": [True, False, True, False, False, True], "page": [True, False, False, True, False, False]}


def metadata_without(document: dict[str, Any]) -> None:
    return None


def metadata_of_other_rows(document: dict[str, Any]) -> dict[str, Any]:
    document["groups"]["user"]["row_groups"][0][0] += 1
    return document


def metadata_of_another_column(document: dict[str, Any]) -> dict[str, Any]:
    document["groups"]["page"]["columns"] = ["place"]
    return document


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"flags": {"user": [True, False, False, True, False, True]}},
            "column '__run_user' of .* row group 0.* does not match",
        ),
        ({"flags": {"user": [False, False, True, False, False, True]}}, "'__run_user' .* is false in the first row"),
        ({"flags": {"user": [True, None, True, False, False, True]}}, "'__run_user' .* holds 1 nulls"),
        ({"keep": True}, "column '(ids|site)' of .*row group 0.* holds values in rows that repeat the row above"),
        ({"late": True}, "column 'ids' of .*row group 0.* holds values in rows that repeat the row above"),
        ({"metadata": metadata_without}, "has a column '__run_page' without the metadata"),
        ({"metadata": metadata_of_other_rows}, "row groups of .* are not those of its group 'user'"),
        ({"metadata": metadata_of_another_column}, "lacks column 'place' of the group 'page'"),
    ],
)
def test_a_file_that_another_tool_rewrote_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_in_place(tmp_path / "a.parquet", TABLE, GROUPS, STARTS, 6, **changes)
    with pytest.raises(TableError, match=message):
        read_first_chunk(tmp_path)


def read_first_chunk(folder: Path) -> None:
    """Take a snapshot and read two rows: a wrong file is refused before any of its rows."""
    snapshot = take_snapshot(str(folder))
    next(iter(read_fragment(whole(snapshot), ReadRequest(["ids", "site"], snapshot.schema, chunk_rows=2))))


def test_files_of_one_table_may_store_other_groups_or_none(tmp_path: Path) -> None:
    """Partitions written before and after the table's groups were chosen, or changed."""
    pq.write_table(TABLE, tmp_path / "a.parquet")
    write_in_place(tmp_path / "b.parquet", TABLE, GROUPS, STARTS, 4)
    write_in_place(tmp_path / "c.parquet", TABLE, {"page": ["site"]}, STARTS, 4)
    snapshot = take_snapshot(str(tmp_path))
    assert snapshot.schema.names == TABLE.schema.names
    for file in range(3):
        groups = snapshot.row_groups_of(file)
        fragment = fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))
        assert read_arrow(fragment, ReadRequest(list(KINDS), snapshot.schema)).select(TABLE.schema.names).equals(TABLE)


@pytest.mark.parametrize("stored", [False, True])
def test_columns_and_keys_named_like_flags_are_ordinary(stored: bool, tmp_path: Path) -> None:
    table = TABLE.append_column("__run_id", pa.array(range(TABLE.num_rows), pa.int64()))
    folder = tmp_path / "__run_day=3"
    folder.mkdir()
    if stored:
        write_in_place(folder / "a.parquet", table, GROUPS, STARTS, 4)
    else:
        pq.write_table(table, folder / "a.parquet")
    found = Table(str(tmp_path)).read(["__run_id", "__run_day", "ids"])
    assert found["__run_id"].to_pylist() == list(range(TABLE.num_rows))
    assert found["__run_day"].to_pylist() == [3] * TABLE.num_rows
    assert found["ids"].to_pylist() == TABLE["ids"].to_pylist()


def test_excluded_rows_leave_the_rows_that_repeat_them(tmp_path: Path) -> None:
    write_in_place(tmp_path / "a.parquet", TABLE, GROUPS, STARTS, 6)
    snapshot = take_snapshot(str(tmp_path))
    gone = np.array([True, False, True, True, False, False])
    fragment = fragment_at(snapshot, 0, np.array([0]), np.array([6]))
    fragment = Fragment(
        **{name: getattr(fragment, name) for name in Fragment.__slots__ if name != "excluded"},
        excluded=(pack_mask(gone),),
    )
    for compact in ((), ("ids", "site")):
        chunks = list(
            read_fragment(fragment, ReadRequest(["row", "ids", "site"], snapshot.schema, chunk_rows=2, compact=compact))
        )
        frames = [expanded(chunk) for chunk in chunks]
        frame = pl.concat(frames)
        assert frame.select("row", "ids", "site").rows() == [(1, [1], "x"), (4, [2], "y"), (5, [3], "y")]


def test_a_delta_table_of_such_files_has_the_logical_columns(tmp_path: Path) -> None:
    """Another engine registered the files, flags and all."""
    write_in_place(tmp_path / "a.parquet", TABLE, GROUPS, STARTS, 4)
    deltalake.convert_to_deltalake(str(tmp_path))
    table = Table(str(tmp_path), format="delta")
    read = table.read()
    assert sorted(read.schema.names) == sorted(TABLE.schema.names)
    read = read.select(TABLE.schema.names)
    assert read.to_pylist() == TABLE.to_pylist()
    assert "__run_user" in deltalake.DeltaTable(str(tmp_path)).schema().to_json()


def test_a_filter_that_some_row_groups_need_not_evaluate(tmp_path: Path) -> None:
    """By their counts: there its column is delivered as unique rows, elsewhere the filter reads it in every row."""
    ages = [1.0, 1.0, 2.0, 2.0, None, None, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    table = pa.table({"row": pa.array(range(12)), "age": pa.array(ages, pa.float64())})
    starts = {"user": [index % 2 == 0 for index in range(12)]}
    write_in_place(tmp_path / "a.parquet", table, {"user": ["age"]}, starts, 4)
    snapshot = take_snapshot(str(tmp_path))
    bound = bind_where("age is not None", snapshot.schema)
    for order in ([0, 1, 2], [1, 0, 2], [2, 0, 1]):
        expected = np.array([4, 2, 4])[order]
        fragment = fragment_at(snapshot, 0, np.array(order), expected)
        chunks = list(read_fragment(fragment, ReadRequest(["row", "age"], snapshot.schema, bound, compact=("age",))))
        assert [bool(chunk.groups) for chunk in chunks] == [count == 4 for count in expected]
        frames = [expanded(chunk) for chunk in chunks]
        rows = pl.concat([frame.select("row", "age") for frame in frames]).sort("row").rows()
        assert rows == [(row, age) for row, age in enumerate(ages) if age is not None]


MAPS = [[("price", 1.5), ("cost", 2.5)], None, [("cost", 4.0)], [("price", 7.0)]]
MAP_GROUPS = [
    {"user": ["m"]},
    {"user": ["m.price"]},
    {"user": ["m", "m.price"]},
    {"user": ["m"], "page": ["m.price"]},
    {"user": ["m", "row"], "page": ["m.price"]},
]


@pytest.mark.parametrize(
    ("groups", "copies", "compact"),
    combinations(MAP_GROUPS, [True, False], [(), ('m["price"]',), ('m["price"]', 'm["cost"]'), ("m", 'm["cost"]')]),
)
def test_a_key_beside_its_map_reads_as_in_the_plain_table(
    groups: dict[str, list[str]], copies: bool, compact: tuple[str, ...], tmp_path: Path
) -> None:
    """Whatever group each is in. A value that only the map holds is an error, never a null."""
    which = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    prices = [dict(MAPS[index] or []).get("price") if copies else None for index in which]
    table = pa.table(
        {
            "row": pa.array(which),
            "m": pa.array([MAPS[index] for index in which], pa.map_(pa.string(), pa.float64())),
            "m.price": pa.array(prices, pa.float64()),
            "n": pa.array(range(10)),
        }
    )
    starts = [index == 0 or which[index] != which[index - 1] for index in range(10)]
    write_in_place(tmp_path / "a.parquet", table, groups, dict.fromkeys(groups, starts), 4)
    snapshot = take_snapshot(str(tmp_path))
    columns = ["n", 'm["price"]', 'm["cost"]', *(["m"] if "m" in compact else [])]

    def read() -> pl.DataFrame:
        request = ReadRequest(columns, snapshot.schema, chunk_rows=3, compact=compact)
        return pl.concat([expanded(chunk).select(columns) for chunk in read_fragment(whole(snapshot), request)])

    if copies:
        maps = [dict(MAPS[index] or []) for index in which]
        expected = [(row, each.get("price"), each.get("cost")) for row, each in enumerate(maps)]
        assert read().select(columns[:3]).rows() == expected
        found = read_arrow(whole(snapshot), ReadRequest(columns[:3], snapshot.schema, chunk_rows=3))
        assert pl.DataFrame(found).rows() == expected
    else:
        with pytest.raises(DataError, match=r'm\["price"\] of .*row group 0 is stored twice'):
            read()
        with pytest.raises(DataError, match="is stored twice"):
            read_arrow(whole(snapshot), ReadRequest(columns, snapshot.schema))


def test_long_lists_are_repeated_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of rows holds no more values than an array of lists can."""
    lists = [[run] * 1000 for run in range(4) for _ in range(25)]
    table = pa.table({"ids": pa.array(lists, pa.list_(pa.int64())), "row": range(100)})
    write_in_place(tmp_path / "a.parquet", table, {"g": ["ids"]}, {"g": [row % 25 == 0 for row in range(100)]}, 100)
    monkeypatch.setattr("feedline.warehouse.reading.columns._VALUES", 10_000)
    snapshot = take_snapshot(str(tmp_path))
    frames = [chunk.frame for chunk in read_fragment(whole(snapshot), ReadRequest(["ids"], snapshot.schema))]
    assert max(frame.height for frame in frames) in (9, 10)  # rows that repeat others count as a value
    assert pl.concat(frames)["ids"].to_list() == lists


def long_row(nesting: str) -> pa.Array:
    """A row of 2**30 values, which take no memory."""
    values, ends = pa.nulls(2**30), pa.array([0, 2**30], pa.int32())
    if nesting == "map":
        keys = pa.Array.from_buffers(pa.int8(), 2**30, [None, pa.py_buffer(np.zeros(2**30, np.int8))])
        return pa.MapArray.from_arrays(ends, keys, values)
    row = pa.ListArray.from_arrays(ends, values)
    if nesting == "struct":
        return pa.StructArray.from_arrays([row], ["x"])
    if nesting == "fixed":
        return pa.FixedSizeListArray.from_arrays(row, 1)
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), row) if nesting == "list" else row


@pytest.mark.parametrize("nesting", ["none", "struct", "list", "fixed", "map"])
def test_rows_that_no_array_can_hold_are_refused_before_they_are_made(nesting: str) -> None:
    """Arrow's offsets of lists overflow without an error."""
    row = long_row(nesting)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(
        TableError, match=r"column 'ids' of a.parquet.* its values in 3 rows that repeat 1 are more than"
    ):
        repeat_rows(row, pa.array([0] * 3, pa.int32()), "ids", "a.parquet", 0)
    assert pa.default_memory_pool().max_memory() - before < 2**20


def test_long_strings_are_refused_before_they_are_repeated() -> None:
    row = pa.array([["x" * 2**20] * 100])
    with pytest.raises(TableError, match="its values in 30 rows that repeat 1 are more than"):
        repeat_rows(row, pa.array([0] * 30, pa.int32()), "words", "a.parquet", 0)


@given(st.data())
def test_rows_are_repeated_as_pyarrow_takes_them(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([*KINDS.values(), pa.list_(pa.string()), pa.list_(pa.list_(pa.int8()), 2)]))
    cell = {
        pa.list_(pa.string()): st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        pa.list_(pa.list_(pa.int8()), 2): st.none() | st.lists(st.none() | st.just([1, 2]), min_size=2, max_size=2),
        **{KINDS[name]: cell for name, cell in CELLS.items()},
    }.get(kind, st.integers(0, 9))
    values = pa.array(data.draw(st.lists(cell, min_size=1, max_size=6)), kind)
    values = values.slice(data.draw(st.integers(0, len(values) - 1)))
    index = pa.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=9)), pa.int32())
    repeated, taken = repeat_rows(values, index, "x", "a.parquet", 0), values.take(index)
    assert (repeated.type, str(repeated.to_pylist())) == (taken.type, str(taken.to_pylist()))  # NaN is not equal to NaN
    counts = np.bincount(index.to_numpy(), minlength=len(values))
    assert not _overflows(values, counts)
