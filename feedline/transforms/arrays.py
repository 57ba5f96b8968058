"""How does a numpy function run inside a Polars pass, over a column's buffer and without copying it?

Runs on the workers. An op that numpy does faster than Polars (float32 `log1p`: 12 against 320 us for 32 k values) is a
kernel: a function of two arrays, values and result. It sees whole buffers, so that whatever stands under a null is
computed too and stays under that null: kernels must not fail on any value. Values reach the kernel in blocks that fit
the caches. Results lie in memory from Arrow's pool: a fresh numpy array of this size is mapped and unmapped at every
call, which costs more than a cheap kernel (186 against 86 us for 32 k hashed ids).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Kernels one after the other over the values of one expression, in one pass; `expr` computes them all.

    Each is handed to the next by blocks that stay in a core's cache: between them nothing is allocated, and Polars is
    called once. Values of `dtype` come in; each step says what type it makes. All are among `NUMPY_TYPES`.
    """

    values: pl.Expr
    dtype: pl.DataType
    steps: tuple[tuple[Kernel, pl.DataType], ...]
    expr: pl.Expr

    @classmethod
    def of(cls, values: pl.Expr, dtype: pl.DataType, steps: tuple[tuple[Kernel, pl.DataType], ...]) -> Fused:
        """The kernels over an expression of `dtype`; nulls stay null."""
        read = NUMPY_TYPES[dtype]
        kernels = [kernel for kernel, _ in steps]
        types = [NUMPY_TYPES[made] for _, made in steps]
        result = steps[-1][1]

        def run(series: pl.Series) -> pl.Series:
            held, bits, lead = _held(series, read)
            buffer = pa.allocate_buffer(len(held) * types[-1].itemsize)
            with np.errstate(all="ignore"):
                _one_by_one(kernels, types, held, np.frombuffer(buffer, types[-1]))
            nulls = -1 if bits else 0
            return pl.Series(pa.Array.from_buffers(_ARROW_TYPES[result], len(series), [bits, buffer], nulls, lead))

        return cls(values, dtype, steps, mapped(values, run, result))

    def then(self, kernel: Kernel, result: pl.DataType) -> Fused:
        """One kernel more."""
        return self.of(self.values, self.dtype, (*self.steps, (kernel, result)))


def _one_by_one(kernels: Sequence[Kernel], types: Sequence[np.dtype[Any]], held: Values, out: Values) -> None:
    """Each block of values through all kernels. A kernel never writes where it reads."""
    between = [np.empty(min(BLOCK_VALUES, len(held)), dtype) for dtype in types[:-1]]
    for start in range(0, len(held), BLOCK_VALUES):
        part = held[start : start + BLOCK_VALUES]
        for kernel, scratch in zip(kernels, between, strict=False):
            made = scratch[: len(part)]
            kernel(part, made)
            part = made
        kernels[-1](part, out[start : start + BLOCK_VALUES])


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
