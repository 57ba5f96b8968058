"""Partitions are divided into units that fit memory, or merged."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from optimized import (
    CLUSTERED,
    events,
    files_of,
    in_arrow,
    made,
    multiset,
    rewrite,
    warehouse,
)

from feedline import Table
from feedline.warehouse.optimize.optimize import join_buckets


def test_small_partitions_are_merged_or_kept(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", rows=50)
    for choice, files in (("merge", 3), ("keep", 9)):
        target = tmp_path / choice
        rewrite(source, target, **CLUSTERED, small_partitions=choice)
        assert len(files_of(target)) == files
        assert multiset(in_arrow(target)) == multiset(in_arrow(source))
    big = rewrite(source, tmp_path / "big", **{**CLUSTERED, "row_group_rows": 150}, small_partitions="keep")
    assert big.after.files == 3


def test_partitions_within_partitions_and_without_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    for number, folder in enumerate(("a=1", "a=1/b=2", "a=1/b=2/c=3", "a=2/b=1", ".")):
        pq.write_table(events(200, seed=number), made(source / folder) / "x.parquet")
    pq.write_table(events(0), made(source / "a=5") / "x.parquet")
    expected = multiset(Table(str(source)).read())
    for settings in (CLUSTERED, {**CLUSTERED, "goal": "size", "small_partitions": "keep"}, CLUSTERED):
        report = rewrite(source, target, **settings, threads=2)
        assert report.written == 6
        assert multiset(Table(str(target)).read()) == expected
        assert rewrite(source, target, **settings).finished == 6
    for path in files_of(source / "a=1" / "b=2"):
        path.unlink()
    assert rewrite(source, target, **CLUSTERED).taken_away == 2
    assert multiset(Table(str(target)).read()) == multiset(Table(str(source)).read())


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 40))
def test_buckets_are_joined_while_they_fit(sizes: list[int], limit: int) -> None:
    joined = join_buckets(sizes, limit)
    assert [bucket for first, stop in joined for bucket in range(first, stop)] == list(range(len(sizes)))
    for first, stop in joined:
        assert sum(sizes[first:stop]) <= limit or np.count_nonzero(sizes[first:stop]) == 1
    for (first, stop), (_, end) in pairwise(joined):
        assert sum(sizes[first:stop]) + next(size for size in sizes[stop:end]) > limit
