"""Find columns that are missing from a file to be read, for `source.schema: {missing: error}`.

Pure; runs where a plan is made, and in `feedline check`. Files that the partition keys alone rule out are never read,
so they are not checked. Row-group statistics rule out no file here: they would rule out every file that lacks the
filter's own column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import Key, flattened_column, has_column, part_of
from feedline.warehouse.parquet.schemas import child_fields
from feedline.warehouse.selection.column_bounds import key_statistics
from feedline.warehouse.selection.pruning import prune
from feedline.warehouse.snapshot.held_keys import spelled_in
from feedline.warehouse.snapshot.snapshot import Snapshot


def first_absence(
    snapshot: Snapshot, columns: Collection[str], where: BoundExpression | None
) -> tuple[str, str, int] | None:
    """Find the first of these columns missing from files to be read: (column, first such path, number of files)."""
    names = snapshot.partition_columns
    partition = {name: pc.struct_field(snapshot.files["partition"], name).combine_chunks() for name in names}
    asked = files_asked(partition, snapshot.files["rows"].to_numpy(), where)
    for name in sorted(columns):
        if name in partition:
            continue
        lacking = files_without(snapshot, name)
        lacking = lacking[asked[lacking]]
        if len(lacking):
            return name, str(snapshot.files["path"][int(lacking[0])].as_py()), len(lacking)
    return None


def files_without(snapshot: Snapshot, name: str) -> npt.NDArray[np.int64]:
    """Return the files that lack a column or column part (int64 [n], indices of `files`), and have no such key."""
    lacking = np.array([not has(schema, name, snapshot.schema) for schema in snapshot.file_schemas], np.bool_)
    if not lacking.any():
        return np.empty(0, np.int64)
    files = lacking[snapshot.files["schema"].to_numpy()]
    if name in snapshot.path_keys:
        files &= ~spelled_in(snapshot.files["path"], name)
    return np.flatnonzero(files)


def has(file: pa.Schema, name: str, table: pa.Schema) -> bool:
    """Whether a file with the schema `file` has a column, or column part, of a table with the schema `table`.

    A part is looked up where it is read from: in the column of its first key alone, if the file has that, else in the
    column itself. Every field of a struct must exist; whether a map has a key cannot be known without its rows.
    """
    part = None if has_column(table, name) else part_of(name)
    if part is None:
        return has_column(file, name)
    flattened = flattened_column(table, part)
    if flattened is not None and has_column(file, flattened):
        return _reaches(file.field(flattened).type, part.keys[1:])
    return has_column(file, part.column) and _reaches(file.field(part.column).type, part.keys)


def files_asked(
    partition: Mapping[str, pa.Array], rows: npt.NDArray[np.int64], where: BoundExpression | None
) -> npt.NDArray[np.bool_]:
    """bool [files]: which files the partition keys do not rule out; `partition`: per key one value per file."""
    keys = {} if where is None else {name: partition[name] for name in partition if name in where.columns}
    if where is None or not keys:
        return np.ones(len(rows), np.bool_)
    return ~prune(where.predicate, key_statistics(keys, rows)).by_partition


def _reaches(kind: pa.DataType, keys: tuple[Key, ...]) -> bool:
    for key in keys:
        if pat.is_map(kind):
            kind = kind.item_type
        elif pat.is_struct(kind):
            field = next((field for field in child_fields(kind) if field.name == key), None)
            if field is None:
                return False
            kind = field.type
    return True  # a column of type null exists, as does one without keys
