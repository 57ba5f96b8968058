"""Read columns that a file stores once per run of equal rows: as unique rows, or in every row.

Runs in every process that reads, on the calling thread. Pure, over Arrow arrays; the format is that of
`parquet/dedup_columns`. The flags of a row group are checked
as a whole before its first row is delivered. A chunk may begin in the middle of a run: its first unique row is then the
last one of the chunk before, which `RunReader` keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.errors import TableError
from feedline.warehouse.parquet.dedup_columns import DedupMetadata, RowGroupRuns, check_flags, flag_column
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.columns import FileColumns
from feedline.warehouse.storage.faults import label

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Columns of some rows that their file stores once per run of equal rows.

    frame: the unique rows. inverse: int32 [N], row i has the columns of row `inverse[i]`; it never falls, rises by at
    most 1, and uses every unique row.
    """

    frame: pl.DataFrame
    inverse: Int32s

    def part(self, start: int, stop: int) -> StoredGroup:
        """The rows [start, stop)."""
        if stop <= start:
            return StoredGroup(self.frame.clear(), self.inverse[:0])
        first, last = int(self.inverse[start]), int(self.inverse[stop - 1])
        inverse = self.inverse[start:stop]
        return StoredGroup(self.frame.slice(first, last - first + 1), inverse - np.int32(first) if first else inverse)

    def filter(self, stays: Bools) -> StoredGroup:
        """The rows where `stays` is true; unique rows that none of them uses go."""
        kept = self.inverse[stays]
        used = np.zeros(self.frame.height, np.bool_)
        used[kept] = True
        if used.all():
            return StoredGroup(self.frame, kept)
        return StoredGroup(self.frame.filter(pl.Series(used)), (np.cumsum(used, dtype=np.int32) - np.int32(1))[kept])

    def expand(self) -> pl.DataFrame:
        """The columns of all rows."""
        return self.frame[self.inverse] if self.frame.height < len(self.inverse) else self.frame


def join_groups(parts: Sequence[StoredGroup]) -> StoredGroup:
    """Rows laid end to end."""
    firsts = np.cumsum([0, *(part.frame.height for part in parts[:-1])])
    inverse = np.concatenate([part.inverse + np.int32(first) for part, first in zip(parts, firsts, strict=True)])
    return StoredGroup(pl.concat([part.frame for part in parts], rechunk=True), inverse)


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """As `StoredGroup`, in Arrow, as one decoded chunk."""

    data: pa.RecordBatch
    inverse: Int32s


class RunReader:
    """Turns the chunks of one row group, as they are stored, into rows. groups: the stored groups that are read, each
    with its flags, bool [rows of the row group]. Chunks come in order, each once."""

    def __init__(self, groups: Mapping[str, tuple[Sequence[str], Bools]], place: str) -> None:
        self._groups = groups
        self._place = place
        self._last: dict[str, pa.Array] = {}
        self._row = 0

    def take(self, decoded: pa.RecordBatch) -> dict[str, GroupBatch]:
        """The unique rows of each group in the next chunk. Raises TableError for values in rows that repeat others."""
        first, self._row = self._row, self._row + decoded.num_rows
        found = {}
        for group, (columns, flags) in self._groups.items():
            starts = flags[first : self._row]
            index = pa.array(np.flatnonzero(starts))
            arrays = [self._unique(name, decoded.column(name), index, not starts[0], group) for name in columns]
            inverse = np.cumsum(starts, dtype=np.int32)
            found[group] = GroupBatch(
                pa.RecordBatch.from_arrays(arrays, names=list(columns)), inverse - np.int32(1) if starts[0] else inverse
            )
        return found

    def _unique(self, name: str, stored: pa.Array, index: pa.Array, carried: bool, group: str) -> pa.Array:
        unique = _at_starts(stored, index)
        if stored.null_count - unique.null_count != len(stored) - len(unique):
            raise TableError(
                f"column {name!r} of {self._place} holds values in rows that repeat the row above by "
                f"{flag_column(group)!r}: expected nulls. Another tool rewrote the file. Write the table again with "
                f"feedline optimize, from its source"
            )
        if carried:
            unique = pa.concat_arrays([self._last[name], unique])
        self._last[name] = unique.take(pa.array([len(unique) - 1]))  # a copy, which does not hold the chunk
        return unique


def _at_starts(stored: pa.Array, index: pa.Array) -> pa.Array:
    """The values where runs start; those of lists without a copy, as the null lists between them hold none."""
    kind = stored.type
    if not (pat.is_list(kind) or pat.is_large_list(kind)):
        return stored.take(index)
    offsets = stored.offsets.to_numpy()
    borders = pa.array(np.append(offsets[index.to_numpy()], offsets[-1]))
    list_class = pa.LargeListArray if pat.is_large_list(kind) else pa.ListArray
    null = stored.is_null().take(index)
    return list_class.from_arrays(borders, stored.values, type=kind, mask=null if null.true_count else None)


class StoredColumns:
    """The stored columns of one file for some fields: those of rows, and of groups stored once per run.

    A field whose stored columns are all of one group is built from the group's unique rows, and then repeated unless it
    is `compact`: delivered as unique rows. Every other field is built from columns that are repeated before.
    """

    def __init__(self, fields: FileColumns, compact: Collection[str], metadata: DedupMetadata | None) -> None:
        self._fields = fields
        self._metadata = metadata
        group_of = {} if metadata is None else _group_of(metadata)
        found: dict[str | None, list[str]] = {None: []}
        for name, columns in fields.inputs().items():
            groups = {group_of.get(column) for column in columns}
            found.setdefault(groups.pop() if len(groups) == 1 else None, []).append(name)
        self._rows = fields.only(found.pop(None))
        self._unique = {str(group): fields.only(names) for group, names in found.items()}
        self._compact = {group: [name for name in found[group] if name in compact] for group in self._unique}
        self._names = [name for name in fields.inputs() if not any(name in each for each in self._compact.values())]
        self._groups = {
            name: tuple(column for column in fields.columns if group_of.get(column) == name)
            for name in dict.fromkeys(group_of[column] for column in fields.columns if column in group_of)
        }
        self.leaves = fields.leaves

    def dictionaries(self, metadata: pq.FileMetaData, row_groups: Sequence[int]) -> list[str]:
        """As `FileColumns.dictionaries`."""
        return self._fields.dictionaries(metadata, row_groups)

    def chunk_rows(self, row_group: pq.RowGroupMetaData, index: int, most: int) -> int:
        """As `FileColumns.chunk_rows`; twice as many rows where some columns are delivered as unique rows."""
        copies: dict[str, float] = {}
        built: set[str] = set()  # from unique rows, and repeated then
        for group, columns in self._groups.items():
            runs = self._runs(group, index)
            unique = self._unique.get(group)
            if unique is not None and len(self._compact[group]) < len(unique.inputs()):
                built |= set(unique.columns).difference(self._rows.columns)
            copies |= dict.fromkeys(
                (name for name in columns if name in built or name in self._rows.columns), runs.rows / max(runs.runs, 1)
            )
        most = 2 * most if any(self._compact.values()) else most
        return self._fields.chunk_rows(row_group, most, copies, built)

    def flag_leaves(self, file: OpenFile) -> list[int]:
        """The Parquet columns of the flags to read."""
        return [file.stored[flag_column(group)].start for group in self._groups]

    def reader(self, flags: pa.RecordBatch, row_group: int, uri: str) -> RunReader:
        """The reader of a row group with these flags, checked. Raises TableError if they are not those written."""
        place = label(uri, row_group)
        groups = {}
        for name, columns in self._groups.items():
            stored = flags.column(flag_column(name))
            groups[name] = columns, check_flags(stored, self._runs(name, row_group), name, place)
        return RunReader(groups, place)

    def rows(
        self, decoded: pa.RecordBatch, reader: RunReader | None, uri: str, row_group: int
    ) -> tuple[pa.RecordBatch, tuple[GroupBatch, ...]]:
        """The fields of a decoded chunk: those of every row, and those of unique rows, group by group."""
        if reader is None:
            return self._rows.batch(decoded, uri, row_group), ()
        groups = reader.take(decoded)
        arrays = {name: decoded.column(name) for name in self._rows.columns}
        found: dict[str, pa.Array] = {}
        compact: list[GroupBatch] = []
        for group, batch in groups.items():
            index = pa.array(batch.inverse)
            for name in arrays.keys() & set(batch.data.schema.names):
                arrays[name] = _repeat(batch.data.column(name), index, name, uri, row_group)
            if group in self._unique:
                unique = self._unique[group].batch(batch.data, uri, row_group)
                delivered = self._compact[group]
                found |= {
                    name: _repeat(unique.column(name), index, name, uri, row_group)
                    for name in unique.schema.names
                    if name not in delivered
                }
                if delivered:
                    compact.append(GroupBatch(unique.select(delivered), batch.inverse))
        stored = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        rows = self._rows.batch(stored, uri, row_group, rows=decoded.num_rows)
        found |= dict(zip(rows.schema.names, rows.columns, strict=True))
        schema = pa.schema([self._fields.field(name) for name in self._names])
        return pa.RecordBatch.from_arrays([found[name] for name in self._names], schema=schema), tuple(compact)

    def _runs(self, group: str, row_group: int) -> RowGroupRuns:
        assert self._metadata is not None
        return self._metadata.groups[group].row_groups[row_group]


def _repeat(unique: pa.Array, index: pa.Array, name: str, uri: str, row_group: int) -> pa.Array:
    """The rows of unique ones. Raises TableError where they hold more values than an array of lists can."""
    try:
        rows = unique.take(index)
        overflowed = _overflowed(rows)
    except pa.ArrowInvalid:  # of strings
        overflowed = True
    if overflowed:
        raise TableError(
            f"column {name!r} of {label(uri, row_group)} cannot be read as rows: its values in {len(index):,} rows "
            f"that repeat {len(unique):,} are more than 32 bits count. Deduplicate its group, or shorten its lists"
        )
    return rows


def _overflowed(taken: pa.Array) -> bool:
    """Whether offsets of an array that `take` made have overflowed, which it does not check for lists."""
    kind = taken.type
    if pat.is_struct(kind):
        return any(_overflowed(taken.field(index)) for index in range(kind.num_fields))
    if not (pat.is_list(kind) or pat.is_large_list(kind) or pat.is_map(kind)):
        return False
    return taken.offsets[len(taken)].as_py() != len(taken.values) or _overflowed(taken.values)


def _group_of(metadata: DedupMetadata) -> dict[str, str]:
    return {column: name for name, group in metadata.groups.items() for column in group.columns}
