"""Tables with logs of their own are not read as plain folders: neither whole, nor in parts, nor beside others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from feedline import Table
from feedline.errors import TableError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.storage.locations import Location

MARKS = {
    "_delta_log/00000000000000000000.json": r"is a Delta Lake table: its _delta_log .* Name that folder",
    "metadata/00003-1f2e.metadata.json": r"is an Iceberg table: .*\. Name that folder",
    "metadata/v3.gz.metadata.json": r"is an Iceberg table",
    "metadata/00003-1f2e.metadata.json.gz": r"is an Iceberg table",
    ".hoodie/hoodie.properties": r"is a Hudi table, whose log Feedline cannot read.* Export it as Parquet",
    "_spark_metadata/0": r"is the sink of a Spark stream.*delete _spark_metadata if every file counts",
}


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_rows_deleted_by_delta_are_not_read(tmp_path: Path) -> None:
    """The folder has 3 + 2 rows, of which 2 are current by the log."""
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"x": [1, 2, 3]}))
    deltalake.DeltaTable(str(tmp_path / "t")).delete("x = 2")
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "t").glob("*.parquet")) == 5
    assert sorted(Table(tmp_path / "t", format="delta").read()["x"].to_pylist()) == [1, 3]
    assert sorted(Table(tmp_path / "t").read()["x"].to_pylist()) == [1, 3]
    with pytest.raises(TableError, match=rf"{tmp_path}/t is a Delta Lake table: .* Name that folder"):
        Table(tmp_path / "t", format="hive").read()


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


class Counting(pafs.FSSpecHandler):  # type: ignore[misc]
    """Local files as a store that records its requests."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())
        self.asked: list[str] = []
        self.denied = False

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        self.asked += paths
        if self.denied and any("_delta_log" in path for path in paths):
            raise PermissionError("no")
        return list(super().get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self.asked.append(f"{selector.base_dir}/*")
        return list(super().get_file_info_selector(selector))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Counting:
    handler = Counting()
    filesystem = pafs.PyFileSystem(handler)
    monkeypatch.setattr("feedline.warehouse.discovery.hive.locate", lambda uri: Location(uri, filesystem, uri))
    return handler


def test_a_folder_in_a_store_costs_no_further_requests(store: Counting, tmp_path: Path) -> None:
    """Its own listing has the log; only a partition, a file and Iceberg's `data` may be inside a table."""
    touch(tmp_path, "t/ds=1/h=2/f.parquet", "t/data/f.parquet")
    discover(f"{tmp_path}/t")
    assert set(store.asked) == {f"{tmp_path}/t", f"{tmp_path}/t/*"}
    above = [f"{tmp_path}/t/{name}" for name in ("_delta_log", ".hoodie", "_spark_metadata", "metadata")]
    store.asked.clear()
    discover(f"{tmp_path}/t/ds=1/h=2")
    assert set(store.asked) == {f"{tmp_path}/t/ds=1/h=2", f"{tmp_path}/t/ds=1/h=2/*", *above}
    store.asked.clear()
    discover([f"{tmp_path}/t/data/f.parquet", f"{tmp_path}/t/ds=1"])
    asked = [path for path in store.asked if path.endswith(("_log", ".hoodie", "_metadata", "/metadata"))]
    assert sorted(asked) == sorted([*above, *(path.replace("/t/", "/t/data/") for path in above)])
    touch(tmp_path, "t/_delta_log/0.json")
    with pytest.raises(TableError, match="is a Delta Lake table"):
        discover(f"{tmp_path}/t/ds=1/h=2")
    store.denied = True
    assert len(discover(f"{tmp_path}/t/ds=1/h=2").files) == 1, "who may read a partition alone may read it"
