"""List the files of a Delta Lake table at one of its versions.

Runs where a snapshot is taken. The log is read by the package `deltalake` (the extra `delta`); files, partition values
and columns come from it, statistics from the files' own footers. Tables that cannot be read as whole files, by column
name, are refused: deletion vectors, unknown features, and column mapping where a column or a field has another name in
the files than in the table. (A table whose mapping was switched on later has the same names until one is renamed, or
dropped and added again.) In mode `id` the files' field ids are compared, too.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.table_log import FIELD_ID, declared_listing, missing_package_error
from feedline.warehouse.parquet.schemas import children
from feedline.warehouse.storage.faults import safe_message
from feedline.warehouse.storage.locations import absolute, is_uri, redact

# Features that do not affect reading whole files by column name, or that are checked below.
_READABLE = {
    *("deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    *("typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
}
# pyarrow's URI options and deltalake's names for them; credentials come from the environment.
_OPTIONS = {"endpoint_override": "AWS_ENDPOINT_URL", "region": "AWS_REGION"}

_PHYSICAL_NAME, _COLUMN_ID = b"delta.columnMapping.physicalName", b"delta.columnMapping.id"
_SHOWN = 5


def list_delta(table: str, *, version: int | None = None, as_of: str | None = None) -> Listing:
    """List the files of a version (None: the newest), or of the version that was the newest at an ISO time.

    A time without a zone is UTC. Raises TableNotFoundError for a folder that is not a Delta table or has no file,
    TableError for a table that cannot be read, TableChangedError for files that were vacuumed.
    """
    try:
        import deltalake  # noqa: PLC0415 -- an extra: needed only for tables of this format
    except ImportError:
        raise missing_package_error("deltalake", "delta") from None
    uri = absolute(table)
    try:
        log = deltalake.DeltaTable(_address(uri), version=version, storage_options=_options(uri))
        if as_of is not None:
            newest = deltalake.DeltaTable(_address(uri), storage_options=_options(uri))
            _load_as_of(newest, log, as_of, uri)
        _refuse_features(log, uri)
        schema = _columns(log, uri)
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
    return declared_listing(uri, paths, partition, schema, format="delta")


def _load_as_of(newest: Any, log: Any, as_of: str, uri: str) -> None:
    moment = datetime.datetime.fromisoformat(as_of)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    log.load_as_version(moment)
    if log.version() > 0:
        return
    # a time before the first version loads the first; only the newest version's history has the right version numbers
    written_ms = next((entry.get("timestamp") for entry in newest.history() if entry.get("version") == 0), None)
    if written_ms is not None and moment.timestamp() * 1000 < written_ms:
        first = datetime.datetime.fromtimestamp(written_ms / 1000, datetime.UTC).isoformat()
        raise TableError(f"{redact(uri)} did not exist at {as_of}: its first version is of {first}. Name a later time")


def _columns(log: Any, uri: str) -> pa.Schema:
    """The table's columns; those of column mapping by id with their field ids."""
    schema = pa.schema(log.schema().to_arrow())
    mode = log.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode == "none":
        return schema
    renamed = [one for field in schema for one in _renamed(field, field.name)]
    if renamed:
        names = "; ".join(renamed[:_SHOWN]) + (f"; and {len(renamed) - _SHOWN:,} more" if len(renamed) > _SHOWN else "")
        raise TableError(
            f"{redact(uri)} uses column mapping (mode {mode}) with other names in its files than in the table: got "
            f"{names}, expected the same. Write the table to a new folder without delta.columnMapping.mode"
        )
    return pa.schema([_with_id(field) for field in schema]) if mode == "id" else schema


def _renamed(field: pa.Field, path: str) -> Iterator[str]:
    """The column, and the fields inside it, that have another name in files."""
    physical = (field.metadata or {}).get(_PHYSICAL_NAME, field.name.encode()).decode()
    if physical != field.name:
        yield f"{physical!r} for {path!r}"
    for child in children(field.type) if pat.is_nested(field.type) else ():
        yield from _renamed(child, f"{path}.{child.name}")


def _with_id(field: pa.Field) -> pa.Field:
    """The field, and those inside it, with their ids as Parquet files have them."""
    kind = field.type
    if pat.is_struct(kind):
        kind = pa.struct([_with_id(child) for child in kind])
    elif pat.is_map(kind):
        kind = pa.map_(_with_id(kind.key_field), _with_id(kind.item_field))
    elif pat.is_list(kind):
        kind = pa.list_(_with_id(kind.value_field))
    id = (field.metadata or {}).get(_COLUMN_ID)
    return field.with_type(kind).with_metadata({} if id is None else {FIELD_ID: id})


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
    """Whether a file of this version has a deletion vector, readable or not."""
    try:
        return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(log.deletion_vectors()))
    except Exception:
        return True


def _address(uri: str) -> str:
    return uri.partition("?")[0] if is_uri(uri) else uri


def _options(uri: str) -> dict[str, str] | None:
    """The URI's options under deltalake's names."""
    if not is_uri(uri):
        return None
    query = dict(parse_qsl(uri.partition("?")[2]))
    options = {_OPTIONS[name]: value for name, value in query.items() if name in _OPTIONS}
    if query.get("scheme") == "http" and "AWS_ENDPOINT_URL" in options:
        options |= {"AWS_ENDPOINT_URL": f"http://{query['endpoint_override']}", "AWS_ALLOW_HTTP": "true"}
    return options or None
