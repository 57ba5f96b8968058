"""Measure the selected rows of each row group by one column: what a plan needs beyond counts.

Runs where a plan is made; its tasks wherever `map` runs them, in waves (`waves`). Only row groups with selected rows
are read, and of them the column and those of filter and sample. What was measured is kept under `work_dir/measures`,
named by snapshot, filter, sample, exclusion and measure; a damaged file is ignored.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.progress import report_progress
from feedline.warehouse.reading.fragment import Fragment, field_of, gather
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import BoundSample, Sample
from feedline.warehouse.selection.select import Selection, bind_once
from feedline.warehouse.selection.waves import FIRST_TASKS, next_tasks
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.parallel import Map, in_threads

_VERSION = 1
_PHASE = "measuring lists"
_TASK_ROWS = 2_000_000  # rows that one task reads: tenths of a second
_TASK_FILES = 32  # files that one task opens

_now_s = time.monotonic

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
    where: BoundExpression | None,
    *,
    sample: BoundSample | None = None,
    work_dir: str,
    map: Map | None = None,
) -> Int64s:
    """int64 [row groups, width]: the measure of the selected rows of each row group, 0 where there are none. Progress
    is reported. Raises DataError, with file, row group and row, for values that break a rule
    of the measure, and what reading raises."""
    groups = np.flatnonzero(selection.rows)
    name = _measure_name(snapshot, selection, measure, where, sample)
    table = _load(work_dir, name, groups, measure)
    if table is None:
        with content_store.lock_file(locate(absolute(work_dir)), f"runs/{name.replace('/', '-')}"):
            table = _load(work_dir, name, groups, measure)
            if table is None:
                needed = {measure.column}.union(*(each.columns for each in (where, sample) if each is not None))
                request = MeasureTask(
                    fragments=(),
                    measure=measure,
                    where=None if where is None else where.text,
                    sample=None if sample is None else sample.sample,
                    schema=pa.schema([field_of(snapshot.schema, name) for name in sorted(needed)]),
                )
                kept = KeptWaves(work_dir)
                table = _measure(snapshot, selection, request, map or in_threads, kept, name)
                content_store.create(work_dir, name, [table])
                kept.forget()
    measured = np.zeros((len(selection.rows), measure.width), np.int64)
    measured[groups] = _values(table, measure)
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


def _measure(
    snapshot: Snapshot, selection: Selection, request: MeasureTask, map: Map, kept: KeptWaves, name: str
) -> pa.Table:
    """Measure row groups wave by wave, except those that an interrupted pass has measured."""
    stored, measure = snapshot.rows_per_row_group, request.measure
    begun = name.replace(".arrow", ".begun.arrow")
    wanted = np.flatnonzero(selection.rows)
    found = _checked(kept.load(begun), measure)
    found = _table(np.zeros(0, np.int64), np.zeros((0, measure.width), np.int64)) if found is None else found
    missing = np.setdiff1d(wanted, found["row_group"].to_numpy())
    tasks = _tasks(snapshot, selection, request, missing) if len(missing) else iter(())
    total, ends, done = int(stored[wanted].sum()), np.cumsum(stored[missing]), 0
    rows_before = total - int(ends[-1]) if len(ends) else total
    report_progress(_PHASE, rows_before, total, "rows")
    first, size = 0, FIRST_TASKS
    while wave := list(itertools.islice(tasks, size)):
        began_s = _now_s()
        parts = []
        for part in map(measure_task, wave):
            parts.append(part)
            done += len(part)
            report_progress(_PHASE, rows_before + int(ends[done - 1]), total, "rows")
        measured = np.concatenate(parts)
        groups = missing[first : first + len(measured)]
        first += len(measured)
        found = pa.concat_tables([found, _table(groups, measured)]).sort_by("row_group").combine_chunks()
        size = next_tasks(len(wave), _now_s() - began_s)
        if first < len(missing):
            kept.save(begun, [found])
    return found


def _tasks(snapshot: Snapshot, selection: Selection, request: MeasureTask, row_groups: Int64s) -> Iterator[MeasureTask]:
    """Yield tasks of about `_TASK_ROWS` rows: fragments in the table's order, file by file."""
    stored, file = snapshot.rows_per_row_group, snapshot.file_of_row_group[row_groups]
    part = np.cumsum(stored[row_groups]) // _TASK_ROWS
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1

    fragments = (
        (selection.fragment(snapshot, groups), int(stored[groups].sum())) for groups in np.split(row_groups, borders)
    )
    for group in gather(fragments, _TASK_ROWS, _TASK_FILES):
        yield MeasureTask(
            fragments=group,
            measure=request.measure,
            where=request.where,
            sample=request.sample,
            schema=request.schema,
        )


def _measure_name(
    snapshot: Snapshot,
    selection: Selection,
    measure: RowMeasure,
    where: BoundExpression | None,
    sample: BoundSample | None,
) -> str:
    """Return a name from all that the integers depend on, with the version of Polars that evaluates the filter, and the
    rows that are selected."""
    condition, request = where.text if where else None, None if sample is None else sample.sample.to_json()
    without = None if selection.excludes is None else selection.excludes.id
    rows = hashlib.sha256(np.ascontiguousarray(selection.rows).tobytes()).hexdigest()
    parts = [_VERSION, snapshot.id, condition, request, without, rows, pl.__version__, measure.column, measure.name]
    return f"measures/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


def _table(row_groups: Int64s, measured: Int64s) -> pa.Table:
    columns = {f"measure_{number}": values for number, values in enumerate(measured.T)}
    return pa.table({"row_group": row_groups, **columns})


def _values(table: pa.Table, measure: RowMeasure) -> Int64s:
    return np.stack([table[f"measure_{number}"].to_numpy() for number in range(measure.width)], axis=1)


def _checked(tables: list[pa.Table] | None, measure: RowMeasure) -> pa.Table | None:
    """The one table that was kept; None if there is none, or it is inconsistent."""
    if tables is None or len(tables) != 1:
        return None
    (table,) = tables
    expected = _table(np.zeros(0, np.int64), np.zeros((0, measure.width), np.int64)).schema
    if not table.schema.equals(expected) or (np.diff(table["row_group"].to_numpy()) <= 0).any():
        return None
    return None if len(table) and _values(table, measure).min() < 0 else table


def _load(work_dir: str, name: str, row_groups: Int64s, measure: RowMeasure) -> pa.Table | None:
    table = _checked(KeptWaves(work_dir).load(name), measure)
    if table is None or not np.array_equal(table["row_group"].to_numpy(), row_groups):
        return None
    return table


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
