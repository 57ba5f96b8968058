"""Small tables that the warehouse's tests write: every kind of column, nulls, several row groups and partitions."""

from __future__ import annotations

import datetime
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# The Apache Parquet interoperability collection, which is not in the repository
DATA = Path(os.environ.get("FEEDLINE_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
COLLECTION = DATA / "parquet-testing"


def sample(rows: int, seed: int = 0) -> pa.Table:
    """Return rows with every kind of column, a fifth of each null."""
    rng = np.random.default_rng(seed)
    null = rng.random(rows) < 0.2
    ints = rng.integers(-1000, 1000, rows)

    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if gone else value for value, gone in zip(values, null, strict=True)], kind)

    return pa.table(
        {
            "i8": column((ints % 100).tolist(), pa.int8()),
            "i64": column(ints.tolist(), pa.int64()),
            "u64": column([2**64 - 1 - int(abs(i)) for i in ints], pa.uint64()),
            "f32": column(ints / 8, pa.float32()),
            "f64": column(ints / 3, pa.float64()),
            "flag": column((ints > 0).tolist(), pa.bool_()),
            "day": column([datetime.date(2026, 1, 1) + datetime.timedelta(int(i)) for i in ints], pa.date32()),
            "ms": column([int(i) for i in ints], pa.timestamp("ms")),
            "ns": column([int(i) for i in ints], pa.timestamp("ns", "UTC")),
            "price": column([Decimal(int(i)) / 4 for i in ints], pa.decimal128(9, 2)),
            "text": column([f"t{i}" for i in ints], pa.string()),
            "raw": column([f"t{i}".encode() for i in ints], pa.binary()),
            "word": column([f"w{i % 3}" for i in ints], pa.string()).dictionary_encode(),
            "ids": column([[int(i)] * int(abs(i) % 4) for i in ints], pa.list_(pa.int64())),
            "user": column(
                [{"age": int(i), "name": "x"} for i in ints], pa.struct({"age": pa.int64(), "name": pa.string()})
            ),
            "half": column(ints % 10, pa.float16()),
            "a.b": column(ints.tolist(), pa.int32()),
        }
    )


BOUNDED = ("i8", "i64", "u64", "f32", "f64", "flag", "day", "ms", "ns", "price", "text", "raw", "word", "a.b")


def write(root: Path, tables: dict[str, pa.Table], **options: Any) -> str:
    for name, table in tables.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
    return str(root)


def collection(folder: str) -> list[Path]:
    """Return the Parquet files of one of the collection's folders; none if it is absent."""
    return sorted(
        path for path in (COLLECTION / folder).rglob("*.parquet*") if path.is_file() and path.suffix != ".json"
    )


def touch(root: Path, *names: str) -> None:
    """Write files of one byte."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
