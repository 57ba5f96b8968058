"""The tasks that make the rows of a partition: impressions with their labels and features, negatives sampled.

Runs wherever the `map` of the build runs them, after those of `joins`. A task reads some row groups of impressions
again, whole, and spreads the rows that stay over buckets of the clustering key, from which `optimize.rewrite` writes
files. Negatives are kept by a hash of the impression's identity, so that a row stays or goes in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.expressions import bind_where
from feedline.hashing import key_hash
from feedline.warehouse.building.attribution import ROW, VALUE
from feedline.warehouse.building.design import Design
from feedline.warehouse.building.joins import TASK_BITS, PartitionJob, read_log
from feedline.warehouse.building.periods import Window
from feedline.warehouse.optimize.clustering import as_list, buckets_of, is_ragged
from feedline.warehouse.optimize.landing import Target, room_for
from feedline.warehouse.optimize.rewrite import read_buckets, write_buckets
from feedline.warehouse.parquet.key_hashes import key_hashes, series_of
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.snapshot.column_facts import contiguous

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask:
    """Row groups of a partition's impressions (task `number`), and the spill files for them.

    labels, features: of each outcome, of each table of features.
    """

    job: PartitionJob
    number: int
    fragments: tuple[Fragment, ...]
    rows: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    features: tuple[tuple[str, ...], ...]
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRows:
    """A spill file of finished rows, by buckets of the clustering key: rows of each, the bytes of all, decoded.

    sampled_away: negatives that were left out.
    """

    path: str
    bucket_rows: tuple[int, ...]
    bytes: int
    sampled_away: int


def make_rows(task: RowsTask) -> MadeRows:
    """Join what was found for some row groups with their columns."""
    job, design = task.job, task.job.design
    target = Target(job.claim)
    target.claim.check()
    start, stop = job.bounds
    log = design.impressions
    table = read_log(log, task.fragments, Window(start=start, stop=stop), log.schema.names)
    places = [_places(read_buckets(target, path, task.number, task.number + 1)[ROW]) for path in task.rows]
    kept = np.sort(np.concatenate(places))
    where = np.full(table.num_rows, -1, np.int64)
    where[kept] = np.arange(len(kept))
    if len(kept) < table.num_rows:
        table = table.take(pa.array(kept))
    columns = {name: contiguous(table[name]) for name in table.schema.names}
    del table
    for outcome, paths in zip(design.outcomes, task.labels, strict=True):
        columns |= _labels(target, task.number, paths, where, len(kept), outcome.label_fields())
    for features, paths in zip(design.features, task.features, strict=True):
        columns |= _features(target, task.number, paths, where, len(kept), features.columns)
    made, sampled_away = _sampled(design, columns)
    del columns
    buckets = buckets_of(key_hashes(made, design.cluster_by), task.buckets)
    size = logical_bytes(made)
    tables = [made]
    del made
    path = job.spill(target, f"made-{task.number:05d}")
    with room_for(target.uri):
        write_buckets(target, path, tables, buckets, task.buckets)
    counts = np.bincount(buckets, minlength=task.buckets)
    return MadeRows(path=path, bucket_rows=tuple(counts.tolist()), bytes=size, sampled_away=sampled_away)


def logical_bytes(table: pa.Table) -> int:
    """Bytes of the values of a table, the same however its rows are divided: those of its parts add up."""
    return sum(_bytes(contiguous(column)) for column in table.columns)


def _bytes(array: pa.Array) -> int:
    kind = array.type
    if pat.is_dictionary(kind):
        return _bytes(array.cast(kind.value_type))
    if pat.is_struct(kind):
        return sum(_bytes(pa.StructArray.field(array, index)) for index in range(kind.num_fields))
    if pat.is_map(kind):
        offsets = np.asarray(array.offsets)
        low, held = int(offsets[0]), int(offsets[-1] - offsets[0])
        return 4 * len(array) + sum(_bytes(part.slice(low, held)) for part in (array.keys, array.items))
    if is_list(kind):
        offsets = np.asarray(array.offsets)
        return 4 * len(array) + _bytes(array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    if pat.is_fixed_size_list(kind):
        return _bytes(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size))
    try:
        return len(array) * max(1, int(kind.bit_width) // 8)
    except ValueError:  # strings and bytes: their length, and an offset each
        return 4 * len(array) + int(series_of(array).cast(pl.Binary).bin.size().sum() or 0)


def _places(rows: pa.ChunkedArray) -> Int64s:
    row: Int64s = contiguous(rows).to_numpy(zero_copy_only=False)
    return row & ((1 << TASK_BITS) - 1)


def _labels(
    target: Target, task: int, paths: Sequence[str], where: Int64s, rows: int, fields: Sequence[pa.Field]
) -> Mapping[str, pa.Array]:
    """The labels of an outcome: of rows without an outcome false, 0 or null."""
    found = pa.concat_tables([read_buckets(target, path, task, task + 1) for path in paths])
    index = np.full(rows, -1, np.int64)
    index[where[_places(found[ROW])]] = np.arange(found.num_rows)
    take = pa.array(index, mask=index < 0)
    columns = {}
    for field in fields:
        column = contiguous(found[VALUE + field.name]).take(take)
        columns[field.name] = column if field.nullable else column.fill_null(0 if field.type == pa.int64() else False)
    return columns


def _features(
    target: Target, task: int, paths: Sequence[str], where: Int64s, rows: int, names: Sequence[str]
) -> Mapping[str, pa.Array]:
    """The columns of a table of features: of rows that see none, nulls."""
    found = pa.concat_tables([read_buckets(target, path, task, task + 1) for path in paths])
    lists = contiguous(found[ROW])
    counts = np.diff(np.asarray(lists.offsets))
    index = np.full(rows, -1, np.int64)
    index[where[_places(pa.chunked_array([lists.flatten()]))]] = np.repeat(np.arange(len(counts)), counts)
    return {name: _taken(contiguous(found[VALUE + name]), index) for name in names}


def _taken(column: pa.Array, index: Int64s) -> pa.Array:
    """The values at some indices; null where an index is below 0."""
    take = pa.array(index, mask=index < 0)
    if not is_ragged(column.type):
        return column.take(take)
    return as_list(series_of(column).gather(series_of(take)), column.type)


def _sampled(design: Design, columns: Mapping[str, pa.Array]) -> tuple[pa.Table, int]:
    """The rows in the table's columns, without the negatives that are not kept, of which it returns the number."""
    if design.negatives is None:
        return _conformed(columns, design.schema), 0
    table = _conformed(columns, pa.schema([field for field in design.schema if field.name != design.weight]))
    bound = bind_where(design.negatives, table.schema)
    frame = pl.DataFrame({name: series_of(table[name]) for name in sorted(bound.columns)})
    negative = frame.select(bound.polars.fill_null(False)).to_series().to_numpy()
    stays = ~negative
    if design.keep < 1:
        parts = [series_of(table[name].cast(kind)) for name, kind in design.identity]
        stays |= key_hash(parts, design.salt) < np.uint64(int(design.keep * 2**64))
    else:
        stays[:] = True
    weight = np.where(negative, 1 / design.keep, 1.0).astype(np.float32)
    field = design.schema.field(design.weight)
    table = table.append_column(field, pa.array(weight))
    return table.filter(pa.array(stays)).combine_chunks(), int(np.count_nonzero(~stays))


def _conformed(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    arrays = [columns[field.name] for field in schema]
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
