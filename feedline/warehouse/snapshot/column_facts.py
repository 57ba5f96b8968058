"""The facts of a table's columns per row group, fetched on demand.

Runs where snapshots are taken and where plans are made. The facts of a column are a struct array, one entry per row
group: bytes and nulls (int64; nulls -1: unknown, -1 - n: at least n) and, for types that have them, min and max in the
column's type (null: unknown). Strings and bytes also have the boolean `exact`: both bounds are values of the column,
not truncated ones. See docs/decisions/history.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.partitions import keys_of_path, refine, table_order
from feedline.warehouse.parquet.bounds import has_bounds, is_binary_like
from feedline.warehouse.storage.locations import redact

Part: TypeAlias = Literal["bytes", "nulls"]  # the facts that every column has

_CACHE_BYTES = 64 << 20  # a filter's and a projection's columns of 20,000 files


class Facts:
    """Facts of columns, from a function that fetches them; the recent ones are cached. Thread-safe.

    `fetch_part`: fetches bytes or nulls alone, if that costs less than all facts.
    """

    def __init__(
        self,
        fetch: Callable[[pa.Field], pa.StructArray],
        fetch_part: Callable[[pa.Field, Part], pa.Array] | None = None,
    ) -> None:
        self.fetch = fetch
        self._fetch_part = fetch_part
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, pa.DataType, Part | None], pa.Array] = OrderedDict()
        self._bytes = 0

    def column(self, field: pa.Field) -> pa.StructArray:
        """The facts of the column of that name, bounds in the field's type; all null if no file has it."""
        return self._cached((field.name, field.type, None), lambda: self.fetch(field))

    def part(self, field: pa.Field, name: Part) -> npt.NDArray[np.int64]:
        """int64 [row groups]: the column's bytes or nulls."""
        fetch_part = self._fetch_part
        with self._lock:
            known = (field.name, field.type, None) in self._cache
        if known or fetch_part is None:
            part = self.column(field).field(name)
        else:
            part = self._cached((field.name, field.type, name), lambda: fetch_part(field, name))
        return np.asarray(part)

    def _cached(self, key: tuple[str, pa.DataType, Part | None], fetch: Callable[[], pa.Array]) -> pa.Array:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        facts = fetch()
        with self._lock:
            if key not in self._cache:
                self._cache[key] = facts
                self._bytes += facts.nbytes
            while self._bytes > _CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return facts

    def take(self, row_groups: npt.NDArray[np.int64]) -> Facts:
        indices = pa.array(row_groups)
        return Facts(lambda field: self.fetch(field).take(indices))


def join_facts(parts: Sequence[Facts], order: npt.NDArray[np.int64]) -> Facts:
    """The facts of several parts, concatenated and then reordered."""
    in_order = bool((order == np.arange(len(order))).all())
    indices = pa.array(order)

    def fetch(field: pa.Field) -> pa.StructArray:
        whole = pa.concat_arrays([part.fetch(field) for part in parts])
        return whole if in_order else whole.take(indices)

    return Facts(fetch)


def arrange_facts(arrays: Mapping[str, pa.Array] | None, rows: pa.Array, field: pa.Field) -> pa.StructArray:
    """A column's facts from arrays in the type of its files; `arrays`: None if the files have no such column."""
    size = len(rows)
    if arrays is None:
        nulls = pa.array(np.full(size, -1)) if pat.is_nested(field.type) else rows
        arrays = {"bytes": pa.array(np.zeros(size, np.int64)), "nulls": nulls}
    parts = {"bytes": arrays["bytes"], "nulls": arrays["nulls"]}
    if has_bounds(field.type):
        for side in ("min", "max"):
            parts[side] = _cast(arrays[side], field.type) if side in arrays else pa.nulls(size, field.type)
        # both bounds are known or neither, even if only one of them fits the type
        valid = pc.and_(parts["min"].is_valid(), parts["max"].is_valid())
        null = pa.scalar(None, field.type)
        parts |= {side: pc.if_else(valid, parts[side], null) for side in ("min", "max")}
    if is_binary_like(field.type):
        parts["exact"] = arrays.get("exact", pa.array(np.zeros(size, np.bool_)))
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


def _cast(bounds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bounds in another type; those that do not fit are unknown: `[1, 300]` as int8 -> `[1, null]`."""
    try:
        return bounds.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(bounds) <= 1:
            return pa.nulls(len(bounds), kind)
        return pa.concat_arrays([_cast(bounds[i : i + 1], kind) for i in range(len(bounds))])


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; without a copy if it is one chunk, as in every snapshot."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --------------------------------------------------------------------------------------------------------------------
# Partition keys that some files hold themselves: of a table that was partitioned after its first files were written.
# Pure; runs where a snapshot is taken. A file whose path lacks a key, but which has a column of that name, has the
# key's values in that column:
#     old.parquet with a column ds    its own values
#     ds=2026-01-02/new.parquet       2026-01-02 in all rows
# Such a
# key is a column of the table like any other, with a constant in files below a folder of the key. A key that no such
# file holds stays a partition key, null where a path lacks it.

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
    keys: dict[str, HeldKey] = {}
    for schema, files in kinds:
        for name, in_path in open_keys.items():
            if name in keys or name not in schema.names or pat.is_null(schema.field(name).type):
                continue
            if not in_path[files].all():
                values = listing.partition[name]
                keys[name] = HeldKey(values if table is None else _typed(listing, name, table), in_path)
    return {name: keys[name] for name in listing.partition if name in keys}


def spelled_in(paths: pa.ChunkedArray, name: str) -> Bools:
    """bool [paths]: whether a folder of the path has the key."""
    folders: dict[str, bool] = {}
    spelled = []
    for path in paths.to_pylist():
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = name in keys_of_path(path)
        spelled.append(folders[folder])
    return np.array(spelled, np.bool_)


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
        fetched = facts.fetch(field)
        if field.name not in keys:
            return fetched
        key = keys[field.name]
        here, value = pa.array(key.in_path[file]), key.values.take(pa.array(file)).cast(field.type)
        constants = {"bytes": pa.scalar(0, pa.int64()), "nulls": pc.if_else(value.is_null(), rows, 0)}
        constants |= {"min": value, "max": value, "exact": pa.scalar(True)}
        parts = {part.name: column for part, column in zip(fetched.type, fetched.flatten(), strict=True)}
        changed = [pc.if_else(here, constants[name], column) for name, column in parts.items()]
        return pa.StructArray.from_arrays(changed, names=list(parts))

    return Facts(fetch)


def _open_keys(listing: Listing) -> dict[str, Bools]:
    """The keys that some paths lack, each with the files whose paths have it."""
    keys = {}
    for name, values in listing.partition.items():
        if values.null_count:
            in_path = spelled_in(listing.files["path"], name)
            if not in_path.all():
                keys[name] = in_path
    return keys


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
