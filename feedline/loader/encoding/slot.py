"""Write a batch into the bytes of a slot, and read a slot's bytes as arrays.

Runs in: the feeder (which writes slots), Dask worker processes (which send a block as one buffer of this layout) and
`Pipeline.batches`. One copy per row slice and tensor, since a batch combines rows of several blocks and lanes; shuffled
rows are gathered by that copy. No allocations, except the Arrow stream of extras without a fixed width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.dataclass import dataclass
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
    # Rows with the inverse [1, 2] of one block, then [0, 1] of another: unique rows [1, 3) become rows 0 and 1 of the
    # group, [0, 2) of the other rows 2 and 3. Shifts [-1, 2] make the inverse [0, 1, 2, 3].
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
    if native.COMPILED:
        native.write_slot(buffer, *content(layout, batch))
    else:
        _write_arrays(layout, batch, buffer)


def content(layout: SlotLayout, batch: Draft) -> native.SlotContent:
    """What `write` writes, for the compiled functions."""
    parts = (batch.slices, *(group.slices for group in batch.groups))
    pieces = [(_places(layout, batch, index), [_piece(each) for each in part]) for index, part in enumerate(parts)]
    return native.SlotContent(_header(layout, batch), batch.placement.gaps, pieces, list(_copies(layout, batch)))


def _header(layout: SlotLayout, batch: Draft) -> bytes:
    header: bytes = layout.header_struct.pack(*layout.header_to_words(batch.header))
    return header


def _places(layout: SlotLayout, batch: Draft, index: int) -> native.SlotPlaces:
    """Where the sections of a part begin."""
    part, header, placement = layout.parts[index], batch.header, batch.placement
    rows = (header.rows, *header.unique)[index]
    section: MatrixOffsets | GroupPlacement = placement.groups[index - 1] if index else placement.matrices
    before = _rows_before(layout, header) if part.sparse else ()
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
    dense, label = 4 * part.width["dense"], 4 * part.width["label"]  # bytes of a row
    places = section.dense, dense, placement.matrices.labels, label, section.categorical
    return *places, placement.matrices.valid if index == 0 else -1, rows, lists


def _piece(piece: RowSlice) -> native.SlotPiece:
    rows = piece.encoded
    if isinstance(rows, ShuffledRows):
        return piece.start, piece.stop, piece.valid, *rows.arrays, (rows.index, rows.part, rows.starts, rows.offsets)
    values = tuple((each.codes, each.table) if isinstance(each, CodedArray) else each for each in rows.values)
    arrays = rows.dense, rows.labels, rows.categorical, values, rows.weights, rows.offsets
    return piece.start, piece.stop, piece.valid, *arrays


def _write_arrays(layout: SlotLayout, batch: Draft, buffer: NDArray[np.uint8]) -> None:
    """The same without the compiled function, where no rows are in another order."""
    header = _header(layout, batch)
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    for start, stop in batch.placement.gaps:
        buffer[start:stop] = 0  # so that a slot's bytes depend on its batch alone
    for index, slices in enumerate((batch.slices, *(group.slices for group in batch.groups))):
        _write_tensors(_part(layout, batch.header, batch.placement, buffer, index), slices)
        _write_lengths(layout, batch, buffer, index)
    valid, row = _valid(batch, buffer), 0
    for piece in batch.slices:
        end = row + piece.stop - piece.start
        valid[row:end] = piece.valid
        row = end
    for place, copied in _copies(layout, batch):
        values = np.frombuffer(copied, np.uint8)
        buffer[place : place + values.size] = values


def _copies(layout: SlotLayout, batch: Draft) -> Iterator[tuple[int, Buffer]]:
    """Where extras and inverses are written, and their bytes."""
    for index, (column, begin) in enumerate(zip(layout.extra, batch.placement.extra, strict=True)):
        if begin is None:
            continue
        place = begin
        for piece in batch.slices:
            values = fixed_values(piece.encoded.extra[index].slice(piece.start, piece.stop - piece.start), column)
            yield place, values
            place += values.nbytes
    if batch.ipc is not None:
        yield batch.placement.ipc, batch.ipc
    for index, (group, where) in enumerate(zip(batch.groups, batch.placement.groups, strict=True)):
        place = where.inverse
        for piece, shift in zip(batch.slices, group.shifts, strict=True):
            inverse = np.add(piece.unique(index)[1], np.int32(shift))
            yield place, inverse
            place += inverse.nbytes


def write_rows(
    layout: SlotLayout,
    parts: Sequence[Rows],
    valid: NDArray[np.uint8] | NDArray[np.bool_] | None = None,
    *,
    epoch: int = 0,
    step: int = 0,
) -> NDArray[np.uint8]:
    """Rows, laid end to end, as the bytes of a slot of their own. valid: [rows], 0 for padding; None if there is
    none."""
    batch = draft(layout, [RowSlice(encoded=part, start=0, stop=part.rows) for part in parts], epoch=epoch, step=step)
    buffer = np.empty(batch.placement.nbytes, dtype=np.uint8)
    write(layout, batch, buffer)
    if valid is not None:
        _valid(batch, buffer)[:] = valid
    return buffer


def _valid(batch: Draft, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return view(buffer, "uint8", batch.placement.matrices.valid, batch.header.rows)


def _write_tensors(arrays: EncodedRows, slices: Sequence[RowSlice]) -> None:
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
            values, target_weights, weights = arrays.values[index], arrays.weights[index], encoded.weights[index]
            assert isinstance(values, np.ndarray)
            values[place] = encoded.values[index][rows]
            if target_weights is not None and weights is not None:
                target_weights[place] = weights[rows]
        row = end


def _write_lengths(layout: SlotLayout, batch: Draft, buffer: NDArray[np.uint8], index: int) -> None:
    """Write the lengths of a part's lists, whose offsets are written."""
    arrays, places = _part(layout, batch.header, batch.placement, buffer, index), layout.parts[index].sparse
    before = _rows_before(layout, batch.header)
    for place, offsets in zip(places, arrays.offsets, strict=True):
        start = batch.placement.matrices.lengths + 4 * before[place]
        np.subtract(offsets[1:], offsets[:-1], out=view(buffer, "int32", start, arrays.rows), casting="unsafe")


def _write_offsets(arrays: EncodedRows, piece: RowSlice, row: int, filled: Sequence[int]) -> list[int]:
    """Write a slice's offsets from a row on; returns how many values each feature then has."""
    start, stop = piece.start, piece.stop
    here = slice(row + 1, row + 1 + stop - start)
    # Rows [1, 3) of the offsets [0, 2, 3, 7], after 5 values of other slices -> 6, 10
    ends = []
    for index, (borders, begin) in enumerate(zip(piece.encoded.offsets, filled, strict=True)):
        first = int(borders[start])
        ends.append(begin + int(borders[stop]) - first)
        np.add(borders[start + 1 : stop + 1], begin - first, out=arrays.offsets[index][here])
    return ends


def _rows_before(layout: SlotLayout, header: SlotHeader) -> list[int]:
    """The rows of all sparse features before each, as their lengths and offsets lie in the slot."""
    return [0, *accumulate(layout.list_rows(header.rows, header.unique))]


def _part(layout: SlotLayout, header: SlotHeader, placement: Placement, buffer: Buffer, index: int) -> EncodedRows:
    """The rows of a part of a slot as numpy views, without extras and groups; writable if the buffer is."""
    part, rows = layout.parts[index], (header.rows, *header.unique)[index]
    matrices = placement.groups[index - 1] if index else placement.matrices
    before, offsets = _rows_before(layout, header), placement.matrices.offsets
    starts = [placement.weights[place] for place in part.sparse]
    return EncodedRows(
        rows=rows,
        dense=view(buffer, "float32", matrices.dense, rows, part.width["dense"]),
        categorical=tuple(view(buffer, "int64", matrices.categorical, part.width["categorical"], rows)),
        labels=view(buffer, "float32", placement.matrices.labels, rows, part.width["label"]),
        values=tuple(
            view(buffer, layout.sparse[place].dtype, placement.values[place], header.values[place])
            for place in part.sparse
        ),
        weights=tuple(
            None if start is None else view(buffer, "float32", start, header.values[place])
            for place, start in zip(part.sparse, starts, strict=True)
        ),
        offsets=tuple(view(buffer, "int64", offsets + 8 * (before[place] + place), rows + 1) for place in part.sparse),
        extra=(),
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
    placement, arrow_extras = layout.place_header(header), read_extras(layout, header, buffer)
    rows, *unique = [_part(layout, header, placement, buffer, index) for index in range(len(layout.parts))]
    extra = tuple(
        arrow_extras[column.name]
        if start is None
        else fixed_array(view(buffer, column.dtype, start, header.rows), column)
        for column, start in zip(layout.extra, placement.extra, strict=True)
    )
    groups = tuple(
        UniqueRows(of_group, view(buffer, "int32", place.inverse, header.rows))
        for of_group, place in zip(unique, placement.groups, strict=True)
    )
    return replace(rows, extra=extra, groups=groups)


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
