"""Weights of rows as quanta, the integers in proportion to which rows are drawn.

Runs where weights are summed, and in the tasks of blocks. Pure. An integer has as many quanta as its value. Of floats,
a quantum is 2^-24, to which they are rounded; a positive one has at least one: docs/decisions/0075-weights-as-quanta.md
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Int64s = npt.NDArray[np.int64]

QUANTA_PER_UNIT = 2**24  # of floats
MOST_QUANTA = 2**62  # of a table: prefix sums and the draws below them are int64


class WeightError(ValueError):
    """A weight that cannot be one. row: its index among the values, None where no single one is to blame."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def can_weigh(dtype: pl.DataType) -> bool:
    """Whether a column of this type can hold weights."""
    return dtype.is_integer() or dtype.is_float() or dtype == pl.Boolean()


def quanta_of(values: pl.Series) -> Int64s:
    """int64 [rows]: the quanta of weights. Raises WeightError for a null, a negative or non-finite weight, and where
    their sum is beyond MOST_QUANTA."""
    quanta: Int64s
    if values.null_count():
        raise WeightError("must not be null", int(values.is_null().arg_max() or 0))
    if values.dtype.is_float():
        numbers = values.to_numpy().astype(np.float64)
        _refuse(~np.isfinite(numbers), numbers, "must be finite")
        _refuse(numbers < 0, numbers, "must not be negative")
        whole = np.rint(numbers * QUANTA_PER_UNIT)
        _refuse(whole > MOST_QUANTA, numbers, f"is more than {MOST_QUANTA // QUANTA_PER_UNIT:,}")
        quanta = np.maximum(whole.astype(np.int64), (numbers > 0).astype(np.int64))
    else:
        stored = (values.cast(pl.UInt8) if values.dtype == pl.Boolean() else values).to_numpy()
        _refuse(stored < 0, stored, "must not be negative")
        _refuse(stored > MOST_QUANTA, stored, f"is more than {MOST_QUANTA:,}")
        quanta = stored.astype(np.int64, copy=False)
    if float(quanta.sum(dtype=np.float64)) > MOST_QUANTA:
        raise WeightError(f"sum to more than {MOST_QUANTA:,} quanta")
    return quanta


def _refuse(wrong: npt.NDArray[np.bool_], values: npt.NDArray[np.generic], rule: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise WeightError(f"{rule}: got {values[row]}", row)
