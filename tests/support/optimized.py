"""Tables for the tests of `optimize`, and other engines' views of the results."""

from __future__ import annotations

import datetime
import json
import math
import struct
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from reference_hash import GOLDEN, digest_of, mix

from feedline.warehouse.optimize.optimize import OptimizeReport, TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.snapshot.take import take_snapshot

EPOCH = datetime.date(1970, 1, 1)

CLUSTERED: dict[str, Any] = {"cluster_by": ("session",), "sort_by": ("ts",), "row_group_rows": 256}


def events(rows: int, seed: int = 0, *, keys: int = 40) -> pa.Table:
    """Return events of sessions in log order: a key (sometimes null), a time, numbers, strings, lists."""
    rng = np.random.default_rng(seed)
    session = rng.integers(0, keys, rows)
    ids = [[int(s) * 10 + j for j in range(int(s) % 4)] for s in session]
    return pa.table(
        {
            "event": pa.array(rng.permutation(rows) + seed * rows),
            "session": pa.array(session, mask=session == 3),
            "ts": pa.array(rng.integers(0, 50, rows)).cast(pa.timestamp("us")),
            "price": pa.array(rng.random(rows).astype("f4"), mask=rng.random(rows) < 0.2),
            "word": pa.array([f"w{s % 7}" for s in session]),
            "ids": pa.array(ids, pa.list_(pa.int64())),
            "holes": pa.array([None if s % 5 == 0 else [None, *i] for s, i in zip(session, ids, strict=True)]),
        }
    )


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def warehouse(root: Path, days: int = 3, rows: int = 500, files: int = 3, **options: Any) -> Path:
    """Write `days` partitions of events, with several files and row groups each."""
    for day in range(days):
        for file in range(files):
            path = root / f"ds=2026-01-{day + 1:02d}" / f"{file}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = events(rows, seed=1 + day * files + file)
            pq.write_table(table, path, **{"row_group_size": 200, **options})
    return root


def rewrite(source: Path, target: Path, *, projection: tuple[str, ...] = (), **settings: Any) -> OptimizeReport:
    """Run `optimize` in one thread."""
    options = {name: settings.pop(name) for name in ("map", "threads", "memory_bytes") if name in settings}
    return optimize(
        take_snapshot(str(source)),
        str(target),
        Settings(**settings),
        source=[str(source)],
        projection=projection,
        runner=TaskRunner(**{"threads": 1, **options}),
    )


def files_of(root: Path) -> list[Path]:
    """Return the table's files, in the order of their names."""
    return sorted(path for path in root.rglob("*.parquet"))


def in_arrow(root: Path) -> pa.Table:
    """Read the table with pyarrow."""
    return pads.dataset(root, format="parquet", partitioning="hive").to_table()


def in_duckdb(root: Path) -> pa.Table:
    """Read the table with DuckDB."""
    found = duckdb.sql(f"select * from read_parquet('{root}/**/*.parquet', hive_partitioning = true)").arrow()
    return found.read_all() if isinstance(found, pa.RecordBatchReader) else found


def in_polars(root: Path) -> pa.Table:
    """Read the table with Polars."""
    return pl.read_parquet(root, hive_partitioning=True).to_arrow()


def multiset(table: pa.Table) -> Counter[str]:
    """Count the rows as strings, independent of the order of rows and columns, and their columns' names."""
    names = sorted(table.column_names)
    return Counter([str(names), *map(repr, zip(*(table[name].to_pylist() for name in names), strict=True))])


def key_hash(values: list[Any]) -> int:
    """Compute the documented hash of one key with Python's integers."""
    found = 0
    for value in values:
        if value is None:
            found = 0
            continue
        if isinstance(value, str | bytes):
            word = digest_of(value.encode() if isinstance(value, str) else value)
        elif isinstance(value, float):
            canonical = math.nan if math.isnan(value) else value + 0.0
            word = struct.unpack("<Q", struct.pack("<d", canonical))[0]
        elif isinstance(value, datetime.date):
            word = (value - EPOCH).days
        elif isinstance(value, Decimal):
            word = digest_of(str(value).encode())
        else:
            word = int(value)
        found = mix(word + found + GOLDEN)
    return found


def assert_clustered(root: Path) -> None:
    """Check that in every partition keys are in hash order over all files, a key's rows together and in time order."""
    for folder in sorted({path.parent for path in files_of(root)}):
        rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in files_of(folder)])
        keys = rows["session"].to_pylist()
        runs = [key for key, _ in groupby(keys)]
        assert len(runs) == len(set(runs)), "a key's rows are apart"
        assert [key_hash([key]) for key in runs] == sorted(key_hash([key]) for key in runs)
        times = rows["ts"].to_pylist()
        assert all(a[1] <= b[1] for a, b in pairwise(zip(keys, times, strict=True)) if a[0] == b[0])


def stored_row_groups(paths: list[Path]) -> Iterator[tuple[pa.Table, dict[str, Any], int]]:
    """Each row group as it is stored, its file's metadata, and its index in the file; read with pyarrow."""
    for path in paths:
        file = pq.ParquetFile(path)
        content = json.loads(file.metadata.metadata[b"feedline.dedup"])
        for index in range(file.num_row_groups):
            yield file.read_row_group(index), content, index
