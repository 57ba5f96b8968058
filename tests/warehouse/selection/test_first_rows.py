"""The first rows that are kept are read in the table's order, without opening what statistics exclude."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import TableChangedError
from feedline.expressions import bind_where
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection import select
from feedline.warehouse.selection.select import first_rows, screened_splits
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    for file in range(4):
        rows = range(file * 50, file * 50 + 50)
        pq.write_table(
            pa.table({"n": list(rows), "odd": [n % 2 for n in rows]}), tmp_path / f"{file}.parquet", row_group_size=20
        )
    return take_snapshot(str(tmp_path))


def read_rows(snapshot: Snapshot, count: int, where: str | None = None, sample: Sample | None = None) -> list[int]:
    bound = None if where is None else bind_where(where, snapshot.schema)
    chosen = None if sample is None else bind_sample(sample, snapshot.schema)
    request = ReadRequest(["n"], snapshot.schema, bound, sample=chosen, chunk_rows=8)
    chunks = (chunk for split in screened_splits(snapshot, bound, chosen) for chunk in read_fragment(split, request))
    return [n for chunk in first_rows(chunks, count) for n in chunk.frame["n"].to_list()]


@pytest.mark.parametrize("count", [1, 8, 9, 51, 200, 1000])
def test_the_first_rows_of_a_table(snapshot: Snapshot, count: int):
    assert read_rows(snapshot, count) == list(range(min(count, 200)))


def test_only_rows_that_the_filter_keeps(snapshot: Snapshot):
    assert read_rows(snapshot, 5, "odd == 1 and n > 60") == [61, 63, 65, 67, 69]
    assert read_rows(snapshot, 5, "n > 197") == [198, 199]
    assert read_rows(snapshot, 5, "n < 0") == []


def test_a_sample_keeps_the_same_rows_for_any_number(snapshot: Snapshot):
    sample = Sample(fraction=0.3, seed=4)
    every = read_rows(snapshot, 200, sample=sample)
    assert 0 < len(every) < 200
    assert read_rows(snapshot, 7, sample=sample) == every[:7]


def test_files_that_statistics_exclude_are_not_opened(snapshot: Snapshot, tmp_path: Path):
    for file in (0, 1, 3):
        (tmp_path / f"{file}.parquet").unlink()
    assert read_rows(snapshot, 3, "n >= 120") == [120, 121, 122]
    with pytest.raises(TableChangedError):
        read_rows(snapshot, 3, "n >= 99")


def test_splits_may_be_chosen(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(select, "SPLIT_ROWS", 50)
    asked: list[int] = []

    def last_and_first(splits: int) -> list[int]:
        asked.append(splits)
        return [splits - 1, 0]

    fragments = list(screened_splits(snapshot, None, None, last_and_first))
    assert asked == [4]
    assert [fragment.path for fragment in fragments] == ["3.parquet", "0.parquet"]
