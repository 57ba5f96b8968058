"""Measure the selected rows of each row group by one column: what a plan needs beyond counts.

Runs where a plan is made; its tasks wherever `map` runs them, in waves (`waves`). Only row groups with selected rows
are read, and of them the column and those of filter and sample. What was measured is kept under `work_dir/measures`,
named by snapshot, filter, sample, exclusion and measure; a damaged file is ignored.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.warehouse.reading.fragment import Fragment, field_of
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.selection.select import Selection, bind_once
from feedline.warehouse.selection.waves import Pass, measure_in_waves
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.parallel import Map, in_threads

_VERSION = 2

Int64s = npt.NDArray[np.int64]


class RowMeasure(Protocol):
    """A measure of a row group's rows: `width` integers from 0. A small picklable value.

    column: whose values it reads. name: says all that its integers depend on besides them. `of` raises ValueError, with
    a rule that the values break, and the index of the row in `row` where one is to blame.
    """

    @property
    def column(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...
    def of(self, values: pl.Series) -> Int64s: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTask:
    """Row groups to measure: a small picklable value, with filter and sample unbound."""

    fragments: tuple[Fragment, ...]
    measure: RowMeasure
    where: str | None
    sample: Sample | None
    schema: pa.Schema


def measure_rows(
    snapshot: Snapshot,
    selection: Selection,
    measure: RowMeasure,
    *,
    work_dir: str,
    map: Map | None = None,
) -> Int64s:
    """int64 [row groups, width]: the measure of the selected rows of each row group, 0 where there are none. Progress
    is reported. Raises DataError, with file, row group and row, for values that break a rule
    of the measure, and what reading raises."""
    groups = np.flatnonzero(selection.rows)
    where, sample = selection.where, selection.sample
    needed = {measure.column}.union(*(condition.columns for condition in (where, sample) if condition is not None))
    request = Pass(
        snapshot=snapshot,
        name=_measure_name(snapshot, selection, measure),
        columns=tuple(f"measure_{number}" for number in range(measure.width)),
        phase="measuring lists",
        fragment=partial(selection.fragment, snapshot),
        task=MeasureTask(
            fragments=(),
            measure=measure,
            where=None if where is None else where.text,
            sample=None if sample is None else sample.sample,
            schema=pa.schema([field_of(snapshot.schema, name) for name in sorted(needed)]),
        ),
        run=measure_task,
        work_dir=work_dir,
        map=map or in_threads,
    )
    measured = np.zeros((len(selection.rows), measure.width), np.int64)
    measured[groups], _ = measure_in_waves(request, groups)
    return measured


def measure_task(task: MeasureTask) -> Int64s:
    """Run one task: int64 [row groups of all fragments, width]."""
    where, sample = bind_once(task.where, task.sample, task.schema)
    measure, measured = task.measure, list[Int64s]()
    for fragment in task.fragments:
        chunks = read_fragment(fragment, ReadRequest([measure.column], task.schema, where, sample=sample))
        for position, of_group in itertools.groupby(chunks, key=lambda chunk: chunk.position):
            values = pl.concat([chunk.frame.get_column(measure.column) for chunk in of_group])
            measured.append(_of_group(measure, values, fragment, position))
    return np.stack(measured)


def _of_group(measure: RowMeasure, values: pl.Series, fragment: Fragment, position: int) -> Int64s:
    try:
        return measure.of(values)
    except ValueError as error:
        row, group = getattr(error, "row", None), label(fragment.path, fragment.row_groups[position])
        kept = "" if row is None else f", row {row} of those kept"
        raise DataError(
            f"column {measure.column!r} {error} ({group}{kept}). Leave such rows out with source.where"
        ) from error


def _measure_name(snapshot: Snapshot, selection: Selection, measure: RowMeasure) -> str:
    """Return a name from all that the integers depend on, with the version of Polars that evaluates the filter, and the
    rows that are selected."""
    where, sample = selection.where, selection.sample
    condition, request = where.text if where else None, None if sample is None else sample.sample.to_json()
    without = None if selection.excludes is None else selection.excludes.id
    rows = hashlib.sha256(np.ascontiguousarray(selection.rows).tobytes()).hexdigest()
    parts = [_VERSION, snapshot.id, condition, request, without, rows, pl.__version__, measure.column, measure.name]
    return f"measures/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


# --------------------------------------------------------------------------------------------------------------------
# Count the rows of every row group by the lengths of their lists: what buckets of rows are planned from. Runs where a
# plan is made; see `row_measures`.


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
    buckets: Int64s = np.minimum(np.searchsorted(bounds, lengths, side="left"), len(bounds) - 1)
    return buckets


def list_lengths(column: pl.Series) -> Int64s:
    """int64 [rows]: the elements of each list; a null has none."""
    return column.list.len().fill_null(0).to_numpy().astype(np.int64)


def count_lengths(
    snapshot: Snapshot,
    selection: Selection,
    column: str,
    bounds: tuple[int, ...],
    *,
    work_dir: str,
    map: Map | None = None,
) -> LengthCounts:
    """Count every row group, or load what an earlier plan counted. Raises what reading raises."""
    measure = LengthMeasure(column, bounds)
    measured = measure_rows(snapshot, selection, measure, work_dir=work_dir, map=map)
    rows = measured[:, : len(bounds)]
    wrong = np.flatnonzero(rows.sum(axis=1) != selection.rows)
    if len(wrong):
        raise DataError(
            f"lengths were counted of other rows than the filter keeps: got {int(rows.sum()):,}, "
            f"expected {int(selection.rows.sum()):,}. Delete the measures in work_dir and run again"
        )
    return LengthCounts(rows=rows, elements=measured[:, -3], longest=measured[:, -2], beyond=measured[:, -1])
