"""Count the values that an op looked up and did not know.

Runs wherever features are compiled and applied. An op names with its result the ids that stand for unknown values
(`Value(..., unknown=range(2, 3))`), or passes ids through `watched` itself. A function in the pass hands the column on
unchanged and adds two numbers to the counter of the thread's `counting`. (Counting expressions would make Polars look
every list up a second time: it does not share `list.eval`.) Polars runs the functions of a pass in the calling thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import polars as pl

from feedline.transforms.values.kinds import Lookup

Found = dict[Lookup, tuple[int, int]]

_here = threading.local()


@contextlib.contextmanager
def counting() -> Iterator[Found]:
    """For each lookup of this thread's passes meanwhile: the values looked up, and how many were unknown."""
    found: Found = {}
    _here.found = found
    try:
        yield found
    finally:
        _here.found = None


def watched(ids: pl.Expr, dtype: pl.DataType, unknown: range) -> tuple[pl.Expr, Lookup]:
    """The same int64 ids, or lists of them, counted in the pass: ids in `unknown` stand for unknown values.

    Null ids, and the elements of null lists, are not counted.
    """
    lookup = Lookup()

    def count(series: pl.Series) -> pl.Series:
        found: Found | None = getattr(_here, "found", None)
        if found is not None:
            values = _values(series)
            within = (values - unknown.start).view(np.uint64) < np.uint64(len(unknown))
            found[lookup] = len(values), int(np.count_nonzero(within))
        return series

    return ids.map_batches(count, return_dtype=dtype), lookup


def _values(series: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(series.dtype, pl.List):
        series = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    return series.drop_nulls().to_numpy()
