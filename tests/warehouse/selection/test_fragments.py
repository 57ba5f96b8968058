"""Every kept row is in one fragment, in the table's order, and no fragment is much larger than a split."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED
from feedline.warehouse.selection.select import plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    for file, rows in enumerate((50, 7, 100)):
        pq.write_table(pa.table({"n": list(range(rows))}), tmp_path / f"{file}.parquet", row_group_size=20)
    return take_snapshot(str(tmp_path))


@pytest.mark.parametrize("split_rows", [1, 20, 40, 1000])
def test_row_groups_are_divided_in_order(snapshot: Snapshot, tmp_path: Path, split_rows: int):
    fragments = plan_fragments(snapshot, select_rows(snapshot, None, work_dir=str(tmp_path / "w")), split_rows)
    found = [(fragment.path, group) for fragment in fragments for group in fragment.row_groups]
    assert found == [(f"{file}.parquet", group) for file, groups in enumerate((3, 1, 5)) for group in range(groups)]
    assert [rows for fragment in fragments for rows in fragment.expected] == [20, 20, 10, 7, 20, 20, 20, 20, 20]
    assert all(sum(fragment.expected) <= max(split_rows, 20) for fragment in fragments)


def test_uncounted_row_groups_are_divided_by_their_stored_rows(snapshot: Snapshot):
    where = bind_where("n % 2 == 0", snapshot.schema)
    fragments = plan_fragments(snapshot, screen_rows(snapshot, where), 40)
    assert [fragment.row_groups for fragment in fragments] == [(0, 1), (2,), (0,), (0, 1), (2, 3), (4,)]
    assert {rows for fragment in fragments for rows in fragment.expected} == {UNCOUNTED}
