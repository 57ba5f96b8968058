"""Read columns that a file stores once per run of equal rows: as unique rows, or in every row.

Runs in every process that reads, on the calling thread. Pure, over Arrow arrays; the format is that of
`parquet/dedup_columns`. The flags of a row group are checked
as a whole before its first row is delivered. A chunk may begin in the middle of a run: its first unique row is then the
last one of the chunk before, which `RunReader` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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

    names: the fields; own: those that are stored under their name. plain: of the fields that are delivered in every
    row; their stored columns may belong to groups. compact: of the fields that are delivered as unique rows, by group.
    """

    def __init__(
        self,
        names: Sequence[str],
        compact: Collection[str],
        own: Collection[str],
        metadata: DedupMetadata | None,
        columns_of: Callable[[Sequence[str]], FileColumns],
    ) -> None:
        group_of = {} if metadata is None else _group_of(metadata)
        found: dict[str | None, list[str]] = {None: []}
        for name in names:
            stored = (name,) if not group_of or name in own else columns_of([name]).columns
            groups = {group_of.get(column) for column in stored}
            whole = len(groups) == 1 and name in compact
            found.setdefault(groups.pop() if whole else None, []).append(name)
        self.plain = columns_of(found.pop(None))
        self.compact = {str(group): columns_of(fields) for group, fields in found.items()}
        every = [self.plain, *self.compact.values()]
        read = dict.fromkeys(column for columns in every for column in columns.columns)
        self._groups = {
            name: tuple(column for column in read if group_of.get(column) == name)
            for name in dict.fromkeys(group_of[column] for column in read if column in group_of)
        }
        self._metadata = metadata
        self.leaves = list(dict.fromkeys(leaf for columns in every for leaf in columns.leaves))

    def chunk_rows(self, row_group: pq.RowGroupMetaData, most: int) -> int:
        """As `FileColumns.chunk_rows`; twice as many rows where some columns are delivered as unique rows."""
        most = 2 * most if self.compact else most
        return min(columns.chunk_rows(row_group, most) for columns in (self.plain, *self.compact.values()))

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
            return self.plain.batch(decoded, uri, row_group), ()
        groups = reader.take(decoded)
        arrays = {name: decoded.column(name) for name in self.plain.columns}
        for group in groups.values():
            names = [name for name in group.data.schema.names if name in arrays]
            if names:
                index = pa.array(group.inverse)
                arrays |= {name: group.data.column(name).take(index) for name in names}
        whole = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        compact = tuple(
            GroupBatch(columns.batch(groups[name].data, uri, row_group), groups[name].inverse)
            for name, columns in self.compact.items()
        )
        return self.plain.batch(whole, uri, row_group, rows=decoded.num_rows), compact

    def _runs(self, group: str, row_group: int) -> RowGroupRuns:
        assert self._metadata is not None
        return self._metadata.groups[group].row_groups[row_group]


def _group_of(metadata: DedupMetadata) -> dict[str, str]:
    return {column: name for name, group in metadata.groups.items() for column in group.columns}
