"""How many rows of each row group does a `where` keep, and at what price is that known.

Runs where a plan is made. Partition values and statistics judge every row group first (`pruning`): those that can keep
no row cost nothing, those that keep every row cost nothing either, and for the rest the counting pass reads the
filter's columns and counts. Counting tasks are small values that any `map` may run, in threads here or on a Dask
cluster. What was counted is kept under `work_dir/counts`, named by snapshot and filter, and used again by every later
run; a file there that is damaged or does not fit is counted anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.errors import DataError, TableError
from feedline.expressions import BoundExpression, bind_where
from feedline.warehouse import store
from feedline.warehouse.pruning import ALL, NONE, SOME, Pruning, prune
from feedline.warehouse.reading import UNCOUNTED, Fragment, bytes_of, count_fragment, fragment_at
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.statistics import statistics_of

_COUNTS_VERSION = 1
_TASK_ROWS = 2_000_000  # rows that one counting task reads: tenths of a second
_TASK_FILES = 32  # and files that it opens

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some of a table: row groups, and the rows stored in them."""

    row_groups: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReport:
    """What a filter did, for people: the four shares add up to the whole `table`.

    `by_partition`: pruned because of partition keys alone; `by_statistics`: pruned because of row-group statistics
    (or because the row group is empty); `whole`: taken whole without reading; `counted`: read by the counting pass.
    `kept`: row groups that keep at least one row, and the rows kept. `counted_bytes`: compressed bytes of the column
    chunks that the counting pass reads; `cached`: whether their counts were known from an earlier run.
    """

    table: Share
    by_partition: Share
    by_statistics: Share
    whole: Share
    counted: Share
    kept: Share
    counted_bytes: int
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Rows kept per row group (int64; UNCOUNTED where nobody counted), and how that came to be known."""

    rows: Int64s
    report: SelectionReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """Row groups to count: a small picklable value; the filter travels as text and is bound again where it runs."""

    fragments: tuple[Fragment, ...]
    where: str
    schema: pa.Schema


class Map(Protocol):
    """`map(function, tasks)`: the results in the order of the tasks, wherever they ran."""

    def __call__(
        self, function: Callable[[CountTask], tuple[int, ...]], tasks: list[CountTask], /
    ) -> Iterable[tuple[int, ...]]: ...


def select_rows(
    snapshot: Snapshot, where: BoundExpression | None, *, work_dir: str, map: Map | None = None
) -> Selection:
    """Count the rows that `where` keeps of each row group, reading as little as possible.

    Raises what reading raises: TableChangedError, CorruptFileError, TableError.
    """
    verdict = _verdict(snapshot, where)
    rows = _settled(snapshot, verdict)
    open_groups = np.flatnonzero(verdict.outcome == SOME)
    cached = False
    if where is not None and len(open_groups):
        name = _counts_name(snapshot, where)
        counts = _known_counts(work_dir, name, snapshot, open_groups)
        cached = counts is not None
        if counts is None:
            counts = _counted(snapshot, where, open_groups, map or _in_threads)
            _save_counts(work_dir, name, open_groups, counts)
        rows[open_groups] = counts
    return Selection(rows=rows, report=_report(snapshot, where, verdict, rows, cached=cached))


def screen_rows(snapshot: Snapshot, where: BoundExpression | None) -> Selection:
    """As `select_rows`, without reading anything: row groups that would have to be counted are UNCOUNTED."""
    verdict = _verdict(snapshot, where)
    rows = _settled(snapshot, verdict)
    return Selection(rows=rows, report=_report(snapshot, where, verdict, rows, cached=False))


def count_task(task: CountTask) -> tuple[int, ...]:
    """Run one task: the rows kept of each row group of each fragment, one after the other."""
    where = bound_again(task.where, task.schema)
    return tuple(count for fragment in task.fragments for count in count_fragment(fragment, where, task.schema))


@lru_cache(maxsize=8)
def bound_again(text: str, schema: pa.Schema) -> BoundExpression:
    """A filter that travelled as text, bound once per process."""
    return bind_where(text, schema)


def _verdict(snapshot: Snapshot, where: BoundExpression | None) -> Pruning:
    rows = snapshot.rows_per_row_group
    if where is None:
        return Pruning(outcome=np.where(rows > 0, ALL, NONE), by_partition=np.zeros(len(rows), np.bool_))
    return prune(where.predicate, statistics_of(snapshot, where.columns))


def _settled(snapshot: Snapshot, verdict: Pruning) -> Int64s:
    rows = np.where(verdict.outcome == ALL, snapshot.rows_per_row_group, 0)
    return np.where(verdict.outcome == SOME, UNCOUNTED, rows)


def _counted(snapshot: Snapshot, where: BoundExpression, row_groups: Int64s, map: Map) -> Int64s:
    tasks = list(_tasks(snapshot, where, row_groups))
    counts = [count for counts in map(count_task, tasks) for count in counts]
    if len(counts) != len(row_groups):
        raise DataError(f"counting pass is incomplete: got {len(counts)} counts, expected {len(row_groups)}")
    return np.asarray(counts, np.int64)


def _tasks(snapshot: Snapshot, where: BoundExpression, row_groups: Int64s) -> Iterator[CountTask]:
    """Fragments in the table's order, file by file, gathered into tasks of about `_TASK_ROWS`."""
    schema = pa.schema([snapshot.schema.field(name) for name in sorted(where.columns)])
    gathered: list[Fragment] = []
    rows = 0
    for part in _runs(snapshot, row_groups):
        gathered.append(
            fragment_at(snapshot, int(snapshot.file_of_row_group[part[0]]), part, np.full(len(part), UNCOUNTED))
        )
        rows += int(snapshot.rows_per_row_group[part].sum())
        if rows >= _TASK_ROWS or len(gathered) >= _TASK_FILES:
            yield CountTask(fragments=tuple(gathered), where=where.text, schema=schema)
            gathered, rows = [], 0
    if gathered:
        yield CountTask(fragments=tuple(gathered), where=where.text, schema=schema)


def _runs(snapshot: Snapshot, row_groups: Int64s) -> Iterator[Int64s]:
    """The row groups cut at the borders of files, and where they reach `_TASK_ROWS`."""
    file = snapshot.file_of_row_group[row_groups]
    total = np.cumsum(snapshot.rows_per_row_group[row_groups])
    part = total // _TASK_ROWS
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    yield from np.split(row_groups, borders)


def _in_threads(function: Callable[[CountTask], tuple[int, ...]], tasks: list[CountTask]) -> Iterator[tuple[int, ...]]:
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="feedline-count") as pool:
        try:
            yield from pool.map(function, tasks)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _counts_name(snapshot: Snapshot, where: BoundExpression) -> str:
    """Named by all that the counts depend on, the versions that evaluate the filter included."""
    parts = [_COUNTS_VERSION, snapshot.id, where.text, pl.__version__]
    return f"counts/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


def _known_counts(work_dir: str, name: str, snapshot: Snapshot, row_groups: Int64s) -> Int64s | None:
    try:
        (table,) = store.load(work_dir, name, tables=1)
    except (FileNotFoundError, TableError):
        return None
    if not np.array_equal(table["row_group"].to_numpy(), row_groups):
        return None  # counted by a version that pruned otherwise
    counts: Int64s = table["rows"].to_numpy()
    return None if (counts < 0).any() or (counts > snapshot.rows_per_row_group[row_groups]).any() else counts


def _save_counts(work_dir: str, name: str, row_groups: Int64s, counts: Int64s) -> None:
    store.create(work_dir, name, [pa.table({"row_group": row_groups, "rows": counts})])


def _report(
    snapshot: Snapshot, where: BoundExpression | None, verdict: Pruning, rows: Int64s, *, cached: bool
) -> SelectionReport:
    stored = snapshot.rows_per_row_group
    outcome = verdict.outcome

    def share(chosen: npt.NDArray[np.bool_], weights: Sequence[int] | Int64s = stored) -> Share:
        return Share(row_groups=int(chosen.sum()), rows=int(np.asarray(weights)[chosen].sum()))

    counted = outcome == SOME
    columns = [] if where is None else sorted(where.parts)
    return SelectionReport(
        table=share(np.ones(len(stored), np.bool_)),
        by_partition=share((outcome == NONE) & verdict.by_partition),
        by_statistics=share(verdict.by_statistics),
        whole=share(outcome == ALL),
        counted=share(counted),
        kept=share(rows > 0, rows),
        counted_bytes=bytes_of(snapshot, np.flatnonzero(counted), columns) if counted.any() else 0,
        cached=cached,
    )
