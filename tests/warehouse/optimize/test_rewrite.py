"""Rows of a partition are written in the target's columns, order and row groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import (
    CLUSTERED,
    files_of,
    in_arrow,
    in_duckdb,
    made,
    multiset,
    rewrite,
    warehouse,
)

from feedline.errors import DataError, TableError
from feedline.warehouse.optimize.rewrite import conform_to_target


def test_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=1, rows=1000)
    rewrite(source, tmp_path / "out", **CLUSTERED, row_group_bytes=5_000)
    (path,) = files_of(tmp_path / "out")
    parquet = pq.ParquetFile(path)
    sizes = [parquet.read_row_group(index).nbytes for index in range(parquet.num_row_groups)]
    assert len(sizes) > 20
    assert max(sizes) < 8_000


def test_maps_become_columns(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.float64())
    maps = [
        [("price", i / 2), *([("rare", 1.0)] if i % 100 == 0 else []), ("hour", 1.0 * (i % 24))] for i in range(300)
    ]
    rows: list[Any] = [None, [], [("price", None)], [("price", 1.0), ("price", 2.0)], *maps]
    for day in (1, 2):
        folder = made(tmp_path / "in" / f"ds={day}")
        table = pa.table({"id": pa.array(range(len(rows))), "features": pa.array(rows, kind), "z": [day] * len(rows)})
        pq.write_table(table, folder / "a.parquet", row_group_size=70)
    report = rewrite(tmp_path / "in", tmp_path / "out", flatten=("features",), flatten_coverage=0.5, row_group_rows=100)
    assert report.flattened == ("features.price", "features.hour")
    found = in_arrow(tmp_path / "out")
    assert found.schema.names == ["id", "features.price", "features.hour", "features", "z", "ds"]
    assert found.schema.field("features").type == kind
    for row in found.to_pylist():
        before = rows[row["id"]]
        value = next((value for key, value in before or () if key == "price"), None)
        assert row["features.price"] == value
        moved = [(key, row[f"features.{key}"]) for key in ("price", "hour") if row[f"features.{key}"] is not None]
        assert (row["features"] is None) == (before is None)
        assert sorted([*(row["features"] or []), *moved], key=str) == sorted(before or [], key=str)
    assert multiset(in_duckdb(tmp_path / "out").select(["id", "features.price"])) == multiset(
        found.select(["id", "features.price"])
    )
    assert pq.read_table(files_of(tmp_path / "out")[0])["features"].null_count == 1


def test_a_flattened_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    maps = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"m": maps, "m.a": [1]}), made(tmp_path / "in") / "x.parquet")
    with pytest.raises(TableError, match=r"creates a column 'm\.a', which the table has"):
        rewrite(tmp_path / "in", tmp_path / "out", flatten=("m",))


def test_rows_get_the_types_and_order_of_the_target():
    target = pa.schema([pa.field("b", pa.string()), pa.field("a", pa.int64(), nullable=False)])
    found = conform_to_target(pa.table({"a": pa.array([1, 2], pa.int8()), "b": ["x", None]}), target, "f")
    assert found.schema.equals(target)
    assert found.to_pylist() == [{"b": "x", "a": 1}, {"b": None, "a": 2}]


@pytest.mark.parametrize(("values", "path"), [([[1], None], "x"), ([[1], [None]], r"x\[\]")])
def test_a_null_that_footers_do_not_count_is_an_error_with_file_and_path(values: list[object], path: str):
    target = pa.schema([pa.field("x", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False)])
    table = pa.table({"x": pa.array(values, pa.list_(pa.int64()))})
    with pytest.raises(DataError, match=f"column 'x' of s3://b/f holds a null: got one in {path}, expected none"):
        conform_to_target(table, target, "s3://b/f")
