"""Rows of every feature as arrays, with the unique rows of deduplicated groups: joined, sliced, gathered, expanded.

Runs in: every process that computes blocks, writes slots or serves. The encoded form is row-major for dense and labels
(a row range is one contiguous copy), and column by column for the rest, which needs no copy of the transforms' output;
ragged offsets start at 0, so that the values of any row range are a slice. `take` gathers rows for the permutation
within a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.loader.encoding.layout import BatchSchema
from feedline.native.coded_values import CodedArray
from feedline.native.unique_rows import UniqueRows, chosen_unique, join_inverses

# A list<int64> is gathered as the binary string of its bytes: one memcpy per row. For 131,072 rows x 6 lists of 17
# ids that takes a quarter of the time of a gather of single values; see docs/decisions/history.md.
_INT32_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Rows of every feature as arrays.

    dense float32 [N, D] and labels float32 [N, L], row-major; categorical, K arrays int64 [N]; for each sparse feature
    (in the schema's memory order) values [V], of blocks as codes if these take fewer bytes, weights float32 [V] or
    None, and offsets int64 [N + 1] from 0; extra, one Arrow array of N rows each; groups, the features that belong to
    the schema's deduplicated groups.
    """

    rows: int
    dense: NDArray[np.float32]
    categorical: tuple[NDArray[np.int64], ...]
    labels: NDArray[np.float32]
    values: tuple[NDArray[Any] | CodedArray, ...]
    weights: tuple[NDArray[np.float32] | None, ...]
    offsets: tuple[NDArray[np.int64], ...]
    extra: tuple[pa.Array, ...]
    groups: tuple[UniqueRows[EncodedRows], ...] = ()

    @property
    def nbytes(self) -> int:
        arrays: tuple[NDArray[Any], ...] = (self.dense, self.labels, *self.categorical, *self.offsets)
        arrays += tuple(weights for weights in self.weights if weights is not None)
        arrays += tuple(group.inverse for group in self.groups)
        nbytes = sum(array.nbytes for array in (*arrays, *self.values)) + sum(int(array.nbytes) for array in self.extra)
        return nbytes + sum(group.rows.nbytes for group in self.groups)

    def __sizeof__(self) -> int:
        return self.nbytes  # Dask calls this on every task's result


def with_values(encoded: EncodedRows) -> EncodedRows:
    """The same rows with the values of all lists."""
    groups = tuple(UniqueRows(with_values(group.rows), group.inverse) for group in encoded.groups)
    return replace(encoded, values=tuple(np.asarray(values) for values in encoded.values), groups=groups)


def group_inverse(groups: Sequence[UniqueRows[EncodedRows]]) -> NDArray[np.int32]:
    """The inverse of one group's parts, laid end to end."""
    return join_inverses([group.inverse for group in groups], [group.rows.rows for group in groups])


def _join_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    # [0, 2, 3] and [0, 1] -> [0, 2, 3, 4]
    offsets = np.empty(sum(len(part) - 1 for part in parts) + 1, dtype=np.int64)
    offsets[0] = 0
    row = 0
    for part in parts:
        np.add(part[1:], offsets[row], out=offsets[row + 1 : row + len(part)])
        row += len(part) - 1
    return offsets


def slice_rows(encoded: EncodedRows, start: int, stop: int) -> EncodedRows:
    """Rows [start, stop); only offsets are copied. Unique rows stay, used or not."""
    values, offsets = [], []
    weights: list[NDArray[np.float32] | None] = []
    # Rows [1, 3) of the offsets [0, 2, 2, 5]: values [2, 5), offsets [0, 0, 3].
    for flat, flat_weights, borders in zip(encoded.values, encoded.weights, encoded.offsets, strict=True):
        first = borders[start]
        values.append(flat[first : borders[stop]])
        weights.append(None if flat_weights is None else flat_weights[first : borders[stop]])
        offsets.append(borders[start : stop + 1] - first)
    return EncodedRows(
        rows=stop - start,
        dense=encoded.dense[start:stop],
        categorical=tuple(column[start:stop] for column in encoded.categorical),
        labels=encoded.labels[start:stop],
        values=tuple(values),
        weights=tuple(weights),
        offsets=tuple(offsets),
        extra=tuple(array.slice(start, stop - start) for array in encoded.extra),
        groups=tuple(replace(group, inverse=group.inverse[start:stop]) for group in encoded.groups),
    )


def take(parts: Sequence[EncodedRows], indices: NDArray[np.int64]) -> EncodedRows:
    """The rows of several parts (laid end to end) at `indices`, in that order.

    Feature by feature: the parts of one feature are joined, gathered and freed, so that the source stays small.
    """
    arrow_indices = pa.array(indices)
    rows = len(indices)
    first = parts[0]
    categorical = np.empty((len(first.categorical), rows), dtype=np.int64)
    for index, target in enumerate(categorical):
        column = _join([part.categorical[index] for part in parts])
        column.take(indices, out=target, mode="clip")  # "raise" would gather into a buffer first
    ragged, weights = [], []
    for index in range(len(first.values)):
        borders = _join_offsets([part.offsets[index] for part in parts])
        ragged.append(_take_ragged(_join([np.asarray(part.values[index]) for part in parts]), borders, arrow_indices))
        flat_weights = _join_weights(parts, index)
        weights.append(None if flat_weights is None else _take_ragged(flat_weights, borders, arrow_indices)[0])
    return EncodedRows(
        rows=rows,
        dense=_join([part.dense for part in parts]).take(indices, axis=0),
        categorical=tuple(categorical),
        labels=_join([part.labels for part in parts]).take(indices, axis=0),
        values=tuple(values for values, _ in ragged),
        weights=tuple(weights),
        offsets=tuple(offsets for _, offsets in ragged),
        extra=tuple(
            pa.concat_arrays(arrays).take(arrow_indices) for arrays in zip(*(part.extra for part in parts), strict=True)
        ),
        groups=tuple(_take_group(groups, indices) for groups in zip(*(part.groups for part in parts), strict=True)),
    )


def _take_group(groups: Sequence[UniqueRows[EncodedRows]], indices: NDArray[np.int64]) -> UniqueRows[EncodedRows]:
    chosen, inverse = chosen_unique(group_inverse(groups), indices)
    return UniqueRows(take([group.rows for group in groups], chosen), inverse)


def expand(encoded: EncodedRows, schema: BatchSchema) -> EncodedRows:
    """The same rows without deduplication, in the order of `schema.expanded`: a copy, unless there is no group."""
    if not encoded.groups:
        return encoded
    rows_of: dict[str | None, EncodedRows] = {None: encoded}
    for name, group in zip(schema.dedup, encoded.groups, strict=True):
        rows_of[name] = take([group.rows], group.inverse.astype(np.int64))
    places = {
        column.name: (rows, index)
        for part, rows in zip(schema.parts, rows_of.values(), strict=True)
        for index, column in enumerate(part.sparse)
    }
    sparse = [places[column.name] for column in schema.expanded.sparse]
    dense = [column.of(rows_of[column.dedup].dense) for column in schema.group("dense")]
    return EncodedRows(
        rows=encoded.rows,
        dense=np.column_stack(dense) if dense else encoded.dense,
        categorical=tuple(rows_of[column.dedup].categorical[column.offset] for column in schema.group("categorical")),
        labels=encoded.labels,
        values=tuple(rows.values[index] for rows, index in sparse),
        weights=tuple(rows.weights[index] for rows, index in sparse),
        offsets=tuple(rows.offsets[index] for rows, index in sparse),
        extra=encoded.extra,
    )


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _join_weights(parts: Sequence[EncodedRows], index: int) -> NDArray[np.float32] | None:
    arrays = [weights for part in parts if (weights := part.weights[index]) is not None]
    return _join(arrays) if arrays else None


def _take_ragged(
    values: NDArray[Any], offsets: NDArray[np.int64], indices: pa.Array
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    # int64 values [7, 8, 9] of the offsets [0, 2, 3], lists 1 and 0: the strings of bytes [0, 16) and [16, 24) change
    # places, which gives [9, 7, 8] and the offsets [0, 1, 3].
    size = values.dtype.itemsize
    small = max(int(offsets[-1]), int(np.max(np.diff(offsets), initial=0)) * len(indices)) * size <= _INT32_LIMIT
    borders = (offsets * size).astype(np.int32 if small else np.int64)
    kind = pa.binary() if small else pa.large_binary()
    rows = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(borders), pa.py_buffer(values)])
    gathered = rows.take(indices)
    _, offset_buffer, value_buffer = gathered.buffers()
    byte_offsets = np.frombuffer(
        offset_buffer, dtype=borders.dtype, count=len(gathered) + 1, offset=gathered.offset * borders.itemsize
    )
    result_offsets = byte_offsets.astype(np.int64) // size
    if value_buffer is None:
        return np.empty(0, dtype=values.dtype), result_offsets
    return np.frombuffer(value_buffer, dtype=values.dtype, count=int(result_offsets[-1])), result_offsets


# --------------------------------------------------------------------------------------------------------------------
# Encoded rows as an Arrow table, for callers that want columns instead of a batch. Values are bit-equal to those of a
# batch; categorical features and id lists share the memory of the encoded rows.


def arrow_table(rows: EncodedRows, schema: BatchSchema) -> pa.Table:
    """Encoded rows as an Arrow table with one column per feature, in the order of pipeline.yaml."""
    sparse = {column.name: index for index, column in enumerate(schema.sparse)}
    columns: dict[str, pa.Array] = {}
    for column in schema:
        if column.group in ("dense", "label"):
            block = column.of(rows.dense if column.group == "dense" else rows.labels)
            columns[column.name] = (
                pa.array(block)
                if column.width == 1
                else pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).ravel()), column.width)
            )
        elif column.group == "categorical":
            columns[column.name] = pa.array(rows.categorical[column.offset])
        elif column.group == "sparse":
            index = sparse[column.name]
            offsets, values = pa.array(rows.offsets[index]), pa.array(np.asarray(rows.values[index]))
            if column.weighted:
                values = pa.StructArray.from_arrays([values, pa.array(rows.weights[index])], ["id", "weight"])
            columns[column.name] = pa.LargeListArray.from_arrays(offsets, values)
        else:
            columns[column.name] = rows.extra[column.offset]
    return pa.table(columns)
