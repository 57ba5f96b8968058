"""Base and column files are decoded in step, whichever of their columns the kernel decodes, and pyarrow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_sources import add_seeded, write_days
from hypothesis import given
from hypothesis import strategies as st

from feedline import Table
from feedline.warehouse.columns import column_writer
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.parquet.joined_file import in_step
from feedline.warehouse.reading.fragment import UNCOUNTED, fragment_at
from feedline.warehouse.reading.read import ReadRequest, arrow_columns, read_fragment

CUTS = st.lists(st.integers(0, 30), max_size=5).map(lambda cuts: sorted({0, 30, *cuts}))


@given(all_cuts=st.lists(CUTS, min_size=1, max_size=3))
def test_batches_of_several_streams_keep_step(all_cuts: list[list[int]]):
    whole = [pa.RecordBatch.from_pydict({f"c{index}": np.arange(30) * (index + 1)}) for index in range(len(all_cuts))]
    streams = [
        iter([batch.slice(start, stop - start) for start, stop in pairwise(cuts)])
        for batch, cuts in zip(whole, all_cuts, strict=True)
    ]
    batches = list(in_step(streams))
    assert [batch.num_rows for batch in batches] == np.diff(sorted({cut for cuts in all_cuts for cut in cuts})).tolist()
    joined = pa.Table.from_batches(batches)
    assert joined.column_names == [batch.schema.names[0] for batch in whole]
    for batch in whole:
        assert joined[batch.schema.names[0]].to_pylist() == batch.column(0).to_pylist()


@pytest.mark.parametrize("chunk_rows", [7, 50, 1000])
def test_columns_for_pyarrow_and_the_kernel_in_all_files(
    tmp_path: Path, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
):
    root = write_days(tmp_path / "t", days=("2026-01-01",))
    base = root / "ds=2026-01-01/part-0.parquet"
    pq.write_table(pq.read_table(base, partitioning=None), base, row_group_size=70, compression="brotli")
    with monkeypatch.context() as patch:  # a codec that the kernel leaves to pyarrow
        patch.setattr(column_writer, "writer_options", lambda encodings: {"compression": "brotli"})
        add_columns(str(root), ExpressionValues(expression="id + 1", name="d"))
        add_columns(str(root), ExpressionValues(expression="id + 2", name="e"))
    add_seeded(root, "y", "string", seed=2)
    snapshot = Table(root).snapshot()
    groups = snapshot.row_groups_of(0)
    fragment = fragment_at(snapshot, 0, groups, np.full(len(groups), UNCOUNTED))
    assert arrow_columns(fragment, ["d", "e", "y", "id"], snapshot.schema).keys() == {"d", "e", "id"}
    request = ReadRequest(("d", "y", "e", "id"), snapshot.schema, chunk_rows=chunk_rows, first_rows=5)
    rows = [row for chunk in read_fragment(fragment, request) for row in chunk.frame.iter_rows()]
    assert [(row[0], row[2], row[3]) for row in rows] == [(each + 1, each + 2, each) for each in range(200)]
    assert [row[1] for row in rows] == [None if (2 * each) % 7 == 3 else f"2-{each % 11}" for each in range(200)]
