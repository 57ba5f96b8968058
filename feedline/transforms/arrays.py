"""How does a numpy function run inside a Polars pass, over a column's buffer and without copying it?

Runs on the workers. An op that numpy does faster than Polars (float32 `log1p`: 12 against 320 us for 32 k values) is a
kernel: a function of two arrays, values and result. It sees whole buffers, so that whatever stands under a null is
computed too and stays under that null: kernels must not fail on any value. Values reach the kernel in blocks that fit
the caches. Results lie in memory from Arrow's pool: a fresh numpy array of this size is mapped and unmapped at every
call, which costs more than a cheap kernel (186 against 86 us for 32 k hashed ids).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Values = npt.NDArray[Any]
Kernel = Callable[[Values, Values], None]

BLOCK_VALUES = 32768

NUMPY_TYPES: dict[pl.DataType, np.dtype[Any]] = {
    pl.Int64(): np.dtype(np.int64),
    pl.UInt64(): np.dtype(np.uint64),
    pl.Float32(): np.dtype(np.float32),
    pl.Float64(): np.dtype(np.float64),
}
_ARROW_TYPES: dict[pl.DataType, pa.DataType] = {
    pl.Int64(): pa.int64(),
    pl.Float32(): pa.float32(),
    pl.Float64(): pa.float64(),
    pl.UInt64(): pa.uint64(),
}


def over_values(values: pl.Expr, kernel: Kernel, dtype: pl.DataType, result: pl.DataType) -> pl.Expr:
    """`kernel` over each value of a numeric expression of `dtype`, as an expression of `result`; nulls stay null.

    Both types are among `NUMPY_TYPES`.
    """
    read, wrote, arrow = NUMPY_TYPES[dtype], NUMPY_TYPES[result], _ARROW_TYPES[result]

    def run(series: pl.Series) -> pl.Series:
        held, bits, lead = _held(series, read)
        count = len(held)
        buffer = pa.allocate_buffer(count * wrote.itemsize)
        out = np.frombuffer(buffer, wrote)
        with np.errstate(all="ignore"):
            for start in range(0, count, BLOCK_VALUES):
                kernel(held[start : start + BLOCK_VALUES], out[start : start + BLOCK_VALUES])
        return pl.Series(pa.Array.from_buffers(arrow, len(series), [bits, buffer], -1 if bits else 0, lead))

    return mapped(values, run, result)


def _held(series: pl.Series, dtype: np.dtype[Any]) -> tuple[Values, pa.Buffer | None, int]:
    """The values as they lie, the bits of their validity (None without nulls), and how many stand in front of both."""
    if not series.null_count():
        return series.to_numpy(), None, 0
    array = series.to_arrow()
    validity, data = array.buffers()
    # validity is bits: it can be cut at a byte only, so up to seven values in front come along
    lead = array.offset % 8
    start = (array.offset - lead) * dtype.itemsize
    return np.frombuffer(data, dtype, count=lead + len(array), offset=start), validity.slice(array.offset // 8), lead


def over_series(values: pl.Expr, function: Callable[[pl.Series, Values], None]) -> pl.Expr:
    """`function(series, out)` writes one int64 per value of a series that numpy has no type for; nulls stay null."""

    def run(series: pl.Series) -> pl.Series:
        nulls, lead, bits = series.null_count(), 0, None
        if nulls:
            mask = series.is_not_null().to_arrow()
            lead, bits = mask.offset % 8, mask.buffers()[1].slice(mask.offset // 8)
        buffer = pa.allocate_buffer(8 * (lead + len(series)))
        function(series, np.frombuffer(buffer, np.int64)[lead:])
        return pl.Series(pa.Array.from_buffers(pa.int64(), len(series), [bits, buffer], nulls, lead))

    return mapped(values, run, pl.Int64())


def mapped(values: pl.Expr, function: Callable[[pl.Series], pl.Series], result: pl.DataType) -> pl.Expr:
    """`function` over whole series, as an expression of `result`; it must give each row a value of that row alone."""
    return values.map_batches(function, return_dtype=result, is_elementwise=True)
