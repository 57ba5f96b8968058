"""What a pipeline bound to a table reads, against the file's own metadata."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline


def test_bytes_per_row_are_those_of_the_columns_in_use(tmp_path: Path):
    table = pa.table(
        {"x": pa.array(range(1000), pa.float32()), "y": [str(n) for n in range(1000)], "day": [0, 1] * 500}
    )
    pq.write_table(table.sort_by("day"), tmp_path / "t.parquet", row_group_size=500)
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    x_bytes = [metadata.row_group(group).column(0).total_compressed_size for group in (0, 1)]
    spec = {
        "version": 1,
        "name": "bytes",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "t.parquet")},
        "features": {"dense": {"x": []}},
        "batch": {"size": 10},
    }
    whole = Pipeline.from_dict(spec).plan()
    assert whole.source.columns == ("x",)
    assert whole.source.row_group_bytes.tolist() == x_bytes
    assert whole.source.row_bytes.rows == 1000
    assert whole.source.row_bytes.selected == whole.source.row_bytes.stored == sum(x_bytes) / 1000
    half = Pipeline.from_dict(spec, {"source.where": "day == 1"}).plan()  # by statistics: day itself is not read
    assert half.source.columns == ("x", "day")
    assert half.source.row_bytes.rows == 500
    assert half.source.row_bytes.selected == x_bytes[1] / 500
