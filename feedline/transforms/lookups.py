"""How many of its values did an op not know, that looks values up?

Runs wherever features are compiled; what it builds runs inside the pass over a chunk. An op says with its result what
it counted: `Value(..., lookup=Lookup(asked=…, missed=…))`. Both are expressions over the columns of the pass, per row
(true and false, or numbers) or of one row; what comes of them is summed over rows, chunks and blocks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from feedline.transforms.kinds import Lookup


def ids_within(ids: pl.Expr, dtype: pl.DataType, first: int, stop: int) -> Lookup:
    """For an op that gives int64 ids, or lists of them, and ids from `first` to `stop` - 1 to what it does not know.

    Nulls and null lists are not asked for.
    """
    listed = isinstance(dtype, pl.List)

    def count(series: pl.Series) -> pl.Series:
        held = series.drop_nulls().explode(empty_as_null=False) if listed else series
        values = held.drop_nulls().to_numpy()
        low = np.uint64(stop - first)
        return pl.Series([int(np.count_nonzero((values - first).view(np.uint64) < low))], dtype=pl.Int64())

    asked = ids.list.len().sum() if listed else ids.count()
    return Lookup(asked=asked, missed=ids.map_batches(count, return_dtype=pl.Int64(), returns_scalar=True))
