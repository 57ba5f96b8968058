"""Samples of rows: spread over a table, bounded, deterministic, and past files that do not decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.expressions import bind_where
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.workbench.profile import sampled_rows
from feedline.workbench.profile.sampled_rows import RowSample, SampleRequest, read_sample, spread_evenly


def snapshot(folder: Path) -> Snapshot:
    return snapshot_of(discover(str(folder)))


def write(path: Path, rows: int, *, first: int = 0, row_group_size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    index = np.arange(first, first + rows)
    table = pa.table({"index": index, "even": index % 2 == 0, "text": pa.array(map(str, index))})
    pq.write_table(table, path, row_group_size=row_group_size)


def read(table: Snapshot, *, where: str | None = None, **limits: int) -> RowSample:
    bound = None if where is None else bind_where(where, table.schema)
    return read_sample(SampleRequest(snapshot=table, columns=tuple(table.schema.names), where=bound, **limits))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 20))
def test_chosen_indices_are_few_ascending_and_positive(weights: list[int], most: int):
    chosen = spread_evenly(np.array(weights, np.int64), most)
    positive = sum(weight > 0 for weight in weights)
    assert len(chosen) <= most
    assert list(chosen) == sorted(set(chosen.tolist()))
    assert all(weights[index] > 0 for index in chosen)
    assert len(chosen) == positive if positive <= most else len(chosen) >= 1


def test_chosen_indices_are_spread_by_weight():
    assert spread_evenly(np.ones(1000, np.int64), 4).tolist() == [125, 375, 625, 875]
    assert 999 in spread_evenly(np.append(np.ones(999, np.int64), 10**6), 4)


def test_a_small_table_is_read_whole(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", 2500)
    write(tmp_path / "ds=2" / "a.parquet", 500, first=2500)
    sample = read(snapshot(tmp_path))
    assert sample.whole
    assert sample.rows["index"].to_pylist() == list(range(3000))
    assert sample.rows["ds"].to_pylist() == [1] * 2500 + [2] * 500
    assert np.unique(sample.row_group).tolist() == [0, 1, 2, 3]
    assert set(sample.borders.tolist()) >= {0, 1000, 2000, 2500}


def test_a_large_table_is_sampled_over_all_its_rows(tmp_path: Path):
    for day in range(10):
        write(tmp_path / f"ds={day}" / "a.parquet", 5000, first=5000 * day)
    table = snapshot(tmp_path)
    sample = read(table, rows=2000)
    index = sample.rows["index"].to_numpy()
    assert not sample.whole
    assert 1500 <= len(index) <= 2600
    assert len(set(sample.rows["ds"].to_pylist())) == 10
    assert list(index) == sorted(set(index.tolist()))
    assert read(table, rows=2000).rows.equals(sample.rows)
    starts = sample.borders
    for start, stop in zip(starts, [*starts[1:], len(index)], strict=True):
        assert np.all(np.diff(index[start:stop]) == 1), "rows of a piece are neighbours"


def test_a_large_row_group_is_sampled_beyond_its_first_rows(tmp_path: Path):
    write(tmp_path / "a.parquet", 50_000, row_group_size=50_000)
    index = read(snapshot(tmp_path), rows=8000).rows["index"].to_numpy()
    assert len(index) <= 8000
    assert index.max() > 45_000


def test_a_filter_keeps_its_rows_alone(tmp_path: Path):
    for day in range(4):
        write(tmp_path / f"ds={day}" / "a.parquet", 1000, first=1000 * day)
    table = snapshot(tmp_path)
    sample = read(table, where="ds == 2 and even")
    assert sample.rows["index"].to_pylist() == list(range(2000, 3000, 2))
    assert sample.whole
    assert len(sample.row_groups) == 1
    assert read(table, where="index > 3990").rows["index"].to_pylist() == list(range(3991, 4000))
    assert read(table, where="ds == 99").rows.num_rows == 0


def test_wide_rows_are_fewer(tmp_path: Path):
    text = ["x" * 100_000 + str(index) for index in range(200)]
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet", row_group_size=20)
    sample = read(snapshot(tmp_path), bytes=2 << 20)
    assert 10 <= sample.rows.num_rows <= 64
    assert sample.rows.nbytes < 8 << 20
    assert not sample.whole


def test_columns_of_huge_values_are_left_out(tmp_path: Path):
    pq.write_table(pa.table({"text": ["x" * 1_000_000, "y"], "n": [1, 2]}), tmp_path / "a.parquet")
    sample = read(snapshot(tmp_path), bytes=1_000_000)
    assert sample.rows.column_names == ["n"]
    assert "500,0" in sample.unreadable["text"]
    assert read(snapshot(tmp_path)).rows.column_names == ["text", "n"]


def test_many_columns_have_fewer_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampled_rows, "_MOST_CHUNKS", 1000)
    columns = {f"c{index}": np.arange(400) for index in range(100)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=10)
    sample = read(snapshot(tmp_path), rows=640)
    assert sample.rows.num_columns == 100
    assert len(sample.row_groups) == 10
    assert sample.rows["c7"].to_numpy().max() > 350


def test_partition_keys_alone_can_be_sampled(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", 100)
    sample = read_sample(SampleRequest(snapshot=snapshot(tmp_path), columns=("ds",)))
    assert sample.rows["ds"].to_pylist() == [1] * 100
    assert sample.bytes == 0


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)


def test_files_that_do_not_decode_are_skipped(tmp_path: Path):
    for day in range(3):
        write(tmp_path / f"ds={day}" / "a.parquet", 1000, first=1000 * day)
    damage(tmp_path / "ds=1" / "a.parquet")
    sample = read(snapshot(tmp_path))
    assert set(sample.rows["ds"].to_pylist()) == {0, 2}
    [(path, reason)] = sample.skipped
    assert path == "ds=1/a.parquet"
    assert reason
    assert not sample.whole


def test_where_no_file_decodes_columns_are_tried_one_by_one(tmp_path: Path):
    write(tmp_path / "a.parquet", 1000)
    damage(tmp_path / "a.parquet")  # the bytes of its first column
    sample = read(snapshot(tmp_path))
    assert list(sample.unreadable) == ["index"]
    assert sample.rows.column_names == ["even", "text"]
    assert sample.rows.num_rows == 1000


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_of_hardly_any_rows(tmp_path: Path, rows: int):
    write(tmp_path / "a.parquet", rows)
    sample = read(snapshot(tmp_path))
    assert sample.rows.num_rows == rows
    assert sample.whole
