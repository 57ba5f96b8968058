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
# Integers [rows]: the ids, or elements of lists, that each row looks up, and how many of them were unknown.
RowLookups = tuple[np.ndarray[tuple[int], np.dtype[Any]], np.ndarray[tuple[int], np.dtype[Any]]]

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
    if repeats is not None:
        return sum_of_lookups(lookups_of_rows(series, unknown), repeats)
    if isinstance(series.dtype, pl.List):
        series = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    values = series.drop_nulls().to_numpy()
    return len(values), int(np.count_nonzero(_within(values, unknown)))


def lookups_of_rows(series: pl.Series, unknown: range) -> RowLookups:
    """What `count_lookups` sums, row by row."""
    values = series
    if isinstance(series.dtype, pl.List):
        values = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
    asked = values.is_not_null().to_numpy() if values.null_count() else None
    missed = _within((values if asked is None else values.fill_null(unknown.stop)).to_numpy(), unknown)
    if not isinstance(series.dtype, pl.List):
        return np.ones(len(missed), np.uint8) if asked is None else asked.view(np.uint8), missed.view(np.uint8)
    lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    return lengths if asked is None else marks_of_lists(asked, ends), marks_of_lists(missed, ends)


def sum_of_lookups(of_rows: RowLookups, repeats: Repeats | None) -> tuple[int, int]:
    """What `count_lookups` gives."""
    weights = 1 if repeats is None else repeats
    asked, missed = (int((counts * weights).sum(dtype=np.int64)) for counts in of_rows)
    return asked, missed


def marks_of_lists(marks: np.ndarray[tuple[int], np.dtype[np.bool_]], ends: Repeats) -> Repeats:
    """int64 [lists]: how many elements of each list are marked. marks: of lists laid end to end. ends: int64 [lists],
    where each ends."""
    # marks [1, 0, 1, 1], ends [2, 2, 4] -> marked elements before each end [1, 1, 3] -> [1, 0, 2]
    places = ends if marks.all() else np.searchsorted(np.flatnonzero(marks), ends)
    counts: Repeats = np.diff(places, prepend=0)
    return counts


def _within(
    ids: np.ndarray[tuple[int], np.dtype[np.int64]], unknown: range
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool: which ids are unknown; mostly one stands for all unknown values."""
    if len(unknown) == 1:
        return np.equal(ids, unknown.start)
    return (ids - unknown.start).view(np.uint64) < np.uint64(len(unknown))
