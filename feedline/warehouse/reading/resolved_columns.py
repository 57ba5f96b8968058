"""Resolve fields against the columns that files store, once for all files that store the same ones.

Runs in every process that reads. What was resolved last is kept, with all that decides it: the fields, the types of the
table's schema, what is delivered as unique rows, the keys of the partition, and the file's columns, types and groups
stored once per run.
"""

from __future__ import annotations

import pyarrow as pa

from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.columns import FileColumns
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.stored_groups import StoredColumns

_KEPT = 32  # as many as there are layouts of files


# All that decides the columns, the table's and the file's schema apart; these; and the columns. The last ones first;
# replaced as a whole, as threads share it.
_kept: tuple[tuple[tuple[object, ...], pa.Schema, pa.Schema, StoredColumns], ...] = ()


def resolve_columns(
    file: OpenFile, schema: pa.Schema, names: tuple[str, ...], compact: frozenset[str], keys: frozenset[str]
) -> StoredColumns:
    """The stored columns of a file from which these columns and parts of a table are built. keys: of its partition."""
    global _kept
    groups = None if file.dedup is None else {name: group.columns for name, group in file.dedup.groups.items()}
    decisive = names, compact, keys, file.stored, groups
    for known, table_schema, file_schema, columns in _kept:
        # Of the file's schema only types matter.
        if known == decisive and table_schema.equals(schema, check_metadata=True) and file_schema.equals(file.schema):
            return columns.of_file(file.dedup)
    fields = [field_of(schema, name) for name in names]
    columns = StoredColumns(FileColumns(fields, schema, file.stored, file.schema, keys), compact, file.dedup)
    _kept = (decisive, schema, file.schema, columns), *_kept[: _KEPT - 1]
    return columns
