"""Encoded rows as columns of a cache, a column per feature, and back.

Pure; runs in every process that computes blocks. A matrix is kept column by column, a list as offsets and its values,
which stay codes where blocks hold codes, and integers in as few bytes as hold them. Numbers that are not finite are
kept as they are, as they are counted of any part: `on_nonfinite: zero` is applied to what is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.native.coded_values import CodedArray
from feedline.warehouse.cache.cache_folder import CachedColumn

Facts: TypeAlias = Mapping[str, Mapping[str, Any]]  # by feature

_MATRIX_BYTES = 8 * 2**20  # as of `encode`


def split_columns(encoded: EncodedRows, schema: BatchSchema, facts: Facts) -> dict[str, CachedColumn]:
    """Each feature of some rows, by name. facts: what quality counts of them."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for group, matrix in (("dense", encoded.dense), ("label", encoded.labels)):
        for column in schema.group(group):
            part = matrix[:, column.offset : column.offset + column.width]
            found[column.name] = {"values": np.ascontiguousarray(part)}
    for column, ids in zip(schema.group("categorical"), encoded.categorical, strict=True):
        found[column.name] = {"values": _narrowed(ids, facts[column.name])}
    lists = zip(schema.sparse, encoded.values, encoded.weights, encoded.offsets, strict=True)
    for column, values, weights, offsets in lists:
        arrays: dict[str, NDArray[Any]] = {"offsets": offsets.astype(np.int32) if offsets[-1] < 2**31 else offsets}
        if isinstance(values, CodedArray):
            arrays |= {"codes": np.ascontiguousarray(values.codes), "table": np.ascontiguousarray(values.table)}
        else:
            arrays["values"] = _narrowed(values, facts[column.name])
        if weights is not None:
            arrays["weights"] = np.ascontiguousarray(weights)
        found[column.name] = arrays
    for column, array in zip(schema.group("extra"), encoded.extra, strict=True):
        found[column.name] = {"arrow": arrow_bytes(array)}
    return {name: CachedColumn(arrays, facts[name]) for name, arrays in found.items()}


def part_of_column(column: CachedColumn, start: int, stop: int, facts: Mapping[str, Any]) -> CachedColumn:
    """Rows [start, stop) of a column, as views. facts: of these rows."""
    arrays = dict(column.arrays)
    if "offsets" in arrays:
        arrays["offsets"] = arrays["offsets"][start : stop + 1]
    elif "values" in arrays:
        arrays["values"] = arrays["values"][start:stop]
    return CachedColumn(arrays, {**facts, "first": start})


def rows_of_columns(columns: Mapping[str, CachedColumn], schema: BatchSchema, rows: int) -> EncodedRows:
    """The rows of the features of a schema, which are views where they can be."""
    values: list[NDArray[Any] | CodedArray] = []
    weights: list[NDArray[np.float32] | None] = []
    offsets = []
    for column in schema.sparse:
        own = columns[column.name].arrays
        borders, zero = own["offsets"], _becomes_zero(columns[column.name], column)
        first, last = int(borders[0]), int(borders[-1])
        offsets.append(np.subtract(borders, first, dtype=np.int64))
        if "codes" in own:
            table = _finite(own["table"]) if zero else own["table"]
            values.append(CodedArray(own["codes"][first:last], table))
        else:
            values.append(_finite(own["values"][first:last]) if zero else _widened(own["values"][first:last]))
        flat = own["weights"][first:last] if "weights" in own else None
        weights.append(_finite(flat) if zero and flat is not None else flat)
    return EncodedRows(
        rows=rows,
        dense=_matrix(columns, schema.group("dense"), rows),
        categorical=tuple(_widened(columns[column.name].arrays["values"]) for column in schema.group("categorical")),
        labels=_matrix(columns, schema.group("label"), rows),
        values=tuple(values),
        weights=tuple(weights),
        offsets=tuple(offsets),
        extra=tuple(_extra(columns[column.name], rows) for column in schema.group("extra")),
    )


def _matrix(columns: Mapping[str, CachedColumn], chosen: Sequence[SlotColumn], rows: int) -> NDArray[np.float32]:
    width = sum(column.width for column in chosen)
    matrix = np.empty((rows, width), np.float32)
    sources = [(column, columns[column.name].arrays["values"]) for column in chosen]
    sources = [
        (column, _finite(values) if _becomes_zero(columns[column.name], column) else values)
        for column, values in sources
    ]
    step = max(_MATRIX_BYTES // (4 * max(width, 1)), 1)
    for first in range(0, rows, step):
        part = matrix[first : first + step]
        for column, values in sources:
            part[:, column.offset : column.offset + column.width] = values[first : first + len(part)]
    return matrix


def _extra(column: CachedColumn, rows: int) -> pa.Array:
    return arrow_array(column.arrays["arrow"]).slice(column.facts.get("first", 0), rows)


def _becomes_zero(kept: CachedColumn, column: SlotColumn) -> bool:
    """Whether some of a column's numbers are not finite, and `on_nonfinite` makes them 0."""
    return column.on_nonfinite == "zero" and bool(kept.facts["nonfinite"])


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return _widened(values) if values.dtype.kind == "i" else np.where(np.isfinite(values), values, np.float32(0))


def arrow_bytes(array: pa.Array) -> NDArray[np.uint8]:
    """An Arrow array as bytes."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def arrow_array(content: NDArray[np.uint8]) -> pa.Array:
    """The inverse of `arrow_bytes`."""
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        return reader.read_next_batch().column(0)


def _narrowed(values: NDArray[Any], facts: Mapping[str, Any]) -> NDArray[Any]:
    """Integers in as few bytes as hold their extremes, which were counted; else the values. Writing costs most."""
    low, high = facts["integers"]
    if values.dtype == np.int64 and low <= high:
        for kind in (np.int8, np.int16, np.int32):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return values.astype(kind)
    return np.ascontiguousarray(values)


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64) if values.dtype.kind == "i" else values
