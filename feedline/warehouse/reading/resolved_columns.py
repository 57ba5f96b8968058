"""Resolve fields against the columns that files store, once for all files that store the same ones.

Runs in every process that reads. What was resolved last is kept, with all that decides it: the fields, the types of the
table's schema, what is delivered as unique rows, the keys of the partition, and the file's columns, types and groups
stored once per run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from feedline.warehouse.parquet.dedup_columns import Groups
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.columns import FileColumns
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.stored_groups import StoredColumns

_KEPT = 32  # as many as there are layouts of files


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Resolved:
    names: tuple[str, ...]
    compact: frozenset[str]
    keys: frozenset[str]
    schema: pa.Schema
    stored: dict[str, range]
    file_schema: pa.Schema
    groups: Groups | None
    columns: StoredColumns

    def fits(
        self, file: OpenFile, schema: pa.Schema, names: tuple[str, ...], compact: frozenset[str], keys: frozenset[str]
    ) -> bool:
        """Whether these columns are what `resolve_columns` returns. Of the file's schema only types matter."""
        own = self.names, self.compact, self.keys, self.stored, self.groups
        return (
            own == (names, compact, keys, file.stored, _groups(file))
            and self.schema.equals(schema, check_metadata=True)
            and self.file_schema.equals(file.schema)
        )


_kept: tuple[_Resolved, ...] = ()  # the last one first; replaced as a whole, as threads share it


def resolve_columns(
    file: OpenFile, schema: pa.Schema, names: tuple[str, ...], compact: frozenset[str], keys: frozenset[str]
) -> StoredColumns:
    """The stored columns of a file from which these columns and parts of a table are built. keys: of its partition."""
    global _kept
    for known in _kept:
        if known.fits(file, schema, names, compact, keys):
            return known.columns.of_file(file.dedup)
    fields = [field_of(schema, name) for name in names]
    columns = StoredColumns(FileColumns(fields, schema, file.stored, file.schema, keys), compact, file.dedup)
    resolved = _Resolved(
        names=names,
        compact=compact,
        keys=keys,
        schema=schema,
        stored=file.stored,
        file_schema=file.schema,
        groups=_groups(file),
        columns=columns,
    )
    _kept = resolved, *_kept[: _KEPT - 1]
    return columns


def _groups(file: OpenFile) -> Groups | None:
    """The columns of each group that the file stores once per run."""
    return None if file.dedup is None else {name: group.columns for name, group in file.dedup.groups.items()}
