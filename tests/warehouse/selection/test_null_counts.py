"""Null counts of footers are those of the rows, or bounds of them; columns that files lack are found per file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from repeated_runs import runs, write_both
from warehouse_samples import write

from feedline.expressions import bind_where
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.selection.null_counts import (
    AbsentColumn,
    absent_columns,
    files_asked,
    files_without,
    first_absence,
    has,
    null_counts,
)
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of, take_snapshot


@examples(30)
@given(made=runs(), size=st.integers(1, 17))
def test_null_counts_of_footers_are_those_of_rows_or_bounds(
    made: tuple[pa.Table, dict[str, list[bool]]], size: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    write_both(folder, *made, size)
    snapshot = take_snapshot(str(folder / "stored"))
    table = made[0]
    for name in ("age", "site"):
        known = snapshot.column_facts(name).field("nulls").to_pylist()
        for index, nulls in enumerate(known):
            true = table[name].slice(index * size, size).null_count
            rows = len(table[name].slice(index * size, size))
            assert nulls == true or 0 < true < rows, "none and all are always known"
            assert nulls == true or 1 <= -1 - nulls <= true, "and else, that some are"
    found = null_counts(snapshot, ["age", "site"], snapshot.rows_per_row_group, None)
    assert found.keys() == {name for name in ("age", "site") if table[name].null_count}
    assert all(count.least <= table[name].null_count <= count.most for name, count in found.items())
    shutil.rmtree(folder)


def test_nulls_among_some_rows_of_a_row_group_are_bounded(tmp_path: Path) -> None:
    for file, nulls in (("0", 3), ("1", 0)):
        column = [None] * nulls + [1] * (10 - nulls)
        pq.write_table(pa.table({"a": pa.array(column, pa.int64()), "l": [[]] * 10}), tmp_path / f"{file}.parquet")
    snapshot = take_snapshot(str(tmp_path))

    def bounds(rows: list[int], where: str | None = None) -> tuple[int, int] | None:
        bound = None if where is None else bind_where(where, snapshot.schema)
        found = null_counts(snapshot, ["l", "a"], np.array(rows), bound).get("a")
        if found is None:
            return None
        assert (found.column, found.files, found.file) == ("a", 1, "0.parquet")
        return found.least, found.most

    assert bounds([10, 10]) == (3, 3)
    assert bounds([8, 10]) == (1, 3)
    assert bounds([2, 10]) == (0, 2)
    assert bounds([-1, -1]) == (0, 3)  # uncounted
    assert bounds([0, 10]) is None
    assert bounds([8, 10], "a > 0") is None  # drops every null
    assert bounds([8, 10], "a > 0 or a is None") == (1, 3)


def test_columns_that_files_lack_are_counted_with_their_rows(tmp_path: Path) -> None:
    for file, names in (("0", "ab"), ("1", "a"), ("2", "a")):
        pq.write_table(pa.table({name: [1, 2, 3] for name in names}), tmp_path / f"{file}.parquet")
    snapshot = take_snapshot(str(tmp_path))
    [found] = absent_columns(snapshot, ["a", "b"], np.array([3, 0, 2]))
    assert found == AbsentColumn(column="b", files=1, read=2, rows=2, file="2.parquet")
    assert absent_columns(snapshot, ["a", "b"], np.array([3, 0, 0])) == []
    [uncounted] = absent_columns(snapshot, ["b"], np.array([-1, -1, -1]))
    assert (uncounted.files, uncounted.read, uncounted.rows) == (2, 3, 6)


def snapshot(root: str, **rules: Any) -> Snapshot:
    return snapshot_of(discover(root), rules=SchemaRules(**rules))


def test_missing_columns_are_found_per_file(tmp_path: Path) -> None:
    tables = [pa.table({"x": [1]}), pa.table({"x": [1], "y": pa.nulls(1)}), pa.table({"y": [1]}), pa.table({"x": [2]})]
    taken = snapshot(write(tmp_path, {f"{i}.parquet": table for i, table in enumerate(tables)}))
    assert files_without(taken, "x").tolist() == [2]
    assert files_without(taken, "y").tolist() == [0, 3]
    assert files_without(taken, "z").tolist() == [0, 1, 2, 3]
    assert files_without(taken.without({"0.parquet"}), "y").tolist() == [2]


def test_the_first_column_by_name_that_a_read_file_lacks(tmp_path: Path) -> None:
    tables = {
        "k=1/0.parquet": pa.table({"x": [1]}),
        "k=1/1.parquet": pa.table({"x": [1], "y": [2]}),
        "k=2/2.parquet": pa.table({"z": [1]}),
    }
    taken = snapshot(write(tmp_path, tables))
    assert first_absence(taken, ["k"], None) is None
    assert first_absence(taken, ["y", "x"], None) == ("x", "k=2/2.parquet", 1)
    assert first_absence(taken, ["y", "x"], bind_where("k == 1", taken.schema)) == ("y", "k=1/0.parquet", 1)
    assert first_absence(taken, ["x"], bind_where("x > 5 and k < 2", taken.schema)) is None


def test_a_part_of_a_column_is_looked_up_where_it_is_read_from() -> None:
    struct = pa.struct([("a", pa.struct([("b", pa.int8())]))])
    table = pa.schema([("s", struct), ("m", pa.map_(pa.string(), pa.int8())), ("m.x", pa.int8())])
    assert has(pa.schema([("s", struct)]), 's["a"]["b"]', table)
    assert not has(pa.schema([("s", pa.struct([("c", pa.int8())]))]), 's["a"]["b"]', table)
    assert not has(pa.schema([("m", pa.int8())]), 's["a"]', table)
    assert has(pa.schema([table.field("m")]), 'm["any"]', table)  # keys are known from rows only
    assert has(pa.schema([("s", pa.null())]), 's["a"]', table)


def test_partition_keys_decide_which_files_are_read() -> None:
    keys, rows = {"k": pa.array([1, 2, None])}, np.array([10, 10, 10])
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    for where, expected in {
        None: [True, True, True],
        "k == 2": [False, True, False],
        "k is None or x > 1": [True, True, True],
        "k is None and x > 1": [False, False, True],
        "x > 1": [True, True, True],
    }.items():
        bound = None if where is None else bind_where(where, schema)
        assert files_asked(keys, rows, bound).tolist() == expected, where
