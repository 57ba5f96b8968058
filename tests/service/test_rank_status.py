"""What the status of a plan says of its table, against the table itself."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pipelines import furnished

from feedline import Pipeline
from feedline.service.feeder_status import plan_status


def test_a_plan_says_what_it_prunes(tmp_path: Path, clicks: Path):
    """Partitions by their keys, and row groups by statistics of `ts`, which rises from file to file."""
    files = sorted(clicks.rglob("*.parquet"))
    days = sorted({path.parent.name for path in files})
    kept = [path for path in files if path.parent.name != days[0]]
    every = {
        path: [pq.read_metadata(path).row_group(index) for index in range(pq.read_metadata(path).num_row_groups)]
        for path in files
    }
    name = "ts"
    index = pq.read_schema(files[0]).get_field_index(name)
    stops = sorted(group.column(index).statistics.max for path in kept for group in every[path])
    bound = stops[len(stops) // 2]
    column, day = days[0].split("=")
    where = f"{column} > '{day}' and ts > {_literal(bound)}"
    with furnished(tmp_path, clicks) as place:
        status = plan_status(Pipeline.from_yaml(place.write(source={"where": where})).plan())
    groups = sum(map(len, every.values()))
    of_kept = sum(len(every[path]) for path in kept)
    after = [group for path in kept for group in every[path] if group.column(index).statistics.max > bound]
    parts = {part.what: part for part in status.pruning}
    assert (parts["row groups by partitions"].total, parts["row groups by partitions"].kept) == (groups, of_kept)
    assert (parts["row groups by statistics"].total, parts["row groups by statistics"].kept) == (of_kept, len(after))
    left = {path for path in kept for group in every[path] if group.column(index).statistics.max > bound}
    assert (parts["files"].total, parts["files"].kept) == (len(files), len(left))
    sizes = [part.nbytes for part in status.pruning]
    assert all(size is not None and size > 0 for size in sizes)
    [(rows,)] = duckdb.sql(
        f"select count(*) from read_parquet('{clicks}/**/*.parquet', hive_partitioning=true) "
        f"where {column} > '{day}' and ts > {_literal(bound)}"
    ).fetchall()
    assert (status.rows, status.batch_size, status.steps) == (rows, 256, rows // 256)
    assert status.rows_dropped == rows % 256


def _literal(value: object) -> str:
    return str(value) if isinstance(value, (int, float)) else f"'{value}'"
