"""Convert columns of lists to flat values and offsets for numpy, and back to lists and vectors.

Runs on the workers, inside the pass over a chunk. Arrow stores lists as flat values and offsets. Ops that need an
element's position in its list, or two lists of a row, work on these in numpy, 10 to 20 times faster than Polars'
`list.eval` with shifts. Null elements are `holes`; a null list is an empty list marked `absent`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.native import rows
from feedline.transforms.values.arrays import NUMPY_TYPES, Column, Values, map_series
from feedline.transforms.values.kinds import WEIGHTS, TailSlice, Value, element_type

Mask = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]

_INT32_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """N lists of numbers: `values` [V], `offsets` [N + 1] from 0, and masks of nulls: `holes` [V], `absent` [N]."""

    values: Values
    offsets: Offsets
    holes: Mask | None
    absent: Mask | None

    @classmethod
    def of(cls, series: pl.Series) -> Ragged:
        """A series of lists of numbers of one of `NUMPY_TYPES`, see `flatten_lists`."""
        values, offsets, absent = flatten_lists(series)
        dtype = values.type.to_pandas_dtype()
        data, start = values.buffers()[1], values.offset * np.dtype(dtype).itemsize
        flat = np.frombuffer(data, dtype, count=len(values), offset=start) if data else ()
        return cls(
            values=np.asarray(flat, dtype),
            offsets=offsets,
            holes=values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None,
            absent=absent,
        )

    @property
    def lengths(self) -> Offsets:
        """Elements per row, nulls included."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Ragged:
        offsets = self.offsets[start : stop + 1]
        values = slice(int(offsets[0]), int(offsets[-1]))
        return Ragged(
            values=self.values[values],
            offsets=offsets - offsets[0],
            holes=None if self.holes is None else self.holes[values],
            absent=None if self.absent is None else self.absent[start:stop],
        )

    def where(self, keep: Mask) -> Ragged:
        """The lists with only the elements where `keep` is true."""
        # lists of 2 and 1 elements, keep [1, 0, 1] -> ends [0, 1, 1, 2] -> offsets [0, 2, 3] become [0, 1, 2]
        ends = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
        holes = None if self.holes is None else self.holes[keep]
        return Ragged(values=self.values[keep], offsets=ends[self.offsets], holes=holes, absent=self.absent)

    def drop_holes(self) -> Ragged:
        return self if self.holes is None else self.where(~self.holes)


def flatten_lists(series: pl.Series) -> tuple[pa.Array, Offsets, Mask | None]:
    """The elements of all lists, the lists' offsets from 0, and a mask of the null lists, if any.

    Zero-copy unless null lists have elements under them.
    """
    array = series.rechunk().to_arrow()
    absent = None
    if array.null_count:
        absent = array.is_null().to_numpy(zero_copy_only=False)
        if np.any(np.diff(array.offsets.to_numpy())[absent]):
            array = pc.if_else(array.is_valid(), array, pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return array.values.slice(first, last - first), offsets - first if first else offsets, absent


def lists_of(values: Values, offsets: Offsets, *, holes: Mask | None = None, absent: Mask | None = None) -> pl.Series:
    """Lists of flat values, with nulls where `holes` and `absent` are true."""
    flat = pa.array(values, mask=holes)
    mask = None if absent is None else pa.array(absent)
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), flat, mask=mask))


def lists_of_one(scalars: pl.Series) -> pl.Series:
    """Each number as a list of one, a null as a list of none."""
    offsets = np.arange(len(scalars) + 1, dtype=np.int64)
    if scalars.null_count():
        np.cumsum(scalars.is_not_null().to_numpy(), out=offsets[1:])
        scalars = scalars.drop_nulls()
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), scalars.rechunk().to_arrow()))


def vectors_of(matrix: Values, absent: Mask | None = None, *, holes: Mask | None = None) -> pl.Series:
    """The rows of a matrix [N, width] as vectors, with nulls where `absent` [N] and `holes` [N, width] are true."""
    mask = None if absent is None else pa.array(absent)
    flat = pa.array(matrix.ravel(), mask=None if holes is None else holes.ravel())
    return pl.Series(pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1], mask=mask))


def over_columns(columns: Sequence[pl.Expr], function: Callable[..., pl.Series], result: pl.DataType) -> pl.Expr:
    """Apply `function(series, …)` to several columns, as an expression of `result`. It must work row by row."""

    def run(series: Sequence[pl.Series]) -> pl.Series:
        with np.errstate(all="ignore"):  # NaN and infinities are values
            return function(*series)

    return pl.map_batches(list(columns), run, return_dtype=result, is_elementwise=True)


def over_flat(lists: pl.Expr, function: Callable[[pl.Series], pl.Series], result: pl.DataType) -> pl.Expr:
    """Apply `function(values)` to the elements of all lists at once, as lists of `result`; nulls stay null."""

    return map_series(lists, lambda series: map_flat(series, function, result), pl.List(result))


def over_keys(keys: Sequence[Value], find: Callable[..., pl.Series]) -> pl.Expr:
    """The int64 positions that `find(series, …)` gives for keys of several columns, or for the elements of lists."""
    if keys[0].kind.listed:
        return over_flat(keys[0].expr, find, pl.Int64())
    return over_columns([key.expr for key in keys], find, pl.Int64())


def map_flat(series: pl.Series, function: Callable[[pl.Series], Column], result: pl.DataType) -> pl.Series:
    """`function` of the elements of all lists at once, as lists of `result`; null lists stay null."""
    array = series.rechunk().to_arrow()
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    flat = function(pl.Series(array.values.slice(first, last - first), dtype=element_type(series.dtype)))
    values = flat.rechunk().to_arrow() if isinstance(flat, pl.Series) else pa.array(flat)
    mask = array.is_null() if array.null_count else None
    lists = pa.LargeListArray.from_arrays(pa.array(offsets - first), values, mask=mask)
    return pl.Series(lists, dtype=pl.List(result))


def list_slices(lists: pl.Expr, start: int, stop: int | None, result: pl.DataType) -> pl.Expr:
    """`list[start:stop]` of each list, with Python's semantics, for lists of anything.

    Lists of numbers are sliced by compiled code, if there is any: 7 ns per row, against 13 for Polars' head (lists of
    27 int64 cut to 20). Polars slices lists of other elements, and leading elements that may be null; other slices are
    gathered.
    """
    if not element_type(result).is_numeric():
        if start >= 0 and (stop is None or stop >= 0):
            return lists.list.slice(min(start, _INT32_LIMIT), None if stop is None else max(stop - start, 0))
        if stop is None:
            return lists.list.tail(min(-start, _INT32_LIMIT))

    return map_series(lists, lambda series: slice_numbers(series, start, stop), result)


def slice_numbers(lists: pl.Series, start: int, stop: int | None) -> pl.Series:
    """`list[start:stop]` of each list of numbers."""
    lists = lists.rechunk()
    if rows.COMPILED and len(lists):
        array = lists.to_arrow()
        kind = array.values.type
        if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not array.values.null_count:
            return _compiled_slices(array, start, stop)
    if start == 0 and stop is not None and stop > 0:
        return lists.list.head(stop)
    return _gathered_slices(lists, start, stop)


def _compiled_slices(array: pa.Array, start: int, stop: int | None) -> pl.Series:
    """The slices of lists of plain numbers without nulls."""
    start, stop = slice_bounds(start, stop)
    values, ends = array.values, array.offsets.to_numpy()
    size = int(values.type.bit_width) // 8
    offsets = rows.slice_lists(ends, start, stop)
    data = pa.allocate_buffer(size * int(offsets[-1]))
    rows.slice_values(ends, values.buffers()[1].slice(values.offset * size), size, start, offsets, data)
    keep = pa.Array.from_buffers(values.type, int(offsets[-1]), [None, data])
    valid = array.is_valid().buffers()[1] if array.null_count else None  # recomputed, so that its bits start at 0
    kinds = pa.large_list(values.type)
    parts = [valid, pa.py_buffer(offsets)]
    return pl.Series(pa.Array.from_buffers(kinds, len(array), parts, array.null_count, children=[keep]))


def slice_bounds(start: int, stop: int | None) -> tuple[int, int]:
    """A slice's borders in lists that have no more elements than 32 bits count."""
    stop = _INT32_LIMIT if stop is None else stop
    return max(min(start, _INT32_LIMIT), -_INT32_LIMIT), max(min(stop, _INT32_LIMIT), -_INT32_LIMIT)


def _gathered_slices(series: pl.Series, start: int, stop: int | None) -> pl.Series:
    array = series.to_arrow()
    ends = array.offsets.to_numpy()
    lengths = np.diff(ends)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    # [-2:] of lists of 3 and 1 elements: from [1, 0] to [3, 1]
    first, last = (
        np.clip(border + lengths if border < 0 else border, 0, lengths) for border in slice_bounds(start, stop)
    )
    keep = np.maximum(last - first, 0)
    offsets = np.concatenate(([0], np.cumsum(keep)))
    chosen = np.arange(int(offsets[-1])) + np.repeat(ends[:-1] + first - offsets[:-1], keep)
    mask = array.is_null() if array.null_count else None
    cut = pa.LargeListArray.from_arrays(pa.array(offsets), array.values.take(pa.array(chosen)), mask=mask)
    return pl.Series(cut).cast(series.dtype)


def align_weights(ids: Value, weights: Value, fill: float | None) -> Value:
    """A list and the list of its weights as one weighted list, null where the ids are.

    Lists that differ in length (of a null list: 0) make the pass raise DataError.
    """

    def check_lengths(id_lists: pl.Series, weight_lists: pl.Series) -> None:
        expected, found = (series.list.len().fill_null(0) for series in (id_lists, weight_lists))
        if not expected.equals(found):
            row = int((expected != found).arg_max() or 0)
            raise DataError(
                f"each id must have one weight: got {found[row]} weights for {expected[row]} ids, expected "
                f"{expected[row]}"
            )

    def take_ids(id_lists: pl.Series, weight_lists: pl.Series) -> pl.Series:
        check_lengths(id_lists, weight_lists)
        return id_lists

    def take_weights(id_lists: pl.Series, weight_lists: pl.Series) -> pl.Series:
        check_lengths(id_lists, weight_lists)
        if not id_lists.null_count() and not weight_lists.null_count():
            return weight_lists
        present = id_lists.is_not_null().to_arrow()
        ragged = Ragged.of(weight_lists)
        return lists_of(
            ragged.values, ragged.offsets, holes=ragged.holes, absent=~present.to_numpy(zero_copy_only=False)
        )

    both = [ids.expr, weights.expr if weights.dtype == WEIGHTS else weights.expr.cast(WEIGHTS)]
    if fill is not None:
        both[1] = both[1].list.eval(pl.element().fill_null(pl.lit(fill, dtype=pl.Float32())))
    return Value(
        expr=over_columns(both, take_ids, ids.dtype),
        dtype=ids.dtype,
        weights=over_columns(both, take_weights, WEIGHTS),
    )


def slice_elements(x: Value, start: int, stop: int | None) -> Value:
    """`list[start:stop]` of each list and of its weights."""
    expr = list_slices(x.expr, start, stop, x.dtype)
    if x.weights is not None:
        return Value(expr=expr, dtype=x.dtype, weights=list_slices(x.weights, start, stop, WEIGHTS))
    if not element_type(x.dtype).is_numeric():
        return Value(expr=expr, dtype=x.dtype)
    return Value(expr=expr, dtype=x.dtype, last=TailSlice(lists=x.expr, start=start, stop=stop, expr=expr))


def filter_elements(x: Value, keep: Callable[..., Mask], *others: pl.Expr) -> Value:
    """Keep the elements of each list, and their weights, where the mask `keep(list, *others)` is true; null if one of
    the lists is.
    """

    def select(part: pl.Series, lists: pl.Series, *other_lists: pl.Series) -> pl.Series:
        ragged, more = Ragged.of(lists), [Ragged.of(other) for other in other_lists]
        result = (ragged if part is lists else Ragged.of(part)).where(keep(ragged, *more))
        absent = either([ragged.absent, *(one.absent for one in more)])
        return lists_of(result.values, result.offsets, holes=result.holes, absent=absent)

    weights = None if x.weights is None else over_columns([x.weights, x.expr, *others], select, WEIGHTS)
    ids = over_columns([x.expr, *others], lambda lists, *more: select(lists, lists, *more), x.dtype)
    return Value(expr=ids, dtype=x.dtype, weights=weights)


def either(masks: Sequence[Mask | None]) -> Mask | None:
    """Where any of the masks is true; None without masks."""
    found = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None


def widen_list(x: Value) -> Value:
    """A list of numbers as one of `NUMPY_TYPES`: int64 or uint64, float32 or float64."""
    inner = element_type(x.dtype)
    if inner in NUMPY_TYPES:
        return x
    wide: pl.DataType = pl.Int64() if inner.is_integer() else pl.Float32() if inner == pl.Float16() else pl.Float64()
    return Value(expr=x.expr.cast(pl.List(wide)), dtype=pl.List(wide), weights=x.weights)
