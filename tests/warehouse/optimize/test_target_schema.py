"""What `optimize` keeps of tables whose log types their keys, and of what files note: types, field ids, metadata."""

from __future__ import annotations

import datetime
import json
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import files_of, multiset, rewrite

from feedline import Table
from feedline.errors import TableError
from feedline.warehouse.optimize.optimize import OptimizeReport, TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: E402
from pyiceberg.schema import Schema  # noqa: E402
from pyiceberg.transforms import IdentityTransform  # noqa: E402
from table_logs import FIELDS, FolderCatalog, ice_rows  # noqa: E402

ZIPS = ["007", "7", None, "010"]


def delta(folder: Path, **keys: pa.Array) -> Path:
    """A Delta table of twelve rows, partitioned by keys of four values each."""
    rows = pa.table({"x": range(12), **{name: pa.concat_arrays([values] * 3) for name, values in keys.items()}})
    deltalake.write_deltalake(str(folder), rows, partition_by=list(keys))
    return folder


def logged(source: Path | str, target: Path, *, format: str = "delta", **settings: Any) -> OptimizeReport:
    return optimize(
        Table(source, format=format).snapshot(), str(target), Settings(**settings), runner=TaskRunner(threads=1)
    )


@pytest.mark.parametrize(
    ("values", "as_column"),
    [
        (pa.array(ZIPS), True),
        (pa.array(["de", "a b/c", None, "x=1"]), False),
        (pa.array([1, 20, None, -3], pa.int32()), False),
        (pa.array([True, False, None, True]), True),
        (pa.array([1.5, -2.25, None, 0.125]), True),
        (pa.array([datetime.date(2026, 1, day) for day in (1, 2, 3)] + [None], pa.date32()), False),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_keys_keep_their_types(tmp_path: Path, values: pa.Array, as_column: bool) -> None:
    """Where folders would be read otherwise the files hold the key too; nobody is warned, as both are the same."""
    source, target = delta(tmp_path / "in", k=values), tmp_path / "out"
    theirs = Table(source, format="delta").read()
    report = logged(source, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = Table(target).read()
    assert multiset(ours) == multiset(theirs)
    kinds = {ours.schema.field("k").type, theirs.schema.field("k").type}
    assert len(kinds) == 1 or all(map(pa.types.is_integer, kinds))
    assert ("k" in pq.read_schema(files_of(target)[0]).names) == as_column == ("k" in report.columns)
    again = logged(source, target)
    assert (again.written, again.finished) == (0, report.written)
    more = logged(source, tmp_path / "clustered", cluster_by=("x",))
    assert multiset(Table(tmp_path / "clustered").read()) == multiset(theirs)
    assert more.after.rows == 12


def test_keys_that_folders_cannot_hold_are_refused(tmp_path: Path) -> None:
    times = pa.array([datetime.datetime(2026, 1, day, 12) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC"))
    with pytest.raises(
        TableError, match=r"key 'k' of .* cannot be read back from folders: got timestamp\[us, tz=UTC\]"
    ):
        logged(delta(tmp_path / "times", k=times), tmp_path / "out")
    source = delta(tmp_path / "moved", k=pa.array(ZIPS))
    [log] = (source / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for number, line in enumerate(line for line in lines if "add" in line):
        (source / line["add"]["path"]).rename(source / f"f{number}.parquet")
        line["add"]["path"] = f"f{number}.parquet"
    log.write_text("\n".join(json.dumps(line) for line in lines))
    assert sorted(map(str, Table(source, format="delta").read()["k"].to_pylist())) == sorted(map(str, ZIPS * 3))
    with pytest.raises(TableError, match=r"key 'k' of .*moved exists only in its log: got the path 'f\d.parquet'"):
        logged(source, tmp_path / "out")


def test_folders_that_are_no_keys_of_an_iceberg_table(tmp_path: Path) -> None:
    """Its files hold the columns, so that folders named after them must not retype any."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "k"))
    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS), spec)
    texts = pa.array([f"{number % 3:03d}" for number in range(12)], table.schema().as_arrow().field("k").type)
    table.append(ice_rows(table, 0).set_column(2, table.schema().as_arrow().field("k"), texts))
    theirs = Table(tmp_path / "t", format="iceberg").read()
    logged(tmp_path / "t", tmp_path / "out", format="iceberg")
    ours = Table(tmp_path / "out").read()
    assert ours.schema.names == theirs.schema.names
    assert multiset(ours) == multiset(theirs)
    assert set(ours["k"].to_pylist()) == {"000", "001", "002"}
    ids = numbers(files_of(tmp_path / "t")[0])
    assert [numbers(file) for file in files_of(tmp_path / "out")] == [ids] * 3
    assert {name for name, _ in ids} >= {"id", "tags", "element", "user", "age", "name"}


def numbers(file: Path) -> list[tuple[str, int]]:
    """The field ids in a file, by the names of fields, as DuckDB sees them."""
    query = f"select name, field_id from parquet_schema('{file}') where field_id is not null"
    return sorted(duckdb.sql(query).fetchall())


def test_field_ids_and_common_metadata_are_kept(tmp_path: Path) -> None:
    numbered = pa.schema([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "17"}), pa.field("y", pa.float32())])
    for name, more in (("a", {"owner": "ads", "part": "1"}), ("b", {"owner": "ads", "part": "2"})):
        (tmp_path / "in").mkdir(exist_ok=True)
        rows = pa.table({"x": [1, 2], "y": [0.5, 1.5]}, schema=numbered.with_metadata({**more, "pandas": "{}"}))
        pq.write_table(rows, tmp_path / "in" / f"{name}.parquet")
    rewrite(tmp_path / "in", tmp_path / "out")
    rewrite(tmp_path / "out", tmp_path / "again")
    for folder in ("out", "again"):
        [file] = files_of(tmp_path / folder)
        found = pq.read_metadata(file)
        assert found.metadata[b"owner"] == b"ads"
        assert not {b"part", b"pandas"} & set(found.metadata)
        assert pq.read_schema(file).field("x").metadata == {b"PARQUET:field_id": b"17"}
        ids = duckdb.sql(f"select name, field_id from parquet_schema('{file}') where name in ('x', 'y')").fetchall()
        assert ids == [("x", 17), ("y", None)]


@pytest.mark.parametrize("clustered", [True, False])
def test_partitions_without_rows_at_any_budget(tmp_path: Path, clustered: bool) -> None:
    """Beside others, and alone, as where only they are left to be done."""
    rows = pa.table({"x": pa.array(range(400), pa.int64())})
    for day, count in ((1, 400), (2, 0), (3, 0)):
        (tmp_path / "in" / f"ds={day}").mkdir(parents=True)
        pq.write_table(rows.slice(0, count), tmp_path / "in" / f"ds={day}" / "f.parquet", row_group_size=50)
    settings: dict[str, Any] = {"cluster_by": ("x",)} if clustered else {}
    settings |= {"memory_bytes": 400, "file_bytes": 100}
    assert rewrite(tmp_path / "in", tmp_path / "out", **settings).written == 3
    for file in files_of(tmp_path / "out"):
        if "ds=1" not in str(file):
            file.unlink()
    again = rewrite(tmp_path / "in", tmp_path / "out", **settings)
    assert (again.written, again.finished) == (2, 1)
    assert sorted(Table(tmp_path / "out").read()["x"].to_pylist()) == list(range(400))
