"""The tasks of `optimize`: write the new files of one partition.

Runs wherever the `map` of the job runs them. Without clustering a unit is a run of row groups, streamed one by one;
with clustering it is the whole partition or, if that is too large for a task, a range of key hashes: then tasks first
write the rows of some row groups to one spill file each, a record batch per bucket, and a unit is a range of buckets of
all spill files. A task holds one unit's rows, decoded, plus one row group; a streaming task two row groups. The rows of
a key are never separated.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions.column_parts import flattened_name
from feedline.warehouse.optimize.clustering import Gatherer, buckets_of, row_order
from feedline.warehouse.optimize.landing import Target, room_for
from feedline.warehouse.optimize.repeated_columns import DedupGroups
from feedline.warehouse.optimize.survey import Key, flatten, fragment_of_group, null_paths, required_paths
from feedline.warehouse.parquet.history_note import HistoryOrder
from feedline.warehouse.parquet.key_hashes import key_hashes
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table
from feedline.warehouse.parquet.request_rows import RequestColumns, as_impressions, as_requests, request_schema
from feedline.warehouse.parquet.writer import (
    PART_SUFFIX,
    Encoding,
    Limits,
    TableFormat,
    TableWriter,
    WrittenFile,
    upload,
)
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.retry import with_retries

_READ_ROWS = 1 << 20  # rows decoded at once: row groups are read whole
_GATHER_ROWS = 32_768  # of a spill file
_PART_ROWS = 65_536  # impressions that are gathered at once, to make requests of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How every partition is written, and by which run.

    `source`, `target`: the schemas of rows, before they become requests; `requests`: the columns of a request table
    that is read (`rows` impression), written (request), or both (keep); `flatten`: per map column the keys that become
    columns; `dedup`: the groups of columns that are stored once per run; `history`: the order of a table of histories;
    `keep_small`: partitions smaller than a row group keep their files; `settings`: the fingerprint for the files'
    notes; `decoder`: that encodings are measured with.
    """

    claim: Claim
    source: pa.Schema
    target: pa.Schema
    encodings: tuple[Encoding, ...]
    limits: Limits
    cluster_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    flatten: tuple[tuple[str, tuple[Key, ...]], ...]
    dedup: DedupGroups
    history: HistoryOrder | None
    requests: RequestColumns | None
    rows: str
    keep_small: bool
    settings: str
    decoder: str

    @property
    def non_null(self) -> tuple[str, ...]:
        """The columns that are stored as not nullable, flags left out."""
        repeated = {column for _, columns in self.dedup for column in columns}
        return tuple(field.name for field in self.stored if not field.nullable and field.name not in repeated)

    @property
    def stored(self) -> pa.Schema:
        """The schema of the rows that are stored."""
        requests = self.requests
        return request_schema(self.target, requests.candidates) if requests and self.rows == "request" else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The rows of one unit: row groups of the source, or the buckets [first, stop) of spill files."""

    number: int
    units: int
    fragments: tuple[Fragment, ...] = ()
    spills: tuple[str, ...] = ()
    first: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTask:
    """Units of one partition to write into its staging folder: all of them, or some."""

    recipe: Recipe
    slug: str
    sources: str
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterTask:
    """Row groups to divide into buckets, and the number of the spill file for them."""

    recipe: Recipe
    fragments: tuple[Fragment, ...]
    buckets: int
    slug: str
    number: int


def rewrite_units(task: PartitionTask) -> list[WrittenFile]:
    """Write units into their partition's staging folder, without landing."""
    target = Target(task.recipe.claim)
    target.claim.check()
    with room_for(target.uri):
        return [file for unit in task.units for file in _write_unit(target, task, unit)]


def scatter(task: ScatterTask) -> tuple[str, list[int]]:
    """Write a spill file; returns its path, and the decoded bytes of each bucket."""
    recipe, target = task.recipe, Target(task.recipe.claim)
    target.claim.check()
    path = f"{target.spill(task.slug)}/{task.number:05d}.{secrets.token_hex(4)}.arrow"  # an attempt's own
    table = pa.concat_tables(list(target_rows(recipe, task.fragments)))
    buckets = buckets_of(key_hashes(table, recipe.cluster_by), task.buckets)
    tables = [table]
    del table
    with room_for(target.uri):
        return path, write_buckets(target, path, tables, buckets, task.buckets)


def write_buckets(
    target: Target, path: str, tables: list[pa.Table], buckets: npt.NDArray[np.integer[Any]], count: int
) -> list[int]:
    """Write a spill file, a record batch for each bucket, of the one table that `tables` holds, which is emptied.

    buckets: int [rows], each row's, of `count`. Returns the decoded bytes of each.
    """
    if count <= np.iinfo(np.uint16).max:
        buckets = buckets.astype(np.uint16)  # which numpy sorts by radix
    order = np.argsort(buckets, kind="stable")
    borders = np.searchsorted(buckets[order], np.arange(count + 1))
    rows = Gatherer(tables)
    sizes = []
    target.make_folder(path.rpartition("/")[0])
    sink = target.filesystem.open_output_stream(path) if target.is_local else pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as spill:
        for first, last in pairwise(_gathered_together(borders)):
            part = rows.take(order[borders[first] : borders[last]])
            whole = pa.RecordBatch.from_arrays([contiguous(column) for column in part.columns], schema=part.schema)
            for low, high in pairwise(borders[first : last + 1] - borders[first]):
                batch = whole.slice(low, high - low)
                sizes.append(batch.nbytes)
                spill.write_batch(batch)
    if target.is_local:
        sink.close()
    else:
        upload(target.filesystem, path, sink.getvalue())
    return sizes


def _gathered_together(borders: npt.NDArray[np.int64]) -> list[int]:
    """Divide buckets into parts of about `_GATHER_ROWS` rows, because a call of gathering has costs per column, which
    hundreds of buckets of few rows would multiply.

    Of borders [0, 3, 3, 9, 10] and four rows: buckets [0, 3), [3, 4), as [0, 3, 4].
    """
    parts = [0]
    for bucket in range(1, len(borders)):
        if bucket == len(borders) - 1 or borders[bucket] - borders[parts[-1]] >= _GATHER_ROWS:
            parts.append(bucket)
    return parts


def read_buckets(target: Target, path: str, first: int, stop: int) -> pa.Table:
    """The rows of the buckets [first, stop) of a spill file."""

    def read() -> pa.Table:
        with target.filesystem.open_input_file(path) as source:
            spill = pa.ipc.open_file(source)
            return pa.Table.from_batches([spill.get_batch(bucket) for bucket in range(first, stop)], spill.schema)

    return with_retries(read, target.filesystem, path)


def target_rows(recipe: Recipe, fragments: Sequence[Fragment]) -> Iterator[pa.Table]:
    """Yield the source's rows in the target's columns, one table per row group, in order."""
    for fragment in fragments:
        for row_group in fragment.row_groups:
            group = fragment_of_group(fragment, row_group)
            table = read_arrow(group, ReadRequest(recipe.source.names, recipe.source, chunk_rows=_READ_ROWS))
            table = flatten_maps(table, recipe)
            if recipe.requests is not None and recipe.rows == "impression":
                place = label(fragment.uri, row_group)
                table = as_impressions(table, recipe.requests.candidates, place)
            yield conform_to_target(table, recipe.target, fragment.uri)


def flatten_maps(table: pa.Table, recipe: Recipe) -> pa.Table:
    """Move the recipe's map keys into columns of their own."""
    columns = {name: table[name] for name in table.schema.names}
    for name, keys in recipe.flatten:
        *parts, rest = flatten(contiguous(columns[name]), keys)
        columns[name] = rest
        columns |= {flattened_name(name, key): part for key, part in zip(keys, parts, strict=True)}
    return pa.table(columns) if recipe.flatten else table


def conform_to_target(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """Cast the rows to exactly the target's columns.

    Raises DataError, naming the file, for a null in a column without nulls according to the survey.
    """
    arrays = []
    for field in schema:
        array = contiguous(table[field.name])
        null_in = set(null_paths(field.name, array)) & set(required_paths(field))
        if null_in:
            raise DataError(
                f"column {field.name!r} of {file} holds a null: got one in {min(null_in)}, expected none "
                "by the footers of the table. Keep every column nullable (--keep-nullable), or rewrite the file"
            )
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_unit(target: Target, task: PartitionTask, unit: Unit) -> list[WrittenFile]:
    recipe = task.recipe
    format = TableFormat(
        schema=recipe.stored,
        encodings=recipe.encodings,
        limits=recipe.limits,
        groups=dict(recipe.dedup),
        keys=recipe.cluster_by,
        history=recipe.history,
        requests=None if recipe.rows == "impression" else recipe.requests,
    )
    note = {
        "settings": recipe.settings,
        "sources": task.sources,
        "decoder": recipe.decoder,
        "unit": unit.number,
        "units": unit.units,
    }
    suffix = f".{secrets.token_hex(4)}{PART_SUFFIX}"  # an attempt's own
    stage, stem = target.stage(task.slug), f"part-{unit.number:04d}"
    writer = TableWriter(target.filesystem, stage, stem, format, note=note, suffix=suffix)
    try:
        if recipe.cluster_by:
            _write_clustered(target, recipe, unit, writer)
        else:
            for table in target_rows(recipe, unit.fragments):
                writer.write(table)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _write_clustered(target: Target, recipe: Recipe, unit: Unit, writer: TableWriter) -> None:
    parts = _read_spills(target, unit) if unit.spills else target_rows(recipe, unit.fragments)
    tables = [pa.concat_tables([recipe.target.empty_table(), *parts])]
    keys = dict.fromkeys([*recipe.cluster_by, *recipe.sort_by])
    of_keys = tables[0].select(list(keys))
    order = row_order(of_keys, recipe.cluster_by, recipe.sort_by)
    rows = Gatherer(tables)
    if recipe.requests is not None and recipe.rows == "request":
        for part in _whole_requests(of_keys.select(list(recipe.cluster_by)), order):
            writer.write(as_requests(rows.take(part), recipe.requests))
        return
    for start in range(0, len(order), recipe.limits.row_group_rows):
        writer.write(rows.take(order[start : start + recipe.limits.row_group_rows]))


def _whole_requests(keys: pa.Table, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Divide ordered rows into parts of about `_PART_ROWS`, none of which ends within a request."""
    starts = np.flatnonzero(first_rows_of_table(keys.take(pa.array(order)), keys.schema.names))
    # starts [0, 3, 5, 9] of 12 rows, parts of 4 -> borders at the first start from 4 and from 8 on: [0, 5, 9, 12]
    wanted = np.arange(_PART_ROWS, len(order), _PART_ROWS)
    after = np.searchsorted(starts, wanted)
    borders = np.unique([0, *starts[after[after < len(starts)]], len(order)])
    for start, stop in pairwise(borders):
        yield order[start:stop]


def _read_spills(target: Target, unit: Unit) -> Iterator[pa.Table]:
    for path in unit.spills:
        yield read_buckets(target, path, unit.first, unit.stop)
