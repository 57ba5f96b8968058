"""The cases of `transforms.py` that look values up outside the table: in a table in memory, in a zarr array on disk.

Whatever a library can prepare once is prepared beforehand on both sides. 95 of 100 keys are in the table, each equally
likely. The arrays are in a temporary folder, in the page cache; the bare side has them in memory.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import zarr
from transform_cases import Array, Case, list_series

from feedline.artifacts.external import read_external
from feedline.transforms.learning.learner import Artifact, Reading

MEAN_LENGTH, WIDTH, CHUNK_ROWS = 20, 64, 8192
JOIN = {"table": "t.parquet", "on": "k", "take": "v", "missing": -1}
_folder = tempfile.TemporaryDirectory(prefix="feedline-arrays-")  # until the process ends


def outside_cases(rows: int) -> list[Case]:
    """Joins by ids and by strings, vectors of ids and of lists."""
    random = np.random.default_rng(2)
    full = rows >= 10_000
    cases = []
    for label, count in (("200 k keys", 200_000), ("2 M keys", 2_000_000)):
        keys = np.unique(random.integers(0, 2**50, count if full else 500))
        random.shuffle(keys)
        cases.append(joined(f"join_external, {label}", pl.Series(keys), rows, random))
    cases.append(joined("join_external of strings", pl.Series([f"{key:x}" for key in keys[:200_000]]), rows, random))
    vectors = random.random((500_000 if full else 2_000, WIDTH), dtype=np.float32)
    ids = random.integers(0, len(vectors), rows)
    single, chunked, packed = (
        array_of(vectors, chunk_rows, compressed)
        for chunk_rows, compressed in ((len(vectors), False), (CHUNK_ROWS if full else 100, False), (100, True))
    )
    take: dict[str, Callable[[], Any]] = {"numpy take": lambda: vectors.take(ids, axis=0)}
    frame = pl.DataFrame({"x": ids})
    for label, artifact in (("one mapped chunk", single), ("mapped chunks", chunked), ("decoded", packed)):
        cases.append(
            Case(f"embedding, {label}", (("embedding", {"array": "v"}),), frame, rows, take, artifact=artifact)
        )
    some = rows // 4
    borders = np.arange(0, some * MEAN_LENGTH + 1, MEAN_LENGTH)
    elements = random.integers(0, len(vectors), some * MEAN_LENGTH)

    def mean() -> Array:
        return np.add.reduceat(vectors.take(elements, axis=0), borders[:-1], axis=0) / np.float32(MEAN_LENGTH)

    lists = pl.DataFrame({"x": list_series(elements, borders)})
    pooling = (("embedding", {"array": "v", "pooling": "mean"}),)
    cases.append(
        Case("embedding, lists", pooling, lists, len(elements), {"numpy take, reduceat": mean}, artifact=single)
    )
    return cases


def joined(name: str, keys: pl.Series, rows: int, random: np.random.Generator) -> Case:
    """Join a float32 by key; 5 % of the keys are missing."""
    values = pl.Series(random.random(len(keys)).astype(np.float32))
    asked = keys.gather(random.integers(0, len(keys), rows)).to_list()
    asked[::20] = [-1 if keys.dtype == pl.Int64 else "none"] * len(asked[::20])
    column = pl.Series(asked, dtype=keys.dtype)
    table = pl.DataFrame({"k": keys, "v": values})
    index = pd.Index(keys.to_numpy() if keys.dtype == pl.Int64 else pd.array(keys.to_list(), dtype=object))
    results = np.append(values.to_numpy(), np.float32(-1))
    objects = column.to_numpy() if keys.dtype == pl.Int64 else np.array(asked, dtype=object)
    bare: dict[str, Callable[[], Any]] = {
        "pandas index": lambda: results[index.get_indexer(objects)],
        "polars join": lambda: (
            column.to_frame("k").join(table, on="k", how="left", maintain_order="left")["v"].fill_null(-1)
        ),
    }
    if keys.dtype == pl.Int64:
        order = np.argsort(keys.to_numpy())
        ordered, sorted_values = keys.to_numpy()[order], values.to_numpy()[order]

        def searched() -> Array:
            place = np.minimum(np.searchsorted(ordered, objects), len(ordered) - 1)
            return np.where(ordered[place] == objects, sorted_values[place], np.float32(-1))

        bare["numpy searchsorted"] = searched
    artifact = Artifact(facts={}, table=table.to_arrow())
    return Case(name, (("join_external", JOIN),), pl.DataFrame({"x": column}), rows, bare, artifact=artifact)


def array_of(vectors: Array, chunk_rows: int, compressed: bool) -> Artifact:
    """Open an array as a process does."""
    path = Path(_folder.name) / f"{chunk_rows}-{compressed}"
    packing = {} if compressed else {"compressors": None}
    stored = zarr.create_array(
        store=str(path), shape=vectors.shape, chunks=(max(chunk_rows, len(vectors) // 64), WIDTH), dtype="f4", **packing
    )
    stored[:] = vectors
    options = json.dumps({"ids": None, "ids_column": "id"})
    return read_external(Reading(kind="zarr", uri=str(path), options=options), _folder.name)
