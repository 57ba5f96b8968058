"""Count the rows of every row group by the lengths of their lists: what buckets of rows are planned from.

Runs where a plan is made, its tasks wherever `map` runs them. A task reads one column, and those of filter and sample,
of row groups that keep rows. Counts are stored under `work_dir/lengths`, named by all that they depend on; those of an
interrupted pass are kept wave by wave.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.warehouse.reading.fragment import Fragment, count_excluded, field_of, gather
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.sample import BoundSample, Sample
from feedline.warehouse.selection.select import Selection, bind_once
from feedline.warehouse.selection.waves import FIRST_TASKS, next_tasks
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.kept_waves import KeptWaves, WaveProgress, report_progress
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.parallel import Map, in_threads

Int64s = NDArray[np.int64]

_VERSION = 1
_TASK_ROWS = 1_000_000
_TASK_FILES = 32

_now_s = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthCounts:
    """What is known of the lengths of each row group's kept rows. rows: int64 [row groups, buckets], those of each
    bucket; the last one has those beyond all bounds, too. elements: int64 [row groups], of all their lists, of each up
    to the last bound. longest: int64 [row groups]. beyond: int64 [row groups], the rows beyond all bounds."""

    rows: Int64s
    elements: Int64s
    longest: Int64s
    beyond: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTask:
    """Row groups to count: a small picklable value, with filter and sample unbound."""

    fragments: tuple[Fragment, ...]
    column: str
    bounds: tuple[int, ...]
    where: str | None
    sample: Sample | None
    schema: pa.Schema


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
    groups = np.flatnonzero(selection.rows > 0)
    name = _name(snapshot, where, sample, selection, column, bounds)
    kept = KeptWaves(work_dir)
    found = _load(kept, name, groups, selection.rows, len(bounds))
    if found is None:
        with content_store.lock_file(locate(absolute(work_dir)), f"runs/{name.replace('/', '-')}"):
            found = _load(kept, name, groups, selection.rows, len(bounds))
            if found is None:
                tasks = _tasks(snapshot, where, sample, selection, column, bounds)
                found = _count(tasks, groups, selection.rows, len(bounds), KeptWaves(work_dir), name, map or in_threads)
                content_store.create(work_dir, name, [_table(groups, found)])
                content_store.remove(work_dir, _begun(name))
    every = np.zeros((len(selection.rows), found.shape[1]), np.int64)
    every[groups] = found
    return LengthCounts(rows=every[:, :-3], elements=every[:, -3], longest=every[:, -2], beyond=every[:, -1])


def length_task(task: LengthTask) -> Int64s:
    """int64 [row groups of the task, buckets + 3]: rows by bucket, elements, the longest, and the rows beyond."""
    where, sample = bind_once(task.where, task.sample, task.schema)
    found = []
    for fragment in task.fragments:
        chunks = read_fragment(fragment, [task.column], where, task.schema, sample=sample)
        lengths = [list_lengths(chunk.frame.get_column(task.column)) for chunk in chunks]
        excluded = [count_excluded(bits) for bits in fragment.excluded] or [0] * len(fragment.expected)
        ends = np.cumsum(np.array(fragment.expected) - excluded)
        found += [_count_one(own, task.bounds) for own in np.split(np.concatenate(lengths), ends[:-1])]
    return np.array(found, np.int64)


def _count_one(lengths: Int64s, bounds: Sequence[int]) -> list[int]:
    rows = np.bincount(bucket_of(lengths, bounds), minlength=len(bounds)).tolist()
    elements = int(np.minimum(lengths, bounds[-1]).sum())
    return [*rows, elements, int(lengths.max(initial=0)), int(np.count_nonzero(lengths > bounds[-1]))]


def _count(
    tasks: Iterator[LengthTask], groups: Int64s, rows: Int64s, buckets: int, kept: KeptWaves, name: str, map: Map
) -> Int64s:
    """Count row groups in waves, after those that an interrupted pass counted."""
    before = kept.load(_begun(name))
    done = [] if before is None else [_counts_in(before[0])]
    tasks, size, total = _after(tasks, sum(len(each) for each in done)), FIRST_TASKS, int(rows[groups].sum())
    while wave := list(itertools.islice(tasks, size)):
        began_s = _now_s()
        done += map(length_task, wave)
        size = next_tasks(len(wave), _now_s() - began_s)
        counted = np.concatenate(done)
        if len(counted) < len(groups):
            kept.save(_begun(name), [_table(groups[: len(counted)], counted)])
        report_progress(
            WaveProgress(verb="measured the lists of", unit="rows", done=int(counted[:, :buckets].sum()), total=total)
        )
    found = np.concatenate(done)
    wrong = np.flatnonzero(found[:, :buckets].sum(axis=1) != rows[groups]) if len(found) == len(groups) else [0]
    if len(wrong):
        raise DataError(
            f"lengths were counted of other rows than the filter keeps: got {int(found[:, :buckets].sum()):,}, "
            f"expected {total:,}. Delete the counts in work_dir and run again"
        )
    return found


def _after(tasks: Iterator[LengthTask], row_groups: int) -> Iterator[LengthTask]:
    """The tasks after those of the first row groups. Waves end where tasks do."""
    for task in tasks:
        size = sum(len(fragment.row_groups) for fragment in task.fragments)
        if row_groups <= 0:
            yield task
        row_groups -= size


def _tasks(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    selection: Selection,
    column: str,
    bounds: tuple[int, ...],
) -> Iterator[LengthTask]:
    """Tasks of about `_TASK_ROWS` rows: fragments in the table's order, file by file."""
    names = {column} | (where.columns if where else frozenset()) | (sample.columns if sample else frozenset())
    schema = pa.schema([field_of(snapshot.schema, name) for name in sorted(names)])
    groups = np.flatnonzero(selection.rows > 0)
    file = snapshot.file_of_row_group[groups]
    part = np.cumsum(selection.rows[groups]) // _TASK_ROWS
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    fragments = (
        (selection.fragment(snapshot, own), int(selection.rows[own].sum())) for own in np.split(groups, borders)
    )
    for gathered in gather(fragments, _TASK_ROWS, _TASK_FILES):
        yield LengthTask(
            fragments=gathered,
            column=column,
            bounds=bounds,
            where=where.text if where else None,
            sample=sample.sample if sample else None,
            schema=schema,
        )


def _name(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    selection: Selection,
    column: str,
    bounds: tuple[int, ...],
) -> str:
    """A name from all that the counts depend on, with the version of Polars that evaluates the filter, and the rows
    that are selected."""
    request = None if sample is None else asdict(sample.sample)
    rows = hashlib.sha256(np.ascontiguousarray(selection.rows).tobytes()).hexdigest()
    without = None if selection.excludes is None else selection.excludes.id
    condition = where.text if where else None
    parts = [_VERSION, snapshot.id, condition, request, without, rows, column, bounds, pl.__version__]
    return f"lengths/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


def _begun(name: str) -> str:
    return name.replace(".arrow", ".begun.arrow")


def _table(groups: Int64s, counts: Int64s) -> pa.Table:
    columns = [groups, *counts.T]
    return pa.table(
        [np.ascontiguousarray(each) for each in columns], names=[str(index) for index in range(len(columns))]
    )


def _counts_in(table: pa.Table) -> Int64s:
    return np.stack([column.to_numpy() for column in table.columns[1:]], axis=1)


def _load(kept: KeptWaves, name: str, groups: Int64s, rows: Int64s, buckets: int) -> Int64s | None:
    """The kept counts; None where there are none, or they are not those of these row groups."""
    tables = kept.load(name)
    if tables is None or len(tables) != 1 or tables[0].num_columns != buckets + 4:
        return None
    found = _counts_in(tables[0])
    if not np.array_equal(tables[0].column(0).to_numpy(), groups):
        return None
    return found if np.array_equal(found[:, :buckets].sum(axis=1), rows[groups]) else None
