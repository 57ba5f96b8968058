"""Write a batch into the bytes of a slot, and read a slot's bytes as arrays.

Runs in: the feeder (which writes slots), Dask worker processes (which send a block as one buffer of this layout) and
`Pipeline.batches`. One copy per row slice and tensor, since a batch combines rows of several blocks and lanes; shuffled
rows are gathered by that copy. No allocations, except the Arrow stream of extras without a fixed width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import GroupPlacement, MatrixOffsets, Placement, SlotColumn, SlotHeader, SlotLayout
from feedline.loader.encoding.shuffled_rows import Rows, ShuffledRows
from feedline.native import rows as native
from feedline.native.coded_values import CodedArray
from feedline.native.unique_rows import UniqueRows, unique_range

# Anything with the buffer protocol: a mapping, a numpy array, an Arrow buffer.
Buffer = Any


@dataclass(slots=True, kw_only=True)  # not frozen, which takes a call per field of every batch
class RowSlice:
    """Rows [start, stop) of some encoded rows; `valid` is False for padding. Never changed.

    repeats: of padding, the rows and the row that it repeats, whose unique rows it shares.
    """

    encoded: Rows
    start: int
    stop: int
    valid: bool = True
    repeats: tuple[Rows, int] | None = None

    def unique(self, group: int) -> tuple[Rows, NDArray[np.int32]]:
        """The unique rows of a deduplicated group, and the inverse of the slice's rows."""
        if self.repeats is None:
            rows = self.encoded.groups[group]
            return rows.rows, rows.inverse[self.start : self.stop]
        source, row = self.repeats
        repeated = source.groups[group]
        return repeated.rows, np.full(self.stop - self.start, repeated.inverse[row])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraft:
    """A deduplicated group: its unique rows, and for each slice of the batch what is added to its inverse."""

    slices: Sequence[RowSlice]
    shifts: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Draft:
    """A batch that is measured but not written: header, offsets of the sections, Arrow stream. Never changed."""

    slices: Sequence[RowSlice]
    header: SlotHeader
    placement: Placement
    ipc: pa.Buffer | None
    groups: Sequence[GroupDraft] = ()


def draft(layout: SlotLayout, slices: Sequence[RowSlice], *, epoch: int, step: int) -> Draft:
    """Measure the batch of the slices; its slot needs `placement.nbytes` bytes."""
    rows = _rows(slices)
    fixed, ipc = _split_extras(layout, slices) if layout.extra else ((), None)
    ipc_bytes = ipc.size if ipc is not None else 0
    groups = [_draft_group(slices, index) for index in range(len(layout.parts) - 1)]
    unique = tuple(_rows(group.slices) for group in groups)
    values = [0] * len(layout.sparse)
    for part, of_part in zip(layout.parts, (slices, *(group.slices for group in groups)), strict=True):
        for own, index in enumerate(part.sparse):
            values[index] = sum(int(s.encoded.offsets[own][s.stop] - s.encoded.offsets[own][s.start]) for s in of_part)
    placement = layout.place(rows, values, fixed, ipc_bytes, unique)
    header = SlotHeader(
        epoch=epoch,
        step=step,
        rows=rows,
        nbytes=placement.nbytes,
        ipc_bytes=ipc_bytes,
        values=tuple(values),
        fixed=fixed,
        unique=unique,
    )
    return Draft(slices=slices, header=header, placement=placement, ipc=ipc, groups=groups)


def _rows(slices: Sequence[RowSlice]) -> int:
    return sum(piece.stop - piece.start for piece in slices)


def _draft_group(slices: Sequence[RowSlice], index: int) -> GroupDraft:
    """The unique rows of the slices. Those that an earlier slice has, too, such as the row that padding repeats, are
    not written again."""
    needed: list[RowSlice] = []
    shifts: list[int] = []
    shift_of: list[int] = []  # per range that is needed
    rows = 0
    for piece in slices:
        unique, inverse = piece.unique(index)
        first, stop = unique_range(inverse, 0, len(inverse))
        for earlier, shift in zip(needed, shift_of, strict=True):
            if earlier.encoded is unique and earlier.start <= first and stop <= earlier.stop:
                shifts.append(shift)
                break
        else:
            shifts.append(rows - first)
            shift_of.append(rows - first)
            needed.append(RowSlice(encoded=unique, start=first, stop=stop))
            rows += stop - first
    return GroupDraft(slices=needed, shifts=shifts)


def write(layout: SlotLayout, batch: Draft, buffer: NDArray[np.uint8]) -> None:
    """Write a measured batch into `buffer`, of at least `batch.placement.nbytes` bytes."""
    header = layout.header_struct.pack(*layout.header_to_words(batch.header))
    parts = (batch.slices, *(group.slices for group in batch.groups))
    if native.COMPILED:
        pieces = [(_places(layout, batch, index), [_piece(each) for each in part]) for index, part in enumerate(parts)]
        native.write_slot(buffer, header, batch.placement.gaps, pieces)
    else:
        _write_arrays(layout, batch, header, buffer)
    _write_extras(layout, batch, buffer)
    for index, (group, place) in enumerate(zip(batch.groups, batch.placement.groups, strict=True)):
        _write_inverse(view(buffer, "int32", place.inverse, batch.header.rows), batch.slices, index, group.shifts)


def _places(layout: SlotLayout, batch: Draft, index: int) -> native.SlotPlaces:
    """Where the sections of a part begin."""
    part, header, placement = layout.parts[index], batch.header, batch.placement
    rows = (header.rows, *header.unique)[index]
    own: MatrixOffsets | GroupPlacement = placement.groups[index - 1] if index else placement.matrices
    before = [0, *accumulate(layout.list_rows(header.rows, header.unique))]
    lengths, offsets = placement.matrices.lengths, placement.matrices.offsets
    lists = tuple(
        (
            lengths + 4 * before[place],
            offsets + 8 * (before[place] + place),
            placement.values[place],
            layout.sparse_bytes[place],
            -1 if (weights := placement.weights[place]) is None else weights,
        )
        for place in part.sparse
    )
    matrices = own.dense, 4 * part.width["dense"], placement.matrices.labels, 4 * part.width["label"], own.categorical
    return *matrices, placement.matrices.valid if index == 0 else -1, rows, lists


def _piece(piece: RowSlice) -> native.SlotPiece:
    rows = piece.encoded
    if isinstance(rows, ShuffledRows):
        return piece.start, piece.stop, piece.valid, *rows.arrays, (rows.index, rows.part, rows.starts, rows.offsets)
    values = tuple((each.codes, each.table) if isinstance(each, CodedArray) else each for each in rows.values)
    arrays = rows.dense, rows.labels, rows.categorical, values, rows.weights, rows.offsets
    return piece.start, piece.stop, piece.valid, *arrays


def _write_arrays(layout: SlotLayout, batch: Draft, header: bytes, buffer: NDArray[np.uint8]) -> None:
    """The same without the compiled function, where no rows are in another order."""
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    for start, stop in batch.placement.gaps:
        buffer[start:stop] = 0  # so that a slot's bytes depend on its batch alone
    arrays = SlotArrays(layout, batch.header, buffer)
    _write_tensors(arrays, batch.slices)
    row = 0
    for piece in batch.slices:
        end = row + piece.stop - piece.start
        arrays.valid[row:end] = piece.valid
        row = end
    for group, group_arrays in zip(batch.groups, arrays.groups, strict=True):
        _write_tensors(group_arrays, group.slices)


def _write_extras(layout: SlotLayout, batch: Draft, buffer: NDArray[np.uint8]) -> None:
    for index, (column, begin) in enumerate(zip(layout.extra, batch.placement.extra, strict=True)):
        if begin is None:
            continue
        target, row = view(buffer, column.dtype, begin, batch.header.rows), 0
        for piece in batch.slices:
            end = row + piece.stop - piece.start
            target[row:end] = fixed_values(piece.encoded.extra[index].slice(piece.start, end - row), column)
            row = end
    if batch.ipc is not None:
        begin = batch.placement.ipc
        buffer[begin : begin + batch.ipc.size] = np.frombuffer(batch.ipc, dtype=np.uint8)


def write_rows(
    layout: SlotLayout,
    parts: Sequence[Rows],
    valid: NDArray[np.uint8] | None = None,
    *,
    epoch: int = 0,
    step: int = 0,
) -> NDArray[np.uint8]:
    """Rows, laid end to end, as the bytes of a slot of their own. valid: uint8 [rows], 0 for padding; None if there
    is none."""
    batch = draft(layout, [RowSlice(encoded=part, start=0, stop=part.rows) for part in parts], epoch=epoch, step=step)
    buffer = np.empty(batch.placement.nbytes, dtype=np.uint8)
    write(layout, batch, buffer)
    if valid is not None:
        SlotArrays(layout, batch.header, buffer).valid[:] = valid
    return buffer


def _write_tensors(arrays: TensorArrays, slices: Sequence[RowSlice]) -> None:
    """Write matrices, lists and weights of the slices, one after the other."""
    row = 0
    filled = [0] * len(arrays.values)
    for offsets in arrays.offsets:
        offsets[0] = 0
    for piece in slices:
        encoded, start, stop = piece.encoded, piece.start, piece.stop
        end = row + stop - start
        assert isinstance(encoded, EncodedRows)
        begins, filled = filled, _write_offsets(arrays, piece, row, filled)
        arrays.dense[row:end] = encoded.dense[start:stop]
        arrays.labels[row:end] = encoded.labels[start:stop]
        for target, column in zip(arrays.categorical, encoded.categorical, strict=True):
            target[row:end] = column[start:stop]
        for index, borders in enumerate(encoded.offsets):
            rows, place = slice(int(borders[start]), int(borders[stop])), slice(begins[index], filled[index])
            arrays.values[index][place] = encoded.values[index][rows]
            target_weights, weights = arrays.weights[index], encoded.weights[index]
            if target_weights is not None and weights is not None:
                target_weights[place] = weights[rows]
        row = end
    for offsets, lengths in zip(arrays.offsets, arrays.lengths, strict=True):
        np.subtract(offsets[1:], offsets[:-1], out=lengths, casting="unsafe")


def _write_inverse(target: NDArray[np.int32], slices: Sequence[RowSlice], index: int, shifts: Sequence[int]) -> None:
    row = 0
    for piece, shift in zip(slices, shifts, strict=True):
        end = row + piece.stop - piece.start
        np.add(piece.unique(index)[1], np.int32(shift), out=target[row:end])
        row = end


def _write_offsets(arrays: TensorArrays, piece: RowSlice, row: int, filled: Sequence[int]) -> list[int]:
    """Write a slice's offsets from a row on; returns how many values each feature then has."""
    start, stop = piece.start, piece.stop
    here = slice(row + 1, row + 1 + stop - start)
    ends = []
    for index, (borders, begin) in enumerate(zip(piece.encoded.offsets, filled, strict=True)):
        first = int(borders[start])
        ends.append(begin + int(borders[stop]) - first)
        np.add(borders[start + 1 : stop + 1], begin - first, out=arrays.offsets[index][here])
    return ends


class TensorArrays:
    """Matrices, lists and weights of a part's rows in a slot as numpy views, writable if the buffer is.

    lengths, offsets, values, weights: one array per sparse feature, in the part's memory order.
    """

    def __init__(
        self, layout: SlotLayout, header: SlotHeader, placement: Placement, buffer: Buffer, index: int = 0
    ) -> None:
        part = layout.parts[index]
        rows = (header.rows, *header.unique)[index]
        matrices = placement.groups[index - 1] if index else placement.matrices
        self.dense = view(buffer, "float32", matrices.dense, rows, part.width["dense"])
        self.categorical = view(buffer, "int64", matrices.categorical, part.width["categorical"], rows)
        self.labels = view(buffer, "float32", placement.matrices.labels, rows, part.width["label"])
        before = [0, *accumulate(layout.list_rows(header.rows, header.unique))]
        lengths, offsets = placement.matrices.lengths, placement.matrices.offsets
        self.lengths = tuple(view(buffer, "int32", lengths + 4 * before[place], rows) for place in part.sparse)
        self.offsets = tuple(
            view(buffer, "int64", offsets + 8 * (before[place] + place), rows + 1) for place in part.sparse
        )
        self.values = tuple(
            view(buffer, layout.sparse[place].dtype, placement.values[place], header.values[place])
            for place in part.sparse
        )
        self.weights = tuple(
            None
            if (start := placement.weights[place]) is None
            else view(buffer, "float32", start, header.values[place])
            for place in part.sparse
        )

    def as_rows(self) -> dict[str, Any]:
        """The arrays as those of `EncodedRows`."""
        return {
            "dense": self.dense,
            "categorical": tuple(self.categorical),
            "labels": self.labels,
            "values": self.values,
            "weights": self.weights,
            "offsets": self.offsets,
        }


class GroupArrays(TensorArrays):
    """The sections of a deduplicated group's unique rows, and the inverse of the batch's."""

    def __init__(
        self, layout: SlotLayout, header: SlotHeader, placement: Placement, buffer: Buffer, index: int
    ) -> None:
        super().__init__(layout, header, placement, buffer, index)
        self.inverse = view(buffer, "int32", placement.groups[index - 1].inverse, header.rows)


class SlotArrays(TensorArrays):
    """The sections of a slot."""

    def __init__(self, layout: SlotLayout, header: SlotHeader, buffer: Buffer) -> None:
        placement = layout.place_header(header)
        super().__init__(layout, header, placement, buffer)
        self.header = header
        self.valid = view(buffer, "uint8", placement.matrices.valid, header.rows)
        self.extra = tuple(
            None if start is None else view(buffer, column.dtype, start, header.rows)
            for column, start in zip(layout.extra, placement.extra, strict=True)
        )
        self.groups = tuple(
            GroupArrays(layout, header, placement, buffer, index) for index in range(1, len(layout.parts))
        )


def view(buffer: Buffer, dtype: str, start: int, *shape: int) -> NDArray[Any]:
    """An array over a buffer from the byte `start` on."""
    count = math.prod(shape)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=start).reshape(shape)


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
    groups = tuple(
        UniqueRows(EncodedRows(rows=count, extra=(), **group.as_rows()), group.inverse)
        for count, group in zip(header.unique, arrays.groups, strict=True)
    )
    return EncodedRows(rows=header.rows, extra=extra, groups=groups, **arrays.as_rows())


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


def fixed_values(array: pa.Array, column: SlotColumn) -> NDArray[Any]:
    """The values of a fixed-width extra without nulls."""
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
