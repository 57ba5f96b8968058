"""Do hashed ids follow their strings? Each loader has its own hash, so ids of two of them cannot be compared by value.

What holds of every good hash is checked instead: bounds over all batches, and in the first batches, whose strings are
read from the table, that equal strings have equal ids and that different ones rarely share one. A contender whose
batches are in another order is compared by value with one of the same hash (`checksums`). Runs in the benchmark's
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shapes import BUCKETS, Shape

DISTINCT = 0.95  # of a sample's strings, which have ids of their own: 32,768 among a million should keep 0.98


def wrong_bounds(hashes: Mapping[str, Sequence[int]], shape: Shape) -> list[str]:
    """Describe the columns whose ids over all batches are outside [0, buckets), or all the same."""
    bounds = zip(shape.ids, hashes["low"], hashes["high"], strict=True)
    return [
        f"{name}: ids from {low} to {high}, expected different ones from 0 to {BUCKETS - 1}"
        for name, low, high in bounds
        if not 0 <= low < high < BUCKETS
    ]


def first_strings(files: Sequence[str], shape: Shape, rows: int) -> pa.Table:
    """Read the strings of the table's first rows."""
    tables: list[pa.Table] = []
    for path in files:
        if sum(map(len, tables)) >= rows:
            break
        tables.append(pq.read_table(path, columns=list(shape.ids), partitioning=None))
    return pa.concat_tables(tables).slice(0, rows)


def inconsistent(ids: np.ndarray, strings: pa.Table) -> list[str]:
    """Describe the columns whose ids [rows, columns] do not follow the strings of the same rows, or cannot show it."""
    if ids.shape != (strings.num_rows, strings.num_columns):
        return [f"ids of shape {ids.shape}, expected {(strings.num_rows, strings.num_columns)}"]
    return [
        f"{name}: {wrong}"
        for name, column in zip(strings.column_names, ids.T, strict=True)
        if (wrong := _wrong(column, strings.column(name).combine_chunks()))
    ]


def _wrong(ids: np.ndarray, strings: Any) -> str | None:
    encoded = strings.dictionary_encode()
    codes, distinct = encoded.indices.to_numpy(), len(encoded.dictionary)
    if not 1 < distinct < len(ids):
        return f"{distinct} different strings in {len(ids)} rows, expected some and repeated ones"
    expected = np.empty(distinct, np.int64)
    expected[codes] = ids  # of each string, that of its last row
    differing = np.flatnonzero(expected[codes] != ids)
    if len(differing):
        row = differing[0]
        return f"{strings[row]} is {ids[row]} in row {row}, and {expected[codes[row]]} elsewhere"
    different_ids = len(np.unique(expected))
    if different_ids < DISTINCT * distinct:
        return f"{distinct} different strings have {different_ids} different ids"
    return None
