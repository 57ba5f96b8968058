"""Resolve columns against what a file stores, once for files that store the same.

Runs in every process that reads. The files of a table mostly have one schema, and each piece of a block opens its own:
resolving 50 columns takes 3,000 calls, comparing two schemas one. What was resolved last is kept, with no file's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from feedline.warehouse.parquet.dedup_columns import DedupMetadata
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.columns import FileColumns
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.stored_groups import StoredColumns

_MOST = 8  # sets of columns, or kinds of files, that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What decides how columns are resolved. partition: the keys; groups: the columns of each stored group."""

    schema: pa.Schema
    file_schema: pa.Schema
    stored: Mapping[str, range]
    names: tuple[str, ...]
    compact: frozenset[str]
    partition: tuple[str, ...]
    groups: Mapping[str, Sequence[str]]


_kept: tuple[tuple[_Need, StoredColumns], ...] = ()  # the last ones first; replaced as a whole


def resolve_columns(
    file: OpenFile,
    partition: Mapping[str, object],
    schema: pa.Schema,
    names: Sequence[str],
    compact: Collection[str] = (),
) -> StoredColumns:
    """The columns and parts `names` of a table, in a file with these partition keys. Raises as `field_of`."""
    global _kept
    need = _Need(
        schema=schema,
        file_schema=file.schema,
        stored=file.stored,
        names=tuple(names),
        compact=frozenset(compact),
        partition=tuple(partition),
        groups=_groups(file.dedup),
    )
    for other, columns in _kept:
        if other == need:
            return columns.of_file(partition, file.dedup)
    fields = [field_of(schema, name) for name in names]
    columns = StoredColumns(FileColumns(fields, schema, file.stored, file.schema, partition), need.compact, file.dedup)
    _kept = ((need, columns), *_kept[: _MOST - 1])
    return columns


def _groups(metadata: DedupMetadata | None) -> dict[str, Sequence[str]]:
    return {} if metadata is None else {name: group.columns for name, group in metadata.groups.items()}
