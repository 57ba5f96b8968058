"""Measures of kept rows per row group, against DuckDB and numpy; kept in work_dir, named by all that decides them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import DataError
from feedline.expressions import bind_where
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.row_measures import Int64s, count_lengths, measure_rows
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.take import take_snapshot


@dataclass(frozen=True)
class Sums:
    """The sum of a column, and how many of its values are even."""

    column: str = "x"
    name: str = "sums"
    width: int = 2

    def of(self, values: pl.Series) -> Int64s:
        if values.null_count():
            error = ValueError("must not be null")
            error.row = int(values.is_null().arg_max() or 0)  # type: ignore[attr-defined]
            raise error
        numbers = values.to_numpy()
        return np.array([numbers.sum(), (numbers % 2 == 0).sum()])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for day in range(3):
        (tmp_path / "t" / f"day={day}").mkdir(parents=True)
        rows = {"x": rng.integers(0, 1000, 700), "y": rng.integers(0, 10, 700)}
        pq.write_table(pa.table(rows), tmp_path / "t" / f"day={day}" / "a.parquet", row_group_size=100)
    return tmp_path / "t"


def measured(table: Path, where: str | None, calls: list[int] | None = None, sample: Sample | None = None) -> Int64s:
    snapshot = take_snapshot(str(table))
    bound = None if where is None else bind_where(where, snapshot.schema)
    chosen = None if sample is None else bind_sample(sample, snapshot.schema)
    work_dir = str(table.parent / "work")
    selection = select_rows(snapshot, bound, sample=chosen, work_dir=work_dir)

    def run(function: Any, tasks: Any) -> Any:
        if calls is not None:
            calls.append(len(tasks))
        return map(function, tasks)

    return measure_rows(snapshot, selection, Sums(), work_dir=work_dir, map=run)


@pytest.mark.parametrize(("where", "sql"), [(None, "true"), ("y < 3", "y < 3"), ("day == 1", "day = 1")])
def test_measures_are_those_of_the_kept_rows(table: Path, where: str | None, sql: str):
    found = measured(table, where)
    rows = duckdb.sql(
        f"select sum(x) filter ({sql}), count(*) filter ({sql} and x % 2 = 0) from "
        f"read_parquet('{table}/*/*.parquet', hive_partitioning=true, file_row_number=true) "
        "group by day, file_row_number // 100 order by day, file_row_number // 100"
    ).fetchall()
    assert found.tolist() == [[total or 0, even] for total, even in rows]


def test_they_are_kept_and_measured_again_for_another_question(table: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    first = measured(table, "y < 3", calls)
    assert np.array_equal(measured(table, "y < 3", calls), first)
    assert len(calls) == 1
    measured(table, "y < 4", calls)
    measured(table, "y < 3", calls, sample=Sample(fraction=0.5, where=None, seed=1, key=("x",)))
    assert len(calls) == 3
    for file in (table.parent / "work" / "measures").iterdir():
        os.truncate(file, 100)
    assert np.array_equal(measured(table, "y < 3", calls), first)
    assert len(calls) == 4
    with monkeypatch.context() as patch:
        patch.setattr(pl, "__version__", "0.0")
        measured(table, "y < 3", calls)
    assert len(calls) == 5
    pq.write_table(pa.table({"x": [1], "y": [2]}), table / "day=2" / "b.parquet")
    assert len(measured(table, "y < 3", calls)) == len(first) + 1
    assert len(calls) == 6


def test_a_value_that_breaks_a_rule_is_named(table: Path):
    pq.write_table(pa.table({"x": [1, 2, None], "y": [0, 9, 0]}), table / "day=1" / "b.parquet")
    with pytest.raises(DataError, match=r"column 'x' must not be null \(day=1/b.parquet, row group 0, row 1 of those"):
        measured(table, "y < 3")


BOUNDS = (2, 5, 9)
GROUPS = 12


@pytest.fixture(scope="module")
def lists_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[int] | None]], list[list[int]]]:
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


@pytest.mark.parametrize("where", [None, "day < 2", "day == 3"])
def test_rows_are_counted_as_numpy_counts_them(lists_table: Any, tmp_path: Path, where: str | None):
    folder, lists, days = lists_table
    snapshot, work_dir = take_snapshot(str(folder)), str(tmp_path)
    bound = None if where is None else bind_where(where, snapshot.schema)
    selection = select_rows(snapshot, bound, work_dir=work_dir)
    found = count_lengths(snapshot, selection, "h", BOUNDS, work_dir=work_dir)
    for group in range(GROUPS):
        kept = [each for each, day in zip(lists[group], days[group], strict=True) if where is None or eval(where)]
        lengths = np.array([len(each or ()) for each in kept])
        bucket = np.digitize(lengths, BOUNDS, right=True).clip(max=2)
        assert found.rows[group].tolist() == np.bincount(bucket, minlength=3).tolist()
        assert found.elements[group] == np.minimum(lengths, 9).sum()
        assert (found.longest[group], found.beyond[group]) == (lengths.max(), (lengths > 9).sum())
