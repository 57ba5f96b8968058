"""Build a listing from a table's log, which names its files, partition values and columns.

Runs where a snapshot is taken, for `delta` and `iceberg`. Sizes and times are the store's, from one recursive listing.
The table's columns (`declared_schema`; pure) are those of the log, in its order; the files' columns must widen into
them. Columns are read by name, so a file is refused that has another name for a field id, another id for a name, an
earlier name of a column without ids, or lacks a column whose value there is not null.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pat

from feedline.errors import TableChangedError, TableError
from feedline.warehouse.discovery.hive import ColumnHistory, Listing, common_segments, listing_of
from feedline.warehouse.parquet.dedup_columns import may_be_flag
from feedline.warehouse.parquet.schemas import (
    KindChangedError,
    SchemaRules,
    child_fields,
    extra_column_message,
    field_id,
    is_bytes,
    is_text,
    nested_like,
    refuse_duplicate_columns,
    unify,
    union,
    widens,
    without_dictionaries,
)
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, is_uri, join, list_tree, locate, redact, uri_on

_SHOWN = 5


def moment_of(as_of: str) -> datetime.datetime:
    """An ISO time; without a zone it is UTC."""
    moment = datetime.datetime.fromisoformat(as_of)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def declared_listing(table: str, paths: Sequence[str], partition: Mapping[str, pa.Array]) -> Listing:
    """List the files that a table's log names, in the table's order.

    `paths`: below the table's URI, absolute, or URIs. `partition`: one array per key, aligned with `paths`. A table
    without rows has no files. Raises TableChangedError for files that are gone.
    """
    location = locate(table)
    full = [_store_path(path, location) for path in paths]
    below = all(path.startswith(join(location.path, "")) for path in full)
    root = location.path if below else _common_folder(full, table)
    infos = _file_infos(location, root, set(full))
    gone = [path for path in full if path not in infos]
    if gone:
        names = ", ".join(gone[:_SHOWN]) + (f" and {len(gone) - _SHOWN:,} more" if len(gone) > _SHOWN else "")
        raise TableChangedError(
            f"{redact(table)} has lost files of this version: {names}. They were vacuumed or deleted; "
            "read a newer version"
        )
    uri = table if root == location.path else uri_on(location, root)
    return listing_of(uri, root, {path: infos[path] for path in full}, partition)


def unite_schemas(listing: Listing, files: Sequence[tuple[str, pa.Schema]], rules: SchemaRules) -> pa.Schema:
    """A table's columns, from (file, schema) pairs: those of its log if it has one, else the union of the files'.

    The files' schemas are without flags of runs, which a log names like other columns. Fields that only
    column files of other base files hold come last; dropped columns are left out.
    """
    if listing.columns is not None:
        visible = [(name, listing.columns.visible(schema)) for name, schema in files]
        schema = union(visible, rules, keys=listing.partition)
        others = [each.with_nullable(True) for each in listing.columns.schema if each.name not in schema.names]
        return pa.schema([*schema, *others])
    if listing.schema is None:
        return union(files, rules, keys=listing.partition)
    stored = {name for _, schema in files for name in schema.names}
    declared = [field for field in listing.schema if field.name in stored or not may_be_flag(field)]  # no flags of runs
    return declared_schema(pa.schema(declared), files, keys=listing.partition, rules=rules, histories=listing.histories)


def declared_schema(
    declared: pa.Schema,
    files: Sequence[tuple[str, pa.Schema]],
    *,
    keys: Collection[str] = (),
    rules: SchemaRules | None = None,
    histories: Mapping[int, ColumnHistory] | None = None,
) -> pa.Schema:
    """The declared columns without the partition keys, from (file, schema) pairs, one per distinct schema.

    A column has its declared type, except the width of offsets, which is that of the files; or the type that the rules
    declare. A column that only the rules name comes last, and is null. With `extra_error` the rules must name all of
    the log's columns; other columns of files are not part of the table.

    Raises TableError if a file has a column that does not widen into its type, has one twice, or under another name
    than the log; and if the rules name a partition key, a dropped column that files still have, or too few columns.
    """
    rules = rules or SchemaRules()
    _refuse_rules(rules, declared, files, keys)
    for file, schema in files:
        refuse_duplicate_columns(schema, file)
    fields = []
    for field in declared:
        if field.name in keys:
            continue
        types = []
        for file, schema in files:
            _refuse_other_columns(field, schema, file, histories or {})
            if field.name in schema.names:
                types.append((file, without_dictionaries(schema.field(field.name).type)))
        kind = rules.columns.get(field.name)
        fitting = _column_type(field if kind is None else field.with_type(kind), types)
        fields.append(pa.field(field.name, fitting if kind is None else kind))
    added = [pa.field(name, kind) for name, kind in rules.columns.items() if name not in declared.names]
    return pa.schema([*fields, *added])


def _refuse_rules(
    rules: SchemaRules, declared: pa.Schema, files: Sequence[tuple[str, pa.Schema]], keys: Collection[str]
) -> None:
    for name in rules.columns:
        if name in keys:
            raise TableError(f"column {name!r} is a partition key: the table's log types it. Leave it out of `columns`")
        holder = next((file for file, schema in files if name in schema.names), None)
        if holder is not None and name not in declared.names:
            raise TableError(
                f"column {name!r} is declared, but the table's log does not have it: got one of that name in {holder}, "
                "expected none. Leave it out of `columns`, or rewrite the file"
            )
    for name in declared.names if rules.extra_error else ():
        if name not in rules.columns and name not in keys:
            raise TableError(extra_column_message(name, "the table's log", rules.columns))


def _column_type(field: pa.Field, types: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    declared = plain(field.type)
    kinds = {kind for _, kind in types}
    if len(kinds) == 1 and plain(next(iter(kinds))) == declared:
        return next(iter(kinds))
    for file, kind in types:
        if not _fits(plain(kind), declared):
            raise TableError(
                f"column {field.name!r} of {file} does not fit the table's schema: got {kind}, expected a type that "
                f"{declared} holds without loss. Rewrite the file"
            )
    return declared


def _fits(kind: pa.DataType, declared: pa.DataType) -> bool:
    if kind == declared or widens(kind, declared):
        return True
    if pat.is_timestamp(kind) and pat.is_timestamp(declared):
        return kind.tz is None and widens(pa.timestamp(kind.unit, declared.tz), declared)  # Spark's INT96 is UTC
    try:
        return bool(unify(declared, kind) == declared)
    except KindChangedError:
        return False


def plain(kind: pa.DataType) -> pa.DataType:
    """The type with narrow offsets at every depth and without metadata."""
    if is_text(kind) or pat.is_string_view(kind):
        return pa.string()
    if is_bytes(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if not pat.is_nested(kind):
        return kind
    inner = [pa.field(child.name, plain(child.type), child.nullable) for child in child_fields(kind)]
    if pat.is_map(kind):
        return pa.map_(inner[0].type, inner[1].type)
    return pa.list_(inner[0]) if pat.is_large_list(kind) else nested_like(kind, inner)


# -- columns by field id ----------------------------------------------------------------------------------------------


def _refuse_other_columns(
    field: pa.Field, schema: pa.Schema, file: str, histories: Mapping[int, ColumnHistory]
) -> None:
    """Refuse a file whose columns conflict with a declared column or a field inside it, by field id or earlier name."""
    if field_id(field) is None:
        return
    for one, fields, column in _levels(field, list(schema), field.name):
        id = field_id(one)
        history = histories.get(id, ColumnHistory()) if id is not None else ColumnHistory()
        for other in fields:
            other_id = field_id(other)
            if other_id is None:
                _refuse_earlier_names(one, other, column, file, history)
            elif (other_id == id) != (other.name == one.name):
                change = "was renamed" if other_id == id else "was dropped and added again"
                raise TableError(
                    f"column {column!r} {change}: {file} has {other.name!r} with field id {other_id}, expected "
                    f"{one.name!r} with {id}. Feedline reads columns by name: rewrite the table's old files"
                )
        if all(other.name != one.name for other in fields):
            _refuse_missing_values(column, file, history)


def _refuse_earlier_names(one: pa.Field, other: pa.Field, column: str, file: str, history: ColumnHistory) -> None:
    if other.name == one.name and history.ambiguous:
        raise TableError(
            f"column {column!r} is ambiguous, as another column had its name: {file} has {other.name!r} without a "
            "field id, expected one, or schema.name-mapping.default to name it. Rewrite the table's old files"
        )
    if other.name != one.name and other.name in history.names:
        raise TableError(
            f"column {column!r} was renamed: {file} has {other.name!r}, one of its names, without a field id, expected "
            f"{one.name!r}. Feedline reads columns by name: rewrite the table's old files"
        )


def _refuse_missing_values(column: str, file: str, history: ColumnHistory) -> None:
    if history.default is not None:
        raise TableError(
            f"column {column!r} has the initial default {history.default}, which rows of older files have: {file} "
            "lacks the column, expected every file to hold it. Rewrite the table's old files"
        )
    if history.in_partitions:
        raise TableError(
            f"column {column!r} is a partition's value in the table's metadata: {file} lacks the column, and its entry "
            "there has no counts to show it. Rewrite the table's files"
        )


def _levels(field: pa.Field, fields: list[pa.Field], path: str) -> Iterator[tuple[pa.Field, list[pa.Field], str]]:
    """A declared field with a file's fields of the same level and its path, then its child fields likewise."""
    yield field, fields, path
    stored = next((other for other in fields if other.name == field.name), None)
    if stored is None or not pat.is_nested(field.type) or not pat.is_nested(stored.type):
        return
    inner, stored_children = child_fields(field.type), child_fields(stored.type)
    if pat.is_struct(field.type):
        for child in inner:
            yield from _levels(child, stored_children, f"{path}.{child.name}")
    elif len(inner) == len(stored_children):  # the names of elements, keys and values do not matter
        for child, other in zip(inner, stored_children, strict=True):
            yield from _levels(child, [other.with_name(child.name)], f"{path}.{child.name}")


# -- paths ------------------------------------------------------------------------------------------------------------


def _store_path(path: str, location: Location) -> str:
    """The path on the table's filesystem of a path in the log: `f.parquet` and `s3a://b/t/f.parquet` are
    `b/t/f.parquet` in a table `s3://b/t`."""
    if not is_uri(path) and not path.startswith("file:"):
        return path if path.startswith("/") else f"{location.path.rstrip('/')}/{path}"
    base = location.uri.partition("?")[0].rstrip("/")
    if path.startswith(base + "/"):
        return location.path.rstrip("/") + path[len(base) :]
    scheme, _, rest = path.partition(":")
    store = location.filesystem.type_name
    if scheme == "file" and store == "local":
        return rest.removeprefix("//")
    if (scheme in ("s3", "s3a", "s3n") and store == "s3") or (scheme in ("gs", "gcs") and store == "gcs"):
        return rest.removeprefix("//")
    raise TableError(
        f"{redact(location.uri)} has a file on another store: got {redact(path)}. Copy the table to one store"
    )


def _common_folder(paths: Sequence[str], table: str) -> str:
    folder = "/".join(common_segments(path.rpartition("/")[0] for path in paths))
    if not folder:
        raise TableError(f"{redact(table)} has files without a common folder. Copy the table to one folder")
    return folder


def _file_infos(location: Location, root: str, paths: set[str]) -> dict[str, pafs.FileInfo]:
    try:
        with explain_errors(redact(location.uri)):
            infos = list_tree(replace(location, path=root))
    except FileNotFoundError:
        return {}
    return {info.path: info for info in infos if info.path in paths and info.type == pafs.FileType.File}
