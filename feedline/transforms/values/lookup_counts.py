"""How many of its values did an op not know, that looks values up?

Runs wherever features are compiled and applied. An op says with its result which ids stand for what it does not know:
`Value(..., unknown=range(2, 3))`, or makes ids that it goes on with `watched`. These are counted on their way through
the pass: by a function that hands the column on as it is, and notes two numbers for whoever is `counting` in the
thread. (Expressions that count would have Polars look every list up anew: it does not share `list.eval`.) Polars runs
the functions of a pass in the thread that asks for it.
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
    """For each lookup of a pass that this thread makes meanwhile: how many values it was asked, how many it missed."""
    found: Found = {}
    _here.found = found
    try:
        yield found
    finally:
        _here.found = None


def watched(ids: pl.Expr, dtype: pl.DataType, unknown: range) -> tuple[pl.Expr, Lookup]:
    """The same int64 ids, or lists of them, counted on their way: those in `unknown` stand for what was not known.

    Null ids, and the elements of null lists, were not asked for.
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
