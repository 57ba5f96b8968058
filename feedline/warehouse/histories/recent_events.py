"""The events that rows carry themselves, which are newer than those that are stored.

Pure. A column of lists of structs, whose fields are columns of the events. A row's stored history ends where its own
begins: no event is seen twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.errors import TableArgumentError
from feedline.expressions.column_parts import has_column
from feedline.warehouse.histories.moments import NO_TIME, integers

Int64s = NDArray[np.int64]

_NEVER = int(np.iinfo(np.int64).max)


class RecentEvents:
    """Those of some rows, in the order of their times; ones without a time are left out.

    events: their columns. starts, stops: int64 [rows], which are of each row. first_times: int64 [rows], of the first
    of each row (the largest integer of none).
    """

    def __init__(self, column: pl.Series, time: str) -> None:
        lists = column.rechunk().to_arrow()
        offsets = lists.offsets.to_numpy()
        lengths = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
        rows = np.repeat(np.arange(len(lengths)), lengths)
        elements = pl.Series(lists.flatten())
        events = elements.struct.unnest()
        times = integers(events.get_column(time))
        kept = np.flatnonzero(times != NO_TIME)
        order = kept[np.lexsort((times[kept], rows[kept]))]  # events of one time stay in their order
        self.events = events[order]
        self.times = times[order]
        self.stops = np.cumsum(np.bincount(rows[order], minlength=len(lengths)))
        self.starts = np.concatenate([[0], self.stops[:-1]]).astype(np.int64)
        self.first_times = np.full(len(lengths), _NEVER)
        some = self.stops > self.starts
        self.first_times[some] = self.times[self.starts[some]]


def check_recent(name: str, history: str, rows: pa.Schema, events: pa.Schema, needed: set[str]) -> None:
    """Raise TableArgumentError unless a column of rows holds lists of structs with the columns of events that are
    needed, in their types."""
    kind: Any = rows.field(name).type if has_column(rows, name) else pa.null()
    if not (pat.is_list(kind) or pat.is_large_list(kind)) or not pat.is_struct(kind.value_type):
        raise TableArgumentError(
            f"recent events of history {history!r} must be lists of structs: got {name!r} of type {kind}, expected "
            f"fields {', '.join(sorted(needed))}"
        )
    fields = {field.name: field.type for field in kind.value_type}
    for column in sorted(needed):
        if fields.get(column) != events.field(column).type:
            raise TableArgumentError(
                f"recent events {name!r} of history {history!r} must have the events' columns: got "
                f"{fields.get(column, 'none')} as {column!r}, expected {events.field(column).type}"
            )
