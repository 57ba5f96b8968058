"""Find the columns that rise, or fall, with time.

Runs in: the process that profiles. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

_PROBED = 512  # rows that rule most columns out


class TimeOrder:
    """The order of sampled rows in time. Rows of one time may have any order; those without a time are left out."""

    def __init__(self, time: pl.Series) -> None:
        rows = np.flatnonzero(time.is_not_null().to_numpy())
        times = time.drop_nulls()
        order = times.arg_sort().to_numpy()
        self._rows = rows[order]
        ordered = times.gather(order)
        self._moment = (ordered != ordered.shift()).fill_null(True).cum_sum().to_numpy().astype(np.int64)

    def direction(self, column: pl.Series) -> int:
        """1 if a column of numbers, times or strings never falls in the order of time, -1 if it never rises, 0 for all
        else and for constants. Rows without a value are left out."""
        if column.dtype in (pl.String, pl.Binary):
            column = column.rank("dense")
        values = column.cast(pl.Float64) if column.dtype.is_decimal() else column.to_physical()
        values = values.gather(self._rows)
        moments = self._moment
        if values.null_count():
            has_value = values.is_not_null()
            values, moments = values.filter(has_value), moments[has_value.to_numpy()]
        numbers = values.to_numpy()
        step = max(len(numbers) // _PROBED, 1)
        if not _direction(numbers[::step], moments[::step]):
            return 0
        return _direction(numbers, moments)


def _direction(numbers: npt.NDArray[np.generic], moments: npt.NDArray[np.int64]) -> int:
    starts = np.flatnonzero(np.diff(moments, prepend=-1))
    if len(starts) < 2:
        return 0
    low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    if low.min() == high.max():
        return 0
    if np.all(high[:-1] <= low[1:]):
        return 1
    return -1 if np.all(low[:-1] >= high[1:]) else 0
