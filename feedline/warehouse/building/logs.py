"""Find which partitions the impressions of a log make, and which files a partition reads.

Runs where a table is built. Footers give the times of row groups; where a row group has none, or covers more than two
partitions, the times themselves are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.config.build_spec import BuildSpec
from feedline.dataclass import dataclass
from feedline.expressions import bind_where
from feedline.warehouse.building.design import Log, log_tables
from feedline.warehouse.building.periods import Window
from feedline.warehouse.building.record import Inputs
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.optimize.landing import refuse_overlap
from feedline.warehouse.optimize.survey import file_fragment, fragment_of_group
from feedline.warehouse.reading.fragment import Fragment, gather
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import CountTask, Selection, count_task, screen_rows
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.file_identity import stamp_at_index
from feedline.warehouse.storage.parallel import Map

Int64s = NDArray[np.int64]

_TASK_BYTES, _TASK_ROWS, _TASK_GROUPS = 48 << 20, 1 << 18, 64  # stored bytes and rows of a task that reads
_FEW_PERIODS = 2  # of which footers know both: the least and the greatest time are in one each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTimes:
    """A log's snapshot, and int64 [row groups]: the least and greatest time of each, in the timeline's unit.

    Row groups without rows, or with nulls alone, have none: their `low` is above their `high`. timeless: rows of the
    log without a time.
    """

    log: Log
    snapshot: Snapshot
    low: Int64s
    high: Int64s
    timeless: int

    @property
    def newest(self) -> int | None:
        held = self.high[self.high >= self.low]
        return int(held.max()) if len(held) else None

    def inputs(self, window: Window, rows: int) -> Inputs:
        """The files that have, or may have, rows in a window."""
        return Inputs(files=self.files(window), rows=rows)

    def files(self, window: Window) -> dict[str, tuple[int, int, str]]:
        groups = np.flatnonzero(window.overlaps(self.low, self.high) & (self.high >= self.low))
        files = np.unique(self.snapshot.file_of_row_group[groups]).tolist()
        stamps = [(self.snapshot.path_of(file), stamp_at_index(self.snapshot.files, file)) for file in files]
        return {path: (stamp.size_bytes, stamp.mtime_ns, stamp.tag or "") for path, stamp in stamps}

    def selection(self, window: Window) -> Selection:
        """The row groups that may have rows in a window."""
        return screen_rows(self.snapshot, bind_where(self.log.filter(window), self.snapshot.schema))

    def runs(self, window: Window) -> tuple[list[tuple[Fragment, ...]], int]:
        """Runs of row groups that tasks read, and the most rows that they hold."""
        selection = self.selection(window)
        groups = np.flatnonzero(selection.rows)
        rows = self.snapshot.rows_per_row_group
        stored = contiguous(self.snapshot.row_groups["bytes"]).to_numpy()
        sized = [
            (
                selection.fragment(self.snapshot, np.array([group])),
                max(int(stored[group]), int(rows[group]) * _TASK_BYTES // _TASK_ROWS),
            )
            for group in groups.tolist()
        ]
        return list(gather(sized, _TASK_BYTES, _TASK_GROUPS)), int(rows[groups].sum())

    def count(self, window: Window, map: Map) -> int:
        """The rows in a window, reading its time only of row groups across its ends."""
        selection = self.selection(window)
        known = int(selection.rows[selection.rows > 0].sum())
        where = self.log.filter(window)
        needed = bind_where(where, self.snapshot.schema).columns
        schema = pa.schema([self.snapshot.schema.field(name) for name in sorted(needed)])
        tasks = [
            CountTask(
                fragments=(selection.fragment(self.snapshot, np.array([group])),),
                where=where,
                sample=None,
                schema=schema,
            )
            for group in np.flatnonzero(selection.rows < 0).tolist()
        ]
        return known + sum(int(count.rows) for counts in map(count_task, tasks) for count in counts)

    def periods(self, map: Map) -> Int64s:
        """int64: the partitions in which some row lies, ascending."""
        timeline = self.log.timeline
        first, last = timeline.periods(self.low), timeline.periods(self.high)
        held = self.high >= self.low
        wide = held & (last - first >= _FEW_PERIODS)
        found = [first[held & ~wide], last[held & ~wide]]
        fragments = [self._group(group) for group in np.flatnonzero(wide).tolist()]
        found += map(partial(_periods_of, log=self.log), fragments)
        return np.unique(np.concatenate(found))

    def _group(self, group: int) -> Fragment:
        file = int(self.snapshot.file_of_row_group[group])
        return fragment_of_group(file_fragment(self.snapshot, file), int(self.snapshot.row_group_in_file[group]))


def take_logs(spec: BuildSpec) -> dict[str, Snapshot]:
    """The snapshots of a spec's logs, by name. Raises TableArgumentError where the table to write lies in one."""
    tables = log_tables(spec)
    for table in tables.values():
        refuse_overlap([table] if isinstance(table, str) else table, spec.out.table)
    return {name: snapshot_of(list_table(table)) for name, table in tables.items()}


def log_times(log: Log, snapshot: Snapshot, map: Map) -> LogTimes:
    """The times of a log's row groups, from footers or, where these have none, from the rows."""
    facts = snapshot.column_facts(log.time)
    rows, nulls = snapshot.rows_per_row_group, facts.field("nulls").to_numpy()
    low, high = (facts.field(side) for side in ("min", "max"))
    known = low.is_valid().to_numpy(zero_copy_only=False)
    empty = (rows == 0) | (nulls == rows)
    lows, highs = np.full(len(rows), 1), np.zeros(len(rows), np.int64)
    timeless = int(nulls[nulls > 0].sum())
    for bounds, side in ((lows, low), (highs, high)):
        bounds[known] = log.in_units(side.filter(pa.array(known)).view(pa.int64()).to_numpy(zero_copy_only=False))
    unknown = np.flatnonzero(~known & ~empty)
    whole = LogTimes(log=log, snapshot=snapshot, low=lows, high=highs, timeless=0)
    read = map(partial(_bounds_of, log=log), [whole._group(group) for group in unknown.tolist()])
    for group, (least, greatest, without) in zip(unknown.tolist(), read, strict=True):
        lows[group], highs[group] = least, greatest
        timeless += without if nulls[group] < 0 else 0
    return LogTimes(log=log, snapshot=snapshot, low=lows, high=highs, timeless=timeless)


def files_digest(times: Mapping[str, LogTimes], windows: Mapping[str, Window]) -> str:
    """A digest of the files that a partition would read now."""
    files = {name: sorted(times[name].files(window).items()) for name, window in windows.items()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:32]


def _periods_of(fragment: Fragment, log: Log) -> Int64s:
    return np.unique(log.timeline.periods(_times_of(fragment, log)[0]))


def _bounds_of(fragment: Fragment, log: Log) -> tuple[int, int, int]:
    times, timeless = _times_of(fragment, log)
    return (int(times.min()), int(times.max()), timeless) if len(times) else (1, 0, timeless)


def _times_of(fragment: Fragment, log: Log) -> tuple[Int64s, int]:
    table = read_arrow(fragment, ReadRequest((log.time,), log.schema))
    held = table.filter(table[log.time].is_valid())
    return log.times(held), table.num_rows - held.num_rows
