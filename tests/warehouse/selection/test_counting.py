"""Rows that filter and sample keep are counted per row group, reading no more than needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import Count, count_fragment
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

ROWS = pa.table({"n": list(range(100)), "word": [f"w{n % 7}" for n in range(100)], "x": [0.5] * 100})


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    file = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(ROWS, file, row_group_size=30, bloom_filter_options={"word": True})
    return take_snapshot(str(file))


def fragment(snapshot: Snapshot) -> Fragment:
    groups = snapshot.row_groups_of(0)
    return fragment_at(snapshot, 0, groups, np.full(len(groups), UNCOUNTED))


def test_a_sample_is_counted_beside_the_rows_that_match(snapshot: Snapshot):
    sample = bind_sample(Sample(fraction=0.5, seed=1), snapshot.schema)
    where = bind_where("n >= 25", snapshot.schema)
    counts = count_fragment(fragment(snapshot), where, snapshot.schema, sample=sample)
    assert [count.matched for count in counts] == [5, 30, 30, 10]
    assert all(count.rows <= count.matched for count in counts)
    assert 0 < sum(count.rows for count in counts) < 75


def test_without_columns_to_read_counting_is_arithmetic(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    monkeypatch.setattr("feedline.warehouse.reading.row_filter.RowFilter.apply", lambda *_: read.append(1))
    assert count_fragment(fragment(snapshot), None, snapshot.schema) == tuple(
        Count(rows, rows) for rows in (30, 30, 30, 10)
    )
    sample = bind_sample(Sample(fraction=0.5, seed=1), snapshot.schema)
    sampled = count_fragment(fragment(snapshot), None, snapshot.schema, sample=sample)
    assert [count.matched for count in sampled] == [30, 30, 30, 10]
    assert read == []
