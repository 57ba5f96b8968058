"""Are a piece's rows those between its borders, whichever columns are read?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.jobs import compile_job
from feedline.blocks.piece_chunks import column_values, piece_chunks
from feedline.blocks.request import PieceRequest
from feedline.errors import DataError
from feedline.warehouse.reading.fragment import fragment_at


def test_rows_between_skip_and_end_are_read(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    table = pa.table({"user": [f"user {row // 3}" for row in range(100)], "price": [float(row) for row in range(100)]})
    pq.write_table(table, tmp_path / "table" / "a.parquet", row_group_size=40)
    spec = {
        "version": 1,
        "name": "chunks",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "table")},
        "features": {"dense": {"price": []}},
        "batch": {"size": 10},
        "shuffle": {"by": "user"},
    }
    plan = Pipeline.from_dict(spec).plan()
    fragment = fragment_at(plan.source.snapshot, 0, np.arange(3), plan.source.selection.rows)
    piece, compiled = PieceRequest(fragment=fragment, skip=35, rows=30), compile_job(plan.source.job)
    prices = pl.concat([column_values(chunk, "price") for chunk in piece_chunks(compiled, piece)])
    assert prices.to_list() == [float(row) for row in range(35, 65)]
    users = pl.concat([chunk.frame for chunk in piece_chunks(compiled, piece, ["user"])])
    assert users.to_dict(as_series=False) == {"user": [f"user {row // 3}" for row in range(35, 65)]}


@pytest.mark.parametrize("missed", [-1, 1])
def test_other_rows_than_planned_are_an_error_in_the_last_row_group_too(tmp_path: Path, missed: int) -> None:
    (tmp_path / "table").mkdir()
    pq.write_table(
        pa.table({"x": [row % 4 for row in range(100)]}), tmp_path / "table" / "a.parquet", row_group_size=40
    )
    spec = {
        "version": 1,
        "name": "excess",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "table"), "where": "x > 0"},
        "features": {"dense": {"x": []}},
        "batch": {"size": 10},
    }
    plan = Pipeline.from_dict(spec).plan()
    compiled = compile_job(plan.source.job)
    planned = plan.source.selection.rows - np.array([0, 0, missed])
    fragment = fragment_at(plan.source.snapshot, 0, np.arange(3), planned)
    rows = int(planned.sum())
    for skip in (0, rows - 1):
        with pytest.raises(DataError, match=rf"row group 2 than was counted: got 15, expected {15 - missed}"):
            list(piece_chunks(compiled, PieceRequest(fragment=fragment, skip=skip, rows=rows - skip)))
    within = PieceRequest(fragment=fragment, skip=0, rows=70)  # of which it is not known how many rows follow
    assert sum(chunk.frame.height for chunk in piece_chunks(compiled, within)) == 70
