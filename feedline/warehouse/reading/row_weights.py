"""Weights of rows as quanta, the integers in proportion to which the rows of a row group are drawn.

Runs where weights are summed, and in the tasks of blocks. Pure: the same rows give the same quanta on every machine. An
integer has as many quanta as its value. Of floats, a quantum is the power of two with which a row group's rows have
about 2^61: what it holds decides its scale, and the sums of row groups are compared with their scales
(docs/decisions/0075-weights-as-quanta.md).

    [5e-9, 1e-9] -> 2^61 * [0.67, 0.13] quanta of 2^-88       [3e300, 0] -> 2^61 * [0.56, 0] quanta of 2^938
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

MOST_QUANTA = 2**62  # of a row group: prefix sums are int64
EXACT = 4096  # `Quanta.precision` of weights that are not rounded
_FLOAT_BITS = 61  # of a row group's sum, so that rounding up does not reach MOST_QUANTA
_MANTISSA_BITS = 52


class WeightError(ValueError):
    """A weight that cannot be one. row: its index among the values, None where no single one is to blame."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Quanta:
    """The weights of a row group's rows: of_rows, int64 [rows], times 2^exponent. precision: a positive weight is
    rounded by 2^-precision of itself at most, `EXACT` where none is rounded."""

    of_rows: Int64s
    exponent: int
    precision: int


def can_weigh(dtype: pl.DataType) -> bool:
    """Whether a column of this type can hold weights."""
    return dtype.is_integer() or dtype.is_float() or dtype == pl.Boolean()


def quanta_of(values: pl.Series) -> Quanta:
    """The quanta of the weights of a row group. Raises WeightError for a null, a negative or non-finite weight, and for
    integers whose sum is beyond MOST_QUANTA."""
    if values.null_count():
        raise WeightError("must not be null", int(values.is_null().arg_max() or 0))
    if values.dtype.is_float():
        numbers = values.to_numpy().astype(np.float64)
        _refuse(~np.isfinite(numbers), numbers, "must be finite")
        _refuse(numbers < 0, numbers, "must not be negative")
        return _scaled(numbers)
    stored = (values.cast(pl.UInt8) if values.dtype == pl.Boolean() else values).to_numpy()
    _refuse(stored < 0, stored, "must not be negative")
    _refuse(stored > MOST_QUANTA, stored, f"is more than {MOST_QUANTA:,}")
    quanta: Int64s = stored.astype(np.int64, copy=False)
    if float(quanta.sum(dtype=np.float64)) > MOST_QUANTA:
        raise WeightError(f"sum to more than {MOST_QUANTA:,} in a row group")
    return Quanta(quanta, 0, EXACT)


def _scaled(numbers: Float64s) -> Quanta:
    """Floats on the scale of their sum. The sum is one of integers, which no order of additions changes."""
    largest = float(numbers.max(initial=0.0))
    if not largest:
        return Quanta(np.zeros(len(numbers), np.int64), 0, EXACT)
    exponent = int(np.frexp(largest)[1]) + len(numbers).bit_length() - _FLOAT_BITS  # with which no sum is too large
    coarse = int(_rounded(numbers, exponent).sum())
    exponent -= _FLOAT_BITS - (coarse + len(numbers)).bit_length()
    smallest = int(np.frexp(numbers[numbers > 0].min())[1]) - 1  # of 2^smallest or more
    exact = exponent <= smallest - _MANTISSA_BITS
    return Quanta(_rounded(numbers, exponent), exponent, EXACT if exact else max(0, smallest + 1 - exponent))


def _rounded(numbers: Float64s, exponent: int) -> Int64s:
    return np.rint(np.ldexp(numbers, -exponent)).astype(np.int64)


def _refuse(wrong: npt.NDArray[np.bool_], values: npt.NDArray[np.generic], rule: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise WeightError(f"{rule}: got {values[row]}", row)
