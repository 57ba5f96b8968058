"""Encoded rows as columns of a cache, a column per feature, and back; with what quality counts of them.

Pure; runs in every process that computes blocks. A matrix is kept column by column, a list as offsets and its values,
which stay codes where blocks hold codes, and integers in as few bytes as hold them. Counts are kept for all rows of a
column. Those of a part follow from its values where no null, no unknown value and no number that is not finite is among
them; else the part is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import COUNTS, Observer, Quality
from feedline.native.coded_values import CodedArray
from feedline.native.rows import lay_columns, take_columns
from feedline.warehouse.cache.cache_folder import CachedColumn


def split_columns(encoded: EncodedRows, schema: BatchSchema, quality: Quality) -> dict[str, CachedColumn]:
    """Each feature of some rows, by name. quality: of these rows."""
    facts = _facts_of(quality, schema)
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for group, matrix in (("dense", encoded.dense), ("label", encoded.labels)):
        single = [column for column in schema.group(group) if column.width == 1]
        taken = take_columns(matrix, [column.offset for column in single])
        found |= {column.name: {"values": values} for column, values in zip(single, taken, strict=True)}
        for column in schema.group(group):
            if column.width != 1:
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


def rows_of_columns(columns: Mapping[str, CachedColumn], schema: BatchSchema, start: int, stop: int) -> EncodedRows:
    """Rows [start, stop) of the features of a schema, which are views where they can be."""
    arrays = {name: column.arrays for name, column in columns.items()}
    values: list[NDArray[Any] | CodedArray] = []
    weights: list[NDArray[np.float32] | None] = []
    offsets = []
    for column in schema.sparse:
        own = arrays[column.name]
        borders = own["offsets"][start : stop + 1]
        first, last = int(borders[0]), int(borders[-1])
        offsets.append(np.subtract(borders, first, dtype=np.int64))
        coded = "codes" in own
        values.append(
            CodedArray(own["codes"][first:last], own["table"]) if coded else _widened(own["values"][first:last])
        )
        weights.append(own["weights"][first:last] if "weights" in own else None)
    return EncodedRows(
        rows=stop - start,
        dense=_matrix(arrays, schema.group("dense"), start, stop),
        categorical=tuple(
            _widened(arrays[column.name]["values"][start:stop]) for column in schema.group("categorical")
        ),
        labels=_matrix(arrays, schema.group("label"), start, stop),
        values=tuple(values),
        weights=tuple(weights),
        offsets=tuple(offsets),
        extra=tuple(
            arrow_array(arrays[column.name]["arrow"]).slice(start, stop - start) for column in schema.group("extra")
        ),
    )


def _matrix(
    arrays: Mapping[str, Mapping[str, NDArray[Any]]], columns: Sequence[SlotColumn], start: int, stop: int
) -> NDArray[np.float32]:
    width = sum(column.width for column in columns)
    matrix = np.empty((stop - start, width), np.float32)
    parts = {column: arrays[column.name]["values"][start:stop] for column in columns}
    lay_columns(matrix, {column.offset: values for column, values in parts.items() if column.width == 1})
    for column, values in parts.items():
        if column.width != 1:
            matrix[:, column.offset : column.offset + column.width] = values
    return matrix


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


def _facts_of(quality: Quality, schema: BatchSchema) -> dict[str, dict[str, Any]]:
    """What quality counts of each feature, as plain values."""
    facts: dict[str, dict[str, Any]] = {}
    sparse = {column.name: index for index, column in enumerate(schema.group("sparse"))}
    histograms, lookup = quality.histograms(), 0
    for index, column in enumerate(schema):
        own = dict(zip(COUNTS, quality.counts[:, index].tolist(), strict=True))
        facts[column.name] = {
            "rows": quality.rows,
            **own,
            "integers": quality.integers[:, index].tolist(),
            "floats": quality.floats[:, index].tolist(),
            "lengths": histograms[sparse[column.name]].tolist() if column.name in sparse else [],
            "lookups": quality.lookups[:, lookup : lookup + column.lookups].tolist(),
        }
        lookup += column.lookups
    return facts


def quality_of(columns: Mapping[str, CachedColumn], schema: BatchSchema, rows: int) -> Quality:
    """The counts of all rows of some columns."""
    facts = [columns[column.name].facts for column in schema]
    lengths = [np.array(columns[column.name].facts["lengths"], np.int64) for column in schema.group("sparse")]
    lookups = [np.array(own["lookups"], np.int64).reshape(2, -1) for own in facts]
    return Quality(
        rows=rows,
        counts=np.array([[own[name] for own in facts] for name in COUNTS], np.int64).reshape(len(COUNTS), -1),
        integers=np.array([own["integers"] for own in facts], np.int64).reshape(-1, 2).T.copy(),
        floats=np.array([own["floats"] for own in facts], np.float64).reshape(-1, 2).T.copy(),
        histogram=np.concatenate(lengths) if lengths else np.empty(0, np.int64),
        widths=np.array([len(buckets) for buckets in lengths], np.int64),
        lookups=np.concatenate(lookups, axis=1) if lookups else np.zeros((2, 0), np.int64),
    )


def can_count_part(column: CachedColumn) -> bool:
    """Whether the counts of any rows of a column follow from their values."""
    facts = column.facts
    asked = any(any(counts) for counts in facts["lookups"])
    return facts["nulls"] in (0, facts["rows"]) and not facts["nonfinite"] and not asked


def quality_of_part(columns: Mapping[str, CachedColumn], schema: BatchSchema, encoded: EncodedRows) -> Quality:
    """The counts of a part of some columns, of each of which `can_count_part` holds. encoded: the part."""
    observer = Observer(schema, [()] * len(schema))
    for column, ids in zip(schema.group("categorical"), encoded.categorical, strict=True):
        observer.count_integers(column, ids)
    for column, values, offsets in zip(schema.sparse, encoded.values, encoded.offsets, strict=True):
        observer.count_lists(column, offsets)
        if column.dtype == "float32":
            _count_floats(observer, column, np.asarray(values))
        else:
            observer.count_integers(column, np.asarray(values))
    for group, matrix in (("dense", encoded.dense), ("label", encoded.labels)):
        for column in schema.group(group):
            _count_floats(observer, column, matrix[:, column.offset : column.offset + column.width])
    counted = observer.quality()
    nulls = [encoded.rows if columns[column.name].facts["nulls"] else 0 for column in schema]
    counted.counts[COUNTS.index("nulls")] = nulls
    return Quality(
        rows=encoded.rows,
        counts=counted.counts,
        integers=counted.integers,
        floats=counted.floats,
        histogram=counted.histogram,
        widths=counted.widths,
        lookups=counted.lookups,
    )


def _count_floats(observer: Observer, column: SlotColumn, values: NDArray[Any]) -> None:
    extremes = (values.min(), values.max()) if values.size else (math.inf, -math.inf)
    observer.count_floats(column, values.size, extremes)
