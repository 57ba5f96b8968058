"""Facts that outgrow memory lie on disk, and are the same."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from test_assembly import KINDS, put, same

from feedline.errors import StoreError
from feedline.warehouse.snapshot import footer_tasks, take
from feedline.warehouse.snapshot.take import take_snapshot

COLUMNS, FILES = 30, 64  # of a made-up block


def descriptors(folder: Path) -> list[str]:
    """Files without a name that this process has open below a folder."""
    names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(name for name in names if name.startswith(f"{folder}/") and name.endswith(" (deleted)"))


@pytest.mark.parametrize("kept", [True, False], ids=["saved", "not saved"])
def test_facts_that_overflow_memory_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool):
    for index in range(12):
        put(tmp_path / "t" / f"k={index % 4}" / f"{index}.parquet", KINDS[index % len(KINDS)], row_group_size=3)
    whole = take_snapshot(str(tmp_path / "t"))
    monkeypatch.setattr(take, "HELD_BYTES", 0)
    monkeypatch.setattr(footer_tasks, "_TASK_FILES", 5)
    folder = tmp_path / "w"
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    found = take_snapshot(str(tmp_path / "t"), work_dir=str(folder) if kept else None)
    same(found, whole)
    assert len(descriptors(tmp_path)) == (0 if kept else 1)
    again = found.without([found.files["path"][3].as_py()])
    same(again, whole.without([found.files["path"][3].as_py()]))
    del found, again
    gc.collect()
    assert descriptors(tmp_path) == []
    assert kept or not list(folder.iterdir())


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(take, "HELD_BYTES", 0)
    put(tmp_path / "t" / "a.parquet", KINDS[0])
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cannot be written to .*/file: got .*Make room, or name another folder"):
        take_snapshot(str(tmp_path / "t"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"cannot be written to .*: got .*No space left on device"):
        take_snapshot(str(tmp_path / "t"), work_dir=str(tmp_path / "w"))
    gc.collect()
    assert descriptors(tmp_path) == []
