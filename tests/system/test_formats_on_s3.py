"""Tables with logs of their own on an S3 server: the URI's endpoint and region reach their packages, too."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from s3_store import KEYS, put, s3_server

from feedline import Table
from feedline.errors import TableChangedError, TableError
from feedline.warehouse.storage.locations import locate

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from pyiceberg.schema import Schema  # noqa: E402
from table_logs import BY_DAY, FIELDS, FolderCatalog, ice_rows, rows, same_rows  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    yield
    locate.cache_clear()  # its clients hold connections
    gc.collect()


def uri(port: int, path: str) -> str:
    return f"s3://{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"


@pytest.mark.usefixtures("keys")
def test_a_delta_table(server: int, tmp_path: Path):
    folder = tmp_path / "t"
    for start in (0, 100):
        deltalake.write_deltalake(str(folder), rows(start), mode="append", partition_by=["day", "k"])
    put(server, "delta")
    store = locate(uri(server, "delta/t"))
    pafs.copy_files(str(folder), store.path, destination_filesystem=store.filesystem, use_threads=False)
    del store
    same_rows(Table(uri(server, "delta/t"), format="delta").read(), deltalake.DeltaTable(folder).to_pyarrow_table())
    assert Table(uri(server, "delta/t"), format="delta", version=0).read().num_rows == 12
    with pytest.raises(TableError, match=r"s3://delta/nothing is not a Delta table") as caught:
        Table(uri(server, "delta/nothing"), format="delta").snapshot()
    assert "endpoint_override" not in str(caught.value)


@pytest.mark.usefixtures("keys")
def test_an_iceberg_table(server: int):
    put(server, "ice")
    catalog: Any = FolderCatalog(**{"s3.endpoint": f"http://127.0.0.1:{server}", "s3.region": "us-east-1"})
    table = catalog.create("s3://ice/t", Schema(*FIELDS), BY_DAY)
    for start in (0, 100):
        table.append(ice_rows(table, start))
    same_rows(Table(uri(server, "ice/t"), format="iceberg").read(), table.scan().to_arrow())
    first = table.snapshots()[0].snapshot_id
    assert Table(uri(server, "ice/t"), format="iceberg", snapshot_id=first).read().num_rows == 12
    metadata = table.metadata_location.removeprefix("s3://")
    assert Table(uri(server, metadata), format="iceberg").read().num_rows == 24
    [task, *_] = table.scan().plan_files()
    table.io.delete(task.file.file_path)
    with pytest.raises(TableChangedError, match="has lost files of this version"):
        Table(uri(server, "ice/t"), format="iceberg").snapshot()
