"""A snapshot that was interrupted reads only the footers that are left, and is the one of a single go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import CorruptFileError, FeedlineError
from feedline.progress import on_progress
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.stored_names import StoredField, StoredNames
from feedline.warehouse.snapshot import take
from feedline.warehouse.snapshot.footer_tasks import footer_task
from feedline.warehouse.snapshot.take import snapshot_of, take_snapshot

FILES = 10
HOUR_NS = 3600 * 10**9


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten old files, of two schemas, in waves of three."""
    monkeypatch.setattr(take, "_WAVE_FILES", 3)
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(FILES):
        columns = {"x": range(number + 1), **({"y": [0.5] * (number + 1)} if number % 3 else {})}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        age(folder / f"{number}.parquet")
    return folder


def age(path: Path, hours: int = 1) -> None:
    times = path.stat().st_mtime_ns - hours * HOUR_NS
    os.utime(path, ns=(times, times))


class StoppedError(FeedlineError):
    """What ends a run in the middle."""


def reading(read: list[str], stop_after: int | None = None) -> Callable[..., Iterator[Any]]:
    """A map that notes which files it reads, and stops after so many waves."""
    waves: list[int] = []

    def map(function: Any, tasks: list[Any]) -> Iterator[Any]:
        assert function is footer_task
        if len(waves) == stop_after:
            raise StoppedError("stopped")
        waves.append(1)
        read.extend(path for task in tasks for _, path, _ in task.files)
        return iter([footer_task(task) for task in tasks])

    return map


def kept(work: Path) -> int:
    return len(list(work.glob("footers/*.arrow")))


def test_an_interrupted_snapshot_reads_only_what_is_left(table: Path, tmp_path: Path):
    work, read, again, progress = tmp_path / "work", [], [], []
    with pytest.raises(StoppedError):
        take_snapshot(str(table), work_dir=str(work), map=reading(read, stop_after=2))
    assert (len(read), kept(work)) == (6, 2)
    for name, hours in (("of_another_table", 1), ("given_up", 24 * 8)):
        other = work / "footers" / f"{name}.arrow"
        other.write_bytes(b"")
        age(other, hours)
    with on_progress(progress.append):
        snapshot = take_snapshot(str(table), work_dir=str(work), map=reading(again))
    assert sorted([*read, *again]) == sorted(f"{number}.parquet" for number in range(FILES))
    footers = [each.done for each in progress if (each.phase, each.total) == ("reading footers", FILES)]
    assert list(dict.fromkeys(footers)) == [3, 6, 9, 10]
    assert [file.stem for file in work.glob("footers/*.arrow")] == ["of_another_table"]
    whole = take_snapshot(str(table))
    assert snapshot.id == whole.id
    for name in ("x", "y"):
        assert snapshot.facts.fetch(snapshot.schema.field(name)) == whole.facts.fetch(whole.schema.field(name))


def test_a_wave_under_other_names_is_read_again(table: Path, tmp_path: Path):
    work, read = tmp_path / "work", []
    listing = discover(str(table))
    with pytest.raises(StoppedError):
        snapshot_of(listing, work_dir=str(work), map=reading([], stop_after=2))
    swapped = StoredNames.of([StoredField("x", "y", None), StoredField("y", "x", None)], by_id=False)
    snapshot = snapshot_of(replace(listing, stored_names=swapped), work_dir=str(work), map=reading(read))
    assert len(read) == FILES
    assert snapshot.column_facts("x")[1].as_py()["max"] == 0.5


def test_a_wave_with_a_file_that_changed_is_read_again(table: Path, tmp_path: Path):
    work, again = tmp_path / "work", []
    with pytest.raises(StoppedError):
        take_snapshot(str(table), work_dir=str(work), map=reading([], stop_after=2))
    pq.write_table(pa.table({"x": range(50)}), table / "1.parquet")
    age(table / "1.parquet", hours=2)
    snapshot = take_snapshot(str(table), work_dir=str(work), map=reading(again))
    assert {"0.parquet", "1.parquet", "2.parquet"} <= set(again)
    assert not {"3.parquet", "4.parquet", "5.parquet"} & set(again)
    assert snapshot.id == take_snapshot(str(table)).id


def test_a_wave_with_a_file_that_may_still_change_is_not_kept(table: Path, tmp_path: Path):
    age(table / "4.parquet", hours=-1)  # as young as the clock can tell
    with pytest.raises(StoppedError):
        take_snapshot(str(table), work_dir=str(tmp_path / "work"), map=reading([], stop_after=3))
    assert kept(tmp_path / "work") == 2


def test_corrupt_footers_are_kept_with_their_wave(table: Path, tmp_path: Path):
    (table / "0.parquet").write_bytes(b"PAR1 is not a footer PAR1")
    age(table / "0.parquet")
    work, bad, again = tmp_path / "work", [], []
    with pytest.raises(CorruptFileError):
        take_snapshot(str(table), work_dir=str(work), map=reading([]))
    take_snapshot(str(table), work_dir=str(work), map=reading(again), on_bad=lambda path, error: bad.append(path))
    assert bad == ["0.parquet"]
    assert "0.parquet" not in again


def test_a_damaged_wave_is_read_again(table: Path, tmp_path: Path):
    work, again = tmp_path / "work", []
    with pytest.raises(StoppedError):
        take_snapshot(str(table), work_dir=str(work), map=reading([], stop_after=1))
    [file] = work.glob("footers/*.arrow")
    file.write_bytes(file.read_bytes()[:-50])
    assert take_snapshot(str(table), work_dir=str(work), map=reading(again)).id == take_snapshot(str(table)).id
    assert len(again) == FILES


def test_a_table_of_one_wave_keeps_nothing(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(take, "_WAVE_FILES", FILES)
    with pytest.raises(StoppedError):
        take_snapshot(str(table), work_dir=str(tmp_path / "work"), map=reading([], stop_after=0))
    take_snapshot(str(table), work_dir=str(tmp_path / "work"), map=reading([]))
    assert not (tmp_path / "work" / "footers").exists()
