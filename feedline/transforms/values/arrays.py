"""Run numpy functions inside a Polars pass, over a column's buffer and without a copy.

Runs on the workers. An op that numpy computes faster than Polars is a kernel: a function of two arrays, values and
result. It sees whole buffers, in blocks that fit the caches; values under a null are computed too and stay under that
null, so kernels must not fail on any value. Results lie in memory from Arrow's pool: a fresh numpy array of this size
would be mapped and unmapped at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass

Values = npt.NDArray[Any]
Kernel = Callable[[Values, Values], None]
Column: TypeAlias = pl.Series | Values  # without nulls, where it is an array
Columns: TypeAlias = pl.DataFrame | Mapping[str, Column]

BLOCK_VALUES = 32768


def _numpy_types(*dtypes: pl.DataType) -> dict[pl.DataType, np.dtype[Any]]:
    return {dtype: np.dtype(str(dtype).lower()) for dtype in dtypes}


NUMPY_TYPES = _numpy_types(pl.Int64(), pl.UInt64(), pl.Float32(), pl.Float64())
# widened to one of NUMPY_TYPES before any computation
SMALL_INTEGERS = _numpy_types(pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())
_READ_TYPES = NUMPY_TYPES | SMALL_INTEGERS


@dataclass(frozen=True, slots=True, eq=False)
class KernelStep:
    """A kernel and the type it produces, one of `NUMPY_TYPES`; without a kernel, nulls are replaced by `fill`."""

    dtype: pl.DataType
    kernel: Kernel | None = None
    fill: float = 0


@dataclass(frozen=True, slots=True, eq=False)
class FusedKernels:
    """Consecutive steps over the values of one expression, run together; `expr` computes them all.

    Blocks stay in a core's cache from step to step: nothing is allocated between them, and Polars is called once, or
    not at all (`run`). values: an expression of `dtype`, a type that numpy has; or of any type, if one function
    computes numbers of `dtype` from the whole series. Steps after that one are not fused with it. run: None without
    kernels; called where numpy warns of no number (`np.errstate`), with a series or, if it takes them (of_arrow), with
    an Arrow array.
    """

    values: pl.Expr
    dtype: pl.DataType
    steps: tuple[KernelStep, ...]
    expr: pl.Expr
    run: Callable[[Any], Column] | None = None
    whole: bool = False
    of_arrow: bool = False

    @classmethod
    def of(cls, values: pl.Expr, dtype: pl.DataType) -> FusedKernels:
        return cls(values, dtype, (), values)

    @classmethod
    def of_series(
        cls, values: pl.Expr, function: Callable[[Any, Values], None], *, of_arrow: bool = False
    ) -> FusedKernels:
        """`function(series, out)`, which writes one int64 per value, over values without a numpy type; nulls stay.

        of_arrow: the function takes Arrow arrays, too.
        """

        def run(series: pl.Series | pa.Array) -> Column:
            if isinstance(series, pa.Array):
                if not series.null_count:
                    out = np.frombuffer(pa.allocate_buffer(8 * len(series)), np.int64)
                    function(series, out)
                    return out
                series = pl.Series(series)
            nulls, lead, bits = series.null_count(), 0, None
            if nulls:
                mask = series.is_not_null().to_arrow()
                lead, bits = mask.offset % 8, mask.buffers()[1].slice(mask.offset // 8)
            count = series.len()
            buffer = pa.allocate_buffer(8 * (lead + count))
            out = np.frombuffer(buffer, np.int64)[lead:]
            function(series, out)
            return pl.Series(pa.Array.from_buffers(pa.int64(), count, [bits, buffer], nulls, lead)) if nulls else out

        expr = _map_kernels(values, run, pl.Int64())
        return cls(values, pl.Int64(), (), expr, run, whole=True, of_arrow=of_arrow)

    def with_step(self, step: KernelStep) -> FusedKernels:
        """The same with another step. Steps that only replace nulls run in Polars."""
        if self.whole:
            return FusedKernels.of(self.expr, self.dtype).with_step(step)
        steps = (*self.steps, step)
        if not any(earlier.kernel for earlier in steps):
            expr = self.expr.fill_null(pl.lit(step.fill, dtype=step.dtype))
            return FusedKernels(self.values, self.dtype, steps, expr)
        run = _runner(steps, self.dtype)
        return FusedKernels(
            self.values, self.dtype, steps, _map_kernels(self.values, run, step.dtype), run, of_arrow=True
        )


_Plan = Sequence[tuple[KernelStep, np.dtype[Any]]]


def _runner(steps: Sequence[KernelStep], dtype: pl.DataType) -> Callable[[pl.Series | pa.Array], Column]:
    """A function of a series of one chunk, or of an array. Types are looked up here, because that costs as much as
    a cheap kernel."""
    fills = [index for index, step in enumerate(steps) if step.kernel is None]
    typed_steps = [(step, NUMPY_TYPES[step.dtype]) for step in steps]
    without_fills: _Plan = [pair for pair in typed_steps if pair[0].kernel is not None]
    with_first_fill: _Plan = [pair for index, pair in enumerate(typed_steps) if index not in fills[1:]]
    source_dtype, target_dtype = _READ_TYPES[dtype], NUMPY_TYPES[steps[-1].dtype]
    arrow = pa.from_numpy_dtype(target_dtype)

    def run(series: pl.Series | pa.Array) -> Column:
        values, bits, lead = _buffers(series, source_dtype)
        fill = bool(fills) and bits is not None
        buffer = pa.allocate_buffer(len(values) * target_dtype.itemsize)
        out = np.frombuffer(buffer, target_dtype)
        valid = _validity(bits, len(values)) if fill else None
        _run_blocks(with_first_fill if fill else without_fills, values, valid, out)
        if fill or bits is None:
            return out[lead:]
        return pl.Series(pa.Array.from_buffers(arrow, len(values) - lead, [bits, buffer], -1, lead))

    return run


def _run_blocks(plan: _Plan, values: Values, valid: Values | None, out: Values) -> None:
    """Run each block of values through all steps. No kernel writes where it reads."""
    count = len(values)
    scratch = [np.empty(min(BLOCK_VALUES, count), dtype) for _, dtype in plan[:-1]]
    for start in range(0, count, BLOCK_VALUES):
        block = slice(start, start + BLOCK_VALUES)
        rest = slice(count - start)
        part = values[block]
        for (step, _), target in zip(plan, [*[buffer[rest] for buffer in scratch], out[block]], strict=True):
            if step.kernel is not None:
                step.kernel(part, target)
            else:
                assert valid is not None
                _fill(part, valid[block], step.fill, target)
            part = target


def conversion(source: pl.DataType, target: pl.DataType) -> KernelStep | None:
    """The step that converts numbers to floats (rounded) or to larger integers; None for other conversions."""
    read, write = _READ_TYPES.get(source), NUMPY_TYPES.get(target)
    if read is None or write is None or not (write.kind == "f" or np.can_cast(read, write, "safe")):
        return None
    return KernelStep(target, _convert)


def _convert(values: Values, out: Values) -> None:
    np.copyto(out, values, casting="same_kind")  # rounds to nearest; out of range becomes an infinity


def _validity(bits: pa.Buffer | None, count: int) -> Values:
    assert bits is not None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(np.int8)


def _fill(values: Values, valid: Values, fill: float, out: Values) -> None:
    """Each valid value, `fill` for the others, selected by bits: 12 us for 32,768 values; a masked copy takes 29."""
    words = np.dtype(f"i{values.itemsize}")
    source, target = values.view(words), out.view(words)
    mask = np.negative(valid).astype(words)  # all ones where valid
    other = np.asarray(fill, values.dtype).view(words)
    if other:
        np.bitwise_xor(np.bitwise_and(np.bitwise_xor(source, other, out=target), mask, out=target), other, out=target)
    else:
        np.bitwise_and(source, mask, out=target)


def _buffers(series: pl.Series | pa.Array, dtype: np.dtype[Any]) -> tuple[Values, pa.Buffer | None, int]:
    """The values in place, their validity bits (None without nulls), and the number of extra values before both."""
    if isinstance(series, pl.Series):
        if not series.null_count():
            return series.to_numpy(), None, 0
        array = series.to_arrow()
    elif not series.null_count:
        return series.to_numpy(), None, 0
    else:
        array = series
    validity, data = array.buffers()
    # validity bits can be sliced at whole bytes only, so up to seven preceding values come along: of an array that
    # begins at 11 those from 8 on, with the bits from byte 1 on, and a lead of 3
    lead = array.offset % 8
    start = (array.offset - lead) * dtype.itemsize
    return np.frombuffer(data, dtype, count=lead + len(array), offset=start), validity.slice(array.offset // 8), lead


def map_series(values: pl.Expr, function: Callable[[pl.Series], pl.Series], result: pl.DataType) -> pl.Expr:
    """Apply `function` to whole series, as an expression of `result`. It must compute each row from that row alone."""
    return values.map_batches(function, return_dtype=result, is_elementwise=True)


def _map_kernels(values: pl.Expr, run: Callable[[Any], Column], result: pl.DataType) -> pl.Expr:
    def quiet(series: pl.Series) -> pl.Series:
        with np.errstate(all="ignore"):
            return as_series(run(series))

    return map_series(values, quiet, result)


def as_series(column: Column) -> pl.Series:
    """The column as a series, without a copy."""
    return column if isinstance(column, pl.Series) else pl.Series(pa.array(column))


def as_arrays(columns: Columns) -> list[Values] | None:
    """Columns of numbers as arrays; None if any holds a null."""
    if isinstance(columns, pl.DataFrame):
        return None if any(columns.null_count().row(0)) else [series.to_numpy() for series in columns]
    found = []
    for column in columns.values():
        if isinstance(column, pl.Series):
            if column.null_count():
                return None
            column = column.to_numpy()
        found.append(column)
    return found
