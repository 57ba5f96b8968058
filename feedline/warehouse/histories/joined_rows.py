"""Read the rows of a fragment, with the columns of lists that they get from histories.

Runs in every process that computes blocks. A request names such a column like any other; the columns of rows that
decide what they see are read for it. Chunks are cut where their rows see many events.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import polars as pl
import pyarrow as pa

from feedline.warehouse.histories.join import HistoryJoin, Int64s
from feedline.warehouse.histories.stored_events import events_of
from feedline.warehouse.reading.columns import expand_series
from feedline.warehouse.reading.fragment import Chunk, Fragment
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.snapshot.history_ref import HistoryRef


def read_rows(fragment: Fragment, request: ReadRequest) -> Iterator[Chunk]:
    """As `read_fragment`, of which it is the same where no column is of a history.

    Raises, besides, TableChangedError and CorruptFileError for files of events, DataError for events out of order.
    """
    lists = ListColumns.of(fragment, request)
    if lists is None:
        yield from read_fragment(fragment, request)
        return
    for chunk in read_fragment(fragment, lists.stored):
        yield from lists.join(chunk)


class ListColumns:
    """The columns of a request that are of histories. stored: the request for all others, and for what these need."""

    def __init__(self, histories: Sequence[HistoryRef], request: ReadRequest) -> None:
        lists = frozenset[str]().union(*(history.names for history in histories))
        own = tuple(dict.fromkeys(name for history in histories for name in history.row_columns))
        self.stored = replace(
            request,
            columns=tuple(dict.fromkeys([*(name for name in request.columns if name not in lists), *own])),
            coded={name: most for name, most in request.coded.items() if name not in lists and name not in own},
            compact=frozenset(request.compact).difference(lists, own),
        )
        self._histories, self._request = histories, request

    @classmethod
    def of(cls, fragment: Fragment, request: ReadRequest) -> ListColumns | None:
        """None where no column is of a history."""
        histories = [history for history in fragment.histories if history.names.intersection(request.columns)]
        return cls(histories, request) if histories else None

    @cached_property
    def _joins(self) -> list[tuple[HistoryRef, HistoryJoin]]:
        request = self._request
        return [(history, join_of(history, request.columns, request.schema)) for history in self._histories]

    def is_in(self, frame: pl.DataFrame) -> bool:
        """Whether rows have their lists."""
        names = set(self._request.columns).intersection(frame.columns)
        return any(names & history.names for history in self._histories)

    def join(self, chunk: Chunk) -> Iterator[Chunk]:
        """Rows of `stored` with the lists, in parts that do not see too many events."""
        found = self.find(chunk.frame)
        for first, stop in itertools.pairwise(self.cuts(found)):
            part = chunk if stop - first == chunk.frame.height else chunk.part(first, stop)
            frame, values = self.joined(part.frame, [own[:, first:stop] for own in found])
            yield replace(part, frame=frame, dictionaries={**part.dictionaries, **values})

    def find(self, frame: pl.DataFrame) -> list[Int64s]:
        """int64 [2, rows] of each history: the first and the end of the events of each row's key."""
        return [join.find(events_of(history), frame) for history, join in self._joins]

    def cuts(self, found: Sequence[Int64s], parts: int = 1) -> list[int]:
        """Where to cut rows, so that not too many events are joined at once: [0, …, rows]. See `HistoryJoin.cuts`."""
        joins = zip(self._joins, found, strict=True)
        return sorted({cut for (_, join), own in joins for cut in join.cuts(own, parts)})

    def joined(self, frame: pl.DataFrame, found: Sequence[Int64s]) -> tuple[pl.DataFrame, dict[str, pa.Array]]:
        """Rows with the lists, and the values of those that are codes. found: as of `find`, of these rows."""
        columns: list[pl.Series] = []
        dictionaries: dict[str, pa.Array] = {}
        coded = self._request.coded
        for (history, join), own in zip(self._joins, found, strict=True):
            series, values = join.join(events_of(history), frame, own)
            dictionaries |= {name: array for name, array in values.items() if name in coded}
            columns += [each if each.name in coded else expand_series(each, values[each.name]) for each in series]
        return frame.hstack(columns), dictionaries


def join_of(history: HistoryRef, names: Collection[str], schema: pa.Schema) -> HistoryJoin:
    """The join that gives rows these columns of lists. schema: of the rows."""
    kinds: bytes = pa.schema([schema.field(name) for name in history.row_columns]).serialize().to_pybytes()
    return _join(history, tuple(read.name for read in history.reads if read.name in names), kinds)


@lru_cache(maxsize=64)
def _join(history: HistoryRef, names: tuple[str, ...], rows: bytes) -> HistoryJoin:
    reads = [read for read in history.reads if read.name in names]
    return HistoryJoin(history.columns, reads, pa.ipc.read_schema(pa.py_buffer(rows)), history.event_schema)
