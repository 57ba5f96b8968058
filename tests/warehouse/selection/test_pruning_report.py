"""The report lists the row groups that were not read, by reason."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from warehouse_samples import write

from feedline.expressions import bind_where
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def numbers(selection: Selection) -> dict[str, tuple[int, int]]:
    names = ("by_partition", "by_statistics", "whole", "counted", "kept")
    shares = {name: getattr(selection.report, name) for name in names}
    return {name: (share.row_groups, share.rows) for name, share in shares.items()}


@pytest.fixture
def ladder(tmp_path: Path) -> Snapshot:
    """Two days of one file of 10 row groups of 10 rows each; x counts up, y repeats 0..9."""
    x = np.arange(100)
    table = pa.table({"x": x, "y": x % 10, "z": x / 7, "s": [str(i) for i in x]})
    return take_snapshot(
        write(tmp_path / "t", {f"ds=2026-01-0{d}/f.parquet": table for d in (1, 2)}, row_group_size=10)
    )


def test_the_report_lists_pruned_row_groups_by_reason(ladder: Snapshot, tmp_path: Path) -> None:
    where = bind_where('ds == "2026-01-02" and x >= 35', ladder.schema)
    selection = select_rows(ladder, where, work_dir=str(tmp_path / "w"))
    assert numbers(selection) == {
        "by_partition": (10, 100),
        "by_statistics": (3, 30),
        "whole": (6, 60),
        "counted": (1, 10),
        "kept": (7, 65),
    }
    assert selection.rows.tolist() == [0] * 13 + [5] + [10] * 6
    size = duckdb.sql(
        "select total_compressed_size from parquet_metadata(?) where path_in_schema = 'x' and row_group_id = 3",
        params=[f"{ladder.uri}/ds=2026-01-02/f.parquet"],
    ).fetchall()[0][0]
    assert selection.report.counted_bytes == size
