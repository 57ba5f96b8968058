"""Read tables and zarr arrays that ops use besides the table.

Runs in: every process that compiles features. Each reading happens once per process, and is shared by all features,
threads and jobs that read the same columns of the same files. A path is relative to the folder of pipeline.yaml. Every
reading has a digest, which is part of the features' fingerprint:

- of a table, of the values of its columns in their order, however they are cut into files;
- of a zarr array, which may be larger than any memory, of its metadata and of names, sizes and times of its files.

A worker refuses another digest than that of the plan.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from feedline.artifacts.array_rows import ArrayRows
from feedline.errors import SpecError, StoreError, TableChangedError, TableError
from feedline.expressions.types import nearest
from feedline.spec.sections import resolve_path
from feedline.transforms.learning.learner import Artifact, Reading
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.reading.fragment import fragment_of
from feedline.warehouse.reading.read import read_arrow, refuse_foreign
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import absolute, redact

# Rows that are read at a time.
_PART_ROWS = 131_072

_lock = threading.RLock()
_read: WeakValueDictionary[tuple[str, ...], Artifact] = WeakValueDictionary()


def read_outside(reading: Reading, folder: str, expected: str | None = None) -> Artifact:
    """What an op reads: a table's columns, or a zarr array's rows under the name "rows" of what the artifact has made.

    `folder`: of pipeline.yaml. `expected`: the digest that it must have.

    Raises SpecError where there is nothing to read, or nothing that fits; TableChangedError, with both digests, where
    it is not what was expected; StoreError where the store kept failing.
    """
    uri = absolute(resolve_path(reading.uri, folder))
    read = _table if reading.kind == "table" else _array
    try:
        with _lock:
            artifact = read(uri, json.loads(reading.options), reading.max_memory, folder)
    except (SpecError, StoreError, TableChangedError):
        raise
    except TableError as error:
        raise SpecError(str(error)) from error
    if expected is not None and artifact.digest != expected:
        raise TableChangedError(
            f"{redact(uri)} has another content than when the plan was made: got the digest {artifact.digest}, "
            f"expected {expected}. Start again, so that every worker reads it as it is now"
        )
    return artifact


def _table(uri: str, options: Mapping[str, Any], max_memory: int, folder: str) -> Artifact:
    columns = options["columns"]
    snapshot = snapshot_of(list_table(uri))
    key = ("table", uri, json.dumps(columns), snapshot.id, str(max_memory))
    artifact = _read.get(key)
    if artifact is None:
        artifact = _read[key] = Artifact(facts={}, table=_columns(redact(uri), snapshot, columns, max_memory))
    return artifact


def _array(uri: str, options: Mapping[str, Any], max_memory: int, folder: str) -> Artifact:
    from feedline.artifacts.zarr_array import open_array  # noqa: PLC0415 -- 0.2 s of zarr that few pipelines need

    opened, ids = open_array(uri), None
    if options["ids"] is not None:
        ids = _ids(absolute(resolve_path(options["ids"], folder)), options["ids_column"], max_memory)
    facts = {"array": opened.digest, "ids": "" if ids is None else ids.digest}
    key = ("zarr", uri, *facts.values(), str(max_memory))
    artifact = _read.get(key)
    if artifact is not None:
        return artifact
    if len(opened.shape) != 2 or not opened.shape[1] or opened.dtype.kind not in "fiub":
        raise SpecError(
            f"{opened.uri} holds no vectors: got {opened.dtype} of shape {opened.shape}, expected numbers of a shape "
            "[ids, width]"
        )
    stored = opened.stored()
    if not stored.mapped and stored.block_bytes > max_memory:
        raise SpecError(
            f"{opened.uri} has chunks larger than max_memory: got {stored.block_bytes:,} bytes for "
            f"{stored.block_rows:,} rows, expected at most {max_memory:,}. Raise max_memory, or write smaller "
            "chunks"
        )
    table = None if ids is None else ids.table
    if table is not None and table.num_rows != stored.rows:
        raise SpecError(
            f"{opened.uri} and its ids do not belong together: got {table.num_rows:,} ids, expected {stored.rows:,}, "
            "one for each row"
        )
    artifact = _read[key] = Artifact(facts=facts, table=table)
    artifact.__dict__["digest"] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    artifact.derive("rows", lambda: ArrayRows(stored, max_memory))
    artifact.derive("ids", lambda: ids)  # kept as long as the array is
    return artifact


def _ids(uri: str, column: str, max_memory: int) -> Artifact:
    """The id of each row of an array: a column of a table, or a zarr array of one dimension."""
    from feedline.artifacts.zarr_array import is_array, open_array  # noqa: PLC0415 -- as above

    if not is_array(uri):
        return _table(uri, {"columns": [column]}, max_memory, "")
    opened = open_array(uri)
    key = ("ids", uri, opened.digest, column, str(max_memory))
    if (artifact := _read.get(key)) is not None:
        return artifact
    if len(opened.shape) != 1 or opened.dtype.kind not in "iu":
        raise SpecError(
            f"{opened.uri} holds no ids: got {opened.dtype} of shape {opened.shape}, expected integers of one dimension"
        )
    _refuse_large(opened.uri, opened.shape[0] * opened.dtype.itemsize, max_memory)
    artifact = _read[key] = Artifact(facts={"ids": opened.digest}, table=pa.table({column: opened.read()}))
    artifact.__dict__["digest"] = opened.digest
    return artifact


def _columns(name: str, snapshot: Snapshot, columns: Sequence[str], max_memory: int) -> pa.Table:
    """Some columns of a table, read part by part so that too much is noticed in time. `name`: for messages."""
    for column in columns:
        if column not in snapshot.schema.names:
            near = nearest(column, snapshot.schema.names) or f". It has {', '.join(snapshot.schema.names[:20])}"
            raise SpecError(f"{name} has no column {column!r}{near}")
    try:
        refuse_foreign(snapshot.schema, columns)
    except TableError as error:
        raise SpecError(f"{name}: {error}") from error
    schema = pa.schema([snapshot.schema.field(column) for column in columns])
    rows = snapshot.rows_per_row_group
    splits = plan_splits(rows, snapshot.file_of_row_group, _PART_ROWS)
    parts, held = [schema.empty_table()], 0
    for index in range(len(splits)):
        part = read_arrow(fragment_of(snapshot, splits, rows, index), columns, None, snapshot.schema)
        held += part.nbytes
        _refuse_large(name, held, max_memory)
        parts.append(part)
    return pa.concat_tables(parts)


def _refuse_large(name: str, held: int, max_memory: int) -> None:
    if held > max_memory:
        raise SpecError(
            f"{name} is larger than max_memory: got {held:,} bytes or more, expected at most {max_memory:,}. Take "
            "fewer columns of it, or raise max_memory, which every worker process needs"
        )
