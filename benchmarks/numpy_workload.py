"""The work of each shape in hand-vectorised numpy, and torch where it is faster: row groups become encoded pieces.

    lists     log1p(clip(fill_null(dense, 0), 0, 1000)), id % 1000003, the first 20 ids of each list
    short     the same, of the rows that its filter keeps
    wide      fill_null(dense, 0), the first 20 ids of each list, % 1000003
    strings   fill_null(int, 0), all but int_0 log1p; Polars' hash of a string % 1000000
    flat      columns as they are

Polars hashes strings where numpy cannot, and the strings of a dictionary once: with decoding 640 instead of 1,000 ns a
row. Runs in the contenders' processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from shapes import BUCKETS, CLIP, FIRST, LABEL, MODULUS, Shape
from workload import Piece, RowGroup, open_file

NARROW, WIDE = 4, 64  # dense columns: so few are written row-major; so many are transposed fastest by torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How a shape's columns are encoded. log_from: the first dense column that becomes log1p of what `dense` wrote.

    chunk_rows: rows decoded at once: 32,768 are 5 % faster than 8,192 in `lists`, and as fast as a row group in half
    the memory. at_once: chunks are encoded as they are, for a dictionary's sake or because there is little to do.
    """

    dense: Callable[[pa.Array, np.ndarray], None]
    ids: Callable[[pa.Array, np.ndarray], None]
    lists: Callable[[pa.ListArray], tuple[np.ndarray, np.ndarray]]
    log_from: int | None = None
    chunk_rows: int = 32_768
    at_once: bool = False


def numpy_pieces(group: RowGroup, shape: Shape, size: int) -> list[Piece]:
    """Read a row group on this thread and encode it in pieces: chunks, or their parts that end where batches do.

    Pieces of at most a batch stay in the caches, and most need no concatenation. Where a filter drops rows, it is
    unknown where batches end.
    """
    encoder = ENCODERS[shape.name]
    pieces: list[Piece] = []
    start = group.start
    file = open_file(group, dictionaries=_dictionaries(group, shape.ids) if shape.hashed else ())
    for chunk in file.iter_batches(
        encoder.chunk_rows, row_groups=[group.index], columns=shape.columns, use_threads=False
    ):
        if shape.filter is not None:
            chunk = chunk.filter(pc.greater(chunk.column(shape.filter.column), shape.filter.above))
        if encoder.at_once or shape.filter is not None:
            pieces.append(_encode(chunk, shape, encoder))
        else:
            ends = [*range(size - start % size, chunk.num_rows, size), chunk.num_rows]
            parts = (chunk.slice(first, stop - first) for first, stop in pairwise([0, *ends]))
            pieces += [_encode(part, shape, encoder) for part in parts]
        start += chunk.num_rows
    return pieces


def _dictionaries(group: RowGroup, names: tuple[str, ...]) -> list[str]:
    """Return the columns that are stored with a dictionary."""
    row_group = group.footer.row_group(group.index)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    return [
        column.path_in_schema
        for column in columns
        if column.path_in_schema in names and "RLE_DICTIONARY" in column.encodings
    ]


def _encode(rows: pa.RecordBatch, shape: Shape, encoder: Encoder) -> Piece:
    width, height = len(shape.dense), rows.num_rows
    dense = np.empty((height, width), np.float32).T if width <= NARROW else np.empty((width, height), np.float32)
    for out, name in zip(dense, shape.dense, strict=True):
        encoder.dense(rows.column(name), out)
    if encoder.log_from is not None:
        torch.from_numpy(dense[encoder.log_from :]).log1p_()  # vectorised, unlike numpy's: 1.7 ns a value instead of 13
    ids = np.empty((len(shape.ids), height), np.int64)
    for out, name in zip(ids, shape.ids, strict=True):
        encoder.ids(rows.column(name), out)
    lists = [encoder.lists(rows.column(name)) for name in shape.lists]
    labels = rows.column(LABEL).to_numpy().astype(np.float32)
    return Piece(_row_major(dense), ids, labels[:, None], [values for values, _ in lists], [ends for _, ends in lists])


def _row_major(columns: np.ndarray) -> np.ndarray:
    if len(columns) >= WIDE:
        return torch.from_numpy(columns).t().contiguous().numpy()
    return np.ascontiguousarray(columns.T)


def _fill_null(column: pa.Array, out: np.ndarray) -> None:
    """Write fill_null(column, 0): the bits of a value times its validity, as a null has whatever bits."""
    bits = _values(column, column.type.to_pandas_dtype())
    if not column.null_count:
        out[:] = bits
    elif bits.dtype == np.float32:
        np.multiply(bits.view(np.int32), _valid(column), out=out.view(np.int32))
    else:
        np.multiply(bits, _valid(column), out=out)


def _fill_null_and_clip(column: pa.FloatArray, out: np.ndarray) -> None:
    """Write clip(fill_null(column, 0), 0, 1000); clipping makes a number of whatever bits a null has."""
    np.fmax(_values(column, np.float32), np.float32(0), out=out)
    np.minimum(out, np.float32(CLIP), out=out)
    if column.null_count:
        np.multiply(out, _valid(column), out=out)


def _values(column: pa.Array, kind: type) -> np.ndarray:
    stop = column.offset + len(column)
    return np.frombuffer(column.buffers()[1], kind, stop)[column.offset :]


def _valid(column: pa.Array) -> np.ndarray:
    """Return 1 where there is a value and 0 where there is none."""
    first, stop = column.offset, column.offset + len(column)
    bitmap = np.frombuffer(column.buffers()[0], np.uint8, (stop + 7) // 8)
    return np.unpackbits(bitmap[first // 8 :], bitorder="little")[first % 8 : first % 8 + len(column)]


def _copy(column: pa.Array, out: np.ndarray) -> None:
    out[:] = column.to_numpy()


def _modulo(column: pa.Array, out: np.ndarray) -> None:
    _remainder(column.to_numpy(), out)


def _remainder(ids: np.ndarray, out: np.ndarray) -> None:
    np.floor_divide(ids, MODULUS, out=out)  # vectorised for a constant divisor, unlike %: 0.6 ns instead of 1.6
    np.multiply(out, MODULUS, out=out)
    np.subtract(ids, out, out=out)


def _hash(column: pa.Array, out: np.ndarray) -> None:
    if isinstance(column, pa.DictionaryArray):
        np.take(_buckets(column.dictionary), column.indices.to_numpy(), out=out, mode="clip")  # "raise" copies
    else:
        out[:] = _buckets(column)


def _buckets(strings: pa.StringArray) -> np.ndarray:
    import polars as pl  # here, since processes of other shapes need not hold it

    return (pl.Series(pl.from_arrow(strings)).hash() % BUCKETS).to_numpy().view(np.int64)


def _first(lists: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Select the first 20 ids of each list by a mask of runs, which numpy copies run by run."""
    raw = lists.offsets.to_numpy()
    lengths = np.diff(raw)
    kept = np.minimum(lengths, FIRST)
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    runs = np.empty((len(kept), 2), np.int32)
    runs[:, 0] = kept
    np.subtract(lengths, kept, out=runs[:, 1])
    mask = np.repeat(np.tile([True, False], len(kept)), runs.ravel())
    return lists.values.to_numpy()[raw[0] : raw[-1]][mask], offsets


def _first_modulo(lists: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    ids, offsets = _first(lists)
    out = np.empty_like(ids)
    _remainder(ids, out)
    return out, offsets


ENCODERS = {
    "lists": Encoder(dense=_fill_null_and_clip, ids=_modulo, lists=_first, log_from=0),
    "short": Encoder(dense=_fill_null_and_clip, ids=_modulo, lists=_first, log_from=0),
    "wide": Encoder(dense=_fill_null, ids=_copy, lists=_first_modulo),
    "strings": Encoder(dense=_fill_null, ids=_hash, lists=_first, log_from=1, chunk_rows=65_536, at_once=True),
    "flat": Encoder(dense=_fill_null, ids=_copy, lists=_first, chunk_rows=131_072, at_once=True),
}
