"""A count in waves gives what one in a single go gives, continues where it stopped, and reuses earlier counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions import BoundExpression, bind_where
from feedline.progress import Progress, on_progress
from feedline.warehouse.bad_files import BadFilesFoundError, ForgivingMap
from feedline.warehouse.selection import select, waves
from feedline.warehouse.selection.select import CountTask, Selection, row_groups_before, same_types, select_rows
from feedline.warehouse.selection.waves import (
    FIRST_TASKS,
    WAVE_S,
    next_tasks,
)
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store

FILES, GROUPS, ROWS = 12, 2, 5


@pytest.fixture
def table(tmp_path: Path) -> Snapshot:
    """Twelve files of two row groups of five rows."""
    for file in range(FILES):
        values = pa.table({"x": pa.array(range(10 * file, 10 * file + 10))})
        (tmp_path / "t").mkdir(exist_ok=True)
        pq.write_table(values, tmp_path / "t" / f"{file:02d}.parquet", row_group_size=ROWS)
    return take_snapshot(str(tmp_path / "t"))


@pytest.fixture
def where(table: Snapshot) -> BoundExpression:
    """What statistics cannot decide."""
    return bind_where("x % 3 == 0", table.schema)


def progress_of(rows: int, total: int) -> Progress:
    return Progress(phase="counting", unit="rows", done=rows, total=total)


class Waves:
    """A map that runs tasks here and notes them; it fails in a wave if asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tasks: int = 2, fails: int | None = None) -> None:
        monkeypatch.setattr(waves, "_TASK_FILES", 1)
        monkeypatch.setattr(waves, "FIRST_TASKS", tasks)
        monkeypatch.setattr(waves, "next_tasks", lambda count, seconds: tasks)
        self.sizes: list[int] = []
        self.paths: list[str] = []
        self._fails = fails

    def __call__(self, function: Callable[[CountTask], Any], tasks: list[CountTask]) -> Iterable[Any]:
        self.sizes.append(len(tasks))
        if len(self.sizes) - 1 == self._fails:
            raise KeyboardInterrupt
        self.paths += [fragment.path for task in tasks for fragment in task.fragments]
        return [function(task) for task in tasks]


def expected() -> list[int]:
    return [sum(x % 3 == 0 for x in range(first, first + ROWS)) for first in range(0, FILES * 10, ROWS)]


def counted(table: Snapshot, where: BoundExpression, folder: Path, map: Any, say: Any = print) -> Selection:
    with on_progress(say):
        return select_rows(table, where, work_dir=str(folder), map=map)


def begun(folder: Path) -> list[Path]:
    return sorted((folder / "counts").glob("*.begun.arrow"))


def test_waves_cover_the_table_in_order(table, where, tmp_path, monkeypatch):
    runs, said = Waves(monkeypatch, tasks=5), []
    found = counted(table, where, tmp_path / "w", runs, say=said.append)
    assert found.rows.tolist() == expected()
    assert runs.sizes == [5, 5, 2]
    assert runs.paths == table.files["path"].to_pylist()
    assert said == [progress_of(rows, 120) for rows in range(0, 121, 10)]
    assert begun(tmp_path / "w") == []
    assert counted(table, where, tmp_path / "w", None).report.cached


def test_an_interrupted_count_resumes_where_it_stopped(table, where, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        counted(table, where, tmp_path / "w", Waves(monkeypatch, tasks=3, fails=2))
    assert len(begun(tmp_path / "w")) == 1
    again, said = Waves(monkeypatch, tasks=4), []
    found = counted(table, where, tmp_path / "w", again, say=said.append)
    assert found.rows.tolist() == expected()
    assert again.paths == table.files["path"].to_pylist()[6:]
    assert said == [progress_of(rows, 120) for rows in range(60, 121, 10)]
    assert begun(tmp_path / "w") == []


def test_only_the_same_count_resumes(table, where, tmp_path, monkeypatch):
    """Another filter, and another snapshot, have nothing of it; nor has one whose file is damaged."""
    with pytest.raises(KeyboardInterrupt):
        counted(table, where, tmp_path / "w", Waves(monkeypatch, fails=2))
    other = Waves(monkeypatch)
    counted(table, bind_where("x % 3 == 1", table.schema), tmp_path / "w", other)
    assert len(other.paths) == FILES
    smaller = Waves(monkeypatch)
    less = table.without(["00.parquet"])
    assert counted(less, where, tmp_path / "w", smaller).rows.tolist() == expected()[GROUPS:]
    assert len(smaller.paths) == FILES - 1
    (file,) = begun(tmp_path / "w")
    file.write_bytes(file.read_bytes()[:-3])
    whole = Waves(monkeypatch)
    assert counted(table, where, tmp_path / "w", whole).rows.tolist() == expected()
    assert len(whole.paths) == FILES


@pytest.mark.parametrize(
    ("row_group", "rows"),
    [([0, 99], [1, 1]), ([1, 0], [1, 1]), ([0, 1], [-1, 1])],
    ids=["no such row group", "out of order", "less than none"],
)
def test_inconsistent_counts_are_counted_again(table, where, tmp_path, monkeypatch, row_group, rows):
    with pytest.raises(KeyboardInterrupt):
        counted(table, where, tmp_path / "w", Waves(monkeypatch, fails=1))
    (file,) = begun(tmp_path / "w")
    wrong = {"row_group": row_group, "rows": rows, "matched": [1, 1], "by_bloom": [0, 0], "bloom_bytes": [0, 0]}
    content_store.create(str(tmp_path / "w"), f"counts/{file.name}", [pa.table(wrong)])
    runs = Waves(monkeypatch)
    assert counted(table, where, tmp_path / "w", runs).rows.tolist() == expected()
    assert len(runs.paths) == FILES


def test_all_bad_files_are_met_in_one_count(table, where, tmp_path, monkeypatch):
    """Whichever wave they are in: the table is looked at again once, not once a wave."""
    for file in (1, 6):
        path = tmp_path / "t" / f"{file:02d}.parquet"
        content = bytearray(path.read_bytes())
        content[4:40] = bytes(36)
        status = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    runs = Waves(monkeypatch, tasks=3)
    forgiving = ForgivingMap(runs)
    with pytest.raises(BadFilesFoundError) as met:
        counted(table, where, tmp_path / "w", forgiving)
    assert sorted(met.value.reasons) == ["01.parquet", "06.parquet"]
    assert begun(tmp_path / "w") == []
    before = len(runs.paths)
    left = table.without(met.value.reasons)
    rows = expected()
    assert counted(left, where, tmp_path / "w", forgiving).rows.tolist() == [*rows[:2], *rows[4:12], *rows[14:]]
    assert len(runs.paths) == before, "counted again"


@given(st.integers(1, 4096), st.floats(0, 1e6))
def test_a_wave_takes_its_time(tasks: int, seconds: float):
    following = next_tasks(tasks, seconds)
    assert 1 <= following <= 4096
    assert following <= 4 * tasks
    if 1 < following < min(4 * tasks, 4096):
        assert WAVE_S / 2 <= following * seconds / tasks <= WAVE_S * 1.001


def test_waves_follow_the_pace():
    sizes, tasks = [], FIRST_TASKS
    for pace_s in (0.001, 0.001, 0.001, 1.0, 100.0, 0.01):
        sizes.append(tasks)
        tasks = next_tasks(tasks, tasks * pace_s)
    assert [*sizes, tasks] == [64, 256, 1024, 4096, 30, 1, 4]


def write(table: Path, name: str, first: int, rows: int = 40) -> None:
    path = table / name
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(first).integers(0, 100, rows)
    pq.write_table(pa.table({"x": values, "id": np.arange(rows) + first}), path, row_group_size=10)


def test_only_files_that_changed_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "t"
    counted: list[str] = []
    count = select.count_task

    def count_and_note(task: select.CountTask) -> object:
        counted.extend(fragment.path.rpartition("/t/")[2] for fragment in task.fragments)
        return count(task)

    monkeypatch.setattr(select, "count_task", count_and_note)
    for index, name in enumerate(["ds=2/a.parquet", "ds=3/a.parquet", "ds=3/b.parquet"]):
        write(table, name, 100 * index)
    before = take_snapshot(str(table))
    where = bind_where("x < 50", before.schema)
    select.select_rows(before, where, work_dir=str(tmp_path / "w"))
    assert counted == ["ds=2/a.parquet", "ds=3/a.parquet", "ds=3/b.parquet"]
    counted.clear()
    write(table, "ds=1/new.parquet", 700)  # before the others, whose indices move
    write(table, "ds=3/a.parquet", 800)
    after = take_snapshot(str(table))
    found = select.select_rows(after, where, work_dir=str(tmp_path / "w"), earlier=lambda: before)
    assert counted == ["ds=1/new.parquet", "ds=3/a.parquet"], "the new file, and the one that was replaced"
    expected = select.select_rows(after, where, work_dir=str(tmp_path / "other"))
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.verdicts.matched.tolist() == expected.verdicts.matched.tolist()
    assert int(found.rows.sum()) == pq.read_table(table).to_pandas().query("x < 50").shape[0]


def test_row_groups_are_found_by_path_size_and_footer(tmp_path: Path):
    table = tmp_path / "t"
    write(table, "b.parquet", 0)
    write(table, "c.parquet", 1)
    before = take_snapshot(str(table))
    write(table, "a.parquet", 2, rows=20)
    after = take_snapshot(str(table))
    assert row_groups_before(before, after).tolist() == [-1, -1, *range(8)]
    assert row_groups_before(after, before).tolist() == list(range(2, 10))


def test_counts_of_other_types_do_not_hold(tmp_path: Path):
    def snapshot(kind: pa.DataType) -> Snapshot:
        folder = tmp_path / str(kind)
        folder.mkdir()
        pq.write_table(pa.table({"x": pa.array([1], kind)}), folder / "a.parquet")
        return take_snapshot(str(folder))

    narrow, wide = snapshot(pa.int32()), snapshot(pa.int64())
    assert same_types(narrow, narrow, ["x"])
    assert not same_types(narrow, wide, ["x"])
    assert same_types(narrow, wide, [])
