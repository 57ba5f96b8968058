"""Count the nulls of columns among the selected rows from footers, and the files that lack a column.

Pure, over a snapshot's facts; runs where a plan is made, and in `feedline check`. Where only some rows of a row group
are selected there is a lower and an upper bound; both are 0 if the filter drops every row with a null in the column. A
file that lacks a column counts as null in every row. Lists, structs and maps are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import has_column
from feedline.warehouse.selection.missing_columns import files_without
from feedline.warehouse.selection.pruning import NONE, ColumnStatistics, Statistics, prune
from feedline.warehouse.snapshot.snapshot import Snapshot

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
    stored, found = snapshot.rows_per_row_group, {}
    kept = np.where(rows < 0, stored, rows)
    read = int(np.count_nonzero(_files(snapshot, kept > 0)))
    for name, nulls in _nulls(snapshot, columns):
        if not ((nulls > 0) | (nulls < -1)).any() or (where is not None and _drops_nulls(where, name)):
            continue
        most = np.minimum(np.where(nulls < -1, stored - 1, np.maximum(nulls, 0)), kept)
        if not most.any():
            continue
        proven = np.where(nulls < -1, -1 - nulls, nulls)
        least = np.where(rows < 0, 0, np.maximum(proven - (stored - kept), 0))
        files = np.flatnonzero(_files(snapshot, most > 0))
        found[name] = NullCount(
            column=name,
            least=int(least.sum()),
            most=int(most.sum()),
            files=len(files),
            read=read,
            file=_path(snapshot, files),
        )
    return {name: found[name] for name in columns if name in found}


def absent_columns(snapshot: Snapshot, columns: Collection[str], rows: Int64s) -> list[AbsentColumn]:
    """Return the columns (or parts) missing from files that have selected rows. `rows`: as in `null_counts`."""
    kept = np.where(rows < 0, snapshot.rows_per_row_group, rows)
    per_file = np.bincount(snapshot.file_of_row_group, weights=kept, minlength=len(snapshot.files)).astype(np.int64)
    found = []
    for name in columns:
        if name in snapshot.partition_columns:
            continue
        lacking = files_without(snapshot, name)
        files = lacking[per_file[lacking] > 0]
        if len(files):
            found.append(
                AbsentColumn(
                    column=name,
                    files=len(files),
                    read=int(np.count_nonzero(per_file)),
                    rows=int(per_file[files].sum()),
                    file=_path(snapshot, files),
                )
            )
    return found


def _files(snapshot: Snapshot, row_groups: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """bool [files]: which files have one of these row groups."""
    found = np.zeros(len(snapshot.files), np.bool_)
    found[snapshot.file_of_row_group[row_groups]] = True
    return found


def _path(snapshot: Snapshot, files: npt.NDArray[Any]) -> str:
    return str(snapshot.files["path"][int(files[0])].as_py())


def _nulls(snapshot: Snapshot, columns: Iterable[str]) -> Iterator[tuple[str, Int64s]]:
    """Yield nulls per row group (-1: unknown, -1 - n: at least n) of each column that is nullable and not nested."""
    stored = []
    for name in columns:
        if not has_column(snapshot.schema, name):
            continue
        field = snapshot.schema.field(name)
        if name in snapshot.partition_columns:
            keys = pc.struct_field(snapshot.files["partition"], name).combine_chunks()
            valid = keys.is_valid().to_numpy(zero_copy_only=False)[snapshot.file_of_row_group]
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
