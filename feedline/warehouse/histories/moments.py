"""Compare times of different units: the time before which a row sees events, in the unit of the events' time.

Pure. Events and rows have their times as timestamps (both with a time zone, or neither), as dates, or as integers of
one meaning. A lag is an integer of that, whole days of dates, or a time of timestamps.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.config.histories import lag_ns
from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError

Int64s = NDArray[np.int64]

NO_TIME = int(np.iinfo(np.int64).min)
_MOST = int(np.iinfo(np.int64).max)
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How rows' times compare with events': a time t of an event is seen if `t * of_event < at * of_row - lag`, all in
    the finer unit of the two."""

    of_row: int
    of_event: int
    lag: int

    def before(self, at: Int64s) -> Int64s:
        """int64 [rows]: the first time of an event that a row does not see. at: NO_TIME of rows without one."""
        # events in seconds, a row at 2,500 ms, no lag: 2 s is seen, 3 s is not
        fine = _scaled(at, self.of_row)
        fine = np.where(fine < NO_TIME + self.lag, NO_TIME, fine - min(self.lag, _MOST))
        return np.where(at == NO_TIME, NO_TIME, -(-fine // self.of_event) if self.of_event > 1 else fine)

    def known(self, at: Int64s) -> Int64s:
        """int64 [rows]: the last time at which an event may have become known, in the event's unit."""
        fine = _scaled(at, self.of_row)
        return np.where(at == NO_TIME, NO_TIME, fine // self.of_event)


def _scaled(values: Int64s, factor: int) -> Int64s:
    """The values times a factor, at most the largest integers."""
    if factor == 1:
        return values
    return np.clip(values, NO_TIME // factor, _MOST // factor) * factor


def clock(row: pa.DataType, event: pa.DataType, lag: str, names: tuple[str, str]) -> Clock:
    """How to compare a row's time with an event's. names: of the columns, for messages.

    Raises TableArgumentError where they cannot be compared, or the lag is of another kind.
    """
    at, time = names
    kinds = [_kind(each) for each in (row, event)]
    if kinds[0] != kinds[1] or kinds[0] is None:
        raise TableArgumentError(
            f"time {at!r} of the rows and time {time!r} of the events cannot be compared: got {row} and {event}, "
            "expected integers, dates, or timestamps with or without a time zone, of both. Convert one of the columns"
        )
    length = lag_ns(lag)
    if kinds[0] == "integer":
        if length is not None:
            raise TableArgumentError(
                f"lag has a unit beside times without one: got {lag}, and {time!r} of type {event}. Write an "
                "integer of the same meaning as the times"
            )
        return Clock(of_row=1, of_event=1, lag=int(lag))
    if length is None:
        if int(lag):
            raise TableArgumentError(
                f"lag has no unit: got {lag}, and {time!r} of type {event}. Write {lag}s, for example"
            )
        length = 0
    if kinds[0] == "date":
        if length % _DAY_NS:
            raise TableArgumentError(f"lag of dates is not of whole days: got {lag}. Write 1d, for example")
        return Clock(of_row=1, of_event=1, lag=length // _DAY_NS)
    units = [_NS[each.unit] for each in (row, event)]
    finest = min(*units, *(unit for unit in [_unit_of(length)] if unit))
    return Clock(of_row=units[0] // finest, of_event=units[1] // finest, lag=length // finest)


def _unit_of(length: int) -> int:
    """The largest unit of timestamps that a length is a multiple of; 0 of none."""
    return next((unit for unit in _NS.values() if length % unit == 0), 1) if length else 0


def _kind(kind: pa.DataType) -> str | None:
    if pat.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with a time zone"
    if pat.is_integer(kind) and kind != pa.uint64():
        return "integer"
    return "date" if pat.is_date32(kind) else None


def integers(series: pl.Series, null: int = NO_TIME) -> Int64s:
    """int64 [rows]: times as integers of their unit, and `null` where there is none."""
    values = series.to_physical().cast(pl.Int64)
    return (values.fill_null(null) if values.null_count() else values).to_numpy()
