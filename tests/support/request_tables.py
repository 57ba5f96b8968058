"""Tables of impressions and of requests for tests, and DuckDB's view of one as the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from optimized import in_duckdb

CANDIDATES = ("item_id", "clicked", "position", "tags")


def impressions(requests: int, seed: int = 0, *, longest: int = 6, offset: int = 0) -> pa.Table:
    """Rows of requests, shuffled: request_id, age and history are the request's; the rest are each row's own."""
    rng = np.random.default_rng(seed)
    request = np.repeat(np.arange(requests) + offset, rng.integers(1, longest + 1, requests))
    position = np.concatenate([np.arange(count) for count in np.bincount(request - offset)] or [np.empty(0, int)])
    rows, of_request = len(request), request - offset
    history = [None if r % 7 == 3 else [int(r) * 10 + j for j in range(r % 4)] for r in of_request]
    table = pa.table(
        {
            "request_id": pa.array(request),
            "age": pa.array((request % 50).astype("f4"), mask=request % 5 == 2),
            "country": pa.array([f"c{r % 3}" for r in of_request]),
            "history": pa.array(history, pa.list_(pa.int64())),
            "position": pa.array(position.astype("i4")),
            "item_id": pa.array(rng.integers(0, 1000, rows)),
            "clicked": pa.array(rng.integers(0, 2, rows).astype("i1")),
            "price": pa.array(rng.random(rows).astype("f4"), mask=rng.random(rows) < 0.2),
            "word": pa.array([f"w{i}" for i in rng.integers(0, 9, rows)], mask=rng.random(rows) < 0.1),
            "tags": pa.array([list(range(i)) for i in rng.integers(0, 3, rows)], pa.list_(pa.int64())),
        }
    )
    return table.take(pa.array(rng.permutation(rows)))


def impression_table(root: Path, days: int = 2, requests: int = 120, files: int = 2, **options: Any) -> Path:
    """Write partitions of impressions, the rows of a request scattered over the files of its day."""
    for day in range(days):
        table = impressions(requests, seed=day + 1, offset=day * requests)
        folder = root / f"ds=2026-01-{day + 1:02d}"
        folder.mkdir(parents=True)
        size = -(-table.num_rows // files)
        for file in range(files):
            pq.write_table(
                table.slice(file * size, size), folder / f"{file}.parquet", **{"row_group_size": 64, **options}
            )
    return root


def unnested(root: Path, columns: tuple[str, ...], lists: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a request table by DuckDB's `unnest`, in the order of files, requests and lists."""
    chosen = ", ".join(f"unnest({name}) as {name}" if name in lists else name for name in columns)
    source = f"read_parquet('{root}/**/*.parquet', hive_partitioning = true, filename = true, file_row_number = true)"
    query = f"select {chosen}, filename, file_row_number, generate_subscripts({lists[0]}, 1) as place from {source}"
    found = duckdb.sql(f"select {', '.join(columns)} from ({query}) order by filename, file_row_number, place").arrow()
    table = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def grouped(root: Path, by: str, kept: tuple[str, ...], lists: tuple[str, ...], order: str) -> list[dict[str, Any]]:
    """The requests of an impression table by DuckDB's `group by`, ordered by the key."""
    assert in_duckdb(root).num_rows
    source = f"read_parquet('{root}/**/*.parquet', hive_partitioning = true)"
    parts = [f"first({name}) as {name}" for name in kept]
    parts += [f"list({name} order by {order}) as {name}" for name in lists]
    found = duckdb.sql(f"select {by}, {', '.join(parts)} from {source} group by {by} order by {by}").arrow()
    table = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def write_requests(root: Path, parts: list[list[dict[str, Any]]], schema: pa.Schema, *, row_group_size: int) -> Path:
    """Write requests as the files of a table, a folder `ds=…` each, in row groups of so many requests."""
    for day, rows in enumerate(parts):
        folder = root / f"ds={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / "0.parquet", row_group_size=row_group_size)
    return root


def write_unnested(requests: Path, root: Path, lists: tuple[str, ...]) -> Path:
    """Write the impressions that DuckDB's `unnest` makes of a request table, row group by row group, in the same files.
    A list of another row group or file stays apart; a row group without impressions is left out."""
    for path in sorted(requests.rglob("*.parquet")):
        file, target = pq.ParquetFile(path), root / path.relative_to(requests)
        target.parent.mkdir(parents=True, exist_ok=True)
        names = [name for name in file.schema_arrow.names if name != "ds"]
        chosen = ", ".join(f"unnest({name}) as {name}" if name in lists else name for name in names)
        fields = [
            field.with_type(field.type.value_type).with_nullable(True) if field.name in lists else field
            for field in file.schema_arrow
        ]
        schema = pa.schema(fields).remove_metadata()
        with pq.ParquetWriter(target, schema) as writer:
            for index in range(file.num_row_groups):
                group = file.read_row_group(index).append_column(
                    "request_row", pa.array(range(file.metadata.row_group(index).num_rows))
                )
                query = f"select {chosen}, request_row, generate_subscripts({lists[0]}, 1) as place from grp"
                con = duckdb.connect()
                con.register("grp", group)
                found = con.sql(f"select {', '.join(names)} from ({query}) order by request_row, place").arrow()
                table = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
                if table.num_rows:
                    writer.write_table(table.cast(schema), row_group_size=table.num_rows)
    return root
