"""Partition keys that some files hold themselves: of a table that was partitioned after its first files were written.

Pure; runs where a snapshot is taken. A file whose path lacks a key, but which has a column of that name, has the key's
values in that column:

    old.parquet with ds             its own ds
    ds=2026-01-02/new.parquet       2026-01-02 in all rows

Such a key is a column of the table like any other, with a constant in files below a folder of the key. A key that no
such file holds stays a partition key, null where a path lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.errors import TableError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.partitions import keys_of_path, refine, table_order
from feedline.warehouse.snapshot.column_facts import Facts
from feedline.warehouse.storage.locations import redact

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class HeldKey:
    """values: of the paths, per file, null where a path has none. in_path: bool [files], where it has the key."""

    values: pa.Array
    in_path: Bools


def held_keys(
    listing: Listing, kinds: Iterable[tuple[pa.Schema, npt.NDArray[np.int64]]], table: pa.Schema | None = None
) -> dict[str, HeldKey]:
    """The keys that files hold, by name. kinds: the distinct schemas of files, each with the indices of its files.

    table: of the files' columns; values get the type of theirs. Raises TableError where these do not fit.
    """
    open_keys = {} if listing.schema is not None else _open_keys(listing)
    found: dict[str, HeldKey] = {}
    for schema, files in kinds:
        for name, in_path in open_keys.items():
            if name in found or name not in schema.names or pat.is_null(schema.field(name).type):
                continue
            if not in_path[files].all():
                values = listing.partition[name]
                found[name] = HeldKey(values if table is None else _typed(listing, name, table), in_path)
    return {name: found[name] for name in listing.partition if name in found}


def spelled_in(paths: pa.ChunkedArray, name: str) -> Bools:
    """bool [paths]: whether a folder of the path has the key."""
    folders: dict[str, bool] = {}
    found = []
    for path in paths.to_pylist():
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = name in keys_of_path(path)
        found.append(folders[folder])
    return np.array(found, np.bool_)


def order_by_keys(
    listing: Listing, keys: Mapping[str, HeldKey], least: Mapping[str, npt.NDArray[np.object_]]
) -> npt.NDArray[np.int64]:
    """The order of the files by all partition values, nulls last, then by path. least: of the held keys, per file."""
    columns = {}
    for name, values in listing.partition.items():
        if name in keys:
            kind = keys[name].values.type
            values = pc.coalesce(keys[name].values, pa.array(least[name].tolist(), kind))
        columns[name] = values
    return table_order([path.split("/") for path in listing.files["path"].to_pylist()], columns)


def with_path_values(facts: Facts, keys: Mapping[str, HeldKey], file: npt.NDArray[np.int32], rows: pa.Array) -> Facts:
    """The facts of row groups, where held keys have the value of the path in files that have one. file: of each."""

    def fetch(field: pa.Field) -> pa.StructArray:
        found = facts.fetch(field)
        if field.name not in keys:
            return found
        key = keys[field.name]
        here, value = pa.array(key.in_path[file]), key.values.take(pa.array(file)).cast(field.type)
        constants = {"bytes": pa.scalar(0, pa.int64()), "nulls": pc.if_else(value.is_null(), rows, 0)}
        constants |= {"min": value, "max": value, "exact": pa.scalar(True)}
        parts = {part.name: column for part, column in zip(found.type, found.flatten(), strict=True)}
        changed = [pc.if_else(here, constants[name], column) for name, column in parts.items()]
        return pa.StructArray.from_arrays(changed, names=list(parts))

    return Facts(fetch)


def _open_keys(listing: Listing) -> dict[str, Bools]:
    """The keys that some paths lack, each with the files whose paths have it."""
    found = {}
    for name, values in listing.partition.items():
        if values.null_count:
            in_path = spelled_in(listing.files["path"], name)
            if not in_path.all():
                found[name] = in_path
    return found


def _typed(listing: Listing, name: str, table: pa.Schema) -> pa.Array:
    kind, values = table.field(name).type, listing.partition[name]
    if values.type != kind:
        values = refine(values, name, kind, listing.files["path"].to_pylist())
    if values.type != kind:
        raise TableError(
            f"partition key {name!r} of {redact(listing.uri)} has two types: got {values.type} in paths and {kind} in "
            "files whose paths lack it, expected one. Declare the files' type in `partitions`, or move these files "
            f"into folders {name}=…"
        )
    return values
