"""Are a piece's rows those between its borders, whichever columns are read?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.blocks.jobs import compile_job
from feedline.blocks.piece_chunks import column_values, piece_chunks
from feedline.blocks.request import PieceRequest
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
    fragment = fragment_at(plan.snapshot, 0, np.arange(3), plan.selection.rows)
    piece, compiled = PieceRequest(fragment=fragment, skip=35, rows=30), compile_job(plan.job)
    prices = pl.concat([column_values(chunk, "price") for chunk in piece_chunks(compiled, piece)])
    assert prices.to_list() == [float(row) for row in range(35, 65)]
    users = pl.concat([chunk.frame for chunk in piece_chunks(compiled, piece, ["user"])])
    assert users.to_dict(as_series=False) == {"user": [f"user {row // 3}" for row in range(35, 65)]}
