"""Read the external tables and zarr arrays that ops look values up in.

Runs in: every process that compiles features. Each is read once per process and columns. Paths are relative to the
folder of pipeline.yaml. Its digest is part of the features' fingerprint, and a worker refuses another one than the
plan's: of a table, the values of its columns in row order; of a zarr array, its metadata, and the names, sizes and
times of its files.
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
from feedline.config.sections import resolve_path
from feedline.errors import SpecError, StoreError, TableChangedError, TableError
from feedline.expressions.types import nearest
from feedline.extras import extra
from feedline.transforms.learning.learner import Artifact, Reading
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.reading.fragment import fragment_of
from feedline.warehouse.reading.read import ReadRequest, read_arrow, refuse_foreign
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import absolute, redact

# Rows read at a time.
_READ_ROWS = 131_072

_lock = threading.RLock()
_artifacts: WeakValueDictionary[tuple[str, ...], Artifact] = WeakValueDictionary()


def read_external(
    reading: Reading, folder: str, expected: str | None = None, *, apart: Mapping[str, str] | None = None
) -> Artifact:
    """Read columns of a table, or a zarr array whose `ArrayRows` are the artifact's derived value "rows".

    `folder`: of pipeline.yaml. `expected`: the required digest. `apart`: as in `hive.discover`.

    Raises SpecError if there is nothing to read or it does not fit; TableChangedError, with both digests, if the digest
    differs; StoreError if the store keeps failing.
    """
    uri = absolute(resolve_path(reading.uri, folder))
    read = _table if reading.kind == "table" else _array
    try:
        with _lock:
            artifact = read(uri, json.loads(reading.options), reading.max_memory, folder, apart or {})
    except (SpecError, StoreError, TableChangedError):
        raise
    except TableError as error:
        raise SpecError(str(error)) from error
    if expected is not None and artifact.digest != expected:
        raise TableChangedError(
            f"{redact(uri)} has changed since the plan was made: got the digest {artifact.digest}, "
            f"expected {expected}. Start again, so that every worker reads the current content"
        )
    return artifact


def _table(uri: str, options: Mapping[str, Any], max_memory: int, folder: str, apart: Mapping[str, str]) -> Artifact:
    columns = options["columns"]
    snapshot = snapshot_of(list_table(uri, apart=apart))
    key = ("table", uri, json.dumps(columns), snapshot.id, str(max_memory))
    artifact = _artifacts.get(key)
    if artifact is None:
        artifact = _artifacts[key] = Artifact(facts={}, table=_columns(redact(uri), snapshot, columns, max_memory))
    return artifact


def _array(uri: str, options: Mapping[str, Any], max_memory: int, folder: str, apart: Mapping[str, str]) -> Artifact:
    with extra("zarr", redact(uri)):
        from feedline.artifacts.zarr_array import open_array  # noqa: PLC0415 -- an extra; 0.2 s

    array, ids = open_array(uri), None
    if options["ids"] is not None:
        ids = _ids(absolute(resolve_path(options["ids"], folder)), options["ids_column"], max_memory, apart)
    facts = {"array": array.digest, "ids": "" if ids is None else ids.digest}
    key = ("zarr", uri, *facts.values(), str(max_memory))
    artifact = _artifacts.get(key)
    if artifact is not None:
        return artifact
    if len(array.shape) != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        raise SpecError(
            f"{array.uri} holds no vectors: got {array.dtype} of shape {array.shape}, expected numbers of shape "
            "[ids, width]"
        )
    blocks = array.stored_array()
    if not blocks.mapped and blocks.block_bytes > max_memory:
        raise SpecError(
            f"{array.uri} has chunks larger than max_memory: got {blocks.block_bytes:,} bytes for "
            f"{blocks.block_rows:,} rows, expected at most {max_memory:,}. Raise max_memory, or write smaller "
            "chunks"
        )
    table = None if ids is None else ids.table
    if table is not None and table.num_rows != blocks.rows:
        raise SpecError(
            f"{array.uri} and its ids do not belong together: got {table.num_rows:,} ids, expected {blocks.rows:,}, "
            "one for each row"
        )
    artifact = _artifacts[key] = Artifact(facts=facts, table=table)
    artifact.__dict__["digest"] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    artifact.derive("rows", lambda: ArrayRows(blocks, max_memory))
    artifact.derive("ids", lambda: ids)  # live as long as the array
    return artifact


def _ids(uri: str, column: str, max_memory: int, apart: Mapping[str, str]) -> Artifact:
    """The id of each row of an array: a column of a table, or a zarr array of one dimension."""
    from feedline.artifacts.zarr_array import is_array, open_array  # noqa: PLC0415 -- as above, by which it is there

    if not is_array(uri):
        return _table(uri, {"columns": [column]}, max_memory, "", apart)
    array = open_array(uri)
    key = ("ids", uri, array.digest, column, str(max_memory))
    if (artifact := _artifacts.get(key)) is not None:
        return artifact
    if len(array.shape) != 1 or array.dtype.kind not in "iu":
        raise SpecError(
            f"{array.uri} holds no ids: got {array.dtype} of shape {array.shape}, expected integers of one dimension"
        )
    _refuse_large(array.uri, array.shape[0] * array.dtype.itemsize, max_memory)
    artifact = _artifacts[key] = Artifact(facts={"ids": array.digest}, table=pa.table({column: array.read()}))
    artifact.__dict__["digest"] = array.digest
    return artifact


def _columns(name: str, snapshot: Snapshot, columns: Sequence[str], max_memory: int) -> pa.Table:
    """Read some columns of a table, in parts, so that one larger than `max_memory` is refused early."""
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
    splits = plan_splits(rows, snapshot.file_of_row_group, _READ_ROWS)
    parts, size_bytes = [schema.empty_table()], 0
    for index in range(len(splits)):
        part = read_arrow(fragment_of(snapshot, splits, rows, index), ReadRequest(columns, snapshot.schema))
        size_bytes += part.nbytes
        _refuse_large(name, size_bytes, max_memory)
        parts.append(part)
    return pa.concat_tables(parts)


def _refuse_large(name: str, size_bytes: int, max_memory: int) -> None:
    if size_bytes > max_memory:
        raise SpecError(
            f"{name} is larger than max_memory: got {size_bytes:,} bytes or more, expected at most {max_memory:,}. "
            "Take fewer columns of it, or raise max_memory, which every worker process needs"
        )
