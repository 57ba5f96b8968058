"""Selected rows as fragments: of splits, of the first rows, and counted row group by row group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import TableChangedError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection import select
from feedline.warehouse.selection.select import (
    Count,
    count_fragment,
    first_rows,
    plan_fragments,
    screen_rows,
    screened_splits,
    select_rows,
)
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


@pytest.fixture
def numbered(tmp_path: Path) -> Snapshot:
    for file in range(4):
        rows = range(file * 50, file * 50 + 50)
        pq.write_table(
            pa.table({"n": list(rows), "odd": [n % 2 for n in rows]}), tmp_path / f"{file}.parquet", row_group_size=20
        )
    return take_snapshot(str(tmp_path))


def read_rows(numbered: Snapshot, count: int, where: str | None = None, sample: Sample | None = None) -> list[int]:
    bound = None if where is None else bind_where(where, numbered.schema)
    chosen = None if sample is None else bind_sample(sample, numbered.schema)
    request = ReadRequest(["n"], numbered.schema, bound, sample=chosen, chunk_rows=8)
    chunks = (chunk for split in screened_splits(numbered, bound, chosen) for chunk in read_fragment(split, request))
    return [n for chunk in first_rows(chunks, count) for n in chunk.frame["n"].to_list()]


@pytest.mark.parametrize("count", [1, 8, 9, 51, 200, 1000])
def test_the_first_rows_of_a_table(numbered: Snapshot, count: int):
    assert read_rows(numbered, count) == list(range(min(count, 200)))


def test_only_rows_that_the_filter_keeps(numbered: Snapshot):
    assert read_rows(numbered, 5, "odd == 1 and n > 60") == [61, 63, 65, 67, 69]
    assert read_rows(numbered, 5, "n > 197") == [198, 199]
    assert read_rows(numbered, 5, "n < 0") == []


def test_a_sample_keeps_the_same_rows_for_any_number(numbered: Snapshot):
    sample = Sample(fraction=0.3, seed=4)
    every = read_rows(numbered, 200, sample=sample)
    assert 0 < len(every) < 200
    assert read_rows(numbered, 7, sample=sample) == every[:7]


def test_files_that_statistics_exclude_are_not_opened(numbered: Snapshot, tmp_path: Path):
    for file in (0, 1, 3):
        (tmp_path / f"{file}.parquet").unlink()
    assert read_rows(numbered, 3, "n >= 120") == [120, 121, 122]
    with pytest.raises(TableChangedError):
        read_rows(numbered, 3, "n >= 99")


def test_splits_may_be_chosen(numbered: Snapshot, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(select, "SPLIT_ROWS", 50)
    asked: list[int] = []

    def last_and_first(splits: int) -> list[int]:
        asked.append(splits)
        return [splits - 1, 0]

    fragments = list(screened_splits(numbered, None, None, last_and_first))
    assert asked == [4]
    assert [fragment.path for fragment in fragments] == ["3.parquet", "0.parquet"]


ROWS = pa.table({"n": list(range(100)), "word": [f"w{n % 7}" for n in range(100)], "x": [0.5] * 100})


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    file = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(ROWS, file, row_group_size=30, bloom_filter_options={"word": True})
    return take_snapshot(str(file))


def whole_fragment(words: Snapshot) -> Fragment:
    groups = words.row_groups_of(0)
    return fragment_at(words, 0, groups, np.full(len(groups), UNCOUNTED))


def test_a_sample_is_counted_beside_the_rows_that_match(words: Snapshot):
    sample = bind_sample(Sample(fraction=0.5, seed=1), words.schema)
    where = bind_where("n >= 25", words.schema)
    counts = count_fragment(whole_fragment(words), where, words.schema, sample=sample)
    assert [count.matched for count in counts] == [5, 30, 30, 10]
    assert all(count.rows <= count.matched for count in counts)
    assert 0 < sum(count.rows for count in counts) < 75


def test_without_columns_to_read_counting_is_arithmetic(
    words: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    monkeypatch.setattr("feedline.warehouse.reading.row_filter.RowFilter.apply", lambda *_: read.append(1))
    assert count_fragment(whole_fragment(words), None, words.schema) == tuple(
        Count(rows, rows) for rows in (30, 30, 30, 10)
    )
    sample = bind_sample(Sample(fraction=0.5, seed=1), words.schema)
    sampled = count_fragment(whole_fragment(words), None, words.schema, sample=sample)
    assert [count.matched for count in sampled] == [30, 30, 30, 10]
    assert read == []
