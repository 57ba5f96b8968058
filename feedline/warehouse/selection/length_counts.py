"""Count the rows of every row group by the lengths of their lists: what buckets of rows are planned from.

Runs where a plan is made; see `row_measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.selection.row_measures import measure_rows
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthCounts:
    """What is known of the lengths of each row group's kept rows. rows: int64 [row groups, buckets], those of each
    bucket; the last one has those beyond all bounds, too. elements: int64 [row groups], of all their lists, of each up
    to the last bound. longest: int64 [row groups]. beyond: int64 [row groups], the rows beyond all bounds."""

    rows: Int64s
    elements: Int64s
    longest: Int64s
    beyond: Int64s


@dataclass(frozen=True, slots=True)
class LengthMeasure:
    """The lengths of a column's lists: rows by bucket, elements, the longest, and the rows beyond all bounds."""

    column: str
    bounds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"lengths 1 {self.bounds}"

    @property
    def width(self) -> int:
        return len(self.bounds) + 3

    def of(self, values: pl.Series) -> Int64s:
        lengths, last = list_lengths(values), self.bounds[-1]
        rows = np.bincount(bucket_of(lengths, self.bounds), minlength=len(self.bounds))
        beyond = np.count_nonzero(lengths > last)
        return np.array([*rows, np.minimum(lengths, last).sum(), lengths.max(initial=0), beyond], np.int64)


def bucket_of(lengths: Int64s, bounds: Sequence[int]) -> Int64s:
    """int64 [rows]: the bucket of each length, the first whose bound it does not exceed; the last one beyond them."""
    found: Int64s = np.minimum(np.searchsorted(bounds, lengths, side="left"), len(bounds) - 1)
    return found


def list_lengths(column: pl.Series) -> Int64s:
    """int64 [rows]: the elements of each list; a null has none."""
    return column.list.len().fill_null(0).to_numpy().astype(np.int64)


def count_lengths(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    selection: Selection,
    column: str,
    bounds: tuple[int, ...],
    *,
    work_dir: str,
    map: Map | None = None,
) -> LengthCounts:
    """Count every row group, or load what an earlier plan counted. Raises what reading raises."""
    measure = LengthMeasure(column, bounds)
    found = measure_rows(snapshot, selection, measure, where, sample=sample, work_dir=work_dir, map=map)
    rows = found[:, : len(bounds)]
    wrong = np.flatnonzero(rows.sum(axis=1) != selection.rows)
    if len(wrong):
        raise DataError(
            f"lengths were counted of other rows than the filter keeps: got {int(rows.sum()):,}, "
            f"expected {int(selection.rows.sum()):,}. Delete the measures in work_dir and run again"
        )
    return LengthCounts(rows=rows, elements=found[:, -3], longest=found[:, -2], beyond=found[:, -1])
