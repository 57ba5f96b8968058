"""Measure row groups in one pass over a table: integers of each, in waves of tasks, kept in `work_dir`.

Runs where a plan is made, its tasks wherever `map` runs them. A wave takes about `WAVE_S` at the pace of the one
before. The results of finished waves are kept, so that an interrupted pass resumes; a damaged or inconsistent file is
ignored. Of ranks that start together, one measures for all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.progress import report_progress
from feedline.warehouse.bad_files import BadFilesFoundError
from feedline.warehouse.reading.fragment import Fragment, gather
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.parallel import Map

WAVE_S = 30.0
FIRST_TASKS = 64
_MOST_TASKS = 4096  # per wave, of up to 32 files each: 130 MB of tasks
_GROWTH = 4
_TASK_ROWS = 2_000_000  # rows that one task reads: tenths of a second
_TASK_FILES = 32  # files that one task opens

Int64s = npt.NDArray[np.int64]
_now_s = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What to measure of each row group: `columns`, integers from 0.

    `name`: of the file of results, from all that they depend on; `phase`: of progress. `fragment`: reads some row
    groups of one file. `task`: a small picklable value, yet without its fragments; `run` returns a row of integers for
    each row group of a task.
    """

    snapshot: Snapshot
    name: str
    columns: tuple[str, ...]
    phase: str
    fragment: Callable[[Int64s], Fragment]
    task: Any
    run: Callable[[Any], Iterable[Any]]
    work_dir: str
    map: Map

    def table(self, row_groups: npt.ArrayLike = (), measured: npt.ArrayLike = ()) -> pa.Table:
        groups = np.asarray(row_groups, np.int64)
        values = np.asarray(measured, np.int64).reshape(len(groups), len(self.columns))
        return pa.table({"row_group": groups, **dict(zip(self.columns, values.T, strict=True))})

    def values(self, table: pa.Table) -> Int64s:
        """int64 [row groups of the table, columns]."""
        return np.stack([table[name].to_numpy() for name in self.columns], axis=1)

    def load(self, kept: KeptWaves, name: str, snapshot: Snapshot | None = None) -> pa.Table | None:
        """The results kept under a name, of this snapshot or another; None without any, and if inconsistent."""
        tables, rows = kept.load(name) or [], (snapshot or self.snapshot).rows_per_row_group
        if len(tables) != 1 or not tables[0].schema.equals(self.table().schema):
            return None
        (table,) = tables
        row_groups = table["row_group"].to_numpy()
        outside = len(table) and (row_groups[0] < 0 or row_groups[-1] >= len(rows) or self.values(table).min() < 0)
        return None if outside or (np.diff(row_groups) <= 0).any() else table


def measure_in_waves(
    request: Pass, row_groups: Int64s, known: Callable[[KeptWaves], pa.Table] | None = None
) -> tuple[Int64s, bool]:
    """int64 [row groups, columns]: the integers of these row groups, and whether an earlier pass has left them.

    `known`: finds those of some row groups otherwise. Raises what the tasks raise, and BadFilesFoundError, with all bad
    files, after everything else was measured.
    """

    def load() -> pa.Table | None:
        table = request.load(KeptWaves(request.work_dir), request.name)
        return table if table is not None and np.array_equal(table["row_group"].to_numpy(), row_groups) else None

    table = load()
    if stored := table is not None:
        return request.values(table), stored
    with content_store.lock_file(locate(absolute(request.work_dir)), f"runs/{request.name.replace('/', '-')}"):
        table = load()
        if stored := table is not None:
            return request.values(table), stored
        kept = KeptWaves(request.work_dir)
        before = request.table() if known is None else known(kept)
        rest = np.setdiff1d(row_groups, before["row_group"].to_numpy())
        measured = [_measure(request, rest, kept)] if len(rest) else []
        table = pa.concat_tables([before, *measured]).sort_by("row_group").combine_chunks()
        content_store.create(request.work_dir, request.name, [table])
        kept.forget()
    return request.values(table), stored


def next_tasks(tasks: int, seconds: float) -> int:
    """Return the number of tasks in the next wave, after one of `tasks` tasks that took `seconds`."""
    # 64 tasks in 0.5 s -> 256, four times as many; 256 in 60 s -> 128, which take 30 s
    most = min(_GROWTH * tasks, _MOST_TASKS)
    return most if seconds <= 0 else max(1, int(min(most, tasks * WAVE_S / seconds)))


def _measure(request: Pass, row_groups: Int64s, kept: KeptWaves) -> pa.Table:
    begun, stored = request.name.replace(".arrow", ".begun.arrow"), request.snapshot.rows_per_row_group
    done = request.load(kept, begun)
    done = request.table() if done is None else done
    done = done.filter(pa.array(np.isin(done["row_group"].to_numpy(), row_groups)))
    missing = np.setdiff1d(row_groups, done["row_group"].to_numpy())
    total, ends = int(stored[row_groups].sum()), np.cumsum(stored[missing])
    rows_before = total - int(stored[missing].sum())
    report_progress(request.phase, rows_before, total, "rows")
    bad: dict[str, str] = {}
    tasks, first, size = _tasks(request, missing), 0, FIRST_TASKS
    while wave := list(itertools.islice(tasks, size)):
        stop = first + sum(len(fragment.row_groups) for task in wave for fragment in task.fragments)
        groups, began_s, measured = missing[first:stop], _now_s(), list[Any]()
        try:
            for values in request.map(request.run, wave):
                measured.extend(values)
                last = min(first + len(measured), len(ends)) - 1
                report_progress(request.phase, rows_before + int(ends[last]), total, "rows")
        except BadFilesFoundError as error:
            bad |= error.reasons
            continue
        finally:
            first = stop
        done = pa.concat_tables([done, request.table(groups, measured)]).sort_by("row_group").combine_chunks()
        size = next_tasks(len(wave), _now_s() - began_s)
        if first < len(missing):
            kept.save(begun, [done])
    if bad:
        kept.forget()
        raise BadFilesFoundError(bad)
    return done


def _tasks(request: Pass, row_groups: Int64s) -> Iterator[Any]:
    """Yield tasks of about `_TASK_ROWS` rows: fragments in the table's order, file by file."""
    if not len(row_groups):
        return
    stored, file = request.snapshot.rows_per_row_group, request.snapshot.file_of_row_group[row_groups]
    part = np.cumsum(stored[row_groups]) // _TASK_ROWS
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    parts = np.split(row_groups, borders)
    fragments = ((request.fragment(groups), int(stored[groups].sum())) for groups in parts)
    for group in gather(fragments, _TASK_ROWS, _TASK_FILES):
        yield replace(request.task, fragments=group)
