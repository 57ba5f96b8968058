"""Count the nulls of columns among the selected rows from footers, and the files that lack a column.

Pure, over a snapshot's facts; runs where a plan is made, and in `feedline check`. Where only some rows of a row group
are selected there is a lower and an upper bound; both are 0 if the filter drops every row with a null in the column. A
file that lacks a column counts as null in every row. Lists, structs and maps are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import Key, flattened_column, has_column, part_of
from feedline.warehouse.parquet.schemas import child_fields
from feedline.warehouse.selection.column_bounds import key_statistics
from feedline.warehouse.selection.pruning import NONE, ColumnStatistics, Statistics, prune
from feedline.warehouse.snapshot.column_facts import spelled_in
from feedline.warehouse.snapshot.snapshot import Snapshot

# --------------------------------------------------------------------------------------------------------------------
# Find columns that are missing from a file to be read, for `source.schema: {missing: error}`. Pure; runs where a plan
# is made, and in `feedline check`. Files that the partition keys alone rule out are never read, so they are not
# checked. Row-group statistics rule out no file here: they would rule out every file that lacks the filter's own
# column.


def first_absence(
    snapshot: Snapshot, columns: Collection[str], where: BoundExpression | None
) -> tuple[str, str, int] | None:
    """Find the first of these columns missing from files to be read: (column, first such path, number of files)."""
    partition = {name: snapshot.partition_column(name) for name in snapshot.partition_columns}
    asked = files_asked(partition, snapshot.files["rows"].to_numpy(), where)
    for name in sorted(columns):
        if name in partition:
            continue
        lacking = files_without(snapshot, name)
        lacking = lacking[asked[lacking]]
        if len(lacking):
            return name, snapshot.path_of(int(lacking[0])), len(lacking)
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


# --------------------------------------------------------------------------------------------------------------------

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullCount:
    """Nulls of a column among the selected rows: bounds of their number, the files with any, and the first of these.

    file: its path below the table's root. read: how many files have selected rows.
    """

    column: str
    least: int
    most: int
    files: int
    read: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentColumn:
    """A column or column part missing from `files` of the `read` files with selected rows; `rows`: those rows."""

    column: str
    files: int
    read: int
    rows: int
    file: str


def null_counts(
    snapshot: Snapshot, columns: Collection[str], rows: Int64s, where: BoundExpression | None
) -> dict[str, NullCount]:
    """Return the columns that may hold nulls among the selected rows, by name; unknown null counts count as 0.

    rows: int64, selected rows per row group; below 0 if uncounted.
    """
    stored, counts = snapshot.rows_per_row_group, {}
    kept = np.where(rows < 0, stored, rows)
    read = int(np.count_nonzero(_files(snapshot, kept > 0)))
    for name, nulls in _nulls(snapshot, columns):
        if not ((nulls > 0) | (nulls < -1)).any() or (where is not None and _drops_nulls(where, name)):
            continue
        most = np.minimum(np.where(nulls < -1, stored - 1, np.maximum(nulls, 0)), kept)
        if not most.any():
            continue
        # 3 nulls in a row group of 10 rows, of which 8 are selected: 1 to 3 of them
        proven = np.where(nulls < -1, -1 - nulls, nulls)
        least = np.where(rows < 0, 0, np.maximum(proven - (stored - kept), 0))
        files = np.flatnonzero(_files(snapshot, most > 0))
        counts[name] = NullCount(
            column=name,
            least=int(least.sum()),
            most=int(most.sum()),
            files=len(files),
            read=read,
            file=snapshot.path_of(int(files[0])),
        )
    return {name: counts[name] for name in columns if name in counts}


def absent_columns(snapshot: Snapshot, columns: Collection[str], rows: Int64s) -> list[AbsentColumn]:
    """Return the columns (or parts) missing from files that have selected rows. `rows`: as in `null_counts`."""
    kept = np.where(rows < 0, snapshot.rows_per_row_group, rows)
    per_file = np.bincount(snapshot.file_of_row_group, weights=kept, minlength=len(snapshot.files)).astype(np.int64)
    absences = []
    for name in columns:
        if name in snapshot.partition_columns:
            continue
        lacking = files_without(snapshot, name)
        files = lacking[per_file[lacking] > 0]
        if len(files):
            absences.append(
                AbsentColumn(
                    column=name,
                    files=len(files),
                    read=int(np.count_nonzero(per_file)),
                    rows=int(per_file[files].sum()),
                    file=snapshot.path_of(int(files[0])),
                )
            )
    return absences


def _files(snapshot: Snapshot, row_groups: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    files = np.zeros(len(snapshot.files), np.bool_)
    files[snapshot.file_of_row_group[row_groups]] = True
    return files


def _nulls(snapshot: Snapshot, columns: Iterable[str]) -> Iterator[tuple[str, Int64s]]:
    """Yield nulls per row group (-1: unknown, -1 - n: at least n) of each column that is nullable and not nested."""
    stored = []
    for name in columns:
        if not has_column(snapshot.schema, name):
            continue
        field = snapshot.schema.field(name)
        if name in snapshot.partition_columns:
            valid = (
                snapshot.partition_column(name).is_valid().to_numpy(zero_copy_only=False)[snapshot.file_of_row_group]
            )
            yield name, np.where(valid, 0, snapshot.rows_per_row_group)
        elif field.nullable and not pat.is_nested(field.type):
            stored.append(name)
    yield from snapshot.column_parts(stored, "nulls")


def _drops_nulls(where: BoundExpression, name: str) -> bool:
    """Whether the filter keeps no row in which the column is null, judged on a row group of only nulls."""
    if name not in where.columns:
        return False
    never = np.zeros(1, np.bool_)
    nothing = np.zeros(1, np.int64)
    null = ColumnStatistics(
        low=nothing, high=nothing, bounded=never, nulls=np.ones(1, np.int64), unit=lambda value: None, exact=never
    )
    verdict = prune(where.predicate, Statistics(rows=np.ones(1, np.int64), columns={name: null}))
    return bool(verdict.outcome[0] == NONE)
