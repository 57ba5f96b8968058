"""The columns of a followed table keep the types that they had when the run began."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import TableError
from feedline.planning.next_epoch_snapshot import types_to_declare
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def table(folder: Path, *files: tuple[str, dict[str, pa.Array]]) -> Snapshot:
    for name, columns in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
    return take_snapshot(str(folder))


def ints(kind: pa.DataType) -> dict[str, pa.Array]:
    return {"x": pa.array([1, 2], kind), "y": pa.array(["a", "b"])}


@pytest.fixture
def before(tmp_path: Path) -> Snapshot:
    return table(tmp_path / "before", ("ds=1/a.parquet", ints(pa.int32())))


def test_unchanged_types_need_nothing(tmp_path: Path, before: Snapshot):
    after = table(tmp_path / "t", ("ds=2/a.parquet", {**ints(pa.int32()), "new": pa.array([1, 2])}))
    assert types_to_declare(before, after) == {}, "a new column is no drift"


def test_narrower_types_and_missing_columns_are_read_in_the_runs(tmp_path: Path, before: Snapshot):
    after = table(tmp_path / "t", ("ds=2/a.parquet", {"x": pa.array([1], pa.int16())}))
    assert types_to_declare(before, after) == {"x": pa.int32(), "y": pa.string()}


def test_wider_types_are_refused_with_both_and_the_file(tmp_path: Path, before: Snapshot):
    after = table(tmp_path / "t", ("ds=2/a.parquet", ints(pa.int32())), ("ds=2/b.parquet", ints(pa.int64())))
    with pytest.raises(TableError, match=r"column 'x' .*got int64 in .*/ds=2/b.parquet, expected int32 as in"):
        types_to_declare(before, after)


def test_another_type_of_a_partition_key_is_refused(tmp_path: Path, before: Snapshot):
    after = table(tmp_path / "t", ("ds=1/a.parquet", ints(pa.int32())), ("ds=yesterday/a.parquet", ints(pa.int32())))
    with pytest.raises(TableError, match=r"partition key 'ds' .*got string in ds=yesterday/a.parquet, expected int64"):
        types_to_declare(before, after)
