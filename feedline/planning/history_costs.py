"""Estimate what an epoch reads of the histories of a plan, on a sample of its blocks.

Runs in: the process of `feedline plan`. Keys and times of a few blocks are read and looked up in the indexes of the
events, as a join does; of the events nothing is read. Bytes are those of pages (a stripe is one), by the mean bytes of
an event in each column, without what a worker keeps of earlier blocks. Where only the events themselves tell which a
row sees, the middle of the stripe is taken, and pools with a condition read all events before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.request import PieceRequest
from feedline.config.histories import HistoryRead
from feedline.dataclass import dataclass
from feedline.expressions import bind_where
from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.histories.join import HistoryJoin, union
from feedline.warehouse.histories.moments import NO_TIME, clock, integers
from feedline.warehouse.histories.stored_events import StoredEvents, events_of
from feedline.warehouse.parquet.history_note import STRIPE_ROWS
from feedline.warehouse.reading.columns import CHUNK_ROWS
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.snapshot.history_ref import HistoryRef
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import redact

Int64s = NDArray[np.int64]

_BLOCKS, _ROWS = (4, 64), 65_536  # of a sample: how many blocks, and the rows that they should have, each at most
_WORTHWHILE = 0.5  # the share of the bytes of events that clustering has to save


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCost:
    """A history of a plan, and an estimate of what an epoch reads of it.

    layout: "as it is", or where its events were written in the layout of histories. generation: the id of the snapshot
    of its table. bytes: of its files, of all columns. most: the most events that a row sees in a feature; mean: how
    many it sees, about. read_bytes: of an epoch; amplification: these by the bytes of the events that rows which are
    joined at once see. clustered_bytes: the same at most, if rows of a key were together in each partition; command:
    what clusters them, None where it saves little. sampled: rows of the estimate.
    """

    name: str
    table: str
    layout: str
    generation: str
    events: int
    keys: int
    bytes: int
    most: int
    mean: float
    read_bytes: int
    amplification: float
    clustered_bytes: int
    command: str | None
    sampled: int


def describe_histories(plan: SourcePlan) -> list[dict[str, Any]]:
    """The histories of a plan as plain values; empty without any."""
    return [asdict(_cost(plan, history)) for history in plan.snapshot.histories]


def _cost(plan: SourcePlan, history: HistoryRef) -> HistoryCost:
    stored, table = Snapshot.load(history.work_dir, history.snapshot), Snapshot.load(history.work_dir, history.events)
    lookups = _LookUps(history, plan, stored)
    for frame in _sample(plan, history.row_columns):
        lookups.add(frame)
    totals = lookups.totals
    rows = max(totals.rows, 1)
    read = int(totals.read_bytes / rows * plan.whole_schedule.rows)
    if lookups.decoded_bytes <= history.memory:  # row groups that blocks read again are kept
        read = min(read, int(lookups.table_bytes))
    keys = lookups.events.count_keys()
    # each key is read once in a partition, and once more where a border of blocks or splits cuts its rows
    key_reads = keys * _partitions(plan) + len(plan.whole_schedule.block_indices(0)) * plan.lanes + len(plan.split_rows)
    clustered = min(read, int(lookups.table_bytes / max(keys, 1) * key_reads))
    command = None
    if read - clustered > _WORTHWHILE * read:
        at = next(iter({read.at for read in history.reads}))
        command = f"feedline optimize {redact(plan.snapshot.uri)} OUT --cluster-by {history.columns.on} --sort-by {at}"
    return HistoryCost(
        name=history.columns.name,
        table=redact(table.uri),
        layout="as it is" if history.snapshot == history.events else redact(stored.uri),
        generation=history.events,
        events=stored.rows,
        keys=keys,
        bytes=int(np.asarray(stored.files["bytes"]).sum()),
        most=max(read.most for read in history.reads),
        mean=totals.seen / rows,
        read_bytes=read,
        amplification=totals.read_bytes / totals.seen_bytes if totals.seen_bytes else 1.0,
        clustered_bytes=clustered,
        command=command,
        sampled=totals.rows,
    )


def _sample(plan: SourcePlan, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Columns of the first rows of a few blocks, evenly spaced over the first lane's epoch, as they are joined: all of
    a block at once, where it is shuffled."""
    schedule = plan.whole_schedule
    indices = schedule.block_indices(0)
    block_rows = max(1, int(np.diff(schedule.lane(0).borders).mean()))
    count = min(len(indices), int(np.clip(_ROWS // block_rows, *_BLOCKS)))
    request = ReadRequest(columns, plan.snapshot.schema, plan.where, sample=plan.sample)
    for place in (np.arange(count) * len(indices)) // max(count, 1):
        block = plan.request(schedule.block(0, indices[place]), 0)
        rows = pl.concat(list(_first_rows(block.pieces, request)))
        together = CHUNK_ROWS if block.permutation is None else rows.height
        yield from (rows[start : start + together] for start in range(0, rows.height, together))


def _first_rows(pieces: Sequence[PieceRequest], request: ReadRequest) -> Iterator[pl.DataFrame]:
    left = _ROWS
    for piece in pieces:
        if not left:
            break
        position, stop = 0, piece.skip + min(piece.rows, left)
        for chunk in read_fragment(piece.fragment, request):
            first = min(max(piece.skip - position, 0), chunk.frame.height)
            yield chunk.frame.slice(first, max(stop - position - first, 0))
            position += chunk.frame.height
            if position >= stop:
                break
        left -= stop - piece.skip


def _partitions(plan: SourcePlan) -> int:
    """The partitions that rows are read of: clustering leaves each apart."""
    snapshot = plan.snapshot
    if not snapshot.partition_columns:
        return 1
    files = np.unique(snapshot.file_of_row_group[plan.selection.rows > 0])
    values = [snapshot.partition_column(name).take(files) for name in snapshot.partition_columns]
    return max(1, len(pl.DataFrame({str(index): pl.Series(each) for index, each in enumerate(values)}).unique()))


@dataclass(slots=True)
class _Totals:
    """Of all rows: events that they see in their longest feature; bytes of pages, and of the events in them that are
    seen."""

    rows: int = 0
    seen: int = 0
    read_bytes: float = 0.0
    seen_bytes: float = 0.0


@dataclass(slots=True)
class _LookUps:
    """The look-ups of the rows of a plan in the events of a history."""

    history: HistoryRef
    plan: SourcePlan
    stored: Snapshot
    totals: _Totals = field(default_factory=_Totals)

    @property
    def events(self) -> StoredEvents:
        return events_of(self.history)

    @property
    def selections(self) -> dict[HistoryRead, set[str]]:
        """The columns of events that are read for each selection of events."""
        selections: dict[HistoryRead, set[str]] = {}
        for read in self.history.reads:
            selections.setdefault(read.selection, set()).update(() if read.column is None else (read.column,))
        return selections

    @property
    def columns(self) -> set[str]:
        """Those of events that are read."""
        return {self.history.columns.time}.union(*self.selections.values(), *map(self._conditions, self.selections))

    @property
    def table_bytes(self) -> float:
        """Of all events, in the columns that are read."""
        return sum(self._event_bytes(name) for name in self.columns) * self.stored.rows

    @property
    def decoded_bytes(self) -> int:
        """The same in memory."""
        return sum(self.events.value_bytes(name) for name in self.columns) * self.stored.rows

    def add(self, frame: pl.DataFrame) -> None:
        """Count the look-ups of rows that are joined at once."""
        schema = self.plan.snapshot.schema
        join = HistoryJoin(self.history.columns, self.history.reads, schema, self.history.event_schema)
        cuts = join.cuts(join.find(self.events, frame))
        for first, stop in pairwise(cuts):
            self._add_part(frame.slice(first, stop - first))

    def _add_part(self, frame: pl.DataFrame) -> None:
        names, events = self.history.columns, self.events
        starts, stops = events.find(frame.get_column(names.on))
        needs: dict[str, list[Int64s]] = {}
        seen = np.zeros(frame.height, np.int64)
        for read, columns in self.selections.items():
            at, conditions = integers(frame.get_column(read.at)), self._conditions(read)
            kinds = self.plan.snapshot.schema.field(read.at).type, self.history.event_schema.field(names.time).type
            before = clock(*kinds, read.lag, (read.at, names.time)).before(at)
            low, high = events.narrow(starts, np.where(before == NO_TIME, starts, stops), before)
            needs.setdefault(names.time, []).append(np.stack([low, high], axis=1))
            end = (low + high) // 2
            looked_at = np.maximum(starts, end - read.scan) if read.scan else starts
            last = np.maximum(looked_at, end - max(pool.last for pool in read.pools))
            first = looked_at if any(pool.where is not None for pool in read.pools) else last
            for name in conditions:
                needs.setdefault(name, []).append(np.stack([looked_at, end], axis=1))
            for name in columns - conditions:
                needs.setdefault(name, []).append(np.stack([first, end], axis=1))
            seen = np.maximum(seen, np.minimum(end - first, read.most))
        totals = self.totals
        totals.rows += frame.height
        totals.seen += int(seen.sum())
        for name, ranges in needs.items():
            size, every = self._event_bytes(name), np.concatenate(ranges)
            totals.seen_bytes += size * _count(union(every))
            totals.read_bytes += size * _count(union(self._pages(every)))

    def _conditions(self, read: HistoryRead) -> set[str]:
        """The columns that decide, besides the time, which events are seen."""
        schema = self.history.event_schema
        wheres = [bind_where(pool.where, schema) for pool in read.pools if pool.where is not None]
        known = self.history.columns.known_at
        return {name for where in wheres for name in where.columns}.union(() if known is None else (known,))

    def _event_bytes(self, column: str) -> float:
        """The mean bytes of an event in a column."""
        if column not in self.stored.file_columns:
            return 0.0
        return float(self.stored.column_part(column, "bytes").sum()) / max(self.stored.rows, 1)

    def _pages(self, ranges: Int64s) -> Int64s:
        """The ranges, each to the borders of its pages."""
        # pages of 512 rows, a file of 600 rows from 1,000 on: [1,010, 1,020) -> [1,000, 1,512)
        ranges = ranges[ranges[:, 0] < ranges[:, 1]]
        borders = np.concatenate([[0], np.cumsum(np.asarray(self.stored.files["rows"], np.int64))])
        file = np.searchsorted(borders, ranges[:, 0], side="right") - 1
        inside = ranges - borders[file][:, None]
        first = inside[:, 0] // STRIPE_ROWS * STRIPE_ROWS
        stop = -(-inside[:, 1] // STRIPE_ROWS) * STRIPE_ROWS
        return np.stack([first + borders[file], np.minimum(stop + borders[file], borders[file + 1])], axis=1)


def _count(ranges: Int64s) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())
