"""Find the rows that repeat the row above them in a group of columns.

Runs in: processes that compute blocks, and in the tasks of `optimize`. Pure. Equal means equal bits after decoding:
null equals null, NaN equals a NaN of the same bits, -0.0 is not 0.0. Lists are compared by their values and offsets,
without an object per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.native import rows as native
from feedline.warehouse.parquet.schemas import is_bytes, is_list, is_text

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64] | slice
_INLINE = 12  # bytes of a string that its view holds
_ROWS, _ABOVE = slice(1, None), slice(None, -1)  # all rows but the first, and those above them


def run_starts_at(frame: pl.DataFrame, columns: Sequence[str], borders: Sequence[int]) -> Bools:
    """bool [rows]: where a run of equal rows begins. Rows of `borders` begin one in any case, as does the first."""
    starts = np.zeros(frame.height, np.bool_)
    starts[list(borders)] = True
    starts[:1] = True
    series = [frame.get_column(name) for name in columns]
    for each in sorted(series, key=lambda one: one.dtype.is_nested()):  # lists take the most time
        if frame.height > 1 and not starts.all():
            starts[1:] |= ~_equal(_arrow(each), _ROWS, _ABOVE)
    return starts


def first_rows_of_table(table: pa.Table, columns: Sequence[str]) -> Bools:
    """bool [rows]: where a run of equal rows of an Arrow table begins; columns may have any type of Parquet."""
    starts = np.zeros(table.num_rows, np.bool_)
    starts[:1] = True
    for name in sorted(columns, key=lambda name: pat.is_nested(table.schema.field(name).type)):
        if table.num_rows > 1 and not starts.all():
            _mark_changes(table[name], starts)
    return starts


def _mark_changes(column: pa.ChunkedArray, starts: Bools) -> None:
    """Set the rows that differ from the one above. Chunk by chunk: all of them may hold more values than one array."""
    first, above = 0, None
    for chunk in column.chunks:
        if not len(chunk):
            continue
        if above is not None and not starts[first]:
            starts[first] = not _equal(_pair(above, chunk.slice(0, 1)), _ROWS, _ABOVE)[0]
        starts[first + 1 : first + len(chunk)] |= ~_equal(chunk, _ROWS, _ABOVE)
        first, above = first + len(chunk), chunk.slice(len(chunk) - 1)


def _pair(above: pa.Array, row: pa.Array) -> pa.Array:
    try:
        return pa.concat_arrays([above, row])
    except pa.ArrowInvalid:  # they hold more values than 32 bits count
        kind = pa.large_list(above.type.value_field) if pat.is_list(above.type) else pa.large_binary()
        return pa.concat_arrays([above.cast(kind), row.cast(kind)])


def _arrow(series: pl.Series) -> pa.Array:
    array = series.rechunk().to_arrow()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _equal(array: pa.Array, rows: Rows, others: Rows) -> Bools:
    """bool [pairs]: whether two rows of an array are equal."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    kind = array.type
    if pat.is_struct(kind):
        equal = np.ones(_count(rows, len(array)), np.bool_)
        for field in array.flatten():  # with the struct's nulls
            equal &= _equal(field, rows, others)
    elif pat.is_fixed_size_list(kind):
        equal = _equal_vectors(array, rows, others)
    elif is_list(kind) or pat.is_map(kind):
        equal = _equal_lists(array, rows, others)
    elif pat.is_decimal(kind) or pat.is_fixed_size_binary(kind):
        width = kind.byte_width
        content = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        digits = content.reshape(-1, width)
        equal = np.logical_and.reduce(digits[rows] == digits[others], axis=1)
    elif pat.is_null(kind):
        equal = np.ones(_count(rows, len(array)), np.bool_)
    elif isinstance(rows, slice) and not _is_number(kind):
        series = pl.Series(array)
        equal = series.eq_missing(series.shift(1)).to_numpy()[1:]
    else:
        values = _words(array)
        equal = np.equal(values[rows], values[others])
    if valid is None:
        return equal
    result: Bools = np.where(valid[rows] & valid[others], equal, valid[rows] == valid[others])
    return result


def _equal_lists_of_bytes(offsets: NDArray[np.int64], values: pa.Array) -> Bools:
    """bool [lists - 1]: whether each list of strings but the first is the one above: in its bytes, in the lengths of
    its strings, and in its nulls."""
    valid = values.is_valid() if values.null_count else None
    if valid is not None:
        values = values.fill_null(pa.scalar("" if _is_text(values.type) else b"", values.type))
    if pat.is_string_view(values.type) or pat.is_binary_view(values.type):
        views = np.frombuffer(values.buffers()[1], np.int32).reshape(-1, 4)[values.offset :][: len(values)]
        if views[:, 0].max(initial=0) <= _INLINE:
            equal = native.equal_neighbours(offsets, views, 16)
        else:
            values = values.cast(pa.large_string() if _is_text(values.type) else pa.large_binary())
            equal = _equal_bytes(offsets, values)
    else:
        equal = _equal_bytes(offsets, values)
    if valid is not None:
        equal &= native.equal_neighbours(offsets, valid.to_numpy(zero_copy_only=False), 1)
    return equal


def _equal_bytes(offsets: NDArray[np.int64], values: pa.Array) -> Bools:
    wide = pat.is_large_string(values.type) or pat.is_large_binary(values.type)
    if not len(values):
        return np.ones(len(offsets) - 2, np.bool_)
    borders = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)[values.offset :][: len(values) + 1]
    lengths = np.diff(borders)
    equal = native.equal_neighbours(offsets, lengths, lengths.itemsize)
    return equal & native.equal_neighbours(borders[offsets].astype(np.int64), values.buffers()[2] or b"", 1)


def _is_text(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pat.is_string_view(kind))


def _count(rows: Rows, length: int) -> int:
    return len(range(length)[rows]) if isinstance(rows, slice) else len(rows)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_floating(kind) or pat.is_integer(kind) or pat.is_temporal(kind))


def _words(array: pa.Array) -> NDArray[np.generic]:
    """Values that are equal where the array's are, bit for bit; those of nulls are anything."""
    kind = array.type
    if _is_number(kind):
        bytes_of_value = kind.bit_width // 8
        return np.frombuffer(array.buffers()[1], f"u{bytes_of_value}", len(array), array.offset * bytes_of_value)
    series = pl.Series(array)  # of strings, bytes or booleans: numbered
    if series.dtype == pl.Boolean:
        series = series.cast(pl.UInt8)
    return np.asarray(series.rank("dense").fill_null(0))


def _equal_vectors(array: pa.Array, rows: Rows, others: Rows) -> Bools:
    width, count = array.type.list_size, len(array)
    elements = np.arange(array.offset * width, (array.offset + count) * width).reshape(count, width)
    first, second = elements[rows], elements[others]
    pairs = _equal(array.values, first.ravel(), second.ravel())
    equal: Bools = np.logical_and.reduce(pairs.reshape(first.shape), axis=1)
    return equal


def _equal_lists(array: pa.Array, rows: Rows, others: Rows) -> Bools:
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    values = (
        array.values
        if not pat.is_map(array.type)
        else pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
    )
    kind = values.type
    if isinstance(rows, slice) and native.COMPILED:
        if (pat.is_integer(kind) or pat.is_floating(kind)) and not values.null_count:
            size = kind.bit_width // 8
            return native.equal_neighbours(offsets, values.buffers()[1].slice(values.offset * size), size)
        if _is_text(kind) or is_bytes(kind) or pat.is_binary_view(kind):
            return _equal_lists_of_bytes(offsets, values)
    lengths = np.diff(offsets)
    equal: Bools = lengths[rows] == lengths[others]
    if pat.is_null(kind):
        return equal
    # offsets [0, 2, 4, 5]: lists 0 and 1 are as long, so values 2 and 3 are compared with 0 and 1; list 2 differs
    pairs = np.flatnonzero(equal & (lengths[rows] > 0))
    counts = lengths[rows][pairs]
    starts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    first, second = (within + np.repeat(offsets[:-1][each][pairs], counts) for each in (rows, others))
    if len(pairs):
        equal[pairs] = np.logical_and.reduceat(_equal(values, first, second), starts)
    return equal
