"""Facts that outgrow memory lie on disk, and are the same."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_assembly import KINDS, put, same

from feedline.errors import StoreError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.parquet.footer import FileFacts, file_facts
from feedline.warehouse.snapshot import footer_tasks, take
from feedline.warehouse.snapshot.footer_tasks import FooterResult
from feedline.warehouse.snapshot.packed_facts import blocks_of
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of, take_snapshot
from feedline.warehouse.storage.locations import locate

COLUMNS, FILES = 30, 64  # of a made-up block


def descriptors(folder: Path) -> list[str]:
    """Files without a name that this process has open below a folder."""
    names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(name for name in names if name.startswith(f"{folder}/") and name.endswith(" (deleted)"))


@pytest.mark.parametrize("kept", [True, False], ids=["saved", "not saved"])
def test_facts_that_overflow_memory_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool):
    for index in range(24):
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


def made(tmp_path: Path) -> tuple[Callable[[int], Listing], Callable[..., Iterator[FooterResult]]]:
    """A listing of so many files, and their footers, each with other bounds."""
    draws = np.random.default_rng(0)
    pq.write_table(pa.table({f"c{i}": draws.random(4) for i in range(COLUMNS)}), tmp_path / "f.parquet")
    path = tmp_path / "f.parquet"
    known = file_facts(locate(str(path)).filesystem, str(path), path.stat().st_size, "f")

    def facts() -> FileFacts:
        bounds = np.sort(draws.random((COLUMNS, 2))).astype("<f8")
        columns = [
            dataclasses.replace(column, low=[low.tobytes()], high=[high.tobytes()])
            for column, (low, high) in zip(known.columns, bounds, strict=True)
        ]
        return dataclasses.replace(known, columns=columns)

    def listing(blocks: int) -> Listing:
        count = blocks * FILES
        files = {
            "path": [f"{place}" for place in range(count)],
            "bytes": np.full(count, 9),
            "mtime_ns": np.full(count, 9),
        }
        return Listing(uri=str(tmp_path), files=pa.table(files), partition={}, ignored=0)

    def read(function: Callable[[Any], Any], tasks: list[Any]) -> Iterator[FooterResult]:
        for task in tasks:
            places = [place for place, _, _ in task.files]
            for start in range(0, len(places), FILES):
                part = places[start : start + FILES]
                yield FooterResult(blocks=tuple(blocks_of([(place, facts()) for place in part])), corrupt=())

    return listing, read


def test_memory_does_not_grow_with_the_column_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The bytes that a snapshot keeps in memory, and the peak while it is taken, per column chunk."""
    monkeypatch.setattr(take, "HELD_BYTES", 10_000)
    listing, read = made(tmp_path)

    def taken(blocks: int) -> tuple[Snapshot, int]:
        listed = listing(blocks)
        tracemalloc.start()
        try:
            snapshot = snapshot_of(listed, map=read)
            return snapshot, tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    taken(1)  # imports, and what else comes once
    (small, few), (large, many) = taken(2), taken(10)
    chunks = 8 * FILES * COLUMNS
    assert (many - few) / chunks < 8  # 35 where they stay
    for snapshot in (small, large):
        low = snapshot.column_facts("c7").field("min")
        assert len(low) == len(snapshot.files)
        assert low.null_count == 0


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
