"""Count the values that ops look up, and those that they do not know.

Runs wherever features are compiled and applied. An op declares with its result the ids that stand for unknown values
(`Value(..., unknown=range(2, 3))`), or calls `hold_lookup` itself. The ids become a column of the pass, which
`CompiledFeatures.apply_counting` returns beside the features and counts.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl

from feedline.transforms.values.kinds import Lookup

Repeats = np.ndarray[tuple[int], np.dtype[np.int64]]
# int64 [rows]: the ids, or elements of lists, that each row looks up, and how many of them were unknown.
RowLookups = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]

_numbers = itertools.count()


def hold_lookup(ids: pl.Expr, unknown: range) -> tuple[pl.Expr, Lookup]:
    """int64 ids, or lists of them, as a column that the pass computes; ids in `unknown` stand for unknown values.

    The `Lookup` belongs into the op's `Value`.
    """
    name = f"__lookup_{next(_numbers)}"
    return pl.col(name), Lookup(name=name, ids=ids.alias(name), unknown=unknown)


def count_lookups(series: pl.Series, unknown: range, repeats: Repeats | None = None) -> tuple[int, int]:
    """How many ids, or elements of lists, were looked up, and how many were unknown. Null ids, and the elements of null
    lists, are not counted.

    repeats: int64 [rows], how often each row counts (None: once).
    """
    values = _values(series)
    within = (values - unknown.start).view(np.uint64) < np.uint64(len(unknown))
    if repeats is None:
        return len(values), int(np.count_nonzero(within))
    of_values = _repeats_of_values(series, repeats)
    return int(of_values.sum()), int(of_values[within].sum())


def lookups_of_rows(series: pl.Series, unknown: range) -> RowLookups:
    """What `count_lookups` sums, row by row."""
    values = series
    if isinstance(series.dtype, pl.List):
        values = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    asked = values.is_not_null().to_numpy()
    within = (values.fill_null(unknown.stop).to_numpy() - unknown.start).view(np.uint64) < np.uint64(len(unknown))
    if not isinstance(series.dtype, pl.List):
        return asked.astype(np.int64), within.astype(np.int64)
    ends = np.cumsum(series.list.len().fill_null(0).to_numpy(), dtype=np.int64)
    return sum_of_lists(asked, ends), sum_of_lists(within, ends)


def sum_of_lists(values: np.ndarray[tuple[int], np.dtype[Any]], ends: Repeats) -> Repeats:
    """int64 [lists]: the sums of lists of numbers or marks, laid end to end. ends: int64 [lists], where each ends."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    totals: Repeats = np.diff(sums[ends], prepend=0)
    return totals


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
