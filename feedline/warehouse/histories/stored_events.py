"""The events of a history in the files of its table, opened once per process.

Runs in every process that computes blocks. The files are in the layout of `optimize --history`: the events of a key lie
together in one of them, in the order of their times, and an index in its footer says where, and from when each stripe
of its rows is. So only the stripes that rows may see are read. Events are addressed by their place in all files laid
end to end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.errors import TableChangedError, TableError
from feedline.native.rows import TURN, bisect
from feedline.warehouse.histories.event_index import EventIndex, HashRanges, hashes_of, read_event_index
from feedline.warehouse.histories.kept_groups import KeptGroups, columns_of
from feedline.warehouse.reading.fragment import Fragment, fragment_at
from feedline.warehouse.reading.row_ranges import read_ranges
from feedline.warehouse.snapshot.history_ref import HistoryRef
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import in_threads

Int64s = NDArray[np.int64]

_OPEN_TABLES = 8
_INDEX_BYTES = 64 * 2**20  # of the indexes that a process keeps of a table
_LONG_VALUE = 32  # bytes of a string


class StoredEvents:
    """The events of a snapshot's files. ranges: the keys of each. Threads share it."""

    def __init__(self, snapshot: Snapshot, ranges: HashRanges, time: str, memory: int) -> None:
        self._snapshot = snapshot
        self.schema = snapshot.schema
        self._ranges = ranges
        rows = np.asarray(snapshot.files["rows"], np.int64)
        self._borders = np.concatenate([[0], np.cumsum(rows)])
        self._indexes = _Indexes(snapshot)
        self._groups = [_row_groups(snapshot, file) for file in range(len(rows))]
        self._kept = KeptGroups(memory)
        self.has_null_times = bool((snapshot.column_part(time, "nulls") != 0).any())
        self.bytes_read = 0

    def index(self, file: int) -> EventIndex:
        """That of a file."""
        return self._indexes.get(file)

    def count_keys(self) -> int:
        """The keys of all files, of which each index is read."""
        return sum(len(self.index(file).keys) for file in range(len(self._groups)))

    def find(self, keys: pl.Series) -> tuple[Int64s, Int64s]:
        """As of `join.Events`."""
        changes = keys.ne_missing(keys.shift()).to_numpy()
        begins = np.union1d([0], np.flatnonzero(changes))[: len(keys)]  # a null first key does not change
        if 2 * len(begins) < len(keys):  # rows of one key, one after another, share a look-up
            starts, stops = self._find(keys.gather(begins))
            repeats = np.diff(begins, append=len(keys))
            return np.repeat(starts, repeats), np.repeat(stops, repeats)
        return self._find(keys)

    def _find(self, keys: pl.Series) -> tuple[Int64s, Int64s]:
        starts, stops = np.zeros((2, len(keys)), np.int64)
        first, last = self._ranges.candidates(hashes_of(keys))
        for turn in range(int((last - first).max(initial=0))):  # once, unless keys of one hash lie in several files
            which = np.where(first + turn < last, first + turn, -1)
            for place in np.unique(which[which >= 0]).tolist():
                rows = np.flatnonzero(which == place)
                file = int(self._ranges.files[place])
                own_starts, own_stops = self.index(file).runs(keys.gather(rows))
                found = own_stops > own_starts
                starts[rows[found]] = own_starts[found] + self._borders[file]
                stops[rows[found]] = own_stops[found] + self._borders[file]
        return starts, stops

    def narrow(self, starts: Int64s, stops: Int64s, before: Int64s) -> tuple[Int64s, Int64s]:
        """As of `join.Events`."""
        low, high = starts.copy(), stops.copy()
        for file, rows in self._by_file(starts, stops):
            index, border = self.index(file), self._borders[file]
            start, stop, stripe = starts[rows] - border, stops[rows] - border, index.stripe_rows
            # stripes that begin within [start, stop): the last one of those from before the time may hold the border
            first, end = start // stripe + 1, -(-stop // stripe)
            place = bisect(index.times, first, np.maximum(first, end), before[rows])
            low[rows] = np.maximum(start, (place - 1) * stripe) + border
            high[rows] = np.minimum(stop, place * stripe) + border
        return low, high

    def read(self, columns: Sequence[str], ranges: Int64s) -> pa.Table:
        """As of `join.Events`."""
        self._kept.begin()
        fields = [self.schema.field(name) for name in columns]
        tables = [table for file, own in self._split(ranges) for table in self._read_file(file, columns, own)]
        return pa.concat_tables([pa.schema(fields).empty_table(), *tables])

    def _read_file(self, file: int, columns: Sequence[str], ranges: Int64s) -> list[pa.Table]:
        """The rows of ranges of a file, in parts: those of row groups that are kept, and all others."""
        tables: list[pa.Table] = []
        waiting: list[Int64s] = []  # of row groups that are not kept, one after another
        for group, own in _cut(self._groups[file], ranges):
            kept = self._kept_of(file, group, columns, own)
            if kept is None:
                waiting.append(own)
                continue
            if waiting:
                tables.append(self._read_ranges(file, columns, np.concatenate(waiting)))
                waiting = []
            places = pa.array(_positions(own - self._groups[file][group]))
            fields = pa.schema([self.schema.field(name) for name in columns])
            tables.append(pa.Table.from_arrays([kept[name].take(places) for name in columns], schema=fields))
        if waiting:
            tables.append(self._read_ranges(file, columns, np.concatenate(waiting)))
        return tables

    def _kept_of(self, file: int, group: int, columns: Sequence[str], ranges: Int64s) -> dict[str, pa.Array] | None:
        """The columns of a row group that is kept, or is kept from now on; else None."""
        found = self._kept.find((file, group), columns)
        if found is None:
            start, stop = self._groups[file][group : group + 2].tolist()
            nbytes = (stop - start) * sum(self.value_bytes(name) for name in columns)
            is_whole = int((ranges[:, 1] - ranges[:, 0]).sum()) == stop - start
            if not is_whole and self._kept.is_worth_keeping((file, group), columns, nbytes):
                found = columns_of(self._read_ranges(file, columns, np.array([[start, stop]])))
                self._kept.keep((file, group), found)
        return found

    def value_bytes(self, name: str) -> int:
        """About as many as a decoded value takes."""
        kind = self.schema.field(name).type
        return max(1, kind.bit_width // 8) if pat.is_primitive(kind) else _LONG_VALUE

    def _read_ranges(self, file: int, columns: Sequence[str], ranges: Int64s) -> pa.Table:
        with _events_changed():
            found = read_ranges(_fragment(self._snapshot, file), columns, self.schema, ranges)
        with TURN:
            self.bytes_read += found.bytes_read
        return found.table

    def _by_file(self, starts: Int64s, stops: Int64s) -> Iterator[tuple[int, Int64s]]:
        """The rows whose events lie in each file."""
        file = np.where(stops > starts, np.searchsorted(self._borders, starts, side="right") - 1, -1)
        for each in np.unique(file[file >= 0]).tolist():
            yield each, np.flatnonzero(file == each)

    def _split(self, ranges: Int64s) -> Iterator[tuple[int, Int64s]]:
        """The ranges in each file, in rows of it."""
        return ((file, own - self._borders[file]) for file, own in _cut(self._borders, ranges))


def _cut(borders: Int64s, ranges: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Ranges, cut at borders: the parts between two of these, for each pair that has any."""
    # borders 0, 10 and 15: [8, 12) is [8, 10) of the first part, and [10, 12) of the second
    first = np.searchsorted(borders, ranges[:, 0], side="right") - 1
    last = np.searchsorted(borders, ranges[:, 1]) - 1
    parts = np.arange(len(borders))
    firsts, stops = np.searchsorted(last, parts), np.searchsorted(first, parts, side="right")
    for part in np.flatnonzero(firsts[:-1] < stops[:-1]).tolist():
        yield part, np.clip(ranges[firsts[part] : stops[part]], borders[part], borders[part + 1])


def _positions(ranges: Int64s) -> Int64s:
    """The integers of ranges, laid end to end."""
    lengths = ranges[:, 1] - ranges[:, 0]
    before = np.cumsum(lengths) - lengths
    positions: Int64s = np.arange(lengths.sum()) + np.repeat(ranges[:, 0] - before, lengths)
    return positions


class _Indexes:
    """The indexes of a table's files, read when they are needed; the ones used last are kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, EventIndex] = OrderedDict()
        self._nbytes = 0

    def get(self, file: int) -> EventIndex:
        with self._lock:
            if file in self._kept:
                self._kept.move_to_end(file)
                return self._kept[file]
        index = _index(_fragment(self._snapshot, file))
        with self._lock:
            if file not in self._kept:
                self._kept[file] = index
                self._nbytes += index.nbytes
            while self._nbytes > _INDEX_BYTES and len(self._kept) > 1:
                self._nbytes -= self._kept.popitem(last=False)[1].nbytes
        return index


def ranges_of(snapshot: Snapshot, work_dir: str) -> HashRanges:
    """Which file of a table may hold a key, from the indexes of all files, kept in work_dir. Raises TableError for a
    file without an index, and for files whose keys overlap."""
    name = f"histories/{snapshot.id}.ranges.arrow"
    try:
        [table] = content_store.load(work_dir, name, tables=1)
    except FileNotFoundError:
        files = [_fragment(snapshot, file) for file in range(len(snapshot.files))]
        ranges = HashRanges.of(list(in_threads(_index, files)), redact(snapshot.uri))
        table = pa.table({"file": ranges.files, "low": ranges.lows, "high": ranges.highs})
        content_store.create(work_dir, name, [table])
        return ranges
    return HashRanges(files=table["file"].to_numpy(), lows=table["low"].to_numpy(), highs=table["high"].to_numpy())


def _fragment(snapshot: Snapshot, file: int) -> Fragment:
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, snapshot.rows_per_row_group[groups])


@contextmanager
def _events_changed() -> Iterator[None]:
    """Say what to do about a file of events that is another now; no rebase is of events."""
    try:
        yield
    except TableChangedError as error:
        problem = str(error).partition(". ")[0]
        raise TableChangedError(
            f"{problem}. It holds events of a history: restore the generation that the run reads, or begin again, from "
            'a state with load_state_dict(state, features="changed")'
        ) from error


def _index(fragment: Fragment) -> EventIndex:
    with _events_changed(), fragment.open() as file:
        index = read_event_index(file.metadata.metadata, fragment.uri)
        rows = file.metadata.num_rows
    if index is None or index.rows != rows:
        raise TableError(
            f"{fragment.uri} has no index of histories: expected a file that feedline optimize --history wrote. Write "
            "the table again with it"
        )
    return index


def _row_groups(snapshot: Snapshot, file: int) -> Int64s:
    """int64 [row groups + 1]: the rows of a file at which they begin, and its rows."""
    rows = snapshot.rows_per_row_group[snapshot.row_groups_of(file)]
    return np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])


@lru_cache(maxsize=_OPEN_TABLES)
def _events(work_dir: str, id: str, time: str, memory: int) -> StoredEvents:
    snapshot = Snapshot.load(work_dir, id)
    return StoredEvents(snapshot, ranges_of(snapshot, work_dir), time, memory)


def events_of(history: HistoryRef) -> StoredEvents:
    """The events of a history, opened on first use."""
    return _events(history.work_dir, history.snapshot, history.columns.time, history.memory)
