"""A folder of features appears as a whole, and replaces only another one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from feedline.errors import TableArgumentError, TableError
from feedline.materialize import output_folder
from feedline.materialize.output_folder import MARKER, PROGRAM, ROOT_GROUP, OutputFolder, OutputRef, explain_writes
from feedline.warehouse.storage.content_store import put


def write(out: Path, content: str = "rows", *, overwrite: bool = False, group: bool = False) -> None:
    folder = OutputFolder(str(out), overwrite=overwrite)
    ref = folder.begin()
    ref.check()
    put(ref.location, "features/file", [content.encode()])
    folder.finish({"rows": 1}, group=group)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_it_appears_when_it_is_finished(tmp_path: Path):
    folder = OutputFolder(str(tmp_path / "new" / "out"), overwrite=False)
    put(folder.begin().location, "file", [b"rows"])
    assert not (tmp_path / "new" / "out").exists()
    folder.finish({"rows": 1}, group=False)
    assert files(tmp_path) == [f"new/out/{MARKER}", "new/out/file"]
    assert json.loads((tmp_path / "new" / "out" / MARKER).read_text()) == {"program": PROGRAM, "rows": 1}


def test_a_group_is_its_own_marker(tmp_path: Path):
    write(tmp_path / "out", group=True)
    content = json.loads((tmp_path / "out" / ROOT_GROUP).read_text())
    assert content == {"zarr_format": 3, "node_type": "group", "attributes": {"program": PROGRAM, "rows": 1}}
    write(tmp_path / "out", "others", overwrite=True)
    assert files(tmp_path / "out") == [MARKER, "features/file"]


def test_discarded_output_leaves_what_was_there(tmp_path: Path):
    write(tmp_path / "out", "before")
    folder = OutputFolder(str(tmp_path / "out"), overwrite=True)
    put(folder.begin().location, "file", [b"after"])
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
    other = OutputRef(uri=ref.uri, name="OUT", token="another")
    elsewhere = OutputRef(uri=str(tmp_path / "missing"), name="OUT", token=ref.token)
    for wrong in (other, elsewhere):
        with pytest.raises(TableError, match=r"OUT is another folder on the worker .*: expected one that all workers"):
            wrong.check()
