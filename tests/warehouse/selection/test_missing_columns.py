"""Columns that files lack are found per file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from warehouse_samples import write

from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.selection.missing_columns import files_without
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
