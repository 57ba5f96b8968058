"""External tables and arrays are read once per process, with unchanged content, within `max_memory`."""

from __future__ import annotations

import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from s3_store import KEYS, Store, put, put_folder, s3_server

from feedline.artifacts import external
from feedline.artifacts.external import read_external
from feedline.errors import SpecError, StoreError, TableChangedError
from feedline.transforms.learning.learner import Reading
from feedline.warehouse.storage.locations import locate
from feedline.warehouse.storage.retry import RetryPolicy


def reading(uri: str, columns: list[str], max_memory: int = 2**30) -> Reading:
    return Reading(kind="table", uri=uri, options=json.dumps({"columns": columns}), max_memory=max_memory)


def array(uri: str, **options: Any) -> Reading:
    return Reading(kind="zarr", uri=uri, options=json.dumps({"ids": None, "ids_column": "id", **options}))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files whose rows are read."""
    read = external.read_arrow
    files: list[str] = []

    def counting(fragment: Any, *rest: Any, **more: Any) -> pa.Table:
        files.append(fragment.path)
        return read(fragment, *rest, **more)

    monkeypatch.setattr(external, "read_arrow", counting)
    return files


TABLE = pa.table({"id": range(10), "price": [place / 2 for place in range(10)], "other": ["x"] * 10})


def test_a_table_is_read_once_while_it_is_in_use(tmp_path: Path, counted: list[str]):
    pq.write_table(TABLE, tmp_path / "items.parquet")
    asked = reading("items.parquet", ["id", "price"])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: read_external(asked, str(tmp_path)), range(8)))
    assert len({id(artifact) for artifact in found}) == 1
    assert found[0].table is not None
    assert found[0].table.equals(TABLE.select(["id", "price"]))
    assert counted == ["items.parquet"]
    assert read_external(reading("./items.parquet", ["id", "price"]), str(tmp_path)) is found[0]
    assert read_external(reading(str(tmp_path / "items.parquet"), ["id", "price"]), "/elsewhere") is found[0]
    assert read_external(reading("items.parquet", ["id"]), str(tmp_path)) is not found[0]
    assert len(counted) == 2
    del found
    gc.collect()
    assert not [key for key in external._artifacts if str(tmp_path) in key[1]]


def test_a_changed_file_is_read_again_and_refused_by_its_plan(tmp_path: Path):
    path = tmp_path / "items.parquet"
    pq.write_table(TABLE, path)
    first = read_external(reading("items.parquet", ["id"]), str(tmp_path))
    pq.write_table(TABLE.slice(1), path)
    second = read_external(reading("items.parquet", ["id"]), str(tmp_path))
    assert second.digest != first.digest
    with pytest.raises(
        TableChangedError, match=f"items.parquet has changed since .*{second.digest}, expected {first.digest}"
    ):
        read_external(reading("items.parquet", ["id"]), str(tmp_path), first.digest)
    pq.write_table(TABLE, path)
    assert read_external(reading("items.parquet", ["id"]), str(tmp_path), first.digest).digest == first.digest


def test_the_digest_depends_on_values_not_on_files(tmp_path: Path):
    (tmp_path / "cut").mkdir()
    pq.write_table(TABLE, tmp_path / "whole.parquet")
    pq.write_table(TABLE.slice(0, 3), tmp_path / "cut" / "a.parquet", compression="none")
    pq.write_table(TABLE.slice(3), tmp_path / "cut" / "b.parquet", row_group_size=2, use_dictionary=False)
    pq.write_table(TABLE.slice(3).append_column("more", [[0] * 7]), tmp_path / "cut" / "b.parquet")
    os.utime(tmp_path / "cut" / "a.parquet", (1, 1))
    digests = {
        read_external(reading(uri, ["price", "id"]), str(tmp_path)).digest
        for uri in ("whole.parquet", "cut", "cut/*.parquet", f"file://{tmp_path}/cut")
    }
    assert len(digests) == 1
    other = TABLE.set_column(1, "price", pa.array([0.25, *TABLE["price"].to_pylist()[1:]]))
    pq.write_table(other, tmp_path / "other.parquet")
    assert read_external(reading("other.parquet", ["price", "id"]), str(tmp_path)).digest not in digests
    assert read_external(reading("whole.parquet", ["id", "price"]), str(tmp_path)).digest not in digests


@pytest.mark.parametrize(
    ("uri", "columns", "max_memory", "message"),
    [
        ("nothing.parquet", ["id"], 2**30, "nothing.parquet does not exist: expected a Parquet file, a folder of them"),
        ("items.parquet", ["id", "prise"], 2**30, "items.parquet has no column 'prise'. Did you mean `price`"),
        (
            "items.parquet",
            ["id", "price"],
            100,
            "items.parquet is larger than max_memory: got 1.. bytes or more, expected",
        ),
        ("text.parquet", ["id"], 2**30, "text.parquet is not Parquet"),
        (
            "wide.parquet",
            ["span"],
            2**30,
            r"wide.parquet: column 'span' has a type that frames cannot hold: got decimal256",
        ),
    ],
)
def test_unreadable_tables_are_refused(tmp_path: Path, uri: str, columns: list[str], max_memory: int, message: str):
    pq.write_table(TABLE, tmp_path / "items.parquet")
    (tmp_path / "text.parquet").write_text("this is no Parquet file")
    if uri == "wide.parquet":
        pq.write_table(pa.table({"span": pa.array([1], pa.decimal256(50, 2))}), tmp_path / uri)
    with pytest.raises(SpecError, match=message):
        read_external(reading(uri, columns, max_memory), str(tmp_path))


def test_a_table_too_large_is_refused_before_all_is_read(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(external, "_READ_ROWS", 1000)
    pq.write_table(pa.table({"id": range(100_000)}), tmp_path / "long.parquet", row_group_size=1000)
    with pytest.raises(
        SpecError, match=r"long.parquet is larger than max_memory: got 24,... bytes or more, expected at most 20"
    ):
        read_external(reading("long.parquet", ["id"], 20_000), str(tmp_path))
    assert len(counted) == 3


def test_an_array_is_shared_by_all_its_users(tmp_path: Path):
    data = np.random.default_rng(0).random((50, 3), dtype=np.float32)
    zarr.create_array(store=str(tmp_path / "a"), shape=data.shape, chunks=(10, 3), dtype="f4")[:] = data
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "ids.parquet")
    first = read_external(array("a", ids="ids.parquet"), str(tmp_path))
    assert read_external(array(str(tmp_path / "a"), ids="ids.parquet"), str(tmp_path)) is first
    assert read_external(array("a"), str(tmp_path)).digest != first.digest
    rows = first.derive("rows", lambda: None)
    assert np.array_equal(rows.take(np.arange(50)), data)
    assert rows.loads == 5
    pq.write_table(pa.table({"id": range(1, 51)}), tmp_path / "ids.parquet")
    with pytest.raises(TableChangedError, match="has changed since"):
        read_external(array("a", ids="ids.parquet"), str(tmp_path), first.digest)


# -- a store ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def port():
    with s3_server() as port:
        yield port


@pytest.fixture
def store(port: int, monkeypatch: pytest.MonkeyPatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    store = Store(port)
    yield store
    store.close()
    locate.cache_clear()


def test_tables_and_arrays_in_a_store(store: Store, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = np.random.default_rng(0).random((50, 3), dtype=np.float32)
    (tmp_path / "side").mkdir()
    pq.write_table(TABLE, tmp_path / "side" / "items.parquet")
    for name, options in (("bare", {"compressors": None}), ("packed", {})):
        made = zarr.create_array(
            store=str(tmp_path / "side" / name), shape=data.shape, chunks=(10, 3), dtype="f4", **options
        )
        made[:] = data
    put_folder(port, "side", tmp_path / "side")
    here = read_external(reading("side/items.parquet", ["id", "price"]), str(tmp_path))
    there = read_external(reading(store.uri("side/side/items.parquet"), ["id", "price"]), str(tmp_path))
    assert here.digest == there.digest
    for name in ("bare", "packed"):
        found = read_external(array(store.uri(f"side/side/{name}")), str(tmp_path))
        rows = found.derive("rows", lambda: None)
        store.forget()
        store.fault("server_error", path=r"/c/2/0")
        assert np.array_equal(rows.take(np.arange(20, 30)), data[20:30])
        assert store.counts(r"/c/[01345]/0") == {}
        assert np.array_equal(rows.take(np.arange(50)), data)
        store.forget()
        rows.take(np.arange(50))
        assert not store.counts()
    opened = read_external(array(store.uri("side/side/packed", allow_bucket_creation="false")), str(tmp_path)).derive(
        "rows", lambda: None
    )
    put(port, "side/side/packed/c/1/0", b"another chunk")
    assert np.array_equal(opened.take(np.arange(10)), data[:10])
    with pytest.raises(TableChangedError, match="c/1/0 changed after the array was opened: got 13 bytes"):
        opened.take(np.arange(20))
    monkeypatch.setattr("feedline.warehouse.storage.retry.POLICY", RetryPolicy(first_s=0.01, deadline_s=0.2))
    store.fault("slow_down", times=10**6)
    with pytest.raises(StoreError, match="gave up after"):
        read_external(reading(store.uri("side/side/items.parquet"), ["id"]), str(tmp_path))


def test_a_table_that_holds_the_folder_of_artifacts_is_refused(tmp_path: Path):
    (tmp_path / "items").mkdir()
    pq.write_table(TABLE, tmp_path / "items" / "a.parquet")
    asked, kept = reading("items", ["id"]), str(tmp_path / "items" / "artifacts")
    with pytest.raises(SpecError, match=r"artifacts lies in the table: got .*artifacts, whose files .*items would"):
        read_external(asked, str(tmp_path), apart={"artifacts": kept})
    assert read_external(asked, str(tmp_path), apart={"artifacts": str(tmp_path / "artifacts")}).table is not None
