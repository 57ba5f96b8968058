"""The events of a history that a caller has in memory, as those of a request are.

Pure. They have the order of stored ones, so that the same rows get the same lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.errors import TableArgumentError
from feedline.warehouse.histories.event_index import EventIndex, hashes_of
from feedline.warehouse.optimize.clustering import row_order
from feedline.warehouse.parquet.key_hashes import series_of
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.history_ref import EventColumns

Int64s = NDArray[np.int64]


class MemoryEvents:
    """Events of a table. Raises TableArgumentError where it lacks a column that says whose, or when, they are."""

    def __init__(self, table: pa.Table, columns: EventColumns) -> None:
        for name in (columns.key, *columns.sort_by):
            if name not in table.schema.names:
                hint = nearest_hint(name, table.schema.names)
                raise TableArgumentError(f"events of {columns.name!r} lack column {name!r}. {hint}")
        table = table.filter(table[columns.key].is_valid())
        deciding = table.select(list(dict.fromkeys([columns.key, *columns.sort_by])))
        order = row_order(deciding, (columns.key,), columns.sort_by)
        self._table = table.take(order).combine_chunks()
        self.schema = table.schema
        self.has_null_times = table[columns.time].null_count > 0
        keys = series_of(contiguous(self._table[columns.key]))
        begins = np.flatnonzero(keys.ne_missing(keys.shift()).to_numpy())  # none is null
        distinct = keys.gather(begins)
        self._index = EventIndex(
            key=columns.key,
            sort_by=columns.sort_by,
            stripe_rows=max(len(keys), 1),
            rows=len(keys),
            keys=distinct.to_arrow(),
            hashes=hashes_of(distinct),
            starts=begins,
            stops=np.append(begins[1:], len(keys))[: len(begins)],
            times=np.empty(0, np.int64),
        )

    def find(self, keys: pl.Series) -> tuple[Int64s, Int64s]:
        """As of `join.Events`."""
        return self._index.runs(keys)

    def narrow(self, starts: Int64s, stops: Int64s, before: Int64s) -> tuple[Int64s, Int64s]:
        """As of `join.Events`: all of them, which are in memory."""
        return starts, stops

    def read(self, columns: Sequence[str], ranges: Int64s) -> pa.Table:
        """As of `join.Events`."""
        table = self._table.select(columns)
        parts = [table.slice(first, stop - first) for first, stop in ranges.tolist()]
        return pa.concat_tables([table.slice(0, 0), *parts])
