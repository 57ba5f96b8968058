"""Read the rows of a fragment, with the columns of lists that they get from histories.

Runs in every process that computes blocks. A request names such a column like any other; the columns of rows that
decide what they see are read for it. Chunks are cut where their rows see many events.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

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
        self._coded = request.coded
        self._joins = []
        for history in histories:
            self._joins.append((history, join_of(history, request.columns, request.schema)))

    @classmethod
    def of(cls, fragment: Fragment, request: ReadRequest) -> ListColumns | None:
        """None where no column is of a history."""
        histories = [history for history in fragment.histories if history.names.intersection(request.columns)]
        return cls(histories, request) if histories else None

    def join(self, chunk: Chunk) -> Iterator[Chunk]:
        """Rows of `stored` with the lists, in parts that do not see too many events."""
        found = [join.find(events_of(history), chunk.frame) for history, join in self._joins]
        cuts = {cut for (_, join), own in zip(self._joins, found, strict=True) for cut in join.cuts(own)}
        for first, stop in itertools.pairwise(sorted(cuts)):
            part = chunk if stop - first == chunk.frame.height else chunk.part(first, stop)
            yield self._joined(part, [own[:, first:stop] for own in found])

    def _joined(self, chunk: Chunk, found: Sequence[Int64s]) -> Chunk:
        columns: list[pl.Series] = []
        dictionaries = dict(chunk.dictionaries)
        for (history, join), own in zip(self._joins, found, strict=True):
            series, values = join.join(events_of(history), chunk.frame, own)
            for each in series:
                if each.name in self._coded:
                    dictionaries[each.name] = values[each.name]
                columns.append(each if each.name in self._coded else expand_series(each, values[each.name]))
        return replace(chunk, frame=chunk.frame.with_columns(columns), dictionaries=dictionaries)


def join_of(history: HistoryRef, names: Collection[str], schema: pa.Schema) -> HistoryJoin:
    """The join that gives rows these columns of lists. schema: of the rows."""
    kinds: bytes = pa.schema([schema.field(name) for name in history.row_columns]).serialize().to_pybytes()
    return _join(history, tuple(read.name for read in history.reads if read.name in names), kinds)


@lru_cache(maxsize=64)
def _join(history: HistoryRef, names: tuple[str, ...], rows: bytes) -> HistoryJoin:
    reads = [read for read in history.reads if read.name in names]
    return HistoryJoin(history.columns, reads, pa.ipc.read_schema(pa.py_buffer(rows)), history.event_schema)
