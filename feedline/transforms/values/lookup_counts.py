"""Count the values that ops look up, and those that they do not know.

Runs wherever features are compiled and applied. An op declares with its result the ids that stand for unknown values
(`Value(..., unknown=range(2, 3))`), or calls `count_lookups` itself. A function in the pass returns the column
unchanged and adds two numbers to the counts of the thread's `collect_counts`. (Counting by expressions would make
Polars look up every list twice: it does not share `list.eval`.) Polars runs the functions of a pass in the calling
thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import polars as pl

from feedline.transforms.values.kinds import Lookup

LookupCounts = dict[Lookup, tuple[int, int]]  # values looked up, and how many were unknown

_thread = threading.local()


@contextlib.contextmanager
def collect_counts() -> Iterator[LookupCounts]:
    """Collect the counts of each lookup in this thread's passes."""
    counts: LookupCounts = {}
    _thread.counts = counts
    try:
        yield counts
    finally:
        _thread.counts = None


def count_lookups(ids: pl.Expr, dtype: pl.DataType, unknown: range) -> tuple[pl.Expr, Lookup]:
    """The same int64 ids, or lists of them, counted during the pass: ids in `unknown` stand for unknown values.

    Null ids, and the elements of null lists, are not counted.
    """
    lookup = Lookup()

    def count(series: pl.Series) -> pl.Series:
        counts: LookupCounts | None = getattr(_thread, "counts", None)
        if counts is not None:
            values = _values(series)
            within = (values - unknown.start).view(np.uint64) < np.uint64(len(unknown))
            counts[lookup] = len(values), int(np.count_nonzero(within))
        return series

    return ids.map_batches(count, return_dtype=dtype), lookup


def _values(series: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(series.dtype, pl.List):
        series = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    return series.drop_nulls().to_numpy()
