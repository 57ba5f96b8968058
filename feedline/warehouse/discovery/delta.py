"""List the files of a Delta Lake table at one of its versions.

Runs where a snapshot is taken. The package `deltalake` (the extra `delta`) reads the log, which gives files, partition
values, columns and their mapping to names or field ids in files. Tables with deletion vectors or unknown features are
refused.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from feedline.errors import TableError, TableNotFoundError
from feedline.extras import extra
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import declared_listing, moment_of
from feedline.warehouse.parquet.schemas import child_fields
from feedline.warehouse.parquet.stored_names import StoredField, StoredNames
from feedline.warehouse.storage.faults import safe_message
from feedline.warehouse.storage.locations import absolute, is_uri, redact, split_options

# Features that do not affect reading whole files by column name, or that are checked below.
_READABLE = {
    *("deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    *("typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
}
# pyarrow's URI options and deltalake's names for them; credentials come from the environment.
_OPTIONS = {"endpoint_override": "AWS_ENDPOINT_URL", "region": "AWS_REGION"}

_PHYSICAL_NAME, _COLUMN_ID = b"delta.columnMapping.physicalName", b"delta.columnMapping.id"


def list_delta(table: str, *, version: int | None = None, as_of: str | None = None) -> Listing:
    """List the files of a version (None: the newest), or of the version that was the newest at an ISO time.

    A time without a zone is UTC. Raises TableNotFoundError for a folder that is not a Delta table or has no file,
    TableError for a table that cannot be read, TableChangedError for files that were vacuumed.
    """
    with extra("delta", "format delta", TableError):
        import deltalake  # noqa: PLC0415 -- an extra: needed only for tables of this format
    uri = absolute(table)
    try:
        address = split_options(uri)[0]
        log = deltalake.DeltaTable(address, version=version, storage_options=_options(uri))
        if as_of is not None:
            newest = deltalake.DeltaTable(address, storage_options=_options(uri))
            _load_as_of(newest, log, as_of, uri)
        _refuse_features(log, uri)
        schema = pa.schema(log.schema().to_arrow())
        stored_names = _stored_names(log, schema)
        actions = pa.table(log.get_add_actions(flatten=False))
        keys = list(log.metadata().partition_columns)
    except deltalake.exceptions.TableNotFoundError as error:
        raise TableNotFoundError(f"{redact(uri)} is not a Delta table: {safe_message(error)}") from error
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        state = f" at version {version}" if version is not None else ""
        raise TableError(f"{redact(uri)} cannot be read as a Delta table{state}: {safe_message(error)}") from error
    partition = {}
    if keys:
        values = actions["partition"].combine_chunks()
        partition = {name: values.field(name).cast(schema.field(name).type) for name in keys}
    paths = [path if is_uri(path) else unquote(path) for path in actions["path"].to_pylist()]
    listing = declared_listing(uri, paths, partition)
    return replace(listing, source_names=f"delta {uri}", schema=schema, stored_names=stored_names)


def _load_as_of(newest: Any, log: Any, as_of: str, uri: str) -> None:
    moment = moment_of(as_of)
    log.load_as_version(moment)
    if log.version() > 0:
        return
    # a time before the first version loads the first; only the newest version's history has the right version numbers
    written_ms = next((entry.get("timestamp") for entry in newest.history() if entry.get("version") == 0), None)
    if written_ms is not None and moment.timestamp() * 1000 < written_ms:
        first = datetime.datetime.fromtimestamp(written_ms / 1000, datetime.UTC).isoformat()
        raise TableError(f"{redact(uri)} did not exist at {as_of}: its first version is of {first}. Name a later time")


def _stored_names(log: Any, schema: pa.Schema) -> StoredNames | None:
    """The names of the table's columns in its files, or their field ids; None where they are the table's."""
    mode = log.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode == "none":
        return None
    fields = [_stored_field(field) for field in schema]
    if mode == "name" and all(map(_is_same, fields)):
        return None
    return StoredNames.of(fields, by_id=mode == "id")


def _stored_field(field: pa.Field) -> StoredField:
    metadata, kind = field.metadata or {}, field.type
    id = metadata.get(_COLUMN_ID)
    return StoredField(
        name=field.name,
        stored=metadata.get(_PHYSICAL_NAME, field.name.encode()).decode(),
        id=None if id is None else int(id),
        fields=tuple(_stored_field(child) for child in child_fields(kind)),
    )


def _is_same(field: StoredField) -> bool:
    return field.name == field.stored and all(map(_is_same, field.fields))


def _refuse_features(log: Any, uri: str) -> None:
    features = set(log.protocol().reader_features or ())
    unknown = sorted(features - _READABLE)
    if unknown:
        raise TableError(f"{redact(uri)} uses features that Feedline does not support: {', '.join(unknown)}")
    if "deletionVectors" in features and _has_deletion_vectors(log):
        raise TableError(
            f"{redact(uri)} has deletion vectors, which mark rows of its files as deleted: expected none. Run "
            "REORG TABLE … APPLY (PURGE), or OPTIMIZE, which rewrite the files without those rows"
        )


def _has_deletion_vectors(log: Any) -> bool:
    try:
        return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(log.deletion_vectors()))
    except Exception:
        return True


def _options(uri: str) -> dict[str, str] | None:
    query = dict(parse_qsl(split_options(uri)[1].removeprefix("?")))
    options = {_OPTIONS[name]: value for name, value in query.items() if name in _OPTIONS}
    if query.get("scheme") == "http" and "AWS_ENDPOINT_URL" in options:
        options |= {"AWS_ENDPOINT_URL": f"http://{query['endpoint_override']}", "AWS_ALLOW_HTTP": "true"}
    return options or None
