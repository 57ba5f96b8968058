"""Hash the keys of rows, the same everywhere: the order of clustered tables and of the index of their histories.

Pure. The hash of a key (one or more columns) is

    h_0 = 0;  h_j = hash(digest(column j) + h_(j-1)), 0 for a null;  the key's hash is the last

with `hash` and the digest of strings as `feedline.hashing` defines them; an integer, a boolean, a date or a time is its
own digest, a float the integer of its bits (-0.0 is 0.0, all NaNs are one), any other value that of its string. The
widths of integers and of offsets make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.hashing import GOLDEN, Words, digest, mix


def key_hashes(table: pa.Table, keys: Sequence[str]) -> Words:
    """uint64 [rows]: the hash of each row's key."""
    hashes = np.zeros(table.num_rows, np.uint64)
    scratch = np.empty_like(hashes)
    for name in keys:
        series = series_of(table[name])
        hashes += value_digests(series)
        hashes += np.uint64(GOLDEN)
        mix(hashes, scratch)
        if series.null_count():
            hashes[series.is_null().to_numpy()] = 0
    return hashes


def series_of(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    """The column as one chunk in Polars."""
    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    return series.rechunk()


def value_digests(series: pl.Series) -> Words:
    """uint64 [rows], perhaps not to be written to: the digest of each value; arbitrary at nulls."""
    kind = series.dtype
    if kind in (pl.String, pl.Binary):
        return digest(series)
    if kind == pl.Boolean or kind.is_integer() or kind.is_temporal():
        physical = series.to_physical()
        wide = physical if kind == pl.UInt64 else physical.cast(pl.Int64)
        words: Words = wide.fill_null(0).to_numpy().view(np.uint64)
        return words
    if kind.is_float():
        floats = series.cast(pl.Float64).fill_null(0).to_numpy() + 0.0  # turns -0.0 into 0.0
        return np.where(np.isnan(floats), np.nan, floats).view(np.uint64)
    return digest(series_of(pc.cast(series.to_arrow(), pa.string())))
