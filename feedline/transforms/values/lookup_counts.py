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

Repeats = np.ndarray[tuple[int], np.dtype[np.int64]]
LookupCounts = dict[Lookup, tuple[int, int]]  # values looked up, and how many were unknown

_thread = threading.local()


@contextlib.contextmanager
def collect_counts(repeats: Repeats | None = None) -> Iterator[LookupCounts]:
    """Collect the counts of each lookup in this thread's passes.

    repeats: int64 [rows of the frame], how often each row counts (None: once).
    """
    counts: LookupCounts = {}
    _thread.counts, _thread.repeats = counts, repeats
    try:
        yield counts
    finally:
        _thread.counts = _thread.repeats = None


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
            repeats: Repeats | None = _thread.repeats
            if repeats is None:
                counts[lookup] = len(values), int(np.count_nonzero(within))
            else:
                of_values = _repeats_of_values(series, repeats)
                counts[lookup] = int(of_values.sum()), int(of_values[within].sum())
        return series

    return ids.map_batches(count, return_dtype=dtype), lookup


def _values(series: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(series.dtype, pl.List):
        series = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    return series.drop_nulls().to_numpy()


def _repeats_of_values(series: pl.Series, repeats: Repeats) -> Repeats:
    """How often each value that `_values` returns counts."""
    rows = pl.Series(repeats)
    if isinstance(series.dtype, pl.List):
        lengths = series.list.len().fill_null(0).to_numpy()
        rows = pl.Series(np.repeat(repeats, lengths))
        series = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    return rows.filter(series.is_not_null()).to_numpy()
