"""Tables with logs of their own are not read as plain folders: neither whole, nor in parts, nor beside others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import touch

from feedline import Table
from feedline.errors import TableError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.storage.locations import locate

MARKS = {
    "_delta_log/00000000000000000000.json": r"is a Delta Lake table: its _delta_log .* Name that folder",
    "metadata/00003-1f2e.metadata.json": r"is an Iceberg table: .*\. Name that folder",
    "metadata/v3.gz.metadata.json": r"is an Iceberg table",
    "metadata/00003-1f2e.metadata.json.gz": r"is an Iceberg table",
    ".hoodie/hoodie.properties": r"is a Hudi table, whose log Feedline cannot read.* Export it as Parquet",
    "_spark_metadata/0": r"is the sink of a Spark stream.*delete _spark_metadata if every file counts",
}


PARTS = (
    ["t"],
    ["."],
    ["t/ds=1"],
    ["t/ds=1/f.parquet"],  # a list of one
    ["t/ds=1/*.parquet"],
    ["t/*"],
    ["t/**/*.parquet"],
    ["t/ds=1/f.parquet", "t/ds=2/h=1/f.parquet"],
    ["other", "t/ds=2/h=1"],
)


@pytest.mark.parametrize("mark", MARKS)
def test_no_part_of_a_table_with_a_log_is_a_plain_folder(mark: str, tmp_path: Path) -> None:
    touch(tmp_path, "t/ds=1/f.parquet", "t/ds=2/h=1/f.parquet", "other/f.parquet")
    tables = [[str(tmp_path / name) for name in names] for names in PARTS]
    for table in tables:
        discover(table)
    touch(tmp_path, f"t/{mark}")
    for table in tables:
        with pytest.raises(TableError, match=rf"{tmp_path}/t {MARKS[mark]}"):
            discover(table)


def test_folders_that_resemble_a_log_are_none(tmp_path: Path) -> None:
    touch(tmp_path, "t/ds=1/f.parquet")
    touch(tmp_path, "t/metadata.json", "t/x/a.metadata.json", "t/metadata/readme.md", "t/_old/_delta_log/0.json")
    assert len(discover(f"{tmp_path}/t").files) == 1
    touch(tmp_path, "other/_delta_log/0.json")
    assert len(discover(f"{tmp_path}/*/ds=1").files) == 1, "the other table's files are not asked for"
    touch(tmp_path, "other/f.parquet", "t2/_delta_log/0.json", "t2/_export/f.parquet")
    assert len(discover(f"{tmp_path}/t2/_export").files) == 1, "a hidden folder in a table is no part of it"
    with pytest.raises(TableError, match=f"{tmp_path}/other is a Delta"):
        discover(f"{tmp_path}/*/*.parquet")


def test_a_manifest_may_name_files_of_a_table_with_a_log(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "f.parquet")
    touch(tmp_path, "_delta_log/0.json")
    (tmp_path / "m.json").write_text(json.dumps(["f.parquet"]))
    assert Table.from_manifest(tmp_path / "m.json").read().num_rows == 1


def test_in_a_store_only_folders_that_may_be_inside_a_table_are_checked(tmp_path: Path) -> None:
    """A partition, a file and Iceberg's `data`; another folder is a table of its own."""
    store = locate(f"memory:/{tmp_path}").filesystem
    for name in ("_delta_log/0.json", "ds=1/h=2/f.parquet", "data/f.parquet", "other/f.parquet"):
        with store.open_output_stream(f"{tmp_path}/{name}") as sink:
            sink.write(b"x")
    for name in ("ds=1/h=2", "data/f.parquet", "."):
        with pytest.raises(TableError, match="is a Delta Lake table"):
            discover([f"memory:/{tmp_path}/{name}".removesuffix("/.")])
    assert len(discover(f"memory:/{tmp_path}/other").files) == 1
