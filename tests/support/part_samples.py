"""A small table of structs and maps, its flattened form, and parts of its rows by plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from warehouse_samples import write

GEO = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
USER = pa.struct([("country", pa.string()), ("geo", GEO), ("scores", pa.map_(pa.string(), GEO))])
MAP = pa.map_(pa.string(), pa.float32())
KEYS = ["price", "cost", "age", "é"]


def events(rows: int, seed: int) -> pa.Table:
    """Return rows with a struct and maps, including nulls, empty maps and duplicate keys."""
    random = np.random.default_rng(seed)

    def features() -> Any:
        if random.random() < 0.1:
            return None
        keys = random.choice(KEYS, size=random.integers(0, 5))
        return [(str(key), None if random.random() < 0.2 else float(random.integers(100)) / 4) for key in keys]

    def geo() -> Any:
        return None if random.random() < 0.2 else {"lat": float(random.integers(90)), "lon": None}

    def user() -> Any:
        if random.random() < 0.2:
            return None
        scores = [(key, geo()) for key in ("a", "b") if random.random() < 0.7]
        return {"country": random.choice(["US", "DE", None]), "geo": geo(), "scores": scores}

    return pa.table(
        {
            "n": pa.array(range(seed * 1000, seed * 1000 + rows), pa.int64()),
            "user": pa.array([user() for _ in range(rows)], USER),
            "features_map": pa.array([features() for _ in range(rows)], MAP),
            "lists": pa.array([[(i % 3, [i, i + 1])] for i in range(rows)], pa.map_(pa.int32(), pa.list_(pa.int64()))),
        }
    )


def pl_frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def first(entries: Any, key: Any) -> Any:
    return next((value for name, value in entries or () if name == key), None)


def flattened(table: pa.Table, *keys: str) -> pa.Table:
    """Return the table as `feedline optimize --flatten features_map` writes it: keys as columns, others in the map."""
    rows = table["features_map"].to_pylist()
    rest = [None if row is None else [pair for pair in row if pair[0] not in keys] for row in rows]
    place = table.schema.get_field_index("features_map")
    table = table.set_column(place, "features_map", pa.array(rest, MAP))
    for key in keys:
        table = table.append_column(f"features_map.{key}", pa.array([first(row, key) for row in rows], pa.float32()))
    return table


def taken(row: dict[str, Any], name: str) -> Any:
    """Compute a part in plain Python."""
    column, *keys = name.replace("]", "").replace("'", "").replace('"', "").split("[")
    value = row[column]
    for key in keys:
        wanted = int(key) if key.isdigit() else key
        value = (value.get(wanted) if value else None) if isinstance(value, dict) else first(value, wanted)
    return value


def flat_table(folder: Path, **options: Any) -> tuple[str, pa.Table]:
    """Write a mixed table: a file with the map alone, one with a column for a key, one with columns for both."""
    tables = [events(30, seed) for seed in (1, 2, 3)]
    files = {
        "a.parquet": tables[0],
        "b.parquet": flattened(tables[1], "price"),
        "c.parquet": flattened(tables[2], "price", "cost"),
    }
    return write(folder, files, **options), pa.concat_tables(tables)
