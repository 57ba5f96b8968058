"""A folder of features appears as a whole, and replaces only another one."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from feedline.errors import TableArgumentError, TableError
from feedline.materialize import output_folder
from feedline.materialize.output_folder import MARKER, PROGRAM, ROOT_GROUP, OutputFolder, OutputRef, explain_writes
from feedline.warehouse.storage.content_store import get, put
from feedline.warehouse.storage.locations import Location, list_tree, locate


def write(out: Path, content: str = "rows", *, overwrite: bool = False, group: bool = False) -> None:
    folder = OutputFolder(str(out), overwrite=overwrite)
    ref = folder.begin()
    ref.check()
    put(ref.files, "features/file", [content.encode()])
    folder.finish({"rows": 1}, group=group)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def facts(marker: Path) -> dict[str, Any]:
    return dict(json.loads(marker.read_text()))


def test_it_appears_when_it_is_finished(tmp_path: Path):
    folder = OutputFolder(str(tmp_path / "new" / "out"), overwrite=False)
    put(folder.begin().files, "file", [b"rows"])
    assert not (tmp_path / "new" / "out").exists()
    folder.finish({"rows": 1}, group=False)
    assert files(tmp_path) == [f"new/out/{MARKER}", "new/out/file"]
    assert facts(tmp_path / "new" / "out" / MARKER) == {"program": PROGRAM, "rows": 1, "run": folder.ref.run}


def test_a_group_is_its_own_marker(tmp_path: Path):
    write(tmp_path / "out", group=True)
    content = facts(tmp_path / "out" / ROOT_GROUP)
    assert (content["zarr_format"], content["node_type"]) == (3, "group")
    assert content["attributes"].items() >= {"program": PROGRAM, "rows": 1}.items()
    write(tmp_path / "out", "others", overwrite=True)
    assert files(tmp_path / "out") == [MARKER, "features/file"]


def test_discarded_output_leaves_what_was_there(tmp_path: Path):
    write(tmp_path / "out", "before")
    folder = OutputFolder(str(tmp_path / "out"), overwrite=True)
    put(folder.begin().files, "file", [b"after"])
    folder.discard()
    assert (tmp_path / "out" / "features" / "file").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_it_is_replaced_in_one_step_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool):
    if not exchanges:
        monkeypatch.setattr(output_folder, "exchange", lambda one, other: False)
    write(tmp_path / "out", "before")
    write(tmp_path / "out", "after", overwrite=True)
    assert (tmp_path / "out" / "features" / "file").read_text() == "after"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_mount_point_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    inode = (tmp_path / "out").stat().st_ino
    write(tmp_path / "out")
    folder = OutputFolder(str(tmp_path / "out"), overwrite=True)
    folder.begin()
    assert files(tmp_path / "out") == ["_unfinished/materialize"]
    with pytest.raises(TableArgumentError, match="holds features already"):  # also of a run that was killed
        OutputFolder(str(tmp_path / "out"), overwrite=False)
    folder.discard()
    write(tmp_path / "out", "after")
    assert files(tmp_path / "out") == [MARKER, "features/file"]
    assert (tmp_path / "out").stat().st_ino == inode


def test_a_link_stays(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert files(tmp_path / "real") == [MARKER, "features/file"]


@pytest.mark.parametrize("name", ["notes", MARKER, ROOT_GROUP, "_feedline"])
def test_foreign_folders_are_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_text('{"attributes": {}}')
    for overwrite in (False, True):
        with pytest.raises(TableArgumentError, match=f"is not empty: it holds '{name}', .*Name an empty or missing"):
            OutputFolder(str(tmp_path), overwrite=overwrite)


def test_a_folder_that_was_filled_meanwhile_is_refused(tmp_path: Path):
    folder = OutputFolder(str(tmp_path / "out"), overwrite=False)
    write(tmp_path / "out")
    with pytest.raises(TableArgumentError, match="holds features already"):
        folder.begin()


def test_what_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(TableArgumentError, match="file is a file: expected a folder"):
        OutputFolder(str(tmp_path / "file"), overwrite=True)
    with pytest.raises(TableError, match="could not be"):
        OutputFolder(str(tmp_path / "file" / "out"), overwrite=False).begin()
    with pytest.raises(TableError, match=r"OUT has no space left: .*make room"), explain_writes("OUT"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(TableArgumentError, match=r"OUT could not be written: .*Name a folder"), explain_writes("OUT"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_worker_that_sees_another_folder_says_so(tmp_path: Path):
    ref = OutputFolder(str(tmp_path / "out"), overwrite=False).begin()
    elsewhere = OutputRef(name="OUT", claim=replace(ref.claim, uri=str(tmp_path / "missing")))
    with pytest.raises(TableError, match=r"OUT is another folder on the worker .*: expected one that all workers"):
        elsewhere.check()


def in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> str:
    """An OUT that another folder cannot take the place of: a mount point, or a store."""
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    return str(tmp_path / "out") if kind == "mount" else f"memory:/{tmp_path}/out"


def contents(out: str) -> dict[str, bytes]:
    location = locate(out)
    found = (info.path for info in list_tree(location) if info.type == pafs.FileType.File)
    names = [path[len(location.path) + 1 :] for path in found]
    return {name: bytes(memoryview(get(location, name))) for name in names}


@pytest.mark.parametrize("kind", ["mount", "store"])
def test_a_task_of_a_killed_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    out = in_place(tmp_path, monkeypatch, kind)
    killed = OutputFolder(out, overwrite=False).begin()
    folder = OutputFolder(out, overwrite=True)
    ref = folder.begin()
    put(ref.files, "part", [b"right"])
    put(killed.files, "part", [b"wrong"])  # before the other one ends
    with pytest.raises(TableError, match=rf"is no longer this run's: got that of {ref.run}, expected .* {killed.run}"):
        killed.check()
    folder.finish({}, group=False)
    finished = contents(out)
    assert (sorted(finished), finished["part"]) == ([MARKER, "part"], b"right")
    put(killed.files, "part", [b"wrong"])  # and after that
    found = contents(out)
    assert {name: found[name] for name in finished} == finished
    assert all(name.startswith("_unfinished/") for name in found.keys() - finished.keys())
    write(Path(out), "later", overwrite=True) if kind == "mount" else OutputFolder(out, overwrite=True).begin()
    assert b"wrong" not in contents(out).values()


@pytest.mark.parametrize("kind", ["mount", "store"])
@pytest.mark.parametrize("ends", ["finishes", "discards"])
def test_a_run_that_was_replaced_leaves_its_successor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ends: str
):
    out = in_place(tmp_path, monkeypatch, kind)
    stopped, successor = OutputFolder(out, overwrite=True), OutputFolder(out, overwrite=True)
    put(stopped.begin().files, "part", [b"wrong"])
    put(successor.begin().files, "part", [b"right"])
    put(stopped.ref.files, "more", [b"wrong"])
    successor.finish({}, group=False)
    finished = contents(out)
    if ends == "finishes":
        with pytest.raises(TableError, match="is no longer this run's: got none, expected the claim"):
            stopped.finish({}, group=True)
    stopped.discard()
    assert contents(out) == finished
    assert sorted(finished) == [MARKER, "part"]


def test_files_of_a_run_that_lost_its_claim_while_it_ended_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = in_place(tmp_path, monkeypatch, "mount")
    folder = OutputFolder(out, overwrite=True)
    put(folder.begin().files, "part-b", [b"right"])
    for late in ("part-a", ROOT_GROUP):  # moved by requests that were under way
        put(locate(out), late, [b"wrong"])
    folder.finish({}, group=False)
    assert sorted(contents(out)) == [MARKER, "part-b"]


def test_a_run_that_loses_its_claim_at_its_end_takes_its_marker_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = in_place(tmp_path, monkeypatch, "mount")
    folder = OutputFolder(out, overwrite=True)
    put(folder.begin().files, "part", [b"rows"])

    def lose(location: Location, name: str, parts: list[bytes]) -> None:
        put(location, name, parts)
        if name == MARKER:
            replace(folder.ref.claim, run="other").take()

    monkeypatch.setattr(output_folder, "put", lose)
    with pytest.raises(TableError, match="is no longer this run's: got that of other"):
        folder.finish({}, group=False)
    assert not (tmp_path / "out" / MARKER).exists()
    folder.discard()
    assert (tmp_path / "out" / "_unfinished" / "materialize").read_text() == "other"


def test_an_error_before_the_folder_is_begun_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = in_place(tmp_path, monkeypatch, "mount")
    folder = OutputFolder(out, overwrite=False)
    write(tmp_path / "out")  # another run, while this one fits
    finished = contents(out)
    with pytest.raises(TableArgumentError, match="holds features already"):
        folder.begin()
    folder.discard()
    assert contents(out) == finished


def test_a_folder_that_another_run_replaced_meanwhile_stays(tmp_path: Path):
    write(tmp_path / "out", "before")
    folder = OutputFolder(str(tmp_path / "out"), overwrite=True)
    put(folder.begin().files, "features/file", [b"outdated"])
    write(tmp_path / "out", "after", overwrite=True)
    with pytest.raises(TableError, match=r"out was written by another run meanwhile: got the run \w+, expected"):
        folder.finish({}, group=False)
    folder.discard()
    assert (tmp_path / "out" / "features" / "file").read_text() == "after"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
