"""The mask of kept rows against the rows that are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Table
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import fragment_at, pack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.row_position import kept_mask
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import screen_rows


@pytest.mark.parametrize("where", [None, "x > 50", "row >= 100", "row < 50", "x > 20 and ds == 1"])
@pytest.mark.parametrize(
    "sample", [None, {"fraction": 0.5}, {"fraction": 0.5, "key": ["x"]}, {"fraction": 0.3, "where": "x < 70"}]
)
def test_the_mask_is_of_the_rows_that_are_read(tmp_path: Path, where: str | None, sample: dict[str, Any] | None):
    x = np.random.default_rng(1).integers(0, 100, 300)
    (tmp_path / "ds=1").mkdir()
    pq.write_table(pa.table({"row": np.arange(300), "x": x}), tmp_path / "ds=1" / "a.parquet", row_group_size=100)
    snapshot = Table(str(tmp_path)).snapshot()
    schema = snapshot.schema
    bound = None if where is None else bind_where(where, schema)
    chosen = Sample.of(sample)
    bound_sample = None if chosen is None else bind_sample(chosen, schema)
    selection = screen_rows(snapshot, bound, sample=bound_sample)
    for group in range(3):
        if not selection.rows[group]:
            continue
        fragment = selection.fragment(snapshot, np.array([group]))
        request = ReadRequest(["row"], schema, bound, sample=bound_sample)
        read = [chunk.frame for chunk in read_fragment(fragment, request)]
        rows = pl.concat(read)["row"].to_numpy() if read else np.zeros(0, np.int64)
        mask = kept_mask(fragment, request)
        assert len(mask) == 100
        assert np.array_equal(np.flatnonzero(mask) + 100 * group, rows)


def test_excluded_rows_are_not_kept(tmp_path: Path):
    pq.write_table(pa.table({"row": np.arange(10)}), tmp_path / "a.parquet")
    snapshot = Table(str(tmp_path)).snapshot()
    where = bind_where("row != 3", snapshot.schema)
    fragment = fragment_at(snapshot, 0, np.array([0]), np.array([9]))
    mask = kept_mask(
        replace(fragment, excluded=(pack_mask(np.arange(9) == 4),)), ReadRequest((), snapshot.schema, where)
    )
    assert np.flatnonzero(~mask).tolist() == [3, 5]
