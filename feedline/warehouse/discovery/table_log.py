"""Make a listing from a table's log, which names its files, partition values and columns.

Runs where a snapshot is taken; shared by the table formats (`delta`, `iceberg`). Sizes and times are the store's own,
because every later reader compares with them. One recursive listing of the folder that holds the files gives them all,
and shows which are gone.

Pure, further down: the table's columns (`declared_schema`) are those of the log, in its order, whatever the files hold;
what a file holds has to widen into them. Where the log numbers its columns, a file that gives a number another name,
or a name another number, is refused: it would have to be read by number, and Feedline reads by name. So is one that
numbers nothing and has an earlier name of a column, and one that lacks a column which is not null there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.types as pat

from feedline.errors import TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import ColumnPast, Listing, listing_of
from feedline.warehouse.parquet.schemas import (
    KindChangedError,
    SchemaRules,
    children,
    refuse_twice,
    unexpected,
    unify,
    union,
    widens,
    without_dictionaries,
)
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, is_uri, list_tree, locate, redact, uri_on

FIELD_ID = b"PARQUET:field_id"
_SHOWN = 5


def package_missing(package: str, format: str) -> TableError:
    """The refusal of a format whose package is not installed."""
    return TableError(
        f"format {format} needs a package that is not installed: {package}. Run: pip install 'feedline[{format}]'"
    )


def declared_listing(
    table: str,
    paths: Sequence[str],
    partition: Mapping[str, pa.Array],
    schema: pa.Schema,
    *,
    format: str,
    pasts: Mapping[int, ColumnPast] | None = None,
) -> Listing:
    """The files that a table's log names, in the table's order: by partition values, nulls last, then by path.

    `paths`: below the table's URI, absolute, or URIs. `partition`: one array per key, aligned with them. `schema`: the
    log's columns; `pasts`: of those that it numbers. Raises TableNotFoundError for a table without files,
    TableChangedError for files that are gone.
    """
    location = locate(table)
    if not paths:
        raise TableNotFoundError(f"{redact(table)} is empty: expected at least one file in this version of it")
    full = [_on_store(path, location) for path in paths]
    root = location.path if all(_below(path, location.path) for path in full) else _common_folder(full, table)
    found = _present(location, root, set(full))
    gone = [path for path in full if path not in found]
    if gone:
        names = ", ".join(gone[:_SHOWN]) + (f" and {len(gone) - _SHOWN:,} more" if len(gone) > _SHOWN else "")
        raise TableChangedError(
            f"{redact(table)} has lost files of this version: {names}. They were vacuumed or deleted; "
            "read a newer version"
        )
    uri = table if root == location.path else uri_on(location, root)
    listing = listing_of(uri, root, found, None)
    place = {path: index for index, path in enumerate(full)}
    start = len(root) + (not root.endswith("/"))
    by_path = {path[start:]: place[path] for path in found}
    order = pa.array([by_path[path] for path in listing.files["path"].to_pylist()], pa.int64())
    keys = {name: column.take(order) for name, column in partition.items()}
    listing = replace(listing, partition=keys, inferred=frozenset(), asked=f"{format} {table}", schema=schema)
    listing = replace(listing, pasts=pasts or {})
    return listing.take(_table_order(listing.files["path"], keys))


def unite_schemas(listing: Listing, files: Sequence[tuple[str, pa.Schema]], rules: SchemaRules) -> pa.Schema:
    """A table's columns, from (file, schema) pairs: those of its log where it has one, else the union of the files'."""
    if listing.schema is None:
        return union(files, rules, keys=listing.partition)
    return declared_schema(listing.schema, files, keys=listing.partition, rules=rules, pasts=listing.pasts)


def declared_schema(
    declared: pa.Schema,
    files: Sequence[tuple[str, pa.Schema]],
    *,
    keys: Collection[str] = (),
    rules: SchemaRules | None = None,
    pasts: Mapping[int, ColumnPast] | None = None,
) -> pa.Schema:
    """The declared columns less the partition keys, from (file, schema) pairs, one per distinct schema.

    A column has its declared type, but for the width of offsets, which is that of the files; or the one that the rules
    give it. A column that only the rules name comes last, and is null. With `extra_error` the rules name all of the
    log's columns; what else lies in files is no column of the table.

    Raises TableError where a file holds what does not widen into that, names a column twice, or otherwise than the log
    does; and where the rules name a partition key, a column that was dropped while files still have it, or too few.
    """
    rules = rules or SchemaRules()
    _refuse_rules(rules, declared, files, keys)
    for file, schema in files:
        refuse_twice(schema, file)
    fields = []
    for field in declared:
        if field.name in keys:
            continue
        held = []
        for file, schema in files:
            _refuse_other_columns(field, schema, file, pasts or {})
            if field.name in schema.names:
                held.append((file, without_dictionaries(schema.field(field.name).type)))
        kind = rules.columns.get(field.name)
        fitting = _kind(field if kind is None else field.with_type(kind), held)
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
            raise TableError(unexpected(name, "the table's log", rules.columns))


def _kind(field: pa.Field, held: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    declared = plain(field.type)
    kinds = {kind for _, kind in held}
    if len(kinds) == 1 and plain(next(iter(kinds))) == declared:
        return next(iter(kinds))
    for file, kind in held:
        if not _fits(plain(kind), declared):
            raise TableError(
                f"column {field.name!r} of {file} does not fit the table's schema: got {kind}, expected what "
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
    """The type with narrow offsets at every depth, and without metadata."""
    if pat.is_large_string(kind) or pat.is_string_view(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if not pat.is_nested(kind):
        return kind
    inner = [pa.field(child.name, plain(child.type), child.nullable) for child in children(kind)]
    if pat.is_struct(kind):
        return pa.struct(inner)
    if pat.is_map(kind):
        return pa.map_(inner[0].type, inner[1].type)
    if pat.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    return pa.list_(inner[0])


# -- columns by number ------------------------------------------------------------------------------------------------


def _refuse_other_columns(field: pa.Field, schema: pa.Schema, file: str, pasts: Mapping[int, ColumnPast]) -> None:
    """Compare a declared column, and the fields inside it, with those of a file: by number, else by earlier names."""
    if _number(field) is None:
        return
    for one, fields, place in _levels(field, list(schema), field.name):
        number = _number(one)
        past = pasts.get(number, ColumnPast()) if number is not None else ColumnPast()
        for other in fields:
            theirs = _number(other)
            if theirs is None:
                _refuse_earlier_names(one, other, place, file, past)
            elif (theirs == number) != (other.name == one.name):
                what = "was renamed" if theirs == number else "was dropped and added again"
                raise TableError(
                    f"column {place!r} {what}: {file} has {other.name!r} with field id {theirs}, expected "
                    f"{one.name!r} with {number}. Feedline reads columns by name: rewrite the table's old files"
                )
        if all(other.name != one.name for other in fields):
            _refuse_other_than_null(place, file, past)


def _refuse_earlier_names(one: pa.Field, other: pa.Field, place: str, file: str, past: ColumnPast) -> None:
    """Of a file's field that has no number."""
    if other.name == one.name and past.ambiguous:
        raise TableError(
            f"column {place!r} cannot be told from another that had its name: {file} has {other.name!r} without a "
            "field id, expected one, or schema.name-mapping.default to name it. Rewrite the table's old files"
        )
    if other.name != one.name and other.name in past.names:
        raise TableError(
            f"column {place!r} was renamed: {file} has {other.name!r}, one of its names, without a field id, expected "
            f"{one.name!r}. Feedline reads columns by name: rewrite the table's old files"
        )


def _refuse_other_than_null(place: str, file: str, past: ColumnPast) -> None:
    """Of a column that a file lacks."""
    if past.default is not None:
        raise TableError(
            f"column {place!r} has the initial default {past.default}, which rows of older files have: {file} lacks "
            "the column, expected every file to hold it. Rewrite the table's old files"
        )
    if past.in_partitions:
        raise TableError(
            f"column {place!r} is a partition's value in the table's metadata: {file} lacks the column, and its entry "
            "there has no counts that say so. Rewrite the table's files"
        )


def _levels(field: pa.Field, fields: list[pa.Field], place: str) -> Iterator[tuple[pa.Field, list[pa.Field], str]]:
    """A declared field with the fields that stand beside it in a file, then the same for those inside it."""
    yield field, fields, place
    mine = next((other for other in fields if other.name == field.name), None)
    if mine is None or not pat.is_nested(field.type) or not pat.is_nested(mine.type):
        return
    inner, theirs = children(field.type), children(mine.type)
    if pat.is_struct(field.type):
        for child in inner:
            yield from _levels(child, theirs, f"{place}.{child.name}")
    elif len(inner) == len(theirs):  # elements, keys and values have no names of their own
        for child, other in zip(inner, theirs, strict=True):
            yield from _levels(child, [other.with_name(child.name)], f"{place}.{child.name}")


def _number(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


# -- where the files are ----------------------------------------------------------------------------------------------


def _on_store(path: str, location: Location) -> str:
    """A path of the log, as the table's filesystem names it."""
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


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith("/") else folder + "/")


def _common_folder(paths: Sequence[str], table: str) -> str:
    split = [path.split("/")[:-1] for path in (min(paths), max(paths))]
    length = next((i for i, pair in enumerate(zip(*split, strict=False)) if pair[0] != pair[1]), min(map(len, split)))
    folder = "/".join(split[0][:length])
    if not folder:
        raise TableError(f"{redact(table)} has files in places that share no folder. Copy the table to one place")
    return folder


def _present(location: Location, root: str, wanted: set[str]) -> dict[str, pafs.FileInfo]:
    """Those of the files that are there."""
    try:
        with explain_errors(redact(location.uri)):
            infos = list_tree(replace(location, path=root))
    except FileNotFoundError:
        return {}
    return {info.path: info for info in infos if info.path in wanted and info.type == pafs.FileType.File}


def _table_order(paths: pa.ChunkedArray, keys: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
    names = [f"k{index}" for index in range(len(keys))]
    table = pa.table([*keys.values(), paths], names=[*names, "path"])
    order = pc.sort_indices(table, [(name, "ascending") for name in (*names, "path")])
    places: npt.NDArray[np.int64] = order.to_numpy().astype(np.int64)
    return places
