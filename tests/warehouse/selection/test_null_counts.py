"""Null counts of footers are those of the rows, or bounds of them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from repeated_runs import runs, write_both

from feedline.expressions import bind_where
from feedline.warehouse.selection.null_counts import AbsentColumn, absent_columns, null_counts
from feedline.warehouse.snapshot.take import take_snapshot


@examples(30)
@given(made=runs(), size=st.integers(1, 17))
def test_null_counts_of_footers_are_those_of_rows_or_bounds(
    made: tuple[pa.Table, dict[str, list[bool]]], size: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    write_both(folder, *made, size)
    snapshot = take_snapshot(str(folder / "stored"))
    table = made[0]
    for name in ("age", "site"):
        known = snapshot.column_facts(name).field("nulls").to_pylist()
        for index, nulls in enumerate(known):
            true = table[name].slice(index * size, size).null_count
            rows = len(table[name].slice(index * size, size))
            assert nulls == true or 0 < true < rows, "none and all are always known"
            assert nulls == true or 1 <= -1 - nulls <= true, "and else, that some are"
    found = null_counts(snapshot, ["age", "site"], snapshot.rows_per_row_group, None)
    assert found.keys() == {name for name in ("age", "site") if table[name].null_count}
    assert all(count.least <= table[name].null_count <= count.most for name, count in found.items())
    shutil.rmtree(folder)


def test_nulls_among_some_rows_of_a_row_group_are_bounded(tmp_path: Path) -> None:
    for file, nulls in (("0", 3), ("1", 0)):
        column = [None] * nulls + [1] * (10 - nulls)
        pq.write_table(pa.table({"a": pa.array(column, pa.int64()), "l": [[]] * 10}), tmp_path / f"{file}.parquet")
    snapshot = take_snapshot(str(tmp_path))

    def bounds(rows: list[int], where: str | None = None) -> tuple[int, int] | None:
        bound = None if where is None else bind_where(where, snapshot.schema)
        found = null_counts(snapshot, ["l", "a"], np.array(rows), bound).get("a")
        if found is None:
            return None
        assert (found.column, found.files, found.file) == ("a", 1, "0.parquet")
        return found.least, found.most

    assert bounds([10, 10]) == (3, 3)
    assert bounds([8, 10]) == (1, 3)
    assert bounds([2, 10]) == (0, 2)
    assert bounds([-1, -1]) == (0, 3)  # uncounted
    assert bounds([0, 10]) is None
    assert bounds([8, 10], "a > 0") is None  # drops every null
    assert bounds([8, 10], "a > 0 or a is None") == (1, 3)


def test_columns_that_files_lack_are_counted_with_their_rows(tmp_path: Path) -> None:
    for file, names in (("0", "ab"), ("1", "a"), ("2", "a")):
        pq.write_table(pa.table({name: [1, 2, 3] for name in names}), tmp_path / f"{file}.parquet")
    snapshot = take_snapshot(str(tmp_path))
    [found] = absent_columns(snapshot, ["a", "b"], np.array([3, 0, 2]))
    assert found == AbsentColumn(column="b", files=1, read=2, rows=2, file="2.parquet")
    assert absent_columns(snapshot, ["a", "b"], np.array([3, 0, 0])) == []
    [uncounted] = absent_columns(snapshot, ["b"], np.array([-1, -1, -1]))
    assert (uncounted.files, uncounted.read, uncounted.rows) == (2, 3, 6)
