"""Write a batch into the bytes of a slot, and read a slot's bytes as arrays.

Runs in: the feeder (which writes slots), Dask worker processes (which send a block as one buffer of this layout) and
`Pipeline.batches`. One copy per row slice and tensor, since a batch combines rows of several blocks and lanes; shuffled
rows are gathered by that copy. No allocations, except the Arrow stream of extras without a fixed width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.loader.encoding.encode import EncodedRows
from feedline.loader.encoding.layout import Placement, SlotColumn, SlotHeader, SlotLayout
from feedline.loader.encoding.shuffled_rows import Rows, ShuffledRows, Targets, gather
from feedline.native import rows as native

# Anything with the buffer protocol: a mapping, a numpy array, an Arrow buffer.
Buffer = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSlice:
    """Rows [start, stop) of some encoded rows; `valid` is False for padding."""

    encoded: Rows
    start: int
    stop: int
    valid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A batch that is measured but not yet written: header, offsets of the sections, and Arrow stream."""

    slices: Sequence[RowSlice]
    header: SlotHeader
    placement: Placement
    ipc: pa.Buffer | None


def draft(layout: SlotLayout, slices: Sequence[RowSlice], *, epoch: int, step: int) -> Draft:
    """Measure the batch of the slices; its slot needs `placement.nbytes` bytes."""
    rows = sum(piece.stop - piece.start for piece in slices)
    values = tuple(
        sum(int(s.encoded.offsets[index][s.stop] - s.encoded.offsets[index][s.start]) for s in slices)
        for index in range(len(layout.sparse))
    )
    fixed, ipc = _split_extras(layout, slices) if layout.extra else ((), None)
    ipc_bytes = ipc.size if ipc is not None else 0
    placement = layout.place(rows, values, fixed, ipc_bytes)
    header = SlotHeader(
        epoch=epoch, step=step, rows=rows, nbytes=placement.nbytes, ipc_bytes=ipc_bytes, values=values, fixed=fixed
    )
    return Draft(slices=slices, header=header, placement=placement, ipc=ipc)


def write(layout: SlotLayout, batch: Draft, buffer: NDArray[np.uint8]) -> None:
    """Write a measured batch into `buffer`, of at least `batch.placement.nbytes` bytes."""
    words = layout.header_to_words(batch.header)
    buffer[: 8 * len(words)].view(np.int64)[:] = words
    for start, stop in batch.placement.gaps:
        buffer[start:stop] = 0  # so that a slot's bytes depend on its batch alone
    arrays = SlotArrays(layout, batch.header, buffer)
    row = 0
    filled = [0] * len(layout.sparse)
    arrays.offsets[:, 0] = 0
    for piece in batch.slices:
        encoded, start, stop = piece.encoded, piece.start, piece.stop
        end = row + stop - start
        arrays.valid[row:end] = piece.valid
        begins, filled = filled, _write_offsets(arrays, piece, row, filled)
        targets = Targets(
            dense=arrays.dense[row:end],
            labels=arrays.labels[row:end],
            categorical=[column[row:end] for column in arrays.categorical],
            values=[values[first:last] for values, first, last in zip(arrays.values, begins, filled, strict=True)],
            weights=[
                None if weights is None else weights[first:last]
                for weights, first, last in zip(arrays.weights, begins, filled, strict=True)
            ],
        )
        if isinstance(encoded, ShuffledRows):
            gather(encoded, start, stop, targets)
        else:
            _copy(encoded, start, stop, targets)
        for index, array in enumerate(encoded.extra):
            target = arrays.extra[index]
            if target is not None:
                target[row:end] = _fixed_values(array.slice(start, stop - start), layout.extra[index])
        row = end
    np.subtract(arrays.offsets[:, 1:], arrays.offsets[:, :-1], out=arrays.lengths, casting="unsafe")
    if batch.ipc is not None:
        begin = batch.placement.ipc
        buffer[begin : begin + batch.ipc.size] = np.frombuffer(batch.ipc, dtype=np.uint8)


def _write_offsets(arrays: SlotArrays, piece: RowSlice, row: int, filled: Sequence[int]) -> list[int]:
    """Write a slice's offsets from a row on; returns how many values each feature then has."""
    start, stop = piece.start, piece.stop
    here = slice(row + 1, row + 1 + stop - start)
    ends = []
    for index, (borders, begin) in enumerate(zip(piece.encoded.offsets, filled, strict=True)):
        first = int(borders[start])
        ends.append(begin + int(borders[stop]) - first)
        np.add(borders[start + 1 : stop + 1], begin - first, out=arrays.offsets[index, here])
    return ends


def _copy(encoded: EncodedRows, start: int, stop: int, targets: Targets) -> None:
    """Copy rows [start, stop)."""
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (targets.dense, encoded.dense[start:stop]),
        (targets.labels, encoded.labels[start:stop]),
    ]
    pairs += [
        (target, column[start:stop]) for target, column in zip(targets.categorical, encoded.categorical, strict=True)
    ]
    for index, borders in enumerate(encoded.offsets):
        rows = slice(int(borders[start]), int(borders[stop]))
        pairs.append((targets.values[index], encoded.values[index][rows]))
        target, weights = targets.weights[index], encoded.weights[index]
        if target is not None and weights is not None:
            pairs.append((target, weights[rows]))
    if native.COMPILED:
        native.copy(pairs)
        return
    for target, source in pairs:
        target[...] = source


class SlotArrays:
    """The sections of a slot as numpy views, writable if the buffer is."""

    __slots__ = (
        *("categorical", "dense", "extra", "header", "labels", "lengths", "offsets", "valid", "values", "weights"),
    )

    def __init__(self, layout: SlotLayout, header: SlotHeader, buffer: Buffer) -> None:
        rows, features = header.rows, len(layout.sparse)
        placement = layout.place_header(header)

        def view(dtype: str, start: int, *shape: int) -> NDArray[Any]:
            count = int(np.prod(shape))
            return np.frombuffer(buffer, dtype=dtype, count=count, offset=start).reshape(shape)

        self.header = header
        self.dense = view("float32", placement.matrices.dense, rows, layout.width["dense"])
        self.categorical = view("int64", placement.matrices.categorical, layout.width["categorical"], rows)
        self.labels = view("float32", placement.matrices.labels, rows, layout.width["label"])
        self.valid = view("uint8", placement.matrices.valid, rows)
        self.lengths = view("int32", placement.matrices.lengths, features, rows)
        self.offsets = view("int64", placement.matrices.offsets, features, rows + 1)
        self.values = tuple(
            view(column.dtype, start, count)
            for column, start, count in zip(layout.sparse, placement.values, header.values, strict=True)
        )
        self.weights = tuple(
            None if start is None else view("float32", start, count)
            for start, count in zip(placement.weights, header.values, strict=True)
        )
        self.extra = tuple(
            None if start is None else view(column.dtype, start, rows)
            for column, start in zip(layout.extra, placement.extra, strict=True)
        )


def read_header(layout: SlotLayout, buffer: Buffer) -> SlotHeader:
    """The header at the start of a slot's bytes."""
    return layout.header_from_words(layout.header_struct.unpack_from(buffer))


def read_extras(layout: SlotLayout, header: SlotHeader, buffer: pa.Buffer) -> dict[str, pa.Array]:
    """The extras in the slot's Arrow stream, as arrays over the slot's bytes."""
    if not header.ipc_bytes:
        return {}
    start = layout.place_header(header).ipc
    with pa.ipc.open_stream(buffer.slice(start, header.ipc_bytes)) as stream:
        batch = stream.read_next_batch()
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def encoded_rows(layout: SlotLayout, buffer: pa.Buffer) -> EncodedRows:
    """A buffer in slot layout as encoded rows, without a copy: the inverse of `draft` and `write`."""
    header = read_header(layout, buffer)
    arrays = SlotArrays(layout, header, buffer)
    arrow_extras = read_extras(layout, header, buffer)
    extra = tuple(
        arrow_extras[column.name] if array is None else fixed_array(array, column)
        for column, array in zip(layout.extra, arrays.extra, strict=True)
    )
    return EncodedRows(
        rows=header.rows,
        dense=arrays.dense,
        categorical=tuple(arrays.categorical),
        labels=arrays.labels,
        values=arrays.values,
        weights=arrays.weights,
        offsets=tuple(arrays.offsets),
        extra=extra,
    )


def fixed_array(values: NDArray[np.generic], column: SlotColumn) -> pa.Array:
    """The Arrow array of a fixed-width extra."""
    if column.dtype == "bool":
        return pa.array(values)
    kind = pa.type_for_alias(column.arrow) if column.unit is None else _time(column)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _time(column: SlotColumn) -> pa.DataType:
    kind = column.arrow.partition("[")[0]
    if kind == "timestamp":
        return pa.timestamp(column.unit, tz=column.arrow.partition("tz=")[2].rstrip("]") or None)
    return pa.date32() if kind == "date32" else pa.duration(column.unit)


def _fixed_values(array: pa.Array, column: SlotColumn) -> NDArray[Any]:
    if column.dtype == "bool":
        bits: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return bits
    return np.frombuffer(
        array.buffers()[1], dtype=column.dtype, count=len(array), offset=array.offset * np.dtype(column.dtype).itemsize
    )


def _split_extras(layout: SlotLayout, slices: Sequence[RowSlice]) -> tuple[tuple[bool, ...], pa.Buffer | None]:
    """Which extras are stored as fixed-width arrays (numbers without nulls), and the Arrow stream of the others."""
    fixed, arrow_extras = [], {}
    for index, column in enumerate(layout.extra):
        parts = [s.encoded.extra[index].slice(s.start, s.stop - s.start) for s in slices]
        is_fixed = bool(column.dtype) and not any(part.null_count for part in parts)
        fixed.append(is_fixed)
        if not is_fixed:
            arrow_extras[column.name] = pa.concat_arrays(parts)
    if not arrow_extras:
        return tuple(fixed), None
    batch = pa.RecordBatch.from_pydict(arrow_extras)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return tuple(fixed), sink.getvalue()
