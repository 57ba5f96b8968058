"""Name a history as fragments carry it: its table of events at one moment, and what is read of it.

Pure. A reference says all that decides which events a row sees; what it names is opened where rows are read
(`histories/joined_rows`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import field

import pyarrow as pa

from feedline.config.histories import HistoryRead
from feedline.dataclass import dataclass

_VERSION = 1  # of the rule by which rows see events


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """The columns of a history that say whose, and when, an event is. on: the rows' column for `key`."""

    name: str
    key: str
    on: str
    time: str
    known_at: str | None = None
    tie_break: str | None = None

    @property
    def sort_by(self) -> tuple[str, ...]:
        return (self.time,) if self.tie_break is None else (self.time, self.tie_break)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRef:
    """A history of which rows get columns of lists, one for each of `reads`, by its name.

    work_dir, snapshot: where the snapshot of its table is, in the layout of `optimize --history`. events: the id of the
    snapshot of the table that pipeline.yaml names; the same, if that has this layout. schema: of the events, in Arrow's
    IPC format. memory: decoded bytes that a process may keep.
    """

    columns: EventColumns
    reads: tuple[HistoryRead, ...]
    schema: bytes = field(repr=False)
    events: str
    work_dir: str
    snapshot: str
    memory: int = field(repr=False)

    @property
    def event_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    @property
    def names(self) -> frozenset[str]:
        """The columns of lists."""
        return frozenset(read.name for read in self.reads)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of rows that decide what they see."""
        return tuple(dict.fromkeys([self.columns.on, *(name for read in self.reads for name in read.row_columns)]))

    @property
    def version(self) -> str:
        """A digest of the events and of the rule: of what, besides a read, decides a list."""
        content = [_VERSION, self.events, [getattr(self.columns, name) for name in EventColumns.__slots__]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def fields(self) -> list[pa.Field]:
        """The columns of lists, as of a schema: of the types that they have when Parquet gives them back."""
        schema = self.event_schema
        kinds = [pa.int64() if read.column is None else schema.field(read.column).type for read in self.reads]
        return [
            pa.field(read.name, pa.large_list(pa.field("element", kind)))
            for read, kind in zip(self.reads, kinds, strict=True)
        ]


def with_lists(schema: pa.Schema, histories: Iterable[HistoryRef]) -> pa.Schema:
    """The columns of a table, and those of lists that its rows get."""
    for history in histories:
        for each in history.fields():
            schema = schema.append(each)
    return schema
