"""Rows are counted by the lengths of their lists as numpy counts them, once, whatever the map and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.expressions import bind_where
from feedline.warehouse.selection.row_measures import count_lengths
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

BOUNDS = (2, 5, 9)
GROUPS = 12


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[int] | None]], list[list[int]]]:
    """Files of four row groups each: the folder, and per row group its lists, with nulls, and days."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("lengths")
    lists = [[None if rng.random() < 0.1 else [1] * int(rng.integers(0, 14)) for _ in range(50)] for _ in range(GROUPS)]
    days = [rng.integers(0, 4, 50).tolist() for _ in range(GROUPS)]
    for file in range(3):
        with pq.ParquetWriter(
            folder / f"{file}.parquet", pa.schema({"h": pa.list_(pa.int64()), "day": pa.int64()})
        ) as out:
            for group in range(4 * file, 4 * file + 4):
                out.write_table(pa.table({"h": pa.array(lists[group], pa.list_(pa.int64())), "day": days[group]}))
    return folder, lists, days


def snapshot_of(folder: Path) -> Snapshot:
    return take_snapshot(str(folder))


def counted(snapshot: Snapshot, work: Path, where: str | None = None, **options: Any) -> Any:
    bound = None if where is None else bind_where(where, snapshot.schema)
    selection = select_rows(snapshot, bound, work_dir=str(work))
    return count_lengths(snapshot, selection, "h", BOUNDS, work_dir=str(work), **options)


@pytest.mark.parametrize("where", [None, "day < 2", "day == 3"])
def test_rows_are_counted_as_numpy_counts_them(table: Any, tmp_path: Path, where: str | None):
    folder, lists, days = table
    found = counted(snapshot_of(folder), tmp_path, where)
    for group in range(GROUPS):
        kept = [each for each, day in zip(lists[group], days[group], strict=True) if where is None or eval(where)]
        lengths = np.array([len(each or ()) for each in kept])
        bucket = np.digitize(lengths, BOUNDS, right=True).clip(max=2)
        assert found.rows[group].tolist() == np.bincount(bucket, minlength=3).tolist()
        assert found.elements[group] == np.minimum(lengths, 9).sum()
        assert (found.longest[group], found.beyond[group]) == (lengths.max(), (lengths > 9).sum())
