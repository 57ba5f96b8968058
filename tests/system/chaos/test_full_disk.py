"""A full disk under `work_dir` is named, leaves no half of a file, and costs nothing but the time until it has room."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import SmallDisk
from pipelines import Place, furnished
from processes import ended_here

WHERE = {"where": "dwell > 1.5"}  # rows have to be counted


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    """A table whose files' times identify them: younger files may still be written, and are read again."""
    table, old_s = tmp_path / "clicks", time.time() - 60
    shutil.copytree(clicks / "ds=2026-01-01", table / "ds=2026-01-01")
    for file in table.rglob("*.parquet"):
        os.utime(file, (old_s, old_s))
    with furnished(tmp_path, table) as place:
        yield place


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    return filler


def files(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.is_file() and path.name != "filler"]


@pytest.mark.skipif(not SmallDisk.usable, reason="needs the right to mount a file system")
def test_a_full_disk_is_an_error_of_planning_and_not_of_a_run(place: Place):
    with SmallDisk(place.work, megabytes=1) as disk:
        if disk is None:
            pytest.skip("mounting a file system is refused here")
        path = place.write(source=WHERE)
        filler = fill(disk)
        refused = ended_here("plan", path)
        assert refused.returncode == 2
        assert "work_dir: cannot be written: " in refused.stderr
        assert "No space left on device. Name a writable folder" in refused.stderr
        assert files(disk) == []
        filler.unlink()
        assert ended_here("plan", path).returncode == 0
        planned = {file: file.read_bytes() for file in files(disk)}
        fill(disk)
        ran = ended_here("run", path, "--sink", "null")
        assert ran.returncode == 0, ran.stderr
        assert {file: file.read_bytes() for file in files(disk) if file in planned} == planned
        assert all(file.stat().st_size for file in files(disk) if file.suffix != ".lock"), "no half of a file"
