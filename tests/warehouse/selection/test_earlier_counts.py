"""Counts of an earlier snapshot hold for the files that have not changed since."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.expressions import bind_where
from feedline.warehouse.selection import select
from feedline.warehouse.selection.select import row_groups_before, same_types
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


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
