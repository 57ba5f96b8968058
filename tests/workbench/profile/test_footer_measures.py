"""Facts of footers: sizes, keys, nulls and ranges, compared with the values that were written."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.workbench.profile.column_measures import number_facts
from feedline.workbench.profile.footer_measures import (
    FooterRanges,
    partition_keys,
    row_group_sizes,
    stored_columns_of,
)
from feedline.workbench.profile.table_facts import ColumnProfile


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    folder: Path = tmp_path_factory.mktemp("table")
    for day in range(3):
        numbers = np.arange(1000) + 1000 * day
        table = pa.table(
            {
                "n": pa.array(numbers, mask=numbers % 4 == 0),
                "t": pa.array(numbers * 10**6, pa.timestamp("us")),
                "word": pa.array([f"w{number % 5}" for number in numbers]),
                "list": pa.array([[1]] * 1000),
            }
        )
        path = folder / f"ds=2024-01-0{day + 1}"
        path.mkdir()
        pq.write_table(table, path / "a.parquet", row_group_size=400, compression="zstd")
    return snapshot_of(discover(str(folder)))


def column(name: str, role: str) -> ColumnProfile:
    numbers = number_facts(pl.Series([5]))
    return ColumnProfile(name=name, type="x", role=role, numbers=numbers, null_rate=0.1, rows=1)


def test_keys_have_their_values(snapshot: Snapshot):
    [key] = partition_keys(snapshot)
    assert (key.name, key.values, key.first, key.last) == ("ds", 3, "2024-01-01", "2024-01-03")


def test_row_groups_have_sizes(snapshot: Snapshot):
    assert row_group_sizes(snapshot) == (200, 400, 400)


def test_columns_have_bytes_and_encodings(snapshot: Snapshot):
    stored = stored_columns_of(snapshot, snapshot.schema.names, [0, 8])
    assert set(stored) == {"n", "t", "word", "list"}
    assert stored["word"]["codecs"] == ("ZSTD",)
    assert "RLE_DICTIONARY" in stored["word"]["encodings"]
    paths = Path(snapshot.uri).rglob("*.parquet")
    groups = [pq.read_metadata(path).row_group(index) for path in paths for index in range(3)]
    assert stored["n"]["bytes_per_row"] == sum(each.column(0).total_compressed_size for each in groups) / 3000


def test_nulls_and_ranges_are_of_all_rows(snapshot: Snapshot):
    ranges = FooterRanges(snapshot, np.arange(9))
    found = ranges.apply(column("n", "numeric"))
    assert (found.null_rate, found.null_exact, found.range_exact) == (0.25, True, True)
    assert (found.numbers.min, found.numbers.max) == (1, 2999)
    found = ranges.apply(column("t", "time"))
    assert found.last == datetime.datetime(1970, 1, 1, 0, 49, 59).isoformat()


def test_ranges_are_of_some_row_groups(snapshot: Snapshot):
    found = FooterRanges(snapshot, np.arange(3)).apply(column("n", "numeric"))
    assert (found.numbers.min, found.numbers.max) == (1, 999)


def test_unknown_rows_have_no_exact_facts(snapshot: Snapshot):
    before = column("n", "numeric")
    assert FooterRanges(snapshot, None).apply(before) == before
    lists = column("list", "list")
    assert FooterRanges(snapshot, np.arange(9)).apply(lists) == lists
