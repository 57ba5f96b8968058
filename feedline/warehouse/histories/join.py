"""Join rows with the events that they see: a column of lists for each read of a history.

Runs in: every process that computes blocks or serves. A list comes as codes: positions among the events that were
loaded for the rows, whose values are a dictionary, so that ops are computed once per event, however many rows see it.
A row sees the events of its key whose time is before its own, less the lag, and that were known then; of each pool the
last ones, in the order of (time, tie break, place in the table).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.config.histories import HistoryRead
from feedline.dataclass import dataclass
from feedline.errors import DataError, TableArgumentError
from feedline.expressions import BoundExpression, bind_where
from feedline.native.rows import bisect, last_events
from feedline.warehouse.histories.moments import NO_TIME, Clock, clock, integers
from feedline.warehouse.histories.recent_events import RecentEvents, check_recent
from feedline.warehouse.parquet.schemas import is_text
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.history_ref import EventColumns

Int64s = NDArray[np.int64]

_FEW_POOLS = 8
_MOST_ELEMENTS = 16_000_000  # of lists, that are joined at once


class Events(Protocol):
    """A table of events, in the order of their keys and times. Events are addressed by their place in it."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def has_null_times(self) -> bool: ...

    def find(self, keys: pl.Series) -> tuple[Int64s, Int64s]:
        """int64 [rows] each: the events [start, stop) of each key, those without a time first; (0, 0) of none."""
        ...

    def narrow(self, starts: Int64s, stops: Int64s, before: Int64s) -> tuple[Int64s, Int64s]:
        """int64 [rows] each: [low, high], within [start, stop], in which the first event lies that is not before a
        time."""
        ...

    def read(self, columns: Sequence[str], ranges: Int64s) -> pa.Table:
        """The events of ranges, int64 [n, 2], ascending and disjoint, laid end to end."""
        ...


@dataclass(frozen=True, slots=True)
class _Selection:
    """Reads of the same events. columns: of each, or None of the tag, the column of lists."""

    read: HistoryRead
    clock: Clock
    known: Clock | None
    known_at: str | None
    pools: tuple[BoundExpression | None, ...]
    columns: tuple[tuple[str | None, str], ...]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The columns that decide which events a row sees, and of which pools they are."""
        names = {name for pool in self.pools if pool is not None for name in pool.columns}
        return tuple(sorted(names if self.known_at is None else {*names, self.known_at}))

    @property
    def is_tagged(self) -> bool:
        return any(column is None for column, _ in self.columns)

    @property
    def lasts(self) -> Int64s:
        """int64 [pools, 1]: the most events of each."""
        return np.array([[pool.last] for pool in self.read.pools], np.int64)

    def recent(self, frame: pl.DataFrame, time: str) -> RecentEvents | None:
        """The events that rows carry themselves; None where they carry none."""
        return RecentEvents(frame.get_column(self.read.recent), time) if self.read.recent else None

    def bits(self, events: pl.DataFrame) -> NDArray[np.uint32] | None:
        """uint32 [events]: the pools that each is of; None if all are of the only one."""
        if self.pools == (None,):
            return None
        bits = np.zeros(events.height, np.uint32)
        for pool, where in enumerate(self.pools):
            kept = True if where is None else events.select(where.polars.fill_null(False)).to_series().to_numpy()
            bits |= np.uint32(1 << pool) * kept
        return bits


class HistoryJoin:
    """The reads of one history, bound to the columns of its rows and its events.

    Raises TableArgumentError for a column that is not there, and for keys or times that cannot be compared.
    """

    def __init__(self, columns: EventColumns, reads: Iterable[HistoryRead], rows: pa.Schema, events: pa.Schema) -> None:
        self._columns = columns
        check_keys(columns, rows, events)
        of_selection: dict[HistoryRead, list[tuple[str | None, str]]] = {}
        for read in dict.fromkeys(reads):
            of_selection.setdefault(read.selection, []).append((read.column, read.name))
        self._selections = [_bind(columns, read, tuple(own), rows, events) for read, own in of_selection.items()]

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of rows that are needed."""
        own = [name for selection in self._selections for name in selection.read.row_columns]
        return tuple(dict.fromkeys([self._columns.on, *own]))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of lists."""
        return tuple(name for selection in self._selections for _, name in selection.columns)

    def find(self, events: Events, frame: pl.DataFrame) -> Int64s:
        """int64 [2, rows]: the first and the end of the events of each row's key."""
        return np.stack(events.find(frame.get_column(self._columns.on)))

    def cuts(self, found: Int64s, parts: int = 1) -> list[int]:
        """Where to cut rows, so that not too many events are joined at once: [0, …, rows]. found: as of `find`. parts:
        as many at once as this number of parts has otherwise."""
        held = found[1] - found[0]
        elements = np.zeros(len(held), np.int64)
        for selection in self._selections:
            elements += np.minimum(held, selection.read.most)
        part = (np.cumsum(elements) - elements) // (parts * _MOST_ELEMENTS)
        return [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(held)] if len(held) else [0, 0]

    def join(
        self, events: Events, frame: pl.DataFrame, found: Int64s | None = None
    ) -> tuple[list[pl.Series], dict[str, pa.Array]]:
        """The columns of lists, of codes (List(Int32)), and the values that these stand for.

        frame: `row_columns`, and any others. A row without a key or a time, or whose key has no events, has none.
        found: as of `find`, of these rows.
        """
        chosen = self._chosen(events, frame, self.find(events, frame) if found is None else found)
        loads = _Loads()
        for index, (selection, choice) in enumerate(zip(self._selections, chosen, strict=True)):
            columns = [column for column, _ in selection.columns if column is not None]
            loads.add(index, columns, choice.first, choice.stop)
        loads.load(events)
        series: list[pl.Series] = []
        values: dict[str, pa.Array] = {}
        for index, (selection, choice) in enumerate(zip(self._selections, chosen, strict=True)):
            together: dict[int, _Lists] = {}  # columns that were loaded together have the same codes
            for column, name in selection.columns:
                if column is None:
                    lists, entries = choice.tags(len(selection.pools))
                else:
                    entries, base, group = loads.column(index, column)
                    if group not in together:
                        together[group] = choice.codes(base, len(entries))
                    lists = together[group]
                    entries = choice.with_recent(entries, column)
                series.append(lists.series(name, entries))
                values[name] = entries
        return series, values

    def lengths(self, events: Events, frame: pl.DataFrame) -> Int64s:
        """int64 [rows]: how many events each row sees, of a join of reads of the same ones."""
        [choice] = self._chosen(events, frame, self.find(events, frame))
        return choice.lengths

    def _chosen(self, events: Events, frame: pl.DataFrame, found: Int64s) -> list[_Choice]:
        """Which events each row sees, of each selection."""
        ats = [integers(frame.get_column(selection.read.at)) for selection in self._selections]
        recent = [self._recent(selection, frame, at) for selection, at in zip(self._selections, ats, strict=True)]
        ranges = self._before(events, found[0], found[1], ats, recent)
        return self._choose(events, ranges, ats, recent)

    def _recent(self, selection: _Selection, frame: pl.DataFrame, at: Int64s) -> _Recent | None:
        """Which of the events that rows carry themselves they see."""
        own = selection.recent(frame, self._columns.time)
        if own is None:
            return None
        stops = bisect(own.times, own.starts, own.stops, selection.clock.before(at))
        first = np.maximum(own.starts, stops - selection.read.scan) if selection.read.scan else own.starts
        rows = np.stack([first, stops, first])
        lasts = np.ascontiguousarray(np.broadcast_to(selection.lasts, (len(selection.lasts), len(at))))
        offsets, places, tags = last_events(rows, None, selection.bits(own.events), lasts, tagged=True)
        assert tags is not None
        row = np.repeat(np.arange(len(at)), np.diff(offsets))
        taken = [np.bincount(row, tags >> np.uint32(pool) & np.uint32(1), len(at)) for pool in range(len(lasts))]
        return _Recent(own, stops - first, offsets, places, tags, lasts - np.stack(taken).astype(np.int64))

    def _before(
        self,
        events: Events,
        starts: Int64s,
        stops: Int64s,
        ats: Sequence[Int64s],
        recent: Sequence[_Recent | None],
    ) -> list[tuple[Int64s, Int64s]]:
        """Of each selection the events of each row that are before its time, the last so many if they are scanned."""
        time, loads = self._columns.time, _Loads()
        if events.has_null_times:
            starts = self._first_since(events, starts, stops, np.full(len(starts), NO_TIME + 1))
        found = []
        for index, (selection, at, own) in enumerate(zip(self._selections, ats, recent, strict=True)):
            before = selection.clock.before(at)
            before = before if own is None else np.minimum(before, own.events.first_times)
            ends = np.where(before == NO_TIME, starts, stops)
            low, high = events.narrow(starts, ends, before)
            loads.add(index, [time], low, high)
            found.append((before, low, high))
        loads.load(events)
        ranges = []
        for index, (selection, own, (before, low, high)) in enumerate(
            zip(self._selections, recent, found, strict=True)
        ):
            values, base, _ = loads.column(index, time)
            times = integers(pl.Series(values))
            self._refuse_unsorted(times, base, high - low)
            end = low + bisect(times, base, base + (high - low), before) - base
            first = starts
            if selection.read.scan:
                first = np.maximum(starts, end - selection.read.scan + (0 if own is None else own.scanned))
            ranges.append((np.minimum(first, end), end))
        return ranges

    def _first_since(self, events: Events, starts: Int64s, stops: Int64s, moments: Int64s) -> Int64s:
        """int64 [rows]: the first event of each row that is not before a moment."""
        low, high = events.narrow(starts, stops, moments)
        loads = _Loads()
        loads.add(0, [self._columns.time], low, high)
        loads.load(events)
        values, base, _ = loads.column(0, self._columns.time)
        return low + bisect(integers(pl.Series(values)), base, base + (high - low), moments) - base

    def _choose(
        self,
        events: Events,
        ranges: Sequence[tuple[Int64s, Int64s]],
        ats: Sequence[Int64s],
        recent: Sequence[_Recent | None],
    ) -> list[_Choice]:
        """Which of the events before its time each row sees."""
        chosen = []
        for selection, (first, end), at, own in zip(self._selections, ranges, ats, recent, strict=True):
            lasts = selection.lasts if own is None else own.left
            if not selection.conditions and not selection.is_tagged:
                chosen.append(_Choice(np.maximum(first, end - lasts.max(axis=0)), end, recent=own))
                continue
            loads = _Loads()  # of its own, so that all columns have the same events
            loads.add(0, selection.conditions, first, end)
            loads.load(events)
            columns = {name: loads.column(0, name) for name in selection.conditions}
            base = next((base for _, base, _ in columns.values()), np.zeros(len(first), np.int64))
            frame = pl.DataFrame({name: pl.Series(values) for name, (values, *_) in columns.items()})
            if not columns:  # all events are of all pools
                frame = pl.DataFrame({"": np.zeros(int((end - first).max(initial=0)), np.bool_)})
            known = None
            if selection.known_at is not None:
                known = integers(frame.get_column(selection.known_at), np.iinfo(np.int64).max)
            until = at if selection.known is None else selection.known.known(at)
            rows = np.stack([base, base + (end - first), until])
            lasts = np.ascontiguousarray(np.broadcast_to(lasts, (len(lasts), len(first))))
            offsets, places, tags = last_events(rows, known, selection.bits(frame), lasts, tagged=selection.is_tagged)
            chosen.append(_Choice.of_places(first - base, offsets, places, tags, own))
        return chosen

    def _refuse_unsorted(self, times: Int64s, first: Int64s, events: Int64s) -> None:
        """Raise DataError where the times of a row's events, some [first, first + events) of them, do not ascend."""
        falls = np.flatnonzero(times[1:] < times[:-1]) + 1
        # a fall at 5 is within [3, 8), and between [3, 5) and [5, 8)
        if (np.searchsorted(falls, first, side="right") < np.searchsorted(falls, first + events)).any():
            raise DataError(
                f"history {self._columns.name!r} is not sorted as its index says: got an event whose time "
                f"{self._columns.time!r} is before that of the event above it, of the same key. Write the table again "
                "with feedline optimize --history"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Recent:
    """The events that rows carry themselves, and see. scanned: how many of each row were looked at. offsets: of the
    lists of places, among `events`, and of pools, as bits. left: int64 [pools, rows], the events that a row takes of
    those that are stored, at most."""

    events: RecentEvents
    scanned: Int64s
    offsets: Int64s
    places: NDArray[np.int32]
    pools: NDArray[np.uint32]
    left: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """The stored events that rows see: all of [first, stop), or some, each by its distance from `first`. offsets: of
    the lists of distances and tags. recent: the events that follow these."""

    first: Int64s
    stop: Int64s
    offsets: Int64s | None = None
    distances: NDArray[np.int32] | None = None
    pools: NDArray[np.uint32] | None = None
    recent: _Recent | None = None

    @classmethod
    def of_places(
        cls,
        shift: Int64s,
        offsets: Int64s,
        places: NDArray[np.int32],
        tags: NDArray[np.uint32] | None,
        recent: _Recent | None,
    ) -> _Choice:
        """shift: of each row, from places to events."""
        lengths = np.diff(offsets)
        some = lengths > 0
        firsts, lasts = np.zeros(len(lengths), np.int64), np.full(len(lengths), -1, np.int64)
        firsts[some], lasts[some] = places[offsets[:-1][some]], places[offsets[1:][some] - 1]
        distances = places - np.repeat(firsts.astype(np.int32), lengths)
        return cls(firsts + shift, lasts + 1 + shift, offsets, distances, tags, recent)

    @property
    def lengths(self) -> Int64s:
        """int64 [rows]: how many there are."""
        return self._stored_lengths + (0 if self.recent is None else np.diff(self.recent.offsets))

    @property
    def _stored_lengths(self) -> Int64s:
        return np.maximum(self.stop - self.first, 0) if self.offsets is None else np.diff(self.offsets)

    def codes(self, base: Int64s, loaded: int) -> _Lists:
        """The lists as codes into loaded events, and recent ones behind these. base: where the first stored event of
        each row is among them. loaded: how many there are."""
        if self.offsets is None or self.distances is None:
            lengths = self._stored_lengths
            rows = np.stack([base, base + lengths, base])
            offsets, codes, _ = last_events(rows, None, None, lengths[None], tagged=False)
            stored = _Lists(offsets, codes)
        else:
            shift = np.repeat(base.astype(np.int32), np.diff(self.offsets))
            stored = _Lists(self.offsets, self.distances + shift)
        if self.recent is None:
            return stored
        return stored.followed_by(_Lists(self.recent.offsets, self.recent.places + np.int32(loaded)))

    def with_recent(self, entries: pa.Array, column: str) -> pa.Array:
        """The values of loaded events, and those of recent ones behind these."""
        if self.recent is None:
            return entries
        own = self.recent.events.events.get_column(column).to_arrow().cast(entries.type)
        return pa.concat_arrays([entries, own])

    def tags(self, count: int) -> tuple[_Lists, pa.Array]:
        """The pools of the events, as codes into combinations of them, and these. count: how many pools there are."""
        assert self.offsets is not None
        assert self.pools is not None
        lists = _Lists(self.offsets, self.pools.astype(np.int32))
        if self.recent is not None:
            lists = lists.followed_by(_Lists(self.recent.offsets, self.recent.pools.astype(np.int32)))
        if count <= _FEW_POOLS:  # a dictionary of all combinations, of which some do not occur
            return lists, pa.array(np.arange(2**count))
        kinds, codes = np.unique(lists.codes.view(np.uint32), return_inverse=True)
        return _Lists(lists.offsets, codes.astype(np.int32)), pa.array(kinds.astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """Lists of codes."""

    offsets: Int64s
    codes: NDArray[np.int32]

    def followed_by(self, others: _Lists) -> _Lists:
        """Lists of both codes."""
        # [[1], [2, 3]] and [[4, 5], []] -> [[1, 4, 5], [2, 3]]
        codes = np.empty(len(self.codes) + len(others.codes), np.int32)
        rows = np.arange(len(self.offsets) - 1)
        codes[np.arange(len(self.codes)) + np.repeat(others.offsets[rows], np.diff(self.offsets))] = self.codes
        codes[np.arange(len(others.codes)) + np.repeat(self.offsets[rows + 1], np.diff(others.offsets))] = others.codes
        return _Lists(self.offsets + others.offsets, codes)

    def series(self, name: str, entries: pa.Array) -> pl.Series:
        """A column of them, with a null for each code of a null among the entries."""
        valid = None
        if entries.null_count:
            is_valid = entries.is_valid().to_numpy(zero_copy_only=False)[self.codes]
            valid = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
        codes = pa.Array.from_buffers(pa.int32(), len(self.codes), [valid, pa.py_buffer(self.codes)])
        buffers = [None, pa.py_buffer(self.offsets)]
        rows = len(self.offsets) - 1
        return pl.Series(name, pa.Array.from_buffers(pa.large_list(pa.int32()), rows, buffers, 0, 0, [codes]))


class _Loads:
    """The events whose columns are needed, by who needs them: those of a column are read once."""

    def __init__(self) -> None:
        self._needs: dict[str, dict[int, tuple[Int64s, Int64s]]] = {}
        self._tables: dict[str, tuple[pa.Table, Int64s, int]] = {}  # with the number of its reading

    def add(self, index: int, columns: Iterable[str], first: Int64s, stop: Int64s) -> None:
        """A selection needs some columns of the events [first, stop) of each row."""
        for name in columns:
            self._needs.setdefault(name, {})[index] = first, stop

    def load(self, events: Events) -> None:
        together: dict[tuple[int, ...], list[str]] = {}
        for name, needs in self._needs.items():
            together.setdefault(tuple(needs), []).append(name)
        for number, names in enumerate(together.values()):
            ranges = union(np.concatenate([np.stack(need, axis=1) for need in self._needs[names[0]].values()]))
            table = events.read(names, ranges)
            for name in names:
                self._tables[name] = table, ranges, number

    def column(self, index: int, name: str) -> tuple[pa.Array, Int64s, int]:
        """The loaded values of a column, where among them the first event of each row is, and what is the same number
        for columns that were loaded together."""
        table, ranges, number = self._tables[name]
        first, stop = self._needs[name][index]
        values = contiguous(table.column(name))
        if not len(ranges):
            return values, np.zeros(len(first), np.int64), number
        held = ranges[:, 1] - ranges[:, 0]
        before = np.cumsum(held) - held
        which = np.maximum(np.searchsorted(ranges[:, 0], first, side="right") - 1, 0)
        return values, np.where(stop > first, before[which] + first - ranges[which, 0], 0), number


def union(ranges: Int64s) -> Int64s:
    """int64 [n, 2]: ranges of integers as ascending ones that do not touch each other, without empty ones."""
    # [5, 9), [0, 2), [8, 10), [3, 3) -> [0, 2), [5, 10)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], ranges[1:, 0] > ends[:-1]]))
    return np.stack([ranges[begins, 0], ends[np.append(begins[1:], len(ranges)) - 1]], axis=1)


def check_keys(columns: EventColumns, rows: pa.Schema, events: pa.Schema) -> None:
    """Raise TableArgumentError where a column is missing, or the keys of rows and events cannot be equal."""
    for names, schema, what in (
        ((columns.key, columns.time, columns.known_at, columns.tie_break), events, "the events"),
        ((columns.on,), rows, "the table"),
    ):
        for name in names:
            if name is not None:
                require_column(columns, name, schema, what)
    own, theirs = rows.field(columns.on).type, events.field(columns.key).type
    if key_kind(own) != key_kind(theirs) or key_kind(own) is None:
        raise TableArgumentError(
            f"keys of history {columns.name!r} cannot be equal: got {columns.on!r} of type {own} in the table and "
            f"{columns.key!r} of type {theirs} in the events, expected integers, strings, dates or times of both"
        )


def require_column(columns: EventColumns, name: str, schema: pa.Schema, what: str) -> None:
    if schema.get_field_index(name) < 0:
        raise TableArgumentError(
            f"history {columns.name!r} names column {name!r}, which is not in {what}. "
            f"{nearest_hint(name, schema.names)}"
        )


def key_kind(kind: pa.DataType) -> str | None:
    """Keys of the same kind may be equal; None of a type that is none of keys."""
    if pat.is_integer(kind):
        return "integer"
    if is_text(kind) or pat.is_string_view(kind):
        return "string"
    return str(kind) if pat.is_temporal(kind) or pat.is_boolean(kind) or pat.is_binary(kind) else None


def _bind(
    columns: EventColumns,
    read: HistoryRead,
    names: tuple[tuple[str | None, str], ...],
    rows: pa.Schema,
    events: pa.Schema,
) -> _Selection:
    require_column(columns, read.at, rows, "the table")
    for name, _ in names:
        if name is not None:
            require_column(columns, name, events, "the events")
    at, time = rows.field(read.at).type, events.field(columns.time).type
    known = None
    if columns.known_at is not None:
        known = clock(at, events.field(columns.known_at).type, "0", (read.at, columns.known_at))
    pools = tuple(None if pool.where is None else bind_where(pool.where, events) for pool in read.pools)
    if read.recent:
        needed = {name for pool in pools if pool is not None for name in pool.columns}
        needed |= {columns.time, *(name for name, _ in names if name is not None)}
        check_recent(read.recent, columns.name, rows, events, needed)
    return _Selection(read, clock(at, time, read.lag, (read.at, columns.time)), known, columns.known_at, pools, names)
