"""Only the run that has a folder moves files into it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from feedline.errors import StoreError, TableError
from feedline.warehouse.storage import claim as claims
from feedline.warehouse.storage import retry
from feedline.warehouse.storage.claim import Claim, delete
from feedline.warehouse.storage.content_store import put
from feedline.warehouse.storage.locations import list_tree, locate


@pytest.fixture(params=["local", "store"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory:/{tmp_path}"


def claim(uri: str) -> Claim:
    return Claim(uri=uri, hidden="_hidden", file="claim", name="OUT")


def paths(uri: str) -> list[str]:
    """All files below a folder."""
    location = locate(uri)
    found = (info.path for info in list_tree(location) if info.type == pafs.FileType.File)
    return sorted(path[len(location.path) + 1 :] for path in found)


def test_files_are_moved_by_the_run_that_has_the_folder(uri: str):
    first, second = claim(uri), claim(uri)
    first.take()
    put(first.own("files"), "a", [b"1"])
    put(first.own("files"), "b/c", [b"2"])
    assert (first.holder(), second.holder()) == (first.run, first.run)
    root = locate(uri).path
    first.move((f"{first.own('files').path}/{name}", f"{root}/seen/{name}") for name in ("a", "b/c"))
    first.delete([f"{root}/seen/b/c", f"{root}/seen/missing"])
    assert [path for path in paths(uri) if not path.startswith("_hidden")] == ["seen/a"]
    first.release()
    assert paths(uri) == ["seen/a"]
    assert locate(uri).filesystem.get_file_info(f"{root}/_hidden").type == pafs.FileType.NotFound


def test_a_file_is_deleted_despite_a_fault_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=0.01, longest_s=0.01, deadline_s=30))
    uri = f"memory:/{tmp_path}"
    run = claim(uri)
    run.take()
    put(run.location, "seen", [b"1"])
    faults, remove = [ConnectionResetError(errno.ECONNRESET, "reset")], MemoryFileSystem.rm

    def broken(*arguments: Any, **options: Any) -> None:
        if faults:
            raise faults.pop()
        remove(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "rm", broken)
    run.delete([f"{locate(uri).path}/seen"])
    assert (faults, paths(uri)) == ([], ["_hidden/claim"])


def test_who_takes_it_deletes_what_others_left(uri: str):
    first, second = claim(uri), claim(uri)
    first.take()
    put(first.own("files"), "a", [b"1"])
    second.take()
    assert paths(uri) == ["_hidden/claim"]
    put(first.own("files"), "a", [b"1"])  # a task that still ran
    put(second.own("files"), "a", [b"2"])
    own = first.own("files").path
    for change in (first.check, lambda: first.move([(f"{own}/a", f"{own}/b")]), lambda: first.delete([f"{own}/a"])):
        with pytest.raises(TableError, match=rf"OUT is no longer this run's: got that of {second.run}, expected"):
            change()
    first.release()
    assert paths(uri) == sorted([f"_hidden/{second.run}/files/a", "_hidden/claim"])
    second.release()
    second.release()
    assert paths(uri) == []


def test_a_store_that_fails_is_no_lost_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise StoreError("the store fails")

    own = claim(str(tmp_path))
    own.take()
    assert replace(own, uri=str(tmp_path / "missing")).holder() == ""
    monkeypatch.setattr(claims, "get", fail)
    with pytest.raises(StoreError):
        own.check()


def test_folders_are_deleted_with_what_they_hold(uri: str):
    location = locate(uri)
    put(location, "a/b", [b""])
    put(location, "c", [b""])
    for name in ("a", "c"):
        delete(location.filesystem, location.filesystem.get_file_info(f"{location.path}/{name}"))
    assert paths(uri) == []
