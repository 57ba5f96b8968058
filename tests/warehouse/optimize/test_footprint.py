"""The size of a table, by column, and the requests that a projection takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import rewrite

from feedline.warehouse.optimize.footprint import footprint
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import ranges


def test_the_report_counts_the_requests_of_a_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjacent popular columns are one request; with larger holes in between, one each."""
    monkeypatch.setattr(ranges, "HOLE_BYTES", 200)
    rng = np.random.default_rng(0)
    source = tmp_path / "in"
    wide = pa.table({f"c{i}": rng.random(4000) for i in range(20)})
    (source / "ds=1").mkdir(parents=True)
    pq.write_table(wide, source / "ds=1" / "a.parquet", row_group_size=2000)
    popular = ("c3", "c9", "c15")
    report = rewrite(source, tmp_path / "out", order=popular, row_group_rows=2000, projection=popular)
    assert report.before.requests_per_row_group == 3
    assert report.after.requests_per_row_group == 1
    for root, side in ((source, report.before), (tmp_path / "out", report.after)):
        (path,) = root.rglob("*.parquet")
        metadata = pq.read_metadata(path)
        chunks = [metadata.row_group(g).column(metadata.schema.names.index(n)) for g in range(2) for n in popular]
        assert side.projection.bytes == sum(chunk.total_compressed_size for chunk in chunks)
        assert 0 <= side.projection.requested_bytes - side.projection.bytes <= 200 * len(chunks)
        everything = [metadata.row_group(g).column(i) for g in range(2) for i in range(20)]
        assert side.compressed_bytes == sum(chunk.total_compressed_size for chunk in everything)
        assert side.uncompressed_bytes == sum(chunk.total_uncompressed_size for chunk in everything)
        assert side.bytes == path.stat().st_size
        assert (side.files, side.row_groups, side.rows) == (1, 2, 4000)


def test_a_table_without_row_groups_has_a_ratio_of_one(tmp_path: Path):
    with pq.ParquetWriter(tmp_path / "0.parquet", pa.schema([("a", pa.int64())])):
        pass
    found = footprint(take_snapshot(str(tmp_path)), ["a"], map=map)
    assert (found.rows, found.row_groups, found.ratio, found.requests_per_row_group) == (0, 0, 1.0, 0.0)
