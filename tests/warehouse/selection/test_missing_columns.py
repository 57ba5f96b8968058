"""Columns that files lack are found per file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from warehouse_samples import write

from feedline.expressions import bind_where
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.selection.null_counts import files_asked, files_without, first_absence, has
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of


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
