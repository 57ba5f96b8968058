"""Record the types of a table's columns in training, for the processes that serve.

Runs in: processes that fit, run and plan (`save_types`), and processes that serve (`load_types`). The folder of
artifacts holds, per pipeline and table, the Parquet file `serving/<name>/<table>.columns.parquet` without rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

import pyarrow as pa

from feedline.artifacts.artifact_sets import (
    ArtifactSetKey,
    list_names,
    parquet_bytes,
    parsed_parquet,
    read_file,
    safe_name,
    write_file,
)
from feedline.errors import CorruptFileError, SpecError
from feedline.warehouse.parquet.schemas import storage_schema
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, join, locate

FOLDER = "serving"
_SUFFIX = ".columns.parquet"
_TABLE_KEY = b"feedline.table"


def save_types(folder: str, request: ArtifactSetKey, schema: pa.Schema, *, fill: bool = False) -> None:
    """Record the types of a table's columns; `fill`: leave columns that are recorded already unchanged."""
    name = _file(request)
    if _updated(folder, name, schema, fill=fill) is None:
        return
    with content_store.lock_file(locate(absolute(folder)), f"{FOLDER}/{safe_name(request.pipeline)}"):
        whole = _updated(folder, name, schema, fill=fill)
        if whole is not None:
            marked = whole.with_metadata({_TABLE_KEY: request.source.tables.encode()})
            write_file(folder, name, parquet_bytes(marked.empty_table()))


def _updated(folder: str, name: str, schema: pa.Schema, *, fill: bool) -> pa.Schema | None:
    """The schema to record now; None if it is recorded."""
    try:
        recorded = _load(folder, name) or pa.schema([])
    except CorruptFileError:  # it is replaced
        recorded = pa.schema([])
    names = set(recorded.names)
    added = [field for field in schema if field.name not in names]
    whole = pa.schema([*recorded, *added]) if fill else schema
    return None if whole.remove_metadata().equals(recorded.remove_metadata()) else whole


def load_types(folder: str, request: ArtifactSetKey, used: Collection[str]) -> pa.Schema | None:
    """Load the column types of this pipeline's training, or of the pipeline whose fits it uses; None without a record.

    The record of the same table, else of all tables of the pipeline. Raises CorruptFileError; SpecError if these differ
    in a column in `used`.
    """
    exact = _load(folder, _file(request))
    if exact is not None:
        return exact.remove_metadata()
    for name in dict.fromkeys((request.pipeline, request.owner)):
        files = list_names(folder, f"{FOLDER}/{safe_name(name)}", _SUFFIX)
        records = [record for file in files if (record := _load(folder, file)) is not None]
        if records:
            return _merge_records(records, used)
    return None


def _merge_records(records: list[pa.Schema], used: Collection[str]) -> pa.Schema:
    fields: dict[str, tuple[pa.Field, str]] = {}
    for record in records:
        table = (record.metadata or {}).get(_TABLE_KEY, b"").decode()
        for field in record:
            first, where = fields.setdefault(field.name, (field, table))
            if first.type != field.type and field.name in used:
                raise SpecError(
                    f"column {field.name!r} has different types in the tables of training: got {first.type} in {where} "
                    f"and {field.type} in {table}, expected one. Name the table of the model in `source.table`"
                )
    return pa.schema([field for field, _ in fields.values()])


def _file(request: ArtifactSetKey) -> str:
    digest = hashlib.sha256(json.dumps(request.source.table).encode()).hexdigest()[:16]
    return f"{FOLDER}/{safe_name(request.pipeline)}/{digest}{_SUFFIX}"


def _load(folder: str, name: str) -> pa.Schema | None:
    content = read_file(folder, name)
    if content is None:
        return None
    schema = storage_schema(parsed_parquet(content, join(folder, name)).schema)
    table = (schema.metadata or {}).get(_TABLE_KEY)
    return schema.remove_metadata() if table is None else schema.with_metadata({_TABLE_KEY: table})
