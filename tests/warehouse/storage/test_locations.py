"""fsspec file systems cache listings, from which no request of Feedline may be answered."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from feedline import Table
from feedline.errors import TableChangedError
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import plan_fragments, screen_rows
from feedline.warehouse.storage import retry
from feedline.warehouse.storage.locations import (
    Location,
    delete_folder,
    info_of,
    list_folder,
    list_tree,
    locate,
    real_name,
    uri_on,
)


@pytest.mark.parametrize(
    ("uri", "path", "other", "expected"),
    [
        ("s3://bucket/a/b?region=x", "bucket/a/b", "bucket/a", "s3://bucket/a?region=x"),
        ("s3://bucket/a", "bucket/a", "other/c", "s3://other/c"),
        ("mock://host/a/b", "a/b", "a/c", "mock://host/a/c"),
        ("abfs://c@account/a/b", "c/a/b", "c/a", "abfs://c@account/a"),
        ("hdfs://host:1/a/b", "/a/b", "/c", "hdfs://host:1/c"),
        ("/a/b", "/a/b", "/a", "/a"),
    ],
)
def test_uri_of_another_path_on_a_store(uri, path, other, expected):
    assert uri_on(Location(uri, None, path), other) == expected


TABLE, FIRST = "remembering://t", "t/k=0/f.parquet"


class _File(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.objects[self.path][0][start:end]


class Remembering(AbstractFileSystem):  # type: ignore[misc]
    """Objects in memory, with a permanent cache of listings. Another process is simulated by changing `objects`.

    heads: a file in no cached listing is requested by itself, as in s3fs and gcsfs; else its folder is listed, as
    fsspec does by default.
    """

    protocol = "remembering"
    objects: dict[str, tuple[bytes, float]]  # content and time by path
    requests: list[str]
    heads = True

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = self.dircache.get(path)
        if found is None:
            self.requests.append(f"list {path}")
            found = self._listed(path)
            self.dircache[path] = found
        return found if detail else [entry["name"] for entry in found]

    def _listed(self, path: str) -> list[dict[str, Any]]:
        below = f"{path}/" if path else ""
        names = [name for name in self.objects if name.startswith(below)]
        children = dict.fromkeys(below + name[len(below) :].partition("/")[0] for name in names)
        entries = {child: self._entry(child) for child in children}
        return list(entries.values()) or ([self._entry(path)] if path in self.objects else [])

    def _entry(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            return {"name": path, "type": "directory", "size": 0}
        content, mtime = self.objects[path]
        return {"name": path, "type": "file", "size": len(content), "mtime": mtime}

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        known = self._ls_from_cache(path)
        if not self.heads or known or not self._exists(path):
            return super().info(path, **options)
        self.requests.append(f"head {path}")
        return self._entry(path)

    def _exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.objects)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Drops exactly the named path, not the folders above or below, as adlfs and fsspec's FTP do."""
        if path is None:
            self.dircache.clear()
        else:
            self.dircache.pop(path, None)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _File:
        return _File(self, path, mode, cache_type=options.get("cache_type", "none"))

    def _rm(self, path: str) -> None:
        self.objects.pop(path, None)  # there are no folders


@pytest.fixture(params=[True, False], ids=["heads", "lists"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remembering]:
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    made = fsspec.filesystem("remembering")
    made.objects, made.requests, made.heads = {FIRST: (content([1, 2, 3, 4]), 10.0)}, [], request.param
    try:
        yield made
    finally:
        Remembering.clear_instance_cache()
        locate.cache_clear()


def content(values: list[int]) -> bytes:
    """A file whose footer is the same for all orders of the same values."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": values}), sink, compression="none", use_dictionary=False)
    return sink.getvalue()


def test_a_replaced_file_is_an_error_despite_cached_listings(store: Remembering) -> None:
    snapshot = Table(TABLE).snapshot()
    [fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    assert read_arrow(fragment, ReadRequest(["x"], snapshot.schema))["x"].to_pylist() == [1, 2, 3, 4]
    store.ls("t/k=0")  # by anybody in this process
    replaced = content([1, 3, 2, 4])
    assert replaced[-200:] == store.objects[FIRST][0][-200:]
    assert len(replaced) == len(store.objects[FIRST][0])
    store.objects[FIRST] = replaced, 20.0
    with pytest.raises(TableChangedError, match="changed after the snapshot was taken"):
        read_arrow(fragment, ReadRequest(["x"], snapshot.schema))


def test_a_new_snapshot_has_the_new_files(store: Remembering) -> None:
    before = Table(TABLE).snapshot()
    for folder in ("t", "t/k=0"):
        store.ls(folder)
    store.objects["t/k=0/g.parquet"] = content([7]), 20.0
    store.objects["t/k=1/f.parquet"] = content([8]), 20.0
    assert sorted(Table(TABLE).read()["x"].to_pylist()) == [1, 2, 3, 4, 7, 8]
    assert Table(TABLE).snapshot().id != before.id
    store.objects[FIRST] = content([5, 6]), 20.0
    del store.objects["t/k=1/f.parquet"]
    assert sorted(Table(TABLE).read()["x"].to_pylist()) == [5, 6, 7]


def test_files_of_other_processes_are_opened_whole_and_deleted(store: Remembering) -> None:
    location = locate("remembering://w")
    store.objects["w/a"] = b"short", 10.0
    location.filesystem.get_file_info(pafs.FileSelector("w"))
    store.ls("w")
    store.objects |= {"w/a": (b"longer than before", 20.0), "w/b": (b"new", 20.0), "w/c/d": (b"deep", 20.0)}
    with location.filesystem.open_input_file("w/a") as file:
        assert file.read() == b"longer than before"
    store.dircache["w"] = []
    with location.filesystem.open_input_stream("w/b") as stream:
        assert stream.read() == b"new"
    store.dircache["w"] = []
    location.filesystem.delete_file("w/b")
    store.dircache["w/c"] = []
    location.filesystem.delete_dir("w/c")
    assert list(store.objects) == [FIRST, "w/a"]


def test_many_files_of_a_folder_are_one_listing(store: Remembering) -> None:
    store.heads = False
    store.objects |= {f"w/{number}": (b"", 10.0) for number in range(20)}
    infos = locate("remembering://w").filesystem.get_file_info([f"w/{number}" for number in range(20)])
    assert all(info.type == pafs.FileType.File for info in infos)
    assert store.requests == ["list w"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://warehouse/clicks", "s3a://warehouse//clicks/"),
        ("s3://warehouse/clicks?region=eu-west-1&endpoint_override=localhost:9000", "s3://warehouse/clicks"),
        ("s3://warehouse/my%20clicks", "s3://warehouse/my clicks"),
        ("gs://anonymous@warehouse/clicks", "gcs://warehouse/clicks"),
        ("abfs://box@account.dfs.core.windows.net/clicks", "az://box/clicks"),
        ("abfss://account.blob.core.windows.net/box/clicks", "abfs://account@box/clicks"),
        ("hdfs://namenode:8020/clicks", "hdfs://namenode/clicks"),
        ("file:///w/my%20clicks", "/w/my clicks"),
        ("/w/../w/clicks/", "/w/clicks"),
    ],
)
def test_a_place_has_one_real_name_in_all_forms(one: str, other: str):
    assert real_name(one) == real_name(other)


def test_links_have_the_real_name_of_what_they_lead_to(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert real_name(str(tmp_path / "link/gone.parquet")) == str(tmp_path / "real/gone.parquet")
    assert real_name("s3://warehouse/clicks") != real_name("s3://warehouse/views")


# -- stores as pyarrow shows them -------------------------------------------------------------------------------------


class VirtualFolders:
    """pyarrow's GCS with objects of these names. A name that ends with a slash marks a folder.

    failures: how many of the next listings fail.
    """

    type_name = "gcs"

    def __init__(self, *names: str) -> None:
        self.names, self.failures = list(names), 0

    def get_file_info(self, where: Any) -> list[pafs.FileInfo]:
        if isinstance(where, list):
            return [pafs.FileInfo(path, self._type(path)) for path in where]
        self._fail()
        root = where.base_dir + "/"
        found = [name for name in self.names if name.startswith(root)]
        shown = [name for name in found if where.recursive or "/" not in name[len(root) : -1]]
        return [pafs.FileInfo(name, self._type(name)) for name in shown if name != root]

    def delete_dir(self, path: str) -> None:
        marked = f"{path}/" in self.names
        self.names = [name for name in self.names if not name.startswith(path + "/")]
        if not marked:
            raise FileNotFoundError(path)

    def _type(self, path: str) -> pafs.FileType:
        if path in self.names:
            return pafs.FileType.Directory if path.endswith("/") else pafs.FileType.File
        try:
            self._fail()
        except OSError:  # so it does
            return pafs.FileType.NotFound
        is_folder = any(name.startswith(path + "/") for name in self.names)
        return pafs.FileType.Directory if is_folder else pafs.FileType.NotFound

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("google::cloud::Status(UNAVAILABLE: Service Unavailable)")


OBJECTS = ("b/t/", "b/t/ds=1/a.parquet", "b/t/ds=1/k=2/a.parquet", "b/t/ds=2/", "b/t/note")


def test_folders_that_only_names_of_files_have_are_listed():
    store = VirtualFolders(*OBJECTS, "b/tables/a")
    listed = {info.path: info.type for info in list_folder(store, "b/t")}
    folder = pafs.FileType.Directory
    assert listed == {"b/t/ds=1": folder, "b/t/ds=2": folder, "b/t/note": pafs.FileType.File}


def test_a_listing_that_failed_has_all_folders(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=0, longest_s=0))
    store = VirtualFolders(*OBJECTS)
    store.failures = 2
    paths = {info.path for info in list_tree(Location("gs://b/t", store, "b/t"))}
    assert paths == set(OBJECTS[1:])


def test_a_folder_whose_listing_fails_is_not_missing():
    store = VirtualFolders(*OBJECTS)
    assert info_of(store, "b/t/ds=1").type == pafs.FileType.Directory
    assert info_of(store, "b/t/ds=3").type == pafs.FileType.NotFound
    store.failures = 2
    with pytest.raises(OSError, match="UNAVAILABLE"):
        info_of(store, "b/t/ds=1")


@pytest.mark.parametrize("folder", ["b/t/ds=1", "b/t/ds=2", "b/t/ds=3"])
def test_a_folder_is_deleted_whether_an_object_marks_it_or_not(folder: str):
    store = VirtualFolders(*OBJECTS)
    delete_folder(store, folder)
    assert store.names == [name for name in OBJECTS if not name.startswith(folder)]


AZURE = "abfs://box@account.dfs.core.windows.net/t?blob_storage_authority=127.0.0.1:1"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AZURE_STORAGE_KEY": "a2V5"}, ("a2V5", "")),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "a2V5", "AZURE_STORAGE_SAS_TOKEN": "sig=x"}, ("a2V5", "")),
        ({"AZURE_STORAGE_SAS_TOKEN": "sig=x"}, ("", "sig=x")),
        ({"AZURE_STORAGE_KEY": "a2V5", "AZURE_STORAGE_ACCOUNT": "account"}, ("a2V5", "")),
        ({"AZURE_STORAGE_KEY": "a2V5", "AZURE_STORAGE_ACCOUNT": "another"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_the_key_of_an_azure_account_comes_from_the_environment(
    environment: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("KEY", "ACCOUNT_KEY", "SAS_TOKEN", "ACCOUNT"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    locate.cache_clear()
    _, (options,) = locate(AZURE).filesystem.__reduce__()
    locate.cache_clear()
    assert (options["account_key"], options["sas_token"]) == expected
    assert options["blob_storage_authority"] == "127.0.0.1:1"
